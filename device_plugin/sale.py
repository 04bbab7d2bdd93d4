"""What each GPU of a node is to be sold as: resource names, replicas, strategies. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Strategy(StrEnum):
    """How several pods share one device (the words of GFD's label `gpu.sharing-strategy`)."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Sold:
    """One device, whole or in `replicas` (1: not shared), under a resource name."""

    resource: str
    replicas: int = 1
    strategy: Strategy = Strategy.NONE


@dataclass(frozen=True)
class GpuPlan:
    """What a configuration file says of one GPU. `whole` holds while it is not in MIG mode; `slices` by profile name;
    `by_slice`, by MIG UUID, goes before. None, or a profile that is missing: as usual. `without_slices`: while it is in
    MIG mode nothing of it is offered."""

    uuid: str
    whole: Sold | None = None
    slices: Mapping[str, Sold] = field(default_factory=dict)
    by_slice: Mapping[str, Sold] = field(default_factory=dict)
    without_slices: bool = False


@dataclass(frozen=True)
class NodePlan:
    """What a configuration file says of a node. `fixed` GPUs are never re-cut; of `refuse_more_than_one` a container
    may ask one only; `distribute`: units of the least taken device first, instead of the most taken; `notes` are
    sentences for the administrator."""

    gpus: Mapping[str, GpuPlan] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    refuse_more_than_one: frozenset[str] = frozenset()
    distribute: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wish:
    """What GPUs are to be: `units` of a shared one by policy, and what the configuration file says."""

    units: int
    plan: NodePlan = NodePlan()
