"""What the operator wants: the checked form of `policy.yaml`.

Values only, frozen. An unknown key, a wrong type or an impossible number is a fault of the file, found when it is
loaded. Keys are written in camelCase, as everywhere in Kubernetes.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from gpu.node import Mode
from gpu.scoring import SCORERS


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True)


Seconds = Annotated[float, Field(ge=0, le=7 * 24 * 3600, strict=True)]
"""Strict, like every number here: a quoted number or `true` is a fault of the file, not a number."""


class Placing(_Section):
    """How the extender chooses."""

    answer: Literal["exact", "advisory"] = Field(
        "exact",
        description="exact: the extender names the one best node. advisory: it names all that fit and scores them "
        "0 to 10, so that kube-scheduler weighs them against its own scores (coarser).",
    )
    scorer: str = Field("least_stranded", description=f"One of: {', '.join(sorted(SCORERS))}.")
    stale_after_seconds: Seconds = Field(
        30.0, description="A measured activity older than this counts as busy (scorer most_idle)."
    )
    promise_seconds: Seconds = Field(
        300.0,
        description="How long a pod bound but not yet started may keep other shared requests of other sizes from "
        "its node before it is taken for lost.",
    )

    @field_validator("scorer")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in SCORERS:
            raise ValueError(f"no scorer {name!r}; choose one of {', '.join(sorted(SCORERS))}")
        return name


class Sharing(_Section):
    """Time-sliced sharing."""

    units_per_gpu: Annotated[int, Field(ge=1, le=1000, strict=True)] = Field(
        20,
        description="Units a shared GPU is advertised as; 20 makes one unit 50 milli-GPU. A changed number reaches a "
        "GPU as soon as no pod holds units of it.",
    )
    memory_tolerance: Annotated[float, Field(ge=0, le=10, strict=True)] = Field(
        0.1, description="How much more GPU memory than its units promise a pod may use, as a part of the promise."
    )
    memory_grace_seconds: Seconds = Field(
        30.0, description="How long a pod may use more than that before it is reported or evicted."
    )
    on_memory_excess: Literal["report", "evict"] = Field(
        "report", description="report: an Event on the pod, a metric and a condition. evict: the pod also has to go."
    )


class Recutting(_Section):
    """When the planner may change what a GPU is."""

    enabled: Annotated[bool, Field(strict=True)] = True
    modes: tuple[Mode, ...] = Field(
        tuple(Mode), min_length=1, description="What a GPU may be turned into: whole, shared, sliced."
    )
    patience_seconds: Seconds = Field(5.0, description="How long a pod waits before a GPU is re-cut for it.")
    cooldown_seconds: Seconds = Field(30.0, description="How long a re-cut GPU is left as it is.")
    max_gpus_at_once: Annotated[int, Field(ge=1, le=10000, strict=True)] = Field(
        8, description="GPUs being re-cut at the same moment, over the whole cluster."
    )
    drain_seconds: Seconds = Field(
        300.0, description="How long a node waits for a slice to become free before it gives a re-cut up."
    )
    tries: Annotated[int, Field(ge=1, le=20, strict=True)] = Field(
        3, description="Attempts at a layout before the node goes back to the old one."
    )


class Policy(_Section):
    """The whole of `policy.yaml`."""

    version: Literal["v1"] = "v1"
    placing: Placing = Placing()
    sharing: Sharing = Sharing()
    recutting: Recutting = Recutting()
