"""The real agent on the NVML double, with the API double and a kubelet that pretends: restarts, faults, bad input."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import names
from cluster.client import GPUNODES, NODES, PODS, Client
from cluster.facts import write_shares
from cluster.fake import FakeApi
from device_plugin.fake import FakeKubelet
from gpu.node import Share
from nvml_double.control import Machine
from tests.builders import pod
from tests.machine import library
from tests.processes.running import Program

NODE = "n1"
MODELS = ("h100-80gb", "h100-80gb")


class Host:
    """One node: GPUs, a kubelet and an agent, with the API server they talk to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.api = FakeApi().start()
        self._kubeconfig = self.api.kubeconfig(directory / "kubeconfig")
        self.client = Client.connect(self._kubeconfig)
        self.machine = Machine.create(directory / "gpus", MODELS)
        self.kubelet = FakeKubelet(NODE, directory / "kubelet", directory / "cdi", self.client, seed=3).start()
        self.agent: Program | None = None

    def start(self, *more: str) -> Program:
        flags = ["--kubeconfig", self._kubeconfig, "--node-name", NODE, "--metrics-address", "127.0.0.1:0"]
        flags += ["--kubelet-dir", str(self._directory / "kubelet"), "--cdi-dir", str(self._directory / "cdi")]
        os.environ.update(self.machine.environment(library()))
        self.agent = Program("fallow", "agent", *flags, "--sample-seconds", "0.2", *more)
        return self.agent

    def close(self) -> None:
        if self.agent is not None:
            self.agent.end(signal.SIGKILL)
        self.kubelet.stop()
        self.api.stop()

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.machine.uuids()

    def offered(self) -> dict[str, int]:
        allocatable = self.client.get(NODES, NODE).get("status", {}).get("allocatable") or {}
        return {k: int(v) for k, v in allocatable.items() if names.is_ours(k) and int(v)}

    def allocatable(self, resource: str) -> int:
        return int((self.client.get(NODES, NODE).get("status", {}).get("allocatable") or {}).get(resource, 0))

    def config(self, key: str) -> str:
        """Of the condition that says what became of the configuration."""
        conditions = self.client.get(GPUNODES, NODE).get("status", {}).get("conditions") or ()
        return next((str(c[key]) for c in conditions if c["type"] == "ConfigApplied"), "")

    def bind(self, name: str, asks: dict[str, str], *shares: Share) -> None:
        """As the scheduler does: node and promise in one Binding."""
        made = self.client.create(PODS, pod(name, asks=asks), "default")
        promise = {names.PROMISE: write_shares(shares, time.time())}
        self.client.bind("default", name, made["metadata"]["uid"], NODE, promise)

    def claimed(self, name: str) -> str:
        def claim() -> str:
            return str(self.client.get(PODS, name, "default")["metadata"].get("annotations", {}).get(names.CLAIM, ""))

        self.until(lambda: bool(claim()), f"pod {name} has a claim")
        return claim()

    def order(self, gpu: str, mode: str, *slices: str, generation: int = 1) -> None:
        wanted = {"generation": generation, "mode": mode, "slices": list(slices), "reason": "by a test"}
        self.client.patch(GPUNODES, NODE, {"spec": {"gpus": {gpu: wanted}}})

    def phase(self, gpu: str) -> str:
        recuts = self.client.get(GPUNODES, NODE).get("status", {}).get("recuts") or {}
        return str((recuts.get(gpu) or {}).get("phase", ""))

    def until(self, check: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            said = "\n".join(self.agent.lines[-15:]) if self.agent else ""
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{said}"
            time.sleep(0.05)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    for name in ("LD_LIBRARY_PATH", "FALLOW_NVML_STATE"):
        monkeypatch.setenv(name, "")
    # Sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="fallow-") as directory:
        made = Host(Path(directory))
        yield made
        made.close()


def test_a_kubelet_restart_and_a_killed_agent_lose_nothing(host: Host) -> None:
    host.start()
    host.until(lambda: host.offered() == {names.WHOLE: 2}, "both GPUs are offered")
    host.bind("p", {names.WHOLE: "1"}, Share(host.gpus[1]))
    assert host.gpus[1] in host.claimed("p")
    host.kubelet.restart()
    host.until(lambda: host.offered() == {names.WHOLE: 2}, "the offer is back after the kubelet's restart")
    assert host.agent is not None
    host.agent.end(signal.SIGKILL)
    host.until(lambda: not host.offered(), "the kubelet sees that nobody serves")
    host.start()
    host.until(lambda: host.offered() == {names.WHOLE: 2}, "the new agent offers the same")
    assert host.gpus[1] in host.claimed("p")
    host.bind("q", {names.WHOLE: "1"}, Share(host.gpus[0]))
    assert host.gpus[0] in host.claimed("q")


def test_a_gpu_that_is_lost_stops_no_other_and_is_told_of(host: Host) -> None:
    host.start()
    host.until(lambda: host.offered() == {names.WHOLE: 2}, "both GPUs are offered")
    host.machine.lose(0)
    host.until(lambda: host.offered() == {names.WHOLE: 1}, "one GPU is left")
    host.bind("p", {names.WHOLE: "1"}, Share(host.gpus[1]))
    assert host.gpus[1] in host.claimed("p")
    gpu = host.client.get(GPUNODES, NODE)["status"]["gpus"][host.gpus[0]]
    assert gpu["healthy"] is False
    assert "fallen off the bus" in gpu["problem"]


def test_an_xid_makes_its_gpu_unhealthy_and_an_applications_fault_does_not(host: Host) -> None:
    host.start()
    host.until(lambda: host.offered() == {names.WHOLE: 2}, "both GPUs are offered")
    host.machine.xid(0, 31)
    host.machine.xid(1, 79)
    host.until(lambda: host.offered() == {names.WHOLE: 1}, "the GPU with the fault is withdrawn")
    gpus = host.client.get(GPUNODES, NODE)["status"]["gpus"]
    assert [gpus[u]["healthy"] for u in host.gpus] == [True, False]


def test_a_hardware_that_refuses_is_tried_again_and_then_given_up(host: Host) -> None:
    host.start()
    host.until(lambda: host.offered() == {names.WHOLE: 2}, "both GPUs are offered")
    host.machine.fault("nvmlDeviceCreateGpuInstanceWithPlacement", fail=999, times=1)
    host.order(host.gpus[0], "sliced", "1g.10gb@0")
    host.until(lambda: host.offered().get("nvidia.com/mig-1g.10gb") == 1, "one refusal is got over")
    host.machine.fault("nvmlDeviceCreateGpuInstanceWithPlacement", fail=999, times=50)
    host.order(host.gpus[1], "sliced", "1g.10gb@0")
    host.until(lambda: host.phase(host.gpus[1]) == "Done", "the old layout is back", seconds=60)
    host.until(lambda: host.offered().get(names.WHOLE) == 1, "the GPU is offered whole again")
    assert host.client.get(GPUNODES, NODE)["status"]["gpus"][host.gpus[1]]["mode"] == "whole"


def test_slices_that_somebody_else_made_are_adopted(host: Host) -> None:
    from gpu.layout import parse_slice
    from gpu.nvml import NvmlHardware

    os.environ["FALLOW_NVML_STATE"] = str(host.machine.path)
    import ctypes

    ctypes.CDLL(str(library()))
    hardware = NvmlHardware()
    hardware.set_mig(host.gpus[0], True)
    made = hardware.cut(host.gpus[0], parse_slice("2g.20gb@4", hardware.read(host.gpus[0]).model))
    hardware.close()
    host.start()
    host.until(lambda: host.offered() == {names.WHOLE: 1, "nvidia.com/mig-2g.20gb": 1}, "the slice is offered")
    assert host.machine.slices(0) == {"2g.20gb@4": made.uuid}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--hardware", "fake"], "--fake-state"),
        (["--node-name", ""], "--node-name is missing"),
        (["--kubeconfig", "/nonexistent"], "cannot connect to Kubernetes"),
    ],
)
def test_a_start_that_cannot_be_says_what_is_missing(host: Host, flags: list[str], says: str) -> None:
    program = host.start(*flags)
    program.said(says)
    assert program.wait() in (1, 2)


SHARING = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: %d, devices: [%d], rename: gpu.part}]}}\n"


def test_a_changed_configuration_sells_a_free_gpu_anew_and_leaves_one_that_is_held(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(SHARING % (4, 0))
    host.start("--config-file", str(file))
    part = "nvidia.com/gpu.part"
    host.until(lambda: host.allocatable(part) == 4 and host.allocatable(names.WHOLE) == 1, "GPU 0 is sold in four")
    host.bind("p", {part: "2"}, Share(host.gpus[0], units=2))
    host.claimed("p")
    file.write_text(SHARING % (8, 0))
    host.until(lambda: host.config("status") == "True", "the new text is taken")
    time.sleep(6)  # a look and more
    assert host.allocatable(part) == 4, "a pod holds two of them"
    host.client.delete(PODS, "p", "default")
    host.until(lambda: host.allocatable(part) == 8, "free again, it is sold in eight")
    file.write_text("sharin: {}\n")
    host.until(lambda: "did you mean `sharing`" in host.config("message"), "the fault is told")
    assert host.config("status") == "False"
    assert host.allocatable(part) == 8
