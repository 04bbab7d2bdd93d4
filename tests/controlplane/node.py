"""One real node: containerd and kubelet in a mount namespace of their own.

The kubelet's device-plugin directory is a constant, so several kubelets on one machine need a mount namespace each,
in which /var/lib/kubelet is a folder of ours.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.controlplane.build import Binaries
from tests.controlplane.image import REFERENCE
from tests.controlplane.network import Network
from tests.controlplane.processes import Record, shims

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "hugetlb")


class Node:
    """`directory` holds everything of this node; `number` (1, 2, ...) its ports and pod network."""

    def __init__(
        self, name: str, number: int, directory: Path, record: Record, binaries: Binaries, network: Network, ident: str
    ) -> None:
        self.name, self._number, self.directory = name, number, directory
        self._record, self._binaries, self._network = record, binaries, network
        self._cgroup = f"fallow-{ident}-{name}"
        self.kubelet_dir = directory / "kubelet"
        self.cdi_dir = directory / "cdi"
        self.dev_root = directory / "dev"
        self._pids: dict[str, int] = {}

    def start(self, kubeconfig: Path, client_ca: Path, image: Path) -> None:
        for sub in ("kubelet", "cdi", "cni", "logs", "dev", "containerd"):
            (self.directory / sub).mkdir(parents=True, exist_ok=True)
        self._make_cgroup()
        self._record.add(kind="mounts", path=str(self.directory))
        self._write_containerd()
        self._write_kubelet(kubeconfig, client_ca)
        # A /run/netns of its own: the pods' network namespaces then go with this mount namespace.
        holder = 'mount --bind "$1" /var/lib/kubelet && mount -t tmpfs tmpfs /run/netns'
        holder += " && mount --make-rshared / && exec sleep 2147483647"
        Path("/var/lib/kubelet").mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", holder, "node", str(self.kubelet_dir)]
        self._pids["namespace"] = self._run("namespace", command, self._network.enter)
        wait(lambda: self._bound(), 10, f"mount namespace of {self.name}", self.log("namespace"))
        shim_path = {"PATH": f"{self._binaries.shim_dir}:{os.environ['PATH']}"}
        command = [str(self._binaries.containerd), "--config", str(self.directory / "containerd.toml")]
        self._pids["containerd"] = self._run("containerd", command, self._enter, shim_path)
        wait(self._containerd_answers, 30, f"containerd of {self.name}", self.log("containerd"))
        self.ctr("images", "import", str(image))
        self.start_kubelet()

    def start_kubelet(self) -> None:
        command = [
            *(str(self._binaries.controlplane), "kubelet"),
            f"--config={self.directory / 'kubelet.yaml'}",
            f"--kubeconfig={self.directory / 'kubelet.kubeconfig'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._network.inside}",
            "--v=2",
        ]
        self._pids["kubelet"] = self._run("kubelet", command, self._enter)

    def stop_kubelet(self, how: int = signal.SIGTERM) -> None:
        self._record.stop(self._pids["kubelet"], how)

    def restart_kubelet(self) -> None:
        self.stop_kubelet()
        self.start_kubelet()

    def stop(self) -> None:
        """Kubelet first, then what runs, then containerd; the shims outlive it and are ended one by one."""
        if "kubelet" in self._pids:
            self.stop_kubelet()
        if "containerd" in self._pids:
            for task in self._tasks():
                self.ctr("tasks", "kill", "-s", "SIGKILL", task, check=False)
            self._record.stop(self._pids["containerd"])
        end_shims(self.directory)

    def ctr(self, *args: str, check: bool = True) -> str:
        # An absolute socket path: a relative one is refused with "invalid (non-empty) authority".
        command = [str(self._binaries.ctr), "-a", str(self.directory / "containerd.sock"), "-n", "k8s.io", *args]
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"ctr {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def make_devices(self, gpus: int, caps: int = 600) -> Path:
        """Harmless device nodes with the names of NVIDIA's (all are /dev/null), so that CDI has something to inject."""
        (self.dev_root / "nvidia-caps").mkdir(exist_ok=True)
        paths = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{n}" for n in range(gpus))]
        for path in (*paths, *(f"nvidia-caps/nvidia-cap{n}" for n in range(caps))):
            if not (self.dev_root / path).exists():
                os.mknod(self.dev_root / path, 0o666 | 0o020000, os.makedev(1, 3))
        return self.dev_root

    def log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    @property
    def _enter(self) -> tuple[str, ...]:
        return (*self._network.enter, f"--mount=/proc/{self._pids['namespace']}/ns/mnt")

    def _run(self, name: str, command: list[str], enter: tuple[str, ...], env: dict[str, str] | None = None) -> int:
        return self._record.start(
            f"{self.name}/{name}", command, self.log(name), namespace=enter, env=env, cwd=self.directory
        )

    def _bound(self) -> bool:
        mounts = Path(f"/proc/{self._pids['namespace']}/mountinfo").read_text()
        return " /var/lib/kubelet " in mounts and "shared:" in mounts

    def _containerd_answers(self) -> bool:
        if not self._record.alive(self._pids["containerd"]):
            raise RuntimeError("containerd has ended")
        return (self.directory / "containerd.sock").exists() and "ID" in self.ctr(
            "namespaces", "ls", check=False
        ) + "ID"

    def _tasks(self) -> list[str]:
        lines = self.ctr("tasks", "ls", "-q", check=False).splitlines()
        return [line for line in lines if line]

    def _make_cgroup(self) -> None:
        self._record.add(kind="cgroup", name=self._cgroup)
        for controller in CONTROLLERS:
            root = Path("/sys/fs/cgroup") / controller
            if not root.is_dir():
                continue
            (root / self._cgroup).mkdir(exist_ok=True)
            if controller == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (root / self._cgroup / name).write_text((root / name).read_text())

    def _write_containerd(self) -> None:
        config = f"""version = 3
root = "{self.directory}/containerd/root"
state = "{self.directory}/containerd/state"
[grpc]
  address = "{self.directory}/containerd.sock"
[ttrpc]
  address = "{self.directory}/containerd.sock.ttrpc"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{REFERENCE}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["{self.cdi_dir}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{self.directory}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "{shutil.which("runc") or "/usr/sbin/runc"}"
"""
        (self.directory / "containerd.toml").write_text(config)
        ipam = {
            "type": "host-local",
            "dataDir": str(self.directory / "cni-data"),
            "ranges": [[{"subnet": f"10.91.{self._number}.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        conflist = {"cniVersion": "1.0.0", "name": "ptp", "plugins": [{"type": "ptp", "ipam": ipam}]}
        (self.directory / "cni" / "10-ptp.conflist").write_text(json.dumps(conflist))

    def _write_kubelet(self, kubeconfig: Path, client_ca: Path) -> None:
        shutil.copyfile(kubeconfig, self.directory / "kubelet.kubeconfig")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.directory}/containerd.sock",
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "2s",
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0.1%", "imagefs.available": "0.1%"},
            "port": 10250 + 10 * self._number,
            "healthzPort": 10248 + 10 * self._number,
            "podLogsDir": str(self.directory / "logs" / "pods"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(client_ca)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "resolvConf": "",
            "shutdownGracePeriod": "0s",
        }
        (self.directory / "kubelet.yaml").write_text(yaml.safe_dump(config))


def end_shims(directory: Path) -> None:
    for pid in shims(directory):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait(ready: Callable[[], bool], seconds: float, what: str, log: Path | None = None) -> None:
    """Raises TimeoutError with the tail of the log."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready():
            return
        time.sleep(0.1)
    tail = log.read_text(errors="replace")[-2000:] if log and log.exists() else ""
    raise TimeoutError(f"{what} not ready after {seconds:.0f} s\n{tail}")
