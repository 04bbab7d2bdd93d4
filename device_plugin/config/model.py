"""The file as NVIDIA's plugin and GPU Feature Discovery define it (version v1), checked.

Values only, frozen. Keys, types and defaults are those of the `api/config/v1` package of NVIDIA's k8s-device-plugin
0.20. What is unset stays None where that means something else than the default.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

PREFIX = "nvidia.com/"
GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
_DOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_DURATION = re.compile(r"^(\d+(\.\d+)?(ns|us|ms|s|m|h))+$")
_DEVICE = re.compile(r"^(\d+|\d+:\d+|GPU-[0-9a-f-]+|MIG-[0-9a-f-]+)$")


def _listed(value: Any) -> Any:
    """One value stands for a list of one."""
    return [value] if isinstance(value, str) else value


def _full(name: Any) -> Any:
    """A name without a domain is NVIDIA's."""
    return PREFIX + name if isinstance(name, str) and "/" not in name else name


def _resource(name: str) -> str:
    domain, _, rest = name.partition("/")
    if not _NAME.match(rest) or not _DOMAIN.match(domain) or len(domain) > 253:
        raise ValueError(f"{name!r} is no resource name; write it as {GPU}, or domain/name")
    if domain.endswith("kubernetes.io") or domain.startswith("requests."):
        raise ValueError(f"{name!r}: Kubernetes keeps that domain for itself")
    return name


def _devices(value: Any) -> Any:
    """`all`, a number of devices, or a list of indexes, GPU:MIG indexes and UUIDs. YAML reads an index as a number."""
    if value == "all":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, list):
        return tuple(str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value)
    raise ValueError("write `all`, a number of devices, or a list of indexes, GPU:MIG indexes or UUIDs")


Bool = Annotated[bool, Field(strict=True)]
Path = Annotated[str, Field(strict=True, pattern=r"^/")]
Duration = Annotated[str, Field(strict=True)]
Name = Annotated[str, BeforeValidator(_full), Field(strict=True)]
ListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, values: Any) -> Any:
        """`flags:` with nothing behind it is a section without keys; a key without a value is unset, as in Go."""
        if values is None:
            return {}
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, Mapping) else values


class Plugin(_Section):
    pass_device_specs: Bool = False
    device_list_strategy: Annotated[tuple[ListStrategy, ...], BeforeValidator(_listed)] = ("envvar",)
    device_id_strategy: Literal["uuid", "index"] = Field("uuid", alias="deviceIDStrategy")
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    nvidia_ctk_path: Path | None = Field(None, alias="nvidiaCTKPath")
    container_driver_root: Path | None = None
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"

    @field_validator("device_list_strategy")
    @classmethod
    def _some(cls, ways: tuple[str, ...]) -> tuple[str, ...]:
        if not ways:
            raise ValueError("the list is empty: no device would reach a container")
        return ways


class Gfd(_Section):
    oneshot: Bool = False
    no_timestamp: Bool = False
    sleep_interval: Duration = "60s"
    output_file: Path | None = None
    machine_type_file: Path = "/sys/class/dmi/id/product_name"

    @field_validator("sleep_interval")
    @classmethod
    def _a_duration(cls, text: str) -> str:
        if not _DURATION.match(text):
            raise ValueError(f"{text!r} is no duration; write for example 60s or 1m30s")
        return text


class Flags(_Section):
    mig_strategy: Literal["none", "single", "mixed"] | None = None
    fail_on_init_error: Bool = True
    mps_root: Path | None = None
    nvidia_driver_root: Path | None = None
    nvidia_dev_root: Path | None = None
    gdrcopy_enabled: Bool = False
    gds_enabled: Bool = False
    mofed_enabled: Bool = False
    use_node_feature_api: Bool = Field(False, alias="useNodeFeatureAPI")
    device_discovery_strategy: Literal["auto", "nvml"] = "auto"
    plugin: Plugin = Plugin()
    gfd: Gfd = Gfd()

    @field_validator("device_discovery_strategy", mode="before")
    @classmethod
    def _by_nvml(cls, how: Any) -> Any:
        if how in ("tegra", "vfio"):
            raise ValueError(f"{how}: such GPUs have no NVML, and Fallow finds GPUs by NVML only; keep NVIDIA's there")
        return how


class Pattern(_Section):
    pattern: str
    name: Name


class Resources(_Section):
    gpus: tuple[Pattern, ...] = ()
    mig: tuple[Pattern, ...] = ()


class Replicated(_Section):
    """One way to share: `devices` None are all, a number the first so many."""

    name: Name
    replicas: Annotated[int, Field(ge=2, le=60_000, strict=True)]
    rename: Name | None = None
    devices: Annotated[int | tuple[str, ...] | None, BeforeValidator(_devices)] = None

    @field_validator("name")
    @classmethod
    def _ours(cls, name: str) -> str:
        if name != GPU and not name.startswith(MIG):
            raise ValueError(f"{name!r} cannot be shared; name {GPU} or one of {MIG}...")
        return _resource(name)

    @field_validator("rename")
    @classmethod
    def _a_name(cls, name: str | None) -> str | None:
        if name is not None and name.startswith(MIG):
            raise ValueError(f"{name!r} would pass for slices of a profile; choose a name that no profile has")
        return None if name is None else _resource(name)

    @field_validator("devices")
    @classmethod
    def _named(cls, devices: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if isinstance(devices, int) and devices < 1:
            raise ValueError("the number of devices must be at least 1")
        if isinstance(devices, tuple):
            if not devices:
                raise ValueError("the list is empty; leave the key out to share all devices")
            if wrong := [d for d in devices if not isinstance(d, str) or not _DEVICE.match(d)]:
                raise ValueError(f"{wrong[0]!r} names no device; write an index, a GPU:MIG index such as 0:1 or a UUID")
        return devices


class Shared(_Section):
    rename_by_default: Bool = False
    fail_requests_greater_than_one: Bool | None = None
    resources: tuple[Replicated, ...]

    @field_validator("resources")
    @classmethod
    def _some(cls, resources: tuple[Replicated, ...]) -> tuple[Replicated, ...]:
        if not resources:
            raise ValueError(f"the list is empty; name what is shared, such as {GPU}, or leave the section out")
        return resources


class Sharing(_Section):
    time_slicing: Shared | None = None
    mps: Shared | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.time_slicing and self.mps:
            raise ValueError("timeSlicing and mps exclude each other: a GPU's compute mode fits one of them; keep one")
        for shared in self.mps.resources if self.mps else ():
            if shared.name.startswith(MIG):
                raise ValueError(f"mps of {shared.name}: MPS is for whole GPUs; share slices by timeSlicing")
        return self


class Imex(_Section):
    channel_ids: tuple[Annotated[int, Field(strict=True)], ...] = Field((), alias="channelIDs")
    required: Bool = False

    @field_validator("channel_ids")
    @classmethod
    def _only_0(cls, ids: tuple[int, ...]) -> tuple[int, ...]:
        if ids not in ((), (0,)):
            raise ValueError(f"{list(ids)}: NVIDIA's plugin hands out IMEX channel 0 only; write [] or [0]")
        return ids


class Config(_Section):
    """The whole file."""

    version: Literal["v1"] = "v1"
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    imex: Imex = Imex()

    @model_validator(mode="after")
    def _single_without_mps(self) -> Self:
        if self.sharing.mps and self.flags.mig_strategy == "single":
            raise ValueError("sharing.mps with flags.migStrategy single: MPS is for whole GPUs, not for slices")
        return self
