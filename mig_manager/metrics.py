"""What the planner and the node loops count."""

from prometheus_client import Counter, Gauge, Histogram

plans = Counter("fallow_planner_plans_total", "Plans by what became of them", ["outcome"])
changes = Counter("fallow_planner_changes_total", "GPUs that were ordered to be re-cut")
gain = Gauge("fallow_planner_gain_pods", "Waiting pods that the newest plan gives a place")
gap = Gauge("fallow_planner_gap_pods", "What the newest plan may fall short of the best one")
cost = Gauge("fallow_planner_cost", "Cost of the newest plan, in points that only compare plans")
waiting = Gauge("fallow_planner_demand_pods", "Pods that wait for a GPU to be re-cut")
demand = Gauge("fallow_planner_demand", "What they wait for: units for shared, else pieces", ["kind"])
under_way = Gauge("fallow_planner_recuts_under_way", "GPUs being re-cut now")
solve_seconds = Histogram(
    "fallow_planner_solve_seconds",
    "Time to find a plan",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
leading = Gauge("fallow_planner_leading", "1 while this replica is the active one")

recuts = Counter("fallow_agent_recuts_total", "Re-cuts of this node's GPUs that ended, by how", ["outcome"])
phase = Gauge("fallow_agent_recut_phase", "1 for the phase a GPU's re-cut is in", ["gpu", "phase"])
faults = Counter("fallow_agent_recut_faults_total", "Acts that the hardware refused", ["act"])
