"""What this room counts, once for all programs."""

from prometheus_client import Counter, Gauge, Histogram

requests = Counter(
    "fallow_cluster_requests_total",
    "Requests to the API server, by verb, resource and HTTP status (0: no answer)",
    ["verb", "resource", "status"],
)
request_seconds = Histogram(
    "fallow_cluster_request_seconds",
    "Time until the API server's answer was read (for a watch: until it began)",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
lists = Counter("fallow_cluster_lists_total", "Full lists made by watches", ["resource"])
watch_failures = Counter("fallow_cluster_watch_failures_total", "Lists and watches that broke off", ["resource"])
heard = Gauge(
    "fallow_cluster_watch_heard_timestamp_seconds",
    "When a watch last heard from the API server, in seconds since the epoch",
    ["resource"],
)
lease_held = Gauge("fallow_cluster_lease_held", "1 while this replica holds the lease", ["lease"])
events = Counter(
    "fallow_cluster_events_total",
    "Kubernetes events, by what became of them (written, dropped as too many, failed)",
    ["result"],
)
loop_failures = Counter("fallow_cluster_loop_failures_total", "Unexpected errors that a loop lived on after", ["loop"])
unreadable = Gauge(
    "fallow_cluster_unreadable_facts", "Requests, promises, claims and GpuNode fields that cannot be read"
)
