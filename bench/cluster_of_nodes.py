"""An API double full of GPU nodes, as a process of its own: `python -m bench.cluster_of_nodes --nodes 5000 ...`.

Filled at the store, not over HTTP, so that a bench of thousands of nodes begins within seconds. Prints one line when
it is ready and ends with its standard input.
"""

import argparse
import random
import sys
from pathlib import Path

from cluster import facts, gpunode, names
from cluster.fake import FakeApi
from cluster.fake_store import Address
from gpu import catalogue
from gpu.layout import canonical, parse_slice
from gpu.node import Gpu, Mode, Share

GPUS = 8
UNITS = 20
CUT = ("1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4")


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}"


def gpus_of(number: int) -> tuple[Gpu, ...]:
    """A third of the nodes is whole, a third shared, a third cut."""
    model = catalogue.model("h100-80gb")
    mode = list(Mode)[number % 3]
    layout = canonical(parse_slice(s, model) for s in CUT) if mode is Mode.SLICED else ()
    units = UNITS if mode is Mode.SHARED else 0
    return tuple(Gpu(f"GPU-{number:05d}-{i}", i, model, mode, layout, units) for i in range(GPUS))


def fill(api: FakeApi, nodes: int, seed: int) -> None:
    """Nodes, their GpuNodes, and on most of them a pod that runs already."""
    luck = random.Random(seed)
    store, version = api.store, f"{names.GROUP}/{names.VERSION}"
    for number in range(nodes):
        name, gpus = node_name(number), gpus_of(number)
        store.create(Address("v1", "nodes", "", name), {"metadata": {"name": name}, "status": {}})
        at = Address(version, "gpunodes", "", name)
        store.create(at, gpunode.empty(name))
        store.patch(at, {"status": gpunode.inventory(gpus, {})}, "status")
        gpu = luck.choice(gpus)
        share = Share(gpu.uuid, units=luck.randint(1, 15)) if gpu.units else Share(gpu.uuid, *gpu.layout[:1])
        claim = {names.CLAIM: facts.write_shares([share], 0.0)}
        pod = {
            "metadata": {"name": f"old-{number}", "annotations": claim},
            "spec": {"nodeName": name, "containers": [{"name": "main", "image": "x"}]},
        }
        store.create(Address("v1", "pods", "default", f"old-{number}"), pod)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    args = parser.parse_args()
    api = FakeApi()
    fill(api, args.nodes, args.seed)
    api.start()
    api.kubeconfig(args.kubeconfig)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
