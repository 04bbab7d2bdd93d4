"""What a configuration makes of the GPUs that are there: a plan for each, or every reason why it cannot be.

Pure. Keys that NVIDIA's plugin reads and drops (`rename`, `devices`) count here, so GPUs of one node can be shared
differently. A file decides once for all: a GPU that it shares is never re-cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster import names
from device_plugin.config.model import GPU, Config, Replicated, Shared
from device_plugin.delivery import Delivery
from device_plugin.sale import GpuPlan, NodePlan, Sold, Strategy
from gpu.hardware import SeenGpu, SeenSlice
from policies.document import Fault

MOST_IDS = 60_000
MOST_BYTES = 3 * 2**20
"""The kubelet takes lists of 4 MiB at most (the receive limit of its gRPC client); beyond that it drops the plugin."""
ID_BYTES = 80
"""Of one device in the list: its UUID, the number of the unit, its health and NUMA node."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One entry of `sharing`, with where it stands and how it shares."""

    path: str
    entry: Replicated
    strategy: Strategy
    resource: str


@dataclass
class _Draft:
    """One GPU's plan while it is made. `rules` names the entry that each name of a resource comes from."""

    gpu: SeenGpu
    whole: Sold | None = None
    slices: dict[str, Sold] = field(default_factory=dict)
    by_slice: dict[str, Sold] = field(default_factory=dict)
    shared_by: dict[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> GpuPlan:
        return GpuPlan(self.gpu.uuid, self.whole, self.slices, self.by_slice)


def plan(config: Config, gpus: Sequence[SeenGpu]) -> NodePlan | tuple[Fault, ...]:
    """The plan for these GPUs; faults name the keys that cannot be followed on this node."""
    drafts = {g.uuid: _Draft(g) for g in gpus}
    single, notes = _single(config, gpus)
    if single:
        for draft in drafts.values():
            draft.slices.update({s.slice.profile.name: Sold(GPU) for s in draft.gpu.slices})
    faults: list[Fault] = []
    for rule in _rules(config):
        faults += _apply(rule, drafts, notes, single=single)
    faults += _two_sizes(drafts.values())
    faults += _too_many(drafts.values())
    if faults:
        return tuple(faults)
    if config.flags.mig_strategy == "none" and (cut := [g.uuid for g in gpus if g.mig]):
        notes.append(f"migStrategy none: nothing is offered of GPUs in MIG mode ({', '.join(cut)})")
    fixed = {u for u, d in drafts.items() if d.shared_by or config.flags.mig_strategy in ("none", "single")}
    return NodePlan(
        gpus={u: replace(d.plan, without_slices=config.flags.mig_strategy == "none") for u, d in drafts.items()},
        fixed=frozenset(fixed),
        refuse_more_than_one=_one_only(config),
        distribute=config.flags.plugin.shared_devices_allocation_policy == "distributed",
        notes=tuple(notes),
    )


def delivery(config: Config) -> Delivery:
    """The ways in which devices reach containers."""
    flags, ways = config.flags, config.flags.plugin.device_list_strategy
    extras = {"gds": flags.gds_enabled, "mofed": flags.mofed_enabled, "gdrcopy": flags.gdrcopy_enabled}
    return Delivery(
        cdi="cdi-cri" in ways,
        annotations=flags.plugin.cdi_annotation_prefix if "cdi-annotations" in ways else "",
        envvar="envvar" in ways,
        mounts="volume-mounts" in ways,
        nodes=flags.plugin.pass_device_specs,
        by_index=flags.plugin.device_id_strategy == "index",
        extras=frozenset(extra for extra, on in extras.items() if on),
        imex_channels=config.imex.channel_ids,
    )


def _rules(config: Config) -> list[_Rule]:
    return [
        _Rule(f"sharing.{key}.resources.{n}", entry, strategy, _renamed(shared, entry))
        for key, shared, strategy in _sections(config)
        for n, entry in enumerate(shared.resources)
    ]


def _sections(config: Config) -> list[tuple[str, Shared, Strategy]]:
    sharing = config.sharing
    found = [
        ("timeSlicing", sharing.time_slicing, Strategy.TIME_SLICING),
        ("mps", sharing.mps, Strategy.MPS),
    ]
    return [(key, shared, strategy) for key, shared, strategy in found if shared is not None]


def _renamed(shared: Shared, entry: Replicated) -> str:
    return entry.rename or (f"{entry.name}.shared" if shared.rename_by_default else entry.name)


def _one_only(config: Config) -> frozenset[str]:
    """Resources of which a container may have one; unset means yes under MPS, no under time-slicing (as NVIDIA)."""
    refusing = [
        shared
        for _, shared, strategy in _sections(config)
        if (strategy is Strategy.MPS if (said := shared.fail_requests_greater_than_one) is None else said)
    ]
    return frozenset(_renamed(shared, entry) for shared in refusing for entry in shared.resources)


def _single(config: Config, gpus: Iterable[SeenGpu]) -> tuple[bool, list[str]]:
    """Whether slices are sold as whole GPUs: with migStrategy single, while all that is there is of one size."""
    if config.flags.mig_strategy != "single":
        return False, []
    gpus = tuple(gpus)
    sizes = {s.slice.profile.name for g in gpus for s in g.slices}
    sizes |= {"a whole GPU" for g in gpus if not g.mig}
    if len(sizes) <= 1:
        return True, []
    said = f"migStrategy single needs GPUs that are all cut alike, and here are {', '.join(sorted(sizes))}"
    return False, [f"{said}: until then slices are offered under their own names, as with mixed"]


def _apply(rule: _Rule, drafts: Mapping[str, _Draft], notes: list[str], *, single: bool) -> list[Fault]:
    sold = Sold(rule.resource, rule.entry.replicas, rule.strategy)
    if rule.entry.name == GPU:
        return _share_gpus(rule, sold, drafts, notes, single=single)
    return _share_slices(rule, sold, drafts, notes)


def _share_gpus(
    rule: _Rule, sold: Sold, drafts: Mapping[str, _Draft], notes: list[str], *, single: bool
) -> list[Fault]:
    faults = []
    for draft in _chosen_gpus(rule, [d for d in drafts.values() if single or not d.gpu.mig], drafts, notes):
        if taken := draft.shared_by.get(GPU):
            faults.append(Fault(None, rule.path, f"GPU {draft.gpu.uuid} is shared by {taken} already; name it once"))
            continue
        draft.shared_by[GPU] = rule.path
        draft.whole = sold
        if single:
            draft.slices.update(dict.fromkeys(draft.slices, sold))
    return faults


def _chosen_gpus(rule: _Rule, here: list[_Draft], everywhere: Mapping[str, _Draft], notes: list[str]) -> list[_Draft]:
    devices = rule.entry.devices
    if devices is None:
        return here
    here = sorted(here, key=lambda d: (d.gpu.index, d.gpu.uuid))
    if isinstance(devices, int):
        if devices > len(here):
            notes.append(f"{rule.path}: {devices} GPUs are to be shared, and here are {len(here)}")
        return here[:devices]
    found = [d for d in here if str(d.gpu.index) in devices or d.gpu.uuid in devices]
    known = {w for d in everywhere.values() for w in (str(d.gpu.index), d.gpu.uuid)}
    notes += [f"{rule.path}: {d} is no GPU of this node" for d in devices if d not in known]
    cut = [d.gpu.uuid for d in everywhere.values() if d not in here and {str(d.gpu.index), d.gpu.uuid} & set(devices)]
    notes += [f"{rule.path}: GPU {uuid} is in MIG mode and is not shared as a whole" for uuid in cut]
    return found


def _share_slices(rule: _Rule, sold: Sold, drafts: Mapping[str, _Draft], notes: list[str]) -> list[Fault]:
    profile, devices = names.mig_profile(rule.entry.name), rule.entry.devices
    faults = []
    if devices is None:
        for draft in drafts.values():
            if taken := draft.shared_by.get(profile):
                faults.append(Fault(None, rule.path, f"{rule.entry.name} is shared by {taken} already; name it once"))
            elif any(p.name == profile for p in draft.gpu.model.profiles):
                draft.shared_by[profile] = rule.path
                draft.slices[profile] = sold
        return faults
    for draft, piece in _chosen_slices(rule, profile, drafts.values(), notes):
        uuid = piece.uuid or ""
        if taken := draft.shared_by.get(uuid) or draft.shared_by.get(profile):
            faults.append(Fault(None, rule.path, f"slice {uuid} is shared by {taken} already; name it once"))
            continue
        draft.shared_by[uuid] = rule.path
        draft.by_slice[uuid] = sold
    return faults


def _chosen_slices(
    rule: _Rule, profile: str, drafts: Iterable[_Draft], notes: list[str]
) -> list[tuple[_Draft, SeenSlice]]:
    here = [
        (draft, piece, {str(draft.gpu.index), draft.gpu.uuid, f"{draft.gpu.index}:{n}", piece.uuid})
        for draft in sorted(drafts, key=lambda d: d.gpu.index)
        for n, piece in enumerate(sorted(draft.gpu.slices, key=lambda s: s.gi))
        if piece.uuid and piece.slice.profile.name == profile
    ]
    devices = rule.entry.devices
    if isinstance(devices, int):
        if devices > len(here):
            notes.append(f"{rule.path}: {devices} slices of {profile} are to be shared, and here are {len(here)}")
        return [(d, p) for d, p, _ in here[:devices]]
    wanted = set(devices or ())
    known = {word for _, _, words in here for word in words}
    notes += [f"{rule.path}: {d} is no slice of {profile} here" for d in sorted(wanted - known)]
    return [(d, p) for d, p, words in here if words & wanted]


def _offers(draft: _Draft) -> list[tuple[Sold, str]]:
    """What is sold of this GPU as it is cut now, each with the device's name."""
    gpu = draft.gpu
    if not gpu.mig:
        return [(draft.whole or Sold(GPU), gpu.uuid)]
    return [
        (draft.by_slice.get(s.uuid) or draft.slices.get(profile) or Sold(names.mig_resource(profile)), s.uuid)
        for s in gpu.slices
        if s.uuid and (profile := s.slice.profile.name)
    ]


def _two_sizes(drafts: Iterable[_Draft]) -> list[Fault]:
    """One name must not stand for whole devices and for parts of others: a pod could not tell what it gets."""
    whole: dict[str, list[str]] = {}
    shared: dict[str, str] = {}
    for draft in drafts:
        for sold, device in _offers(draft):
            if sold.replicas == 1:
                whole.setdefault(sold.resource, []).append(device)
            else:
                shared.setdefault(sold.resource, next(iter(draft.shared_by.values())))
    return [
        Fault(
            None,
            shared[resource],
            f"{resource} would stand for a part of a device and also for all of {', '.join(whole[resource])}; "
            "set renameByDefault, or give the shared ones a name by rename",
        )
        for resource in sorted(shared.keys() & whole.keys())
    ]


def _too_many(drafts: Iterable[_Draft]) -> list[Fault]:
    """A list that is too long for the kubelet takes the whole resource away, and says so nowhere."""
    counts: dict[str, int] = {}
    where: dict[str, str] = {}
    for draft in drafts:
        for sold, _ in _offers(draft):
            counts[sold.resource] = counts.get(sold.resource, 0) + sold.replicas
            where.setdefault(sold.resource, next(iter(draft.shared_by.values()), "sharing"))
    return [
        Fault(None, where[r], f"{n} devices under {r}: the kubelet takes {MOST_IDS} at most; share in fewer replicas")
        for r, n in sorted(counts.items())
        if n > MOST_IDS or n * ID_BYTES > MOST_BYTES
    ]
