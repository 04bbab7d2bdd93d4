"""CDI specs: which device nodes and variables a container gets for a device name.

The spec of a GPU is pure; writing is atomic (a runtime never reads half a file), and files of GPUs that are gone are
removed. One file per GPU, so that re-cutting one leaves the others' files alone.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from device_plugin.delivery import CDI_KIND
from device_plugin.devices import NodeGpu
from device_plugin.host_spec import KEEP_OUT, VERSION
from gpu.hardware import SeenSlice
from gpu.node import Mode

PREFIX = "fallow-"
UNFINISHED = ".fallow-"
HOST_FILES = (f"{PREFIX}driver.json", f"{PREFIX}extra.json")
"""The specs of host_spec.py, which are there beside those of GPUs."""

CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def gi_minor(gpu_minor: int, gi: int) -> int:
    """Minor number of a GPU instance's access node: 3 + 9 * (15 * gpu + gi), the driver's own numbering
    (/proc/driver/nvidia-caps/mig-minors)."""
    return 3 + 9 * (15 * gpu_minor + gi)


def ci_minor(gpu_minor: int, gi: int, ci: int) -> int:
    return gi_minor(gpu_minor, gi) + 1 + ci


def spec(gpu: NodeGpu, dev_root: str, exists: Callable[[str], bool]) -> dict[str, Any] | None:
    """The CDI spec of one GPU, None when it offers nothing now (a spec without devices is invalid).

    Nodes that do not exist are left out: naming one would fail every container.
    """
    devices = [_device(name, paths, dev_root, exists) for name, paths in _named(gpu)]
    return {"cdiVersion": VERSION, "kind": CDI_KIND, "devices": devices} if devices else None


def write(directory: Path, gpu: NodeGpu, dev_root: str) -> None:
    """The spec of one GPU, before its ids are offered: a container must never find its device's name missing.

    Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content = spec(gpu, dev_root, os.path.exists)
    if content is not None:
        put(directory / f"{PREFIX}{gpu.uuid}.json", content)


def missing(gpus: Iterable[NodeGpu], dev_root: str) -> tuple[str, ...]:
    """Device nodes that containers on these GPUs should get and that do not exist: such a container has no GPU."""
    wanted = {path for gpu in gpus for _, paths in _named(gpu) for path in (*CONTROL, *paths)}
    return tuple(sorted(p for p in wanted if not os.path.exists(os.path.join(dev_root, p))))


def renew(directory: Path, gpus: Iterable[NodeGpu], dev_root: str) -> None:
    """Write the specs of these GPUs and remove those of others that we once wrote. Raises OSError.

    Belongs to the only process that writes here: what a killed predecessor left unfinished is swept.
    """
    offered = set(HOST_FILES)
    for gpu in gpus:
        write(directory, gpu, dev_root)
        if gpu.shares:
            offered.add(f"{PREFIX}{gpu.uuid}.json")
    for stale in (*directory.glob(f"{PREFIX}*.json"), *directory.glob(f"{UNFINISHED}*")):
        if stale.name not in offered:
            stale.unlink(missing_ok=True)


def device_nodes(gpu: NodeGpu, name: str) -> tuple[str, ...]:
    """The device nodes of the device with this CDI name, relative to the root of devices."""
    return (*CONTROL, *next((paths for known, paths in _named(gpu) if known == name), ()))


def _named(gpu: NodeGpu) -> list[tuple[str, Sequence[str]]]:
    """The device names of one GPU, each with the nodes of its own."""
    parent = f"nvidia{gpu.seen.minor}"
    if gpu.mode is not Mode.SLICED:
        return [(gpu.uuid, (parent,))]
    return [(s.uuid, (parent, *_caps(gpu, s))) for s in gpu.slices if s.uuid and s.ci is not None]


def _caps(gpu: NodeGpu, piece: SeenSlice) -> Sequence[str]:
    ci = piece.ci if piece.ci is not None else 0
    minors = (gi_minor(gpu.seen.minor, piece.gi), ci_minor(gpu.seen.minor, piece.gi, ci))
    return [f"nvidia-caps/nvidia-cap{n}" for n in minors]


def _device(name: str, paths: Sequence[str], dev_root: str, exists: Callable[[str], bool]) -> dict[str, Any]:
    edits: dict[str, Any] = {"env": [KEEP_OUT]}
    if nodes := _nodes([*CONTROL, *paths], dev_root, exists):
        edits["deviceNodes"] = nodes
    return {"name": name, "containerEdits": edits}


def _nodes(paths: Iterable[str], dev_root: str, exists: Callable[[str], bool]) -> list[dict[str, str]]:
    nodes = []
    for path in paths:
        host = os.path.join(dev_root, path)
        if exists(host):
            nodes.append({"path": f"/dev/{path}", "hostPath": host, "permissions": "rw"})
    return nodes


def put(path: Path, content: Mapping[str, Any]) -> None:
    """Leaves an equal file alone; otherwise replaces it in one step. Raises OSError."""
    text = json.dumps(content, indent=1)
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
