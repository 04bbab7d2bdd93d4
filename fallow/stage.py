"""The stage of the demonstration on one machine with nothing but Python: an API server in memory, two kubelets that
pretend, a stand-in for kube-scheduler, doubles of the GPUs, and the real `fallow` programs.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from cluster import names
from cluster.client import CONFIGMAPS, NAMESPACES, NODES, Client
from cluster.fake import FakeApi
from device_plugin.fake import FakeKubelet
from gpu import fake
from nvml_double import control
from scheduler.fake import Extender, KubeScheduler

NODE_NAMES = ("node1", "node2")
MODELS = ("h100-80gb", "h100-80gb")
POLICY = {"version": "v1", "recutting": {"patienceSeconds": 1, "cooldownSeconds": 2}}
START_SECONDS = 30.0


class StageError(Exception):
    """A part did not start; the text has the end of its log."""


class LocalStage:
    """`with LocalStage(directory) as stage:`; everything it started ends with it."""

    command: tuple[str, ...] = ("sleep", "2147483647")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The path of a socket ends at 107 characters, so these do not lie below a directory of somebody's choice.
        self._sockets = tempfile.TemporaryDirectory(prefix="fallow-")
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._kubelets: list[FakeKubelet] = []
        self._api = FakeApi()
        self._scheduler: KubeScheduler | None = None
        self.hardware = "the NVML double" if control.compiler() else "the double in Python (no C compiler here)"

    def __enter__(self) -> "LocalStage":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs.values():
            program.terminate()
        for program in self._programs.values():
            try:
                program.wait(timeout=10)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        if self._scheduler is not None:
            self._scheduler.stop()
        for kubelet in self._kubelets:
            kubelet.stop()
        self._api.stop()
        self._sockets.cleanup()

    def sees(self, pod: str) -> tuple[Mapping[str, str], set[str]]:
        for kubelet in self._kubelets:
            if found := kubelet.containers.get(("default", pod)):
                return found["main"].env, set(found["main"].nodes)
        return {}, set()

    def _start(self) -> None:
        self._api.start()
        self._kubeconfig = self._api.kubeconfig(self._directory / "kubeconfig")
        self.client = Client.connect(self._kubeconfig)
        self.client.create(NAMESPACES, {"metadata": {"name": names.NAMESPACE}})
        policy = {"metadata": {"name": names.POLICY_CONFIGMAP}, "data": {names.POLICY_KEY: yaml.safe_dump(POLICY)}}
        self.client.create(CONFIGMAPS, policy, names.NAMESPACE)
        listen = f"127.0.0.1:{_free_port()}"
        self._run("scheduler", "--listen", listen)
        self._run("planner", "--tick-seconds", "0.5")
        for number, name in enumerate(NODE_NAMES):
            self._start_node(name, number)
        self._wait(lambda: _answers(listen), "scheduler")
        self._scheduler = KubeScheduler(self.client, Extender(f"http://{listen}"), backoff=(0.5, 2.0)).start()
        for name in NODE_NAMES:
            self._wait(lambda n=name: self._advertises(n), f"agent-{name}")  # type: ignore[misc]

    def _start_node(self, name: str, number: int) -> None:
        home = self._directory / name
        home.mkdir()
        sockets = Path(self._sockets.name) / name
        self._kubelets.append(FakeKubelet(name, sockets, home / "cdi", self.client, seed=number).start())
        flags = ["--node-name", name, "--kubelet-dir", str(sockets), "--cdi-dir", str(home / "cdi")]
        self._run("agent", *flags, "--dev-root", str(_devices(home)), *self._gpus(home, number), name=f"agent-{name}")

    def _gpus(self, home: Path, seed: int) -> list[str]:
        if control.compiler() is None:
            fake.create(home / "gpus.json", MODELS, seed)
            return ["--hardware", "fake", "--fake-state", str(home / "gpus.json")]
        machine = control.Machine.create(home / "gpus.state", MODELS, seed)
        machine.set(0, busy=0.92 if seed == 0 else 0.0)
        self._environment = machine.environment(control.build(self._directory / "double"))
        return ["--hardware", "nvml"]

    _environment: Mapping[str, str] = {}

    def _run(self, command: str, *flags: str, name: str = "") -> None:
        argv = [sys.executable, "-m", "fallow", command, "--kubeconfig", self._kubeconfig, *flags]
        argv += ["--metrics-address", "127.0.0.1:0"]
        with self._log(name or command).open("wb") as log:
            environment = {**os.environ, **self._environment}
            self._programs[name or command] = subprocess.Popen(
                argv, stdout=log, stderr=log, env=environment, cwd=Path(__file__).parents[1]
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _advertises(self, node: str) -> bool:
        allocatable = self.client.get(NODES, node).get("status", {}).get("allocatable") or {}
        return allocatable.get(names.WHOLE) == str(len(MODELS))

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            ended = self._programs[name].poll() is not None
            if ended or time.monotonic() > deadline:
                raise StageError(f"{name} did not start:\n{self._log(name).read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)


def _devices(home: Path) -> Path:
    """Empty files with the names of NVIDIA's device nodes: enough for a CDI spec to name them."""
    root = home / "dev"
    (root / "nvidia-caps").mkdir(parents=True)
    paths = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{n}" for n in range(len(MODELS)))]
    for path in (*paths, *(f"nvidia-caps/nvidia-cap{n}" for n in range(300))):
        (root / path).touch()
    return root


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
