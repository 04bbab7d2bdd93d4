"""The README shows the table as it is and names every metric."""

from pathlib import Path

from prometheus_client import REGISTRY

from mig_manager import diagram, metrics

README = Path(diagram.__file__).with_name("README.md").read_text("utf-8")


def test_the_diagram_is_the_table() -> None:
    assert diagram.mermaid() in README, "run python -m mig_manager.diagram and paste"
    assert diagram.table() in README, "run python -m mig_manager.diagram and paste"


def test_every_metric_is_named() -> None:
    assert metrics.plans
    ours = {m.name for m in REGISTRY.collect() if m.name.startswith(("fallow_planner_", "fallow_agent_recut"))}
    assert ours
    assert not {name for name in ours if name not in README}
