"""From text and environment to the checked configuration, or every fault in them."""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from device_plugin.config.model import Config
from policies import document
from policies.document import DocumentError, Fault

ENVIRONMENT: Mapping[str, str] = {
    "MIG_STRATEGY": "flags.migStrategy",
    "FAIL_ON_INIT_ERROR": "flags.failOnInitError",
    "MPS_ROOT": "flags.mpsRoot",
    "NVIDIA_DRIVER_ROOT": "flags.nvidiaDriverRoot",
    "NVIDIA_DEV_ROOT": "flags.nvidiaDevRoot",
    "GDRCOPY_ENABLED": "flags.gdrcopyEnabled",
    "GDS_ENABLED": "flags.gdsEnabled",
    "MOFED_ENABLED": "flags.mofedEnabled",
    "USE_NODE_FEATURE_API": "flags.useNodeFeatureAPI",
    "DEVICE_DISCOVERY_STRATEGY": "flags.deviceDiscoveryStrategy",
    "PASS_DEVICE_SPECS": "flags.plugin.passDeviceSpecs",
    "DEVICE_LIST_STRATEGY": "flags.plugin.deviceListStrategy",
    "DEVICE_ID_STRATEGY": "flags.plugin.deviceIDStrategy",
    "CDI_ANNOTATION_PREFIX": "flags.plugin.cdiAnnotationPrefix",
    "NVIDIA_CTK_PATH": "flags.plugin.nvidiaCTKPath",
    "NVIDIA_CDI_HOOK_PATH": "flags.plugin.nvidiaCTKPath",
    "CONTAINER_DRIVER_ROOT": "flags.plugin.containerDriverRoot",
    "DRIVER_ROOT_CTR_PATH": "flags.plugin.containerDriverRoot",
    "SHARED_DEVICES_ALLOCATION_POLICY": "flags.plugin.sharedDevicesAllocationPolicy",
    "GFD_NO_TIMESTAMP": "flags.gfd.noTimestamp",
    "GFD_MACHINE_TYPE_FILE": "flags.gfd.machineTypeFile",
    "IMEX_CHANNEL_IDS": "imex.channelIDs",
    "IMEX_REQUIRED": "imex.required",
}
"""Variables of NVIDIA's plugin and GPU Feature Discovery, and the keys that they go before."""
_LISTS = ("DEVICE_LIST_STRATEGY", "IMEX_CHANNEL_IDS")


def read(text: str, source: str) -> Config:
    """What the file says. Raises DocumentError with every fault; `source` names the file."""
    return document.read(text, Config, source, "version: v1")


def overlay(config: Config, environment: Mapping[str, str]) -> Config:
    """The same with NVIDIA's variables, which go before the file. Raises DocumentError naming the variables."""
    values = config.model_dump(by_alias=True, exclude_unset=True, mode="json")
    here = {name: path for name, path in ENVIRONMENT.items() if environment.get(name)}
    for name, path in here.items():
        section = values
        *sections, key = path.split(".")
        for part in sections:
            section = section.setdefault(part, {})
        section[key] = _value(name, environment[name])
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise DocumentError("environment", tuple(_fault(e, here) for e in error.errors(include_url=False))) from error


def _value(name: str, text: str) -> Any:
    """As a variable holds it: lists by commas, truth as Go reads it."""
    if name in _LISTS:
        return [yaml.safe_load(part) for part in text.split(",") if part]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text


def _fault(error: Any, here: Mapping[str, str]) -> Fault:
    path = ".".join(str(k) for k in error["loc"])
    name = next((n for n, p in here.items() if path.startswith(p)), "")
    problem = str(error["msg"]).removeprefix("Value error, ")
    return Fault(None, name or path, problem if name else f"{problem} (with {', '.join(sorted(here))})")
