"""The GpuNode object: one per Node, the place where planner, agent, device plugin and idle sampler meet.

Each writer owns one key and patches only that: `spec.gpus` the planner; `status.models` and `status.gpus` the device
plugin; `status.recuts` the agent; `status.idle` the sampler. Maps keyed by GPU UUID, never lists, so that a merge
patch of one GPU leaves the others alone. Reading tolerates rubbish: what cannot be read is reported and closed to pods.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cluster import names
from cluster.models import model_in, model_out
from gpu.layout import Layout, Slice, canonical, parse_slice
from gpu.node import Activity, Gpu, Mode, NodeGpus, Placement, SoldAs, Terms
from gpu.profiles import GpuModel
from gpu.recut import Phase, Recut, Shape, Wanted

Object = Mapping[str, Any]
T = TypeVar("T")

CURE = "only Fallow writes it: remove that entry, and look who else writes GpuNodes"


@dataclass(frozen=True)
class NodeFacts:
    """Everything one GpuNode says. `problems` are sentences about what could not be read."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    wanted: Mapping[str, Wanted] | None = None
    recuts: Mapping[str, Recut] | None = None
    problems: tuple[str, ...] = ()

    def books(self, placements: Iterable[Placement]) -> NodeGpus:
        return NodeGpus(self.name, self.gpus, tuple(placements))


def read_gpunode(obj: Object) -> NodeFacts:
    """The facts of one GpuNode object, with what is wanted of its GPUs already laid over them as holds."""
    name = str((obj.get("metadata") or {}).get("name", ""))
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    reading = _Reading(f"gpunode {name}")
    models = reading.each(status.get("models"), "status.models", lambda key, raw: model_in(key, raw))
    gpus = reading.each(status.get("gpus"), "status.gpus", lambda uuid, raw: _gpu_in(uuid, raw, models))
    recuts = reading.each(
        status.get("recuts"), "status.recuts", lambda uuid, raw: _recut_in(raw, gpus[uuid].model), known=gpus
    )
    wanted = reading.each(
        spec.get("gpus"), "spec.gpus", lambda uuid, raw: _wanted_in(raw, gpus[uuid].model), known=gpus
    )
    idle = reading.each(status.get("idle"), "status.idle", lambda _, raw: _activity_in(raw), known=gpus)
    unreadable = {uuid for uuid in gpus if f"spec.gpus.{uuid}" in reading.places}
    folded = (
        _held(replace(g, activity=idle.get(u)), wanted.get(u), recuts.get(u), closed=u in unreadable)
        for u, g in gpus.items()
    )
    return NodeFacts(
        name, tuple(sorted(folded, key=lambda g: (g.index, g.uuid))), wanted, recuts, tuple(reading.problems)
    )


