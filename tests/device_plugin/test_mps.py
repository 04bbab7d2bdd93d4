"""MPS: limits that are never missing and never add up to more than the GPU, and daemons that are kept up."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.clock import ManualClock
from device_plugin import mps
from device_plugin.allocate import Denial, Terms, grant
from device_plugin.daemons import RECORD, Daemons
from device_plugin.delivery import Grant
from device_plugin.devices import NodeGpu
from device_plugin.mps import Daemon
from device_plugin.sale import GpuPlan, Sold, Strategy, Wish
from device_plugin.state import NodeState
from gpu.hardware import FaultKind, GpuFault, SeenGpu
from gpu.node import Mode
from nvml_double.library import HERE
from tests.builders import model

CONTROL = str(HERE / "nvidia-cuda-mps-control")
SEEN = SeenGpu("GPU-0", 0, 0, "", "", model())
WHOLE = model().memory_mib


def shared(strategy: Strategy = Strategy.MPS, units: int = 4) -> NodeGpu:
    plan = GpuPlan("GPU-0", Sold("nvidia.com/gpu", units, strategy))
    return NodeGpu(SEEN, Mode.SHARED, units=units, plan=plan)


def test_only_gpus_sold_by_mps_need_a_daemon() -> None:
    other = NodeGpu(SeenGpu("GPU-1", 1, 1, "", "", model()))
    assert mps.wanted((shared(), other), frozenset()) == {"GPU-0": Daemon("GPU-0", 4, WHOLE, capped=False)}
    assert mps.wanted((shared(),), frozenset({"nvidia.com/gpu"}))["GPU-0"].capped
    assert mps.wanted((shared(Strategy.TIME_SLICING), other), frozenset()) == {}


def test_a_daemon_whose_clients_have_one_unit_each_imposes_the_limits_itself() -> None:
    assert mps.orders(Daemon("GPU-0", 4, 80_000, capped=True)) == (
        "set_default_device_pinned_mem_limit 0 20000M",
        "set_default_active_thread_percentage 25",
    )
    assert mps.orders(Daemon("GPU-0", 4, 80_000, capped=False))[0].endswith(" 80000M")


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 200_000))
def test_limits_are_positive_and_those_of_all_units_fit_into_the_gpu(parts: list[int], whole: int) -> None:
    replicas, where, limits = sum(parts), mps.places("/r", "GPU-0"), []
    for units in parts:
        match mps.client(where, units, replicas, whole):
            case Grant(env=env):
                limits.append(int(env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].removeprefix("0=").removesuffix("M")))
                assert 1 <= int(env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) <= 100
            case Denial():
                assert units * whole < replicas
    assert all(limit > 0 for limit in limits)
    assert sum(limits) <= whole


class Rig:
    """Daemons on directories of their own, with the stand-in of the control program."""

    def __init__(self, root: Path, control: str = CONTROL) -> None:
        self.clock, self.root, self.exclusive = ManualClock(), root, dict[str, bool]()
        self.fault: GpuFault | None = None
        self.control = control
        self.agents: list[Daemons] = []
        self.daemons = self.fresh()

    def fresh(self) -> Daemons:
        self.agents.append(Daemons(lambda: str(self.root), self.control, self._set_exclusive, self.clock, lambda: None))
        return self.agents[-1]

    def _set_exclusive(self, gpu: str, on: bool) -> None:
        if self.fault is not None:
            raise self.fault
        self.exclusive[gpu] = on

    def until(self, done: Callable[[], bool], wanted: dict[str, Daemon]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline, self.daemons.lack(shared())
            time.sleep(0.05)
            self.clock.advance(1)
            self.daemons.follow(wanted)

    def up(self, wanted: dict[str, Daemon]) -> None:
        self.daemons.follow(wanted)
        self.until(lambda: not self.daemons.lack(shared()), wanted)

    def pid(self) -> int:
        return int(json.loads((self.root / "GPU-0" / RECORD).read_text())["pid"])

    def ask(self, command: str) -> str:
        env = {**os.environ, **mps.environment(Daemon("GPU-0", 1, 1, capped=True), mps.places(str(self.root), "GPU-0"))}
        done = subprocess.run([CONTROL], input=command, env=env, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.strip()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "mps")
    yield rig
    rig.control = CONTROL
    rig.fault = None
    for agent in (rig.fresh(), *rig.agents):  # each also reaps its own children
        agent.follow({})


CAPPED = {"GPU-0": Daemon("GPU-0", 4, WHOLE, capped=True)}
OPEN = {"GPU-0": Daemon("GPU-0", 4, WHOLE, capped=False)}


def test_a_daemon_is_started_told_its_limits_and_then_the_gpu_may_be_given_out(rig: Rig) -> None:
    state = NodeState(rig.daemons.lack)
    assert rig.daemons.lack(shared()) and not rig.daemons.lack(shared(Strategy.TIME_SLICING))
    assert isinstance(rig.daemons.client("GPU-0", 1, 4, WHOLE), Denial)
    rig.up(CAPPED)
    assert rig.exclusive == {"GPU-0": True}
    assert rig.ask("get_default_active_thread_percentage") == "25.0"
    assert rig.ask("get_default_device_pinned_mem_limit 0") == f"{WHOLE // 4}M"
    answer = grant(["GPU-0::0"], (shared(),), Terms(mps=rig.daemons.client))
    assert isinstance(answer, Grant)
    assert answer.env["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/pipe"
    assert [m.host for m in answer.mounts if m.container == "/mps/pipe"] == [str(rig.root / "GPU-0" / "pipe")]
    assert state.gpus() == ()


def test_a_gpu_is_unhealthy_while_its_daemon_is_down_and_the_daemon_comes_back(rig: Rig) -> None:
    rig.up(CAPPED)
    first = rig.pid()
    os.kill(first, 9)
    rig.until(lambda: "ended" in rig.daemons.lack(shared()) or "starting" in rig.daemons.lack(shared()), CAPPED)
    rig.up(CAPPED)
    assert rig.pid() != first


def test_an_agent_that_is_started_anew_adopts_the_daemon_for_its_clients_would_die_with_it(rig: Rig) -> None:
    rig.up(CAPPED)
    first = rig.pid()
    rig.daemons = rig.fresh()
    rig.daemons.follow(CAPPED)
    assert not rig.daemons.lack(shared())
    assert rig.pid() == first


def test_a_daemon_that_should_be_another_is_replaced_and_one_that_nobody_wants_ends(rig: Rig) -> None:
    rig.up(CAPPED)
    first = rig.pid()
    rig.daemons = rig.fresh()
    rig.up(OPEN)
    assert rig.pid() != first
    assert rig.ask("get_default_active_thread_percentage") == "100.0"
    rig.daemons.follow({})
    assert rig.exclusive == {"GPU-0": False}
    assert rig.ask(mps.PROBE) == "Cannot find MPS control daemon process"
    assert not (rig.root / "GPU-0" / RECORD).exists()


def test_a_record_of_a_process_that_is_not_the_daemon_is_not_believed(rig: Rig) -> None:
    (rig.root / "GPU-0").mkdir(parents=True)
    me = {"pid": os.getpid(), "replicas": 4, "capped": True, "born": "1"}
    (rig.root / "GPU-0" / RECORD).write_text(json.dumps(me))
    rig.up(CAPPED)
    assert rig.pid() != os.getpid()


@pytest.mark.parametrize("control", ["/nowhere/nvidia-cuda-mps-control", "/bin/false"])
def test_a_control_program_that_does_not_work_leaves_the_gpu_unhealthy_with_the_reason(rig: Rig, control: str) -> None:
    rig.control = control
    rig.daemons = rig.fresh()
    for _ in range(5):
        rig.daemons.follow(CAPPED)
        rig.clock.advance(2)
        time.sleep(0.05)
    assert rig.daemons.lack(shared())


def test_a_gpu_that_cannot_be_made_exclusive_gets_no_daemon_unless_it_simply_knows_no_such_mode(rig: Rig) -> None:
    rig.fault = GpuFault(FaultKind.NO_PERMISSION, "nvmlDeviceSetComputeMode", "GPU-0")
    rig.daemons.follow(CAPPED)
    assert "privilege" in rig.daemons.lack(shared())
    rig.fault = GpuFault(FaultKind.NOT_SUPPORTED, "nvmlDeviceSetComputeMode", "GPU-0")
    rig.clock.advance(60)
    rig.up(CAPPED)


def test_what_a_gpu_lacks_is_in_the_kubelets_list_as_unhealthy() -> None:
    lacks = {"GPU-0": "its daemon is down"}
    state = NodeState(lambda g: lacks.get(g.uuid, ""))
    state.take((SEEN,), {}, Wish(4), 0.0, state.edits())
    assert [d.healthy for ds in state.lists()[1].values() for d in ds] == [False]
    lacks.clear()
    state.renew()
    assert [d.healthy for ds in state.lists()[1].values() for d in ds] == [True]
