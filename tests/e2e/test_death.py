"""Whatever dies, nothing that is in use is touched, nothing is lost, and nothing is promised twice."""

import signal
import time

import pytest

from tests.e2e.deployed import Deployed
from tests.e2e.test_story import SHARED, SLICE, WHOLE, shares

BIG = "nvidia.com/mig-2g.20gb"


def occupy(fallow: Deployed) -> tuple[int, str]:
    """A pod on a slice of the first node, and all else full: the next slice must come from the same GPU.

    The index of the GPU and the slice the pod holds.
    """
    fallow.whole_again()
    node = fallow.cluster.nodes[0].name
    fallow.pod("in-use", {SLICE: 1}, node=node)
    share = shares(fallow.claimed_running("in-use"))[0]
    for number in range(3):
        fallow.pod(f"filler-{number}", {WHOLE: 1})
    for number in range(3):
        fallow.running(f"filler-{number}")
    return fallow.machines[0].uuids.index(share["gpu"]), share["slice"]


CUT = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance")
JOIN = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [*CUT, *JOIN])
def test_the_agent_is_killed_in_the_middle_of_a_recut(fallow: Deployed, call: str, when: str) -> None:
    index, piece = occupy(fallow)
    machine, node = fallow.machines[0], fallow.cluster.nodes[0].name
    used = machine.slice_uuid(index, piece)
    if call in JOIN:
        # Something idle that has to go: beside a slice in use at 6, a 3g and a 4g both fit at 0 alone.
        fallow.pod("goes", {"nvidia.com/mig-3g.40gb": 1}, node=node)
        fallow.running("goes")
        fallow.gone("goes")
    machine.kill_agent_at(call, when)
    wanted = {BIG: 1} if call in CUT else {"nvidia.com/mig-4g.40gb": 1}
    fallow.pod("waits", wanted, node=node)
    fallow.until(lambda: not fallow.up(f"fallow-agent-{node}"), 30, lambda: f"the agent dies\n{fallow.logs()}")
    assert machine.slice_uuid(index, piece) == used
    fallow.start_agent(0)
    fallow.running("waits")
    assert machine.slice_uuid(index, piece) == used, "a slice in use has been made anew"
    assert fallow.get("in-use")["status"]["phase"] == "Running"
    assert fallow.restarts("in-use") == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_agent_is_killed_while_mig_mode_is_switched(fallow: Deployed, when: str) -> None:
    fallow.whole_again()
    machine, node = fallow.machines[0], fallow.cluster.nodes[0].name
    machine.kill_agent_at("nvmlDeviceSetMigMode", when)
    fallow.pod("waits", {SLICE: 1}, node=node)
    fallow.until(lambda: not fallow.up(f"fallow-agent-{node}"), 30, lambda: f"the agent dies\n{fallow.logs()}")
    fallow.start_agent(0)
    fallow.claimed_running("waits")


@pytest.mark.parametrize("phase", ["Hold", "Drain", "Apply", "Verify", "Advertise"])
def test_the_agent_is_killed_as_soon_as_a_phase_is_recorded(fallow: Deployed, phase: str) -> None:
    index, piece = occupy(fallow)
    machine, node = fallow.machines[0], fallow.cluster.nodes[0].name
    used = machine.slice_uuid(index, piece)
    fallow.kill_when_phase_is(phase, node, machine.uuids[index])
    fallow.pod("waits", {BIG: 1}, node=node)
    fallow.killed(node)
    assert machine.slice_uuid(index, piece) == used
    fallow.start_agent(0)
    fallow.running("waits")
    assert machine.slice_uuid(index, piece) == used
    assert fallow.restarts("in-use") == 0


def test_kubelet_and_agent_restart_while_pods_run(fallow: Deployed) -> None:
    asks = {"slice": {SLICE: 1}, "share": {SHARED: 5}, "whole": {WHOLE: 1}}
    for name, want in asks.items():
        fallow.pod(name, want)
    before = {n: shares(fallow.claimed_running(n)) for n in asks}
    offered = {n.name: fallow.allocatable(n.name) for n in fallow.cluster.nodes}
    for number, node in enumerate(fallow.cluster.nodes):
        node.restart_kubelet()
        fallow.kill(f"fallow-agent-{node.name}", signal.SIGKILL)
        fallow.start_agent(number)
    for node in fallow.cluster.nodes:
        fallow.until(
            lambda n=node: fallow.allocatable(n.name) == offered[n.name],
            30,
            lambda n=node: str(fallow.allocatable(n.name)),
        )
    for name in asks:
        assert fallow.get(name)["status"]["phase"] == "Running"
        assert fallow.restarts(name) == 0
        assert shares(fallow.get(name)) == before[name]
    fallow.pod("new", {SHARED: 5})
    fallow.running("new")


def test_the_extender_is_killed_in_a_burst_and_no_device_is_promised_twice(fallow: Deployed) -> None:
    names = [f"burst-{n}" for n in range(14)]
    for name in names[:7]:
        fallow.pod(name, {SLICE: 1})
    fallow.until(lambda: any(fallow.get(n)["spec"].get("nodeName") for n in names[:7]), 30, lambda: fallow.logs())
    fallow.kill("fallow-scheduler-1", signal.SIGKILL)
    for name in names[7:]:
        fallow.pod(name, {SLICE: 1})
    time.sleep(2)
    fallow.start_extender()
    held = [tuple(sorted(shares(fallow.claimed_running(n))[0].items())) for n in names]
    assert len(set(held)) == len(names), "a slice was given to two pods"


def test_a_killed_planner_is_followed_by_the_other_replica(fallow: Deployed) -> None:
    fallow.whole_again()
    fallow.start_planner(2)
    fallow.kill("fallow-planner-1", signal.SIGKILL)
    fallow.pod("waits", {SLICE: 1})
    pod = fallow.claimed_running("waits", seconds=60)
    order = fallow.gpunode(pod["spec"]["nodeName"])["spec"]["gpus"][shares(pod)[0]["gpu"]]
    assert order["fence"] >= 2, "the follower's orders carry a later term"
    fallow.kill("fallow-planner-2")


def test_a_killed_scheduler_is_followed_by_the_other_pair(fallow: Deployed) -> None:
    fallow.whole_again()
    fallow.start_pair(2)
    fallow.pod("first", {SLICE: 1})
    first = shares(fallow.claimed_running("first"))
    for name in ("kube-scheduler-fallow-1", "fallow-scheduler-1"):
        fallow.kill(name, signal.SIGKILL)
    for number in range(3):
        fallow.pod(f"next-{number}", {SLICE: 1})
    following = [shares(fallow.claimed_running(f"next-{number}", seconds=60)) for number in range(3)]
    held = [tuple(sorted(s.items())) for s in (first[0], *(f[0] for f in following))]
    assert len(set(held)) == 4, "the second pair has promised what the first had given away"
    # Back to one pair: the first leads again once the second has gone.
    fallow.start_pair(1)
    for name in ("kube-scheduler-fallow-2", "fallow-scheduler-2"):
        fallow.kill(name)