def inventory(gpus: Iterable[Gpu], details: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The device plugin's part of the status.

    `details` adds, per UUID, plain facts such as name and minor number, and under `slices` those of each slice.
    """
    gpus = tuple(gpus)
    return {
        "models": {m.key: model_out(m) for m in {g.model for g in gpus}},
        "gpus": {g.uuid: _with_details(g, details.get(g.uuid, {})) for g in gpus},
        "summary": summary(gpus),
    }


def _with_details(gpu: Gpu, details: Mapping[str, Any]) -> dict[str, Any]:
    slices = {piece: {**facts, **details.get("slices", {}).get(piece, {})} for piece, facts in _slices_out(gpu).items()}
    return {**details, "slices": slices, **_gpu_out(gpu)}


def summary(gpus: Iterable[Gpu]) -> dict[str, Any]:
    """Counts for `kubectl get gpunodes`."""
    modes = [g.mode for g in gpus]
    return {"gpus": len(modes), **{mode.value: modes.count(mode) for mode in Mode}}


def wanted_out(wanted: Wanted) -> dict[str, Any]:
    return {
        "generation": wanted.generation,
        "fence": wanted.fence,
        "reason": wanted.reason,
        **shape_out(wanted.shape),
    }


def recut_out(recut: Recut) -> dict[str, Any]:
    return {
        "generation": recut.generation,
        "fence": recut.fence,
        "phase": recut.phase.value,
        "since": round(recut.since, 3),
        "before": shape_out(recut.before),
        "target": shape_out(recut.target),
        "tries": recut.tries,
        "failures": recut.failures,
        "message": recut.message,
    }


def activity_out(activity: Activity) -> dict[str, Any]:
    return {"busy": round(activity.busy, 3), "at": round(activity.at, 3), "source": activity.source}


def shape_out(shape: Shape) -> dict[str, Any]:
    return {"mode": shape.mode.value, "slices": [str(s) for s in shape.layout]}


def merge_patch(old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`; empty when they are equal.

    What is gone must be named with null: a patch that only carries the new map would leave it standing.
    """
    old = old if isinstance(old, Mapping) else {}
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(old.get(key), Mapping):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif key not in old or old[key] != value:
            patch[key] = value
    return patch


def _held(gpu: Gpu, wanted: Wanted | None, recut: Recut | None, *, closed: bool) -> Gpu:
    """Close what the planner wants gone, from the moment it says so until its node has done or undone it."""
    if closed or (recut is not None and recut.phase is Phase.STUCK):
        return replace(gpu, closed=True)
    if wanted is None:
        return gpu
    if recut is not None and recut.generation >= wanted.generation and recut.phase is Phase.DONE:
        return gpu
    if wanted.shape.mode is not gpu.mode:
        return replace(gpu, closed=True)
    return replace(gpu, held=frozenset(gpu.layout) - frozenset(wanted.shape.layout))


class _Reading:
    """Collects what cannot be read instead of giving up on the rest."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[str] = []
        self.places: set[str] = set()

    def each(
        self, raw: Any, place: str, read: Callable[[str, Any], T], known: Mapping[str, Any] | None = None
    ) -> dict[str, T]:
        values: dict[str, T] = {}
        for key, value in (raw or {}).items() if isinstance(raw or {}, Mapping) else ():
            if value is None or (known is not None and key not in known):
                continue
            try:
                values[key] = read(key, value)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                self.places.add(f"{place}.{key}")
                self.problems.append(f"{self.where}, {place}.{key}: cannot be read ({error}); {CURE}")
        return values


def _shape_in(raw: Object, model: GpuModel) -> Shape:
    layout = canonical(parse_slice(text, model) for text in raw.get("slices") or ())
    return Shape(Mode(raw["mode"]), layout)


def _wanted_in(raw: Object, model: GpuModel) -> Wanted:
    return Wanted(int(raw["generation"]), _shape_in(raw, model), str(raw.get("reason", "")), int(raw.get("fence", 0)))


def _recut_in(raw: Object, model: GpuModel) -> Recut:
    return Recut(
        generation=int(raw["generation"]),
        phase=Phase(raw["phase"]),
        since=float(raw["since"]),
        before=_shape_in(raw["before"], model),
        target=_shape_in(raw["target"], model),
        tries=int(raw.get("tries", 0)),
        message=str(raw.get("message", "")),
        fence=int(raw.get("fence", 0)),
        failures=int(raw.get("failures", 0)),
    )


def _activity_in(raw: Object) -> Activity:
    return Activity(float(raw["busy"]), float(raw["at"]), str(raw.get("source", "")))


def _gpu_in(uuid: str, raw: Object, models: Mapping[str, GpuModel]) -> Gpu:
    model = models[raw["model"]]
    slices = raw.get("slices") or {}
    layout: Layout = canonical(parse_slice(text, model) for text in slices)
    return Gpu(
        uuid=uuid,
        index=int(raw.get("index", 0)),
        model=model,
        mode=Mode(raw["mode"]),
        layout=layout,
        units=int(raw.get("units", 0)),
        healthy=bool(raw.get("healthy", False)),
        sold=SoldAs(raw.get("sold", SoldAs.OWN)),
        terms=tuple(t for t in (_terms_in(text, s, model) for text, s in slices.items()) if t != Terms(t.slice)),
        sick=frozenset(parse_slice(text, model) for text, s in slices.items() if not (s or {}).get("healthy", True)),
        fixed=bool(raw.get("fixed", False)),
    )


def _terms_in(text: str, raw: Any, model: GpuModel) -> Terms:
    facts = raw or {}
    return Terms(parse_slice(text, model), int(facts.get("units", 0)), SoldAs(facts.get("sold", SoldAs.OWN)))


def _gpu_out(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "model": gpu.model.key,
        "mode": gpu.mode.value,
        "units": gpu.units,
        "healthy": gpu.healthy,
        # What is as usual is left out: most GPUs are sold under their own name, and nothing fixes what they are.
        **({"sold": gpu.sold.value} if gpu.sold is not SoldAs.OWN else {}),
        **({"fixed": True} if gpu.fixed else {}),
    }


def _slices_out(gpu: Gpu) -> dict[str, Any]:
    return {str(piece): _slice_out(gpu, piece) for piece in gpu.layout}


def _slice_out(gpu: Gpu, piece: Slice) -> dict[str, Any]:
    terms = gpu.terms_of(piece)
    return {
        **({"healthy": False} if piece in gpu.sick else {}),
        **({"units": terms.units} if terms.units else {}),
        **({"sold": terms.sold.value} if terms.sold is not SoldAs.OWN else {}),
    }


def empty(name: str, node_uid: str = "") -> dict[str, Any]:
    """A GpuNode for a Node that has none yet; owned by the Node, so that it goes with it."""
    meta: dict[str, Any] = {"name": name}
    if node_uid:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}]
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": "GpuNode",
        "metadata": meta,
        "spec": {"gpus": {}},
    }
