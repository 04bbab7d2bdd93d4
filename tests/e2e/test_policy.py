"""The policy takes effect while everything runs; a broken edit changes nothing; measured idle capacity counts."""

from cluster import names
from tests.e2e.deployed import POLICY, Deployed
from tests.e2e.test_story import SHARED, WHOLE, shares


def test_with_most_idle_the_pod_goes_to_the_gpu_measured_least_busy(fallow: Deployed) -> None:
    fallow.whole_again()
    fallow.set_policy(POLICY.replace("least_stranded", "most_idle"))
    first, second = fallow.machines
    for machine, index, busy in ((first, 0, 0.83), (first, 1, 0.4), (second, 0, 0.6), (second, 1, 0.1)):
        machine.busy(index, busy)
    wanted = {first.uuids[0]: 0.83, first.uuids[1]: 0.4, second.uuids[0]: 0.6, second.uuids[1]: 0.1}
    fallow.until(lambda: {u: fallow.measured(u) for u in wanted} == wanted, 15, lambda: "the readings are published")
    fallow.pod("one", {WHOLE: 1})
    fallow.pod_after("one", "two", {WHOLE: 1})
    assert [shares(fallow.get(n), names.PROMISE)[0]["gpu"] for n in ("one", "two")] == [second.uuids[1], first.uuids[1]]


def test_readings_that_have_grown_old_count_as_busy(fallow: Deployed) -> None:
    fallow.whole_again()
    fallow.set_policy(POLICY.replace("least_stranded", "most_idle"))
    first, second = fallow.machines
    for machine, busy in ((first, 0.7), (second, 0.1)):
        machine.busy(0, busy)
        machine.busy(1, busy)
    wanted = {**dict.fromkeys(first.uuids, 0.7), **dict.fromkeys(second.uuids, 0.1)}
    fallow.until(lambda: {u: fallow.measured(u) for u in wanted} == wanted, 15, lambda: "the readings are published")
    # The idle node's agent falls silent: its devices stay with the kubelet, its readings grow old.
    fallow.freeze(f"fallow-agent-{fallow.cluster.nodes[1].name}")
    try:
        fallow.until(lambda: fallow.age(second.uuids[1]) > 6.5, 15, lambda: "the readings grow old")
        fallow.pod("late", {WHOLE: 1})
        fallow.until(lambda: bool(fallow.get("late")["spec"].get("nodeName")), 15, lambda: fallow.explain("late"))
        assert shares(fallow.get("late"), names.PROMISE)[0]["gpu"] in first.uuids
    finally:
        fallow.thaw(f"fallow-agent-{fallow.cluster.nodes[1].name}")


def test_a_broken_edit_changes_nothing_and_an_event_names_the_line(fallow: Deployed) -> None:
    fallow.set_policy(POLICY.replace("unitsPerGpu: 20", "unitsPerGpu: many"))

    def told() -> bool:
        return any(
            "line 4, sharing.unitsPerGpu" in e["message"] for e in fallow.events(names.POLICY_INVALID, names.NAMESPACE)
        )

    fallow.until(told, 15, lambda: str(fallow.events(names.POLICY_INVALID, names.NAMESPACE)))
    fallow.pod("share", {SHARED: 2})
    fallow.claimed_running("share")
    assert fallow.sees("share")[0]["FALLOW_UNITS"] == "2/20"


def test_the_number_of_units_changes_without_a_restart_once_nobody_holds_any(fallow: Deployed) -> None:
    fallow.pod("share", {SHARED: 2})
    node = fallow.claimed_running("share")["spec"]["nodeName"]
    fallow.set_policy(POLICY.replace("unitsPerGpu: 20", "unitsPerGpu: 10"))
    others = fallow.allocatable(node)[SHARED] % 20
    assert others in (0, 10), "a unit never changes its size under the pod that holds it"
    fallow.gone("share")
    fallow.until(lambda: fallow.allocatable(node).get(SHARED, 0) % 20 == 10, 30, lambda: str(fallow.allocatable(node)))
    fallow.pod("next", {SHARED: 2})
    fallow.claimed_running("next")
    assert fallow.sees("next")[0]["FALLOW_UNITS"] == "2/10"
