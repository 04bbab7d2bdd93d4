"""`make demo CLUSTER=real`: the story of the demonstration on a real control plane with real kubelets."""

import sys
from collections.abc import Mapping

from rich.console import Console

from cluster.client import Client
from fallow.story import Story, StoryError
from tests.controlplane.cluster import RealCluster
from tests.controlplane.fixture import why_not
from tests.e2e.deployed import SHOW, Deployed

POLICY = "version: v1\nrecutting: {patienceSeconds: 1, cooldownSeconds: 2}\n"


class RealStage:
    """The deployed programs as a stage: pods print what they see, and it is read from their logs."""

    command = ("sh", "-c", SHOW)

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self.client: Client = deployed.client

    def sees(self, pod: str) -> tuple[Mapping[str, str], set[str]]:
        return self._deployed.sees(pod)


def main() -> int:
    console = Console(width=100)
    if reason := why_not():
        console.print(f"[bold red]{reason}[/bold red]")
        return 1
    console.print("Two real nodes (kubelet, containerd) with two H100 each, on the NVML double; Kubernetes 1.37.")
    with RealCluster() as cluster:
        deployed = Deployed(cluster.start())
        try:
            deployed.apply(POLICY)
            deployed.start_all()
            Story(RealStage(deployed), console).tell()
        except StoryError as error:
            console.print(f"\n[bold red]{error}[/bold red]")
            return 1
        finally:
            deployed.stop()
    console.print("[bold green]The story came true.[/bold green]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
