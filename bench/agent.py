"""What an agent at rest costs its node: memory and CPU with 8 GPUs cut in 7 slices each.

The real program, on the NVML double, with an API server and a kubelet that pretend (in this process, so that they are
not counted). Beside it the floor: a process that only imports the libraries that the agent stands on.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import QUICK, report
from cluster.client import GPUNODES, NODES, Client
from cluster.fake import FakeApi
from device_plugin.fake import FakeKubelet
from nvml_double.control import Machine, build

ROOT = Path(__file__).parents[1]
NODE = "bench"
GPUS = 8
SLICES = tuple(f"1g.10gb@{start}" for start in range(7))
SECONDS = 20 if QUICK else 120
RSS_MIB, CPU_PERCENT = 80.0, 1.0
LIBRARIES = "import grpc, kubernetes.client, pydantic, prometheus_client, pynvml, time; time.sleep(600)"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="fallow-") as directory:
        return measure(Path(directory))


def measure(directory: Path) -> int:
    machine = Machine.create(directory / "gpus", ["h100-80gb"] * GPUS)
    environment = {**os.environ, **machine.environment(build(ROOT / "build" / "nvml-double"))}
    with FakeApi() as api:
        kubeconfig = api.kubeconfig(directory / "kubeconfig")
        client = Client.connect(kubeconfig)
        kubelet = FakeKubelet(NODE, directory / "kubelet", directory / "cdi", client).start()
        flags = [f"--kubeconfig={kubeconfig}", f"--node-name={NODE}", "--metrics-address=127.0.0.1:0"]
        flags += [f"--kubelet-dir={directory / 'kubelet'}", f"--cdi-dir={directory / 'cdi'}"]
        flags += [f"--mps-root={directory / 'mps'}", f"--driver-root={directory}"]
        with (directory / "log").open("w") as log:
            agent = start([sys.executable, "-m", "fallow", "agent", *flags], environment, log.fileno())
            floor = start([sys.executable, "-c", LIBRARIES], environment, log.fileno())
            try:
                cut(client, machine, directory / "log")
                return judge(agent.pid, floor.pid)
            finally:
                for child in (agent, floor):
                    child.kill()
                    child.wait()
                kubelet.stop()


def start(argv: list[str], environment: dict[str, str], log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=log, stderr=log)


def cut(client: Client, machine: Machine, log: Path) -> None:
    """Order every GPU cut in seven, and wait until the kubelet offers them all. Raises TimeoutError."""
    until(lambda: offered(client, "nvidia.com/gpu") == GPUS, log)
    order = {"generation": 1, "mode": "sliced", "slices": list(SLICES), "reason": "by a bench"}
    client.patch(GPUNODES, NODE, {"spec": {"gpus": dict.fromkeys(machine.uuids(), order)}})
    until(lambda: offered(client, "nvidia.com/mig-1g.10gb") == GPUS * len(SLICES), log)


def offered(client: Client, resource: str) -> int:
    return int((client.get(NODES, NODE).get("status", {}).get("allocatable") or {}).get(resource, 0))


def until(check, log: Path) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError("the agent did not come up:\n" + log.read_text()[-2000:])
        time.sleep(0.2)


def judge(agent: int, floor: int) -> int:
    time.sleep(10)  # what the start and the cutting stirred up settles
    before, began, first = cpu_seconds(agent), time.monotonic(), rss_mib(agent)
    time.sleep(SECONDS)
    percent = 100 * (cpu_seconds(agent) - before) / (time.monotonic() - began)
    rss = rss_mib(agent)
    print(
        f"resident {rss:.1f} MiB (at most {RSS_MIB:.0f}), {percent:.2f} % of a core at rest (at most {CPU_PERCENT:.0f})"
    )
    print(f"the libraries alone: {rss_mib(floor):.1f} MiB; growth over {SECONDS} s: {rss - first:+.2f} MiB")
    report(
        "agent",
        {"rss_mib": round(rss, 1), "cpu_pct": round(percent, 2), "growth_mib": round(rss - first, 2)},
        {"libraries_rss_mib": round(rss_mib(floor), 1)},
        {"gpus": GPUS, "slices": GPUS * len(SLICES), "seconds": SECONDS, "sample_seconds": 1.0},
        rss <= RSS_MIB and percent <= CPU_PERCENT,
    )
    return 0


def rss_mib(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
