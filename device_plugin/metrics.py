"""What the device plugin counts."""

from prometheus_client import Counter, Gauge, Histogram

allocations = Counter(
    "fallow_device_plugin_allocations_total", "Answers to the kubelet's Allocate", ["resource", "outcome"]
)
preferred = Counter(
    "fallow_device_plugin_preferences_total", "Answers to GetPreferredAllocation, by what steered them", ["steered_by"]
)
registrations = Counter(
    "fallow_device_plugin_registrations_total", "Registrations with the kubelet", ["resource", "outcome"]
)
allocate_seconds = Histogram(
    "fallow_device_plugin_allocate_seconds",
    "Time to answer Allocate",
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0),
)
claims = Counter("fallow_device_plugin_claims_total", "Claims written on pods", ["outcome"])
devices = Gauge("fallow_device_plugin_devices", "Devices advertised", ["resource", "health"])
unhealthy = Gauge("fallow_device_plugin_unhealthy_gpus", "GPUs that are not trusted at present")
missing_nodes = Gauge(
    "fallow_device_plugin_missing_device_nodes", "Device nodes that containers should get and that are not there"
)
mps_daemons = Gauge("fallow_device_plugin_mps_daemons", "MPS control daemons that should run, by state", ["state"])
mps_starts = Counter("fallow_device_plugin_mps_starts_total", "Starts of MPS control daemons")
memory_offenders = Gauge(
    "fallow_device_plugin_memory_offenders", "Pods that use more GPU memory than their units promise"
)
memory_excess = Gauge("fallow_device_plugin_memory_excess_bytes", "GPU memory used beyond what units promise")
memory_actions = Counter("fallow_device_plugin_memory_actions_total", "Pods reported or evicted for it", ["action"])
config_valid = Gauge("fallow_device_plugin_config_valid", "1 while the newest configuration is in force")
config_loads = Counter("fallow_device_plugin_config_loads_total", "Configurations read that were new", ["outcome"])
