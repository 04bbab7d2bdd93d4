"""What the policies room counts."""

from prometheus_client import Counter, Gauge

loads = Counter("fallow_policies_loads_total", "Policy texts read, by what became of them", ["outcome"])
valid = Gauge("fallow_policies_valid", "1 while the newest policy text is in force, 0 while an older one had to stay")
valid.set(1)
