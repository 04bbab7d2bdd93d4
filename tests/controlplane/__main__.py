"""`make cluster` and `make cluster-down`: the real cluster left up for a person to look at."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from tests.controlplane.build import CannotBuild, binaries, cache_dir, install_packages, missing_packages
from tests.controlplane.cluster import RealCluster
from tests.controlplane.credentials import MAX_NODES
from tests.controlplane.processes import ClusterError


def main() -> int:
    args = _arguments()
    try:
        if args.act in ("up", "build"):
            install_packages() if args.install else _check_packages()
            binaries()
        if args.act == "build":
            return 0
        if os.geteuid() != 0:
            raise ClusterError("the cluster needs root (namespaces, mounts, cgroups): run this as root")
        return {"up": _up, "down": _down, "status": _status}[args.act](RealCluster(_directory()), args)
    except (CannotBuild, ClusterError) as problem:
        print(problem, file=sys.stderr)
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane", description=__doc__)
    acts = "start it and leave it up, remove it, say how it is (exit code 3 when it is not up), or only build it"
    parser.add_argument("act", choices=["up", "down", "status", "build"], help=acts)
    parser.add_argument("--install", action="store_true", help="install missing Debian packages (as root)")
    nodes = f"real nodes, each with a kubelet and containerd (default 2, at most {MAX_NODES})"
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help=nodes)
    parser.add_argument("--kwok", type=int, default=0, metavar="N", help="nodes that exist on paper only (default 0)")
    return parser.parse_args()


def _check_packages() -> None:
    if missing := missing_packages():
        raise CannotBuild(f"missing Debian packages: apt-get install {' '.join(missing)} (or give --install, as root)")


def _up(cluster: RealCluster, args: argparse.Namespace) -> int:
    if _runs(cluster):
        print("the cluster is already up; make cluster-down removes it\n")
    else:
        cluster.start(args.nodes)
        if args.kwok:
            cluster.start_kwok()
            cluster.create_kwok_nodes(args.kwok, {})
        print("the cluster is up; nothing of your own kubeconfig, firewall or network has been changed\n")
    _tell(cluster)
    print("\nmake cluster-down removes it")
    return 0


def _down(cluster: RealCluster, args: argparse.Namespace) -> int:
    cluster.stop()
    print("the cluster is gone")
    return 0


def _status(cluster: RealCluster, args: argparse.Namespace) -> int:
    for name, alive in cluster.programs().items():
        print(f"{name:30} {'runs' if alive else 'has ended'}")
    if not _runs(cluster):
        print(
            "the cluster is not up" if not cluster.programs() else f"not all of it runs; logs: {cluster.directory}/logs"
        )
        return 3
    _tell(cluster)
    return 0


def _runs(cluster: RealCluster) -> bool:
    programs = cluster.programs()
    return "kube-apiserver" in programs and all(programs.values())


def _tell(cluster: RealCluster) -> None:
    kubectl = [str(binaries().controlplane), "kubectl"]
    print(f"export KUBECONFIG={shlex.quote(str(cluster.directory / 'admin.kubeconfig'))}")
    print(f"alias kubectl={shlex.quote(shlex.join(kubectl))}")


def _directory() -> Path:
    return Path(os.environ.get("FALLOW_CLUSTER_DIR") or cache_dir() / "cluster")


if __name__ == "__main__":
    sys.exit(main())
