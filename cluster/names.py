"""Every label, annotation, resource name and event reason of Fallow, once."""

import re

GROUP = "fallow.dev"
VERSION = "v1alpha1"
NAMESPACE = "fallow-system"

# Annotations that Fallow writes. Tenants may not: each has one writer.
PROMISE = f"{GROUP}/promise"
CLAIM = f"{GROUP}/claim"
CAPACITY = f"{GROUP}/capacity-changed"
"""On a Node, bumped when capacity appeared there: wakes the pods that kube-scheduler has put aside."""

# Annotations that users write.
ROLE = f"{GROUP}/role"
KIND = f"{GROUP}/kind"

# Labels that administrators write.
CONFIG = "nvidia.com/device-plugin.config"
"""On a Node: which configuration of the device plugin is its own (NVIDIA's label)."""

# Resources.
WHOLE = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG_PREFIX = "nvidia.com/mig-"

POLICY_CONFIGMAP = "fallow-policy"
POLICY_KEY = "policy.yaml"
PLANNER_LEASE = "fallow-planner"
SCHEDULER = "fallow"

# Event reasons.
POLICY_INVALID = "PolicyInvalid"
POLICY_APPLIED = "PolicyApplied"
RECUT_STARTED = "RecutStarted"
RECUT_DONE = "RecutDone"
RECUT_ROLLED_BACK = "RecutRolledBack"
RECUT_STUCK = "RecutStuck"
GPU_UNHEALTHY = "GpuUnhealthy"
GPU_RECOVERED = "GpuRecovered"
MEMORY_ABOVE_SHARE = "MemoryAboveShare"
EVICTED_FOR_MEMORY = "EvictedForMemory"
CONFIG_APPLIED = "ConfigApplied"
CONFIG_INVALID = "ConfigInvalid"
CONFIG_NOTED = "ConfigNoted"
FACT_UNREADABLE = "FactUnreadable"

_PROFILE = re.compile(r"^(?:\d+c\.)?\d+g\.\d+gb(?:[+-](?:me\.all|me|gfx))*$")
_SUFFIX = re.compile(r"\.(me\.all|me|gfx)$")


def mig_resource(profile: str) -> str:
    """`1g.10gb+me` -> `nvidia.com/mig-1g.10gb.me`: NVIDIA's names."""
    return MIG_PREFIX + profile.replace("+", ".")


def mig_profile(resource: str) -> str:
    """`nvidia.com/mig-1g.10gb.me` -> `1g.10gb+me`. Raises ValueError for anything else."""
    name = _SUFFIX.sub(r"+\1", resource.removeprefix(MIG_PREFIX))
    if not resource.startswith(MIG_PREFIX) or not _PROFILE.match(name):
        raise ValueError(f"{resource!r} names no MIG profile; write it as NVIDIA does, for example {MIG_PREFIX}1g.10gb")
    return name


def is_ours(resource: str) -> bool:
    return resource in (WHOLE, SHARED) or resource.startswith(MIG_PREFIX)
