"""One real node: containerd and kubelet in a mount namespace of their own.

The kubelet's device-plugin directory is a constant, so several kubelets on one machine need a mount namespace each,
in which /var/lib/kubelet is a folder of ours.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path

import yaml

from tests.controlplane import cgroups
from tests.controlplane.image import REFERENCE
from tests.controlplane.processes import ClusterError
from tests.controlplane.site import Site


class Node:
    """`node<number>`, in a directory of that name; `number` (1, 2, ...) also makes its ports and its pod network.

    `kubelet_dir` holds the sockets of device plugins and PodResources, `cdi_dir` the CDI specs that containerd reads,
    `cgroup` is the name of the node's top group in every hierarchy.
    """

    def __init__(self, site: Site, number: int) -> None:
        self.name, self._number, self._site = f"node{number}", number, site
        self.directory = site.directory / self.name
        self.cgroup = f"fallow-{site.ident}-{self.name}"
        self.kubelet_dir = self.directory / "kubelet"
        self.cdi_dir = self.directory / "cdi"
        self.dev_root = self.directory / "dev"
        self._pids: dict[str, int] = {}

    def start_runtime(self, image: Path) -> None:
        """Containerd with the image, up and waiting for a kubelet. Raises ClusterError, OSError."""
        for sub in ("kubelet", "cdi", "cni", "dev", "containerd"):
            (self.directory / sub).mkdir(parents=True, exist_ok=True)
        record = self._site.record
        record.add(kind="cgroup", name=self.cgroup)
        cgroups.make(self.cgroup)
        record.add(kind="mounts", path=str(self.directory))
        record.add(kind="shims", path=str(self.directory))
        self._make_namespace()
        self._write_containerd()
        shim_path = {"PATH": f"{self._site.binaries.shim_dir}:{os.environ['PATH']}"}
        command = [str(self._site.binaries.containerd), "--config", str(self.directory / "containerd.toml")]
        self._run("containerd", command, self._enter, shim_path)
        self._wait_for("containerd", self._containerd_answers, 30)
        self.ctr("images", "import", str(image))

    def start_kubelet(self, kubeconfig: Path, client_ca: Path) -> None:
        """`kubeconfig` is the node's own; `client_ca` signs those who may ask this kubelet."""
        self._write_kubelet(client_ca)
        self._kubelet = [
            *(str(self._site.binaries.controlplane), "kubelet"),
            f"--config={self.directory / 'kubelet.yaml'}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            # Without it the kubelet waits 20 s for a DNS server that this network does not have.
            f"--node-ip={self._site.network.inside}",
            "--v=2",
        ]
        self._run("kubelet", self._kubelet, self._enter)

    def stop_kubelet(self, how: int = signal.SIGTERM) -> None:
        self._site.record.stop(self._pids["kubelet"], how)

    def restart_kubelet(self, how: int = signal.SIGTERM) -> None:
        self.stop_kubelet(how)
        self._run("kubelet", self._kubelet, self._enter)

    def wait(self, ready_nodes: Callable[[], Collection[str]], seconds: float = 60.0) -> None:
        """Until the API server calls it ready. Raises ClusterError, at once when its kubelet has ended."""
        self._wait_for("kubelet", lambda: self.name in ready_nodes(), seconds)

    def ctr(self, *args: str) -> str:
        done = self._ctr(*args)
        if done.returncode:
            raise ClusterError(f"ctr {' '.join(args)}: {done.stderr.strip()}")
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
        """Of `kubelet` or `containerd`."""
        return self._site.log(f"{self.name}/{name}")

    @property
    def _enter(self) -> tuple[str, ...]:
        return (*self._site.network.enter, f"--mount=/proc/{self._pids['namespace']}/ns/mnt")

    def _make_namespace(self) -> None:
        # A /run/netns of its own: the pods' network namespaces then go with this mount namespace.
        holder = 'mount --bind "$1" /var/lib/kubelet && mount -t tmpfs tmpfs /run/netns'
        holder += " && mount --make-rshared / && exec sleep 2147483647"
        Path("/var/lib/kubelet").mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", holder, "node", str(self.kubelet_dir)]
        self._run("namespace", command, self._site.network.enter)
        self._wait_for("namespace", self._bound, 10)

    def _bound(self) -> bool:
        mounts = Path(f"/proc/{self._pids['namespace']}/mountinfo").read_text()
        return " /var/lib/kubelet " in mounts and "shared:" in mounts

    def _containerd_answers(self) -> bool:
        return (self.directory / "containerd.sock").exists() and self._ctr("version").returncode == 0

    def _ctr(self, *args: str) -> "subprocess.CompletedProcess[str]":
        # An absolute socket path: a relative one is refused with "invalid (non-empty) authority".
        command = [str(self._site.binaries.ctr), "-a", str(self.directory / "containerd.sock"), "-n", "k8s.io", *args]
        return subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False, timeout=60)

    def _run(self, name: str, command: list[str], enter: tuple[str, ...], env: dict[str, str] | None = None) -> None:
        full = f"{self.name}/{name}"
        self._pids[name] = self._site.run(full, command, enter=enter, env=env, cwd=self.directory)

    def _wait_for(self, name: str, ready: Callable[[], bool], seconds: float) -> None:
        self._site.wait_for(f"{self.name}/{name}", self._pids[name], ready, seconds)

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

    def _write_kubelet(self, client_ca: Path) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.directory}/containerd.sock",
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "2s",
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0.1%", "imagefs.available": "0.1%"},
            "port": 10250 + 10 * self._number,
            "healthzPort": 10248 + 10 * self._number,
            "podLogsDir": str(self.directory / "pod-logs"),
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
