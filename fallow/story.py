"""The story of the demonstration, told while it happens: a slice nobody had cut, shares that sit together, a whole GPU,
and a cut GPU joined again. Every sentence is checked; a story that does not come true ends with StoryError.

Works on any stage: on doubles, or on a real control plane.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rich.console import Console

from cluster import facts, names
from cluster.client import GPUNODES, PODS, Client
from cluster.gpunode import read_gpunode
from fallow import tiles
from gpu.node import NodeGpus, Share
from gpu.recut import Recut

SLICE = names.mig_resource("1g.10gb")
IMAGE = "docker.io/local/pause:1"
PATIENCE_SECONDS = 45.0
_UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]{27}")


class StoryError(Exception):
    """The story did not come true; the text says where, and why as far as the cluster tells."""


class Stage(Protocol):
    """Where the story happens."""

    client: Client

    @property
    def command(self) -> tuple[str, ...]:
        """What the pods' containers run."""

    def sees(self, pod: str) -> tuple[Mapping[str, str], set[str]]:
        """Environment and device nodes of the pod's container."""


class Story:
    def __init__(self, stage: Stage, console: Console) -> None:
        self._stage, self._client, self._console = stage, stage.client, console
        self._started = time.monotonic()

    def tell(self) -> None:
        """Raises StoryError."""
        before = self._opening()
        self._slice()
        self._shares()
        after = tiles.used(self._books()[0])
        self._joined()
        self._console.print(
            f"\n[bold]GPU capacity in use: {before:.0%} with the training job alone, {after:.0%} with Fallow's guests "
            "beside it; the training job was never touched.[/bold]",
            highlight=False,
        )

    def _opening(self) -> float:
        self._chapter("A training job holds one GPU; three lie idle")
        self._pod("train", {names.WHOLE: 1}, {names.ROLE: "primary"})
        self._runs("train")
        self._draw()
        return tiles.used(self._books()[0])

    def _slice(self) -> None:
        self._chapter(f"1. An evaluation asks for a slice that nobody has cut: {SLICE}: 1")
        self._pod("eval", {SLICE: 1}, {names.KIND: "eval"})
        self._says("kube-scheduler has no such resource anywhere, so the pod waits; the planner reads that")
        share = self._runs("eval")
        self._says(f"planner: {self._order(share)}")
        self._says(f"scheduler: eval is bound to {self._node('eval')} with the promise of {share}")
        env, nodes = self._stage.sees("eval")
        uuid = self._slice_uuid(share)
        self._check(env.get("FALLOW_DEVICES") == uuid, f"the container sees exactly that slice, not {env}")
        caps = sorted(n for n in nodes if "nvidia-cap" in n and n[-1].isdigit())
        shown = f" and {', '.join(caps)}" if caps else ""
        self._says(f"container: FALLOW_DEVICES={uuid}{shown}")
        self._check(self._held("eval") == (share,), f"the claim is what was promised, not {self._held('eval')}")
        self._draw()

    def _shares(self) -> None:
        self._chapter(f"2. Three pods ask for a time-sliced share each: {names.SHARED}: 8 of 20 units")
        for name in ("prep", "tune", "batch"):
            self._pod(name, {names.SHARED: 8}, {names.KIND: "preprocess"})
        first, second, third = (self._runs(n) for n in ("prep", "tune", "batch"))
        self._says(f"planner: {self._order(first)}")
        gpus = sorted([first.gpu, second.gpu, third.gpu])
        self._check(len(set(gpus)) == 2, f"two share a GPU and the third goes elsewhere, not {gpus}")
        self._says("two of them sit on one GPU; 4 units are left there, so the third got another GPU")
        self._pod("greedy", {names.SHARED: 40}, {})
        self._until(lambda: bool(self._reason("greedy")), "the pod that asks too much is told why")
        self._says(f"a pod that asks for 40 units waits, and its event says: {self._reason('greedy')}")
        self._delete("greedy")
        self._draw()

    def _joined(self) -> None:
        self._chapter(f"3. The evaluation ends, and a pod asks for a whole GPU: {names.WHOLE}: 1")
        cut = self._held("eval")[0].gpu
        self._delete("eval")
        self._pod("finetune", {names.WHOLE: 1}, {names.KIND: "finetune"})
        share = self._runs("finetune")
        self._check(share.gpu == cut, f"the idle cut GPU is joined again, not {share}")
        self._says(f"planner: {self._order(share)}")
        self._check(self._held("train") != self._held("finetune"), "whole GPUs are exclusive")
        self._draw()

    def _chapter(self, title: str) -> None:
        self._console.print(f"\n[bold cyan]{title}[/bold cyan]", highlight=False)

    def _says(self, sentence: str) -> None:
        text = _UUID.sub(r"\1…", sentence)
        self._console.print(f"  [dim]{time.monotonic() - self._started:5.1f} s[/dim]  {text}", highlight=False)

    def _draw(self) -> None:
        nodes, recuts = self._books()
        self._console.print(tiles.cluster(nodes, recuts))

    def _books(self) -> tuple[tuple[NodeGpus, ...], dict[str, Recut]]:
        pods = self._client.list(PODS)["items"]
        nodes: list[NodeGpus] = []
        recuts: dict[str, Recut] = {}
        for obj in self._client.list(GPUNODES)["items"]:
            node = read_gpunode(obj)
            gpus = {g.uuid: g for g in node.gpus}
            mine = [p for p in pods if facts.bound_node(p) == node.name and not facts.over(p)]
            nodes.append(node.books(s for p in mine if (s := facts.read_placement(p, gpus))))
            recuts |= node.recuts or {}
        return tuple(sorted(nodes, key=lambda n: n.name)), recuts

    def _pod(self, name: str, asks: Mapping[str, int], annotations: Mapping[str, str]) -> None:
        limits = {resource: str(number) for resource, number in asks.items()}
        container: dict[str, Any] = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never"}
        container |= {"command": list(self._stage.command), "resources": {"limits": limits}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {
                "schedulerName": names.SCHEDULER,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
            },
        }
        self._client.create(PODS, pod, "default")
        self._says(f"pod {name} is created")

    def _get(self, name: str) -> dict[str, Any]:
        return self._client.get(PODS, name, "default")

    def _delete(self, name: str) -> None:
        self._client.delete(PODS, name, "default")
        self._until(lambda: name not in self._pods(), f"pod {name} is gone")
        self._says(f"pod {name} has ended")

    def _pods(self) -> set[str]:
        return {p["metadata"]["name"] for p in self._client.list(PODS, "default")["items"]}

    def _runs(self, name: str) -> Share:
        """The pod runs and its claim is written; the share it holds."""

        def claimed() -> bool:
            pod = self._get(name)
            if pod["status"]["phase"] == "Failed":
                raise StoryError(f"pod {name} failed: {pod['status'].get('message')}")
            return pod["status"]["phase"] == "Running" and names.CLAIM in (pod["metadata"].get("annotations") or {})

        self._until(claimed, f"pod {name} runs")
        share = self._held(name)[0]
        self._says(f"pod {name} runs and holds {share}")
        return share

    def _held(self, name: str) -> tuple[Share, ...]:
        nodes, _ = self._books()
        return next((p.shares for n in nodes for p in n.placements if p.pod.name == name), ())

    def _node(self, name: str) -> str:
        return facts.bound_node(self._get(name))

    def _reason(self, name: str) -> str:
        conditions = self._get(name)["status"].get("conditions") or ()
        return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")

    def _order(self, share: Share) -> str:
        """What the planner ordered for this GPU, and why."""
        for obj in self._client.list(GPUNODES)["items"]:
            if order := ((obj.get("spec") or {}).get("gpus") or {}).get(share.gpu):
                what = ", ".join(order.get("slices") or ()) or order["mode"]
                return f"{share.gpu} of {obj['metadata']['name']} becomes {what} {order.get('reason', '')}"
        return "nothing had to be changed"

    def _slice_uuid(self, share: Share) -> str:
        gpus: dict[str, Any] = {}
        for obj in self._client.list(GPUNODES)["items"]:
            gpus |= obj["status"]["gpus"]
        return str(gpus[share.gpu]["slices"].get(str(share.slice), {}).get("uuid"))

    def _check(self, true: bool, what: str) -> None:
        if not true:
            raise StoryError(f"this did not come true: {what}")

    def _until(self, check: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not check():
            if time.monotonic() > deadline:
                raise StoryError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
            time.sleep(0.1)
