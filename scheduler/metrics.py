"""What the extender counts. Labels come from closed sets."""

from prometheus_client import Counter, Gauge, Histogram

decisions = Counter(
    "fallow_scheduler_decisions_total",
    "Answers to kube-scheduler by verb (filter, prioritize, bind) and outcome "
    "(fits, none, bound, refused, failed, malformed, not_ready)",
    ["verb", "outcome"],
)
refusals = Counter(
    "fallow_scheduler_refusals_total", "Nodes refused in answers that found no node, by reason", ["reason"]
)
seconds = Histogram(
    "fallow_scheduler_seconds",
    "Time to answer a call of kube-scheduler, by verb",
    ["verb"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0),
)
promises = Gauge("fallow_scheduler_promises", "Promises made and not yet shown by the watch")
