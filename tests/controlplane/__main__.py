"""`make cluster` and `make cluster-down`: the real cluster left up for a person to look at."""

import argparse
import os
import sys

from tests.controlplane.build import CannotBuild, binaries, install_packages
from tests.controlplane.cluster import RealCluster, default_directory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane", description=__doc__)
    parser.add_argument("act", choices=["up", "down", "build"], help="start it, remove it, or only build it")
    parser.add_argument(
        "--nodes", type=int, default=2, help="real nodes, each with a kubelet and containerd (at most 4)"
    )
    parser.add_argument("--kwok", type=int, default=0, help="nodes that exist on paper only")
    args = parser.parse_args()
    try:
        if args.act != "down":
            install_packages()
            binaries()
    except CannotBuild as problem:
        print(f"cannot build the cluster: {problem}", file=sys.stderr)
        return 1
    if args.act == "build":
        return 0
    if os.geteuid() != 0:
        print("the cluster needs root (namespaces, mounts, cgroups): run this as root", file=sys.stderr)
        return 1
    cluster = RealCluster(default_directory())
    if args.act == "down":
        cluster.stop()
        print("the cluster is gone")
        return 0
    cluster.start(args.nodes)
    if args.kwok:
        cluster.start_kwok()
        cluster.create_kwok_nodes(args.kwok, {})
    print("the cluster is up; nothing of your own kubeconfig or network has been changed\n")
    print(f"export KUBECONFIG={cluster.kubeconfig_for('admin')}")
    print(f"alias kubectl='{' '.join(cluster.kubectl()[:2])}'")
    print("\nmake cluster-down removes it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
