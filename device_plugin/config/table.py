"""What Fallow does with each key of NVIDIA's file: the table of this room's README, which a test holds equal to the
model.

`python -m device_plugin.config.table` writes it into the README.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from device_plugin.config.model import Config

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- config keys -->", "<!-- end of config keys -->"

EFFECTS: dict[str, str] = {
    "version": "checked; another version is a fault",
    "flags.migStrategy": "`none`: nothing is offered of GPUs in MIG mode. `single`: slices are offered as "
    "`nvidia.com/gpu` while all are alike, else under their own names with a note. `mixed` or unset: under their "
    "own names. `none` and `single` also keep Fallow from re-cutting this node's GPUs",
    "flags.failOnInitError": "accepted; without a driver the agent ends with an error either way, and is restarted",
    "flags.mpsRoot": "where MPS daemons have pipes, logs and shared memory; must be mounted there in the agent too",
    "flags.nvidiaDriverRoot": "where the driver's libraries are on the host, for CDI specs",
    "flags.nvidiaDevRoot": "device nodes are looked for in its `dev`",
    "flags.gdrcopyEnabled": "GDRCopy's device node by CDI, or `NVIDIA_GDRCOPY=enabled`",
    "flags.gdsEnabled": "GPUDirect Storage's device nodes by CDI, or `NVIDIA_GDS=enabled`",
    "flags.mofedEnabled": "RDMA device nodes by CDI, or `NVIDIA_MOFED=enabled`",
    "flags.useNodeFeatureAPI": "accepted; see Labels for how they are written",
    "flags.deviceDiscoveryStrategy": "`auto`, `nvml`; `tegra` and `vfio` are faults, for such GPUs have no NVML",
    "flags.plugin.passDeviceSpecs": "device nodes are also passed in the answer (static CPU manager)",
    "flags.plugin.deviceListStrategy": "each of the four ways, or several; without any file `cdi-cri`",
    "flags.plugin.deviceIDStrategy": "`index` names whole GPUs by index in variable and mounts; slices keep their "
    "UUID, for their index changes with every re-cut",
    "flags.plugin.cdiAnnotationPrefix": "prefix of CDI annotations",
    "flags.plugin.nvidiaCTKPath": "the program of CDI hooks on the host; unset: looked for",
    "flags.plugin.containerDriverRoot": "the driver root as the agent sees it",
    "flags.plugin.sharedDevicesAllocationPolicy": "`distributed`: units of the least taken device; `packed`: of the "
    "fullest. Units of one container are on one device either way",
    "flags.gfd.oneshot": "accepted without effect: the agent runs on and keeps labels current",
    "flags.gfd.noTimestamp": "leaves `gfd.timestamp` out",
    "flags.gfd.sleepInterval": "accepted without effect: labels follow every look, written only when they change",
    "flags.gfd.outputFile": "accepted without effect: `--labels` and `--features-file` say where labels go",
    "flags.gfd.machineTypeFile": "where the machine type is read",
    "resources.gpus.pattern": "accepted without effect, as by NVIDIA's plugin, which only warns",
    "resources.gpus.name": "accepted without effect",
    "resources.mig.pattern": "accepted without effect",
    "resources.mig.name": "accepted without effect",
    "imex.channelIDs": "IMEX channels by CDI, variable or mounts",
    "imex.required": "accepted; a channel whose device node is missing is left out with CDI",
}
_SHARED = {
    "renameByDefault": "adds `.shared` to the names of what is shared",
    "failRequestsGreaterThanOne": "refuses two or more for one container; unset: {unset}",
    "resources.name": "{what}; a name without domain is NVIDIA's",
    "resources.replicas": "how many pods share one device, 2 to 60000",
    "resources.rename": "honoured (NVIDIA's plugin drops it): the resource name of what this entry shares",
    "resources.devices": "honoured (NVIDIA's plugin drops it): `all`, a number, or indexes, `GPU:MIG` indexes and "
    "UUIDs, so that GPUs of one node are shared differently",
}
for _way, _unset, _what in (
    ("timeSlicing", "no", "`nvidia.com/gpu` or `nvidia.com/mig-...`"),
    ("mps", "yes", "`nvidia.com/gpu`"),
):
    EFFECTS |= {f"sharing.{_way}.{key}": said.format(unset=_unset, what=_what) for key, said in _SHARED.items()}


@dataclass(frozen=True, slots=True)
class Key:
    path: str
    default: Any


def every_key(model: type[BaseModel] = Config, path: str = "") -> Iterator[Key]:
    """Every key of the file that holds a value, in the order of the model."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        section = _section(field)
        if section is None:
            yield Key(here, field.get_default())
        else:
            yield from every_key(section, f"{here}.")


def table() -> str:
    """The table in Markdown. Raises KeyError for a key whose effect nobody has written down."""
    lines = ["| key | default | what Fallow does |", "|---|---|---|"]
    lines += [f"| `{k.path}` | {_words(k.default)} | {EFFECTS[k.path]} |" for k in every_key()]
    return "\n".join(lines)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    found = [field.annotation]
    while found:
        annotation = found.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        found += get_args(annotation)
    return None


def _words(default: Any) -> str:
    if default is None or default == () or repr(default) == "PydanticUndefined":
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"`{', '.join(default)}`" if isinstance(default, tuple) else f"`{default}`"


def into_readme() -> str:
    """The README with the table as it must be."""
    text = README.read_text("utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(into_readme(), "utf-8")
