"""CDI specs of what comes from the host beside the GPU itself: the driver's files, and nodes of its neighbours.

Pure. A GPU's device nodes are useless without the user-space driver of exactly the kernel's version, so with CDI every
container also gets that. The names are fixed: the kubelet repeats an answer when a container restarts, so a name must
outlive a driver upgrade and another driver root; only what stands behind it changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = "0.6.0"
DRIVER_KIND = "fallow.dev/driver"
DRIVER = "libraries"
EXTRA_KIND = "fallow.dev/extra"
KEEP_OUT = "NVIDIA_VISIBLE_DEVICES=void"
"""Keeps NVIDIA's environment hook out: what the container gets is what stands in the spec, nothing else."""

NODES: Mapping[str, tuple[str, ...]] = {
    "gds": ("nvidia-fs*",),
    "mofed": ("infiniband/*",),
    "gdrcopy": ("gdrdrv",),
}
"""Device nodes of the neighbours, as patterns below the root of devices: GPUDirect Storage, RDMA, GDRCopy."""
IMEX_NODE = "nvidia-caps-imex-channels/channel{}"


@dataclass(frozen=True, slots=True)
class File:
    """One file of the driver: its path in the container and on the host."""

    container: str
    host: str


@dataclass(frozen=True)
class DriverFiles:
    """What a driver root holds. `links` maps the path of a symbolic link to the name of the library it leads to;
    `others` are programs, sockets and firmware."""

    libraries: tuple[File, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    others: tuple[File, ...] = ()


def driver_name() -> str:
    return f"{DRIVER_KIND}={DRIVER}"


def extra_name(extra: str) -> str:
    return f"{EXTRA_KIND}={extra}"


def driver_spec(files: DriverFiles, hook: str) -> dict[str, Any]:
    """`hook` is the path of nvidia-cdi-hook (or nvidia-ctk) on the host, "" for none: then libraries also stand where
    their links would, which serves images that look where this host does."""
    edits: dict[str, Any] = {"env": [KEEP_OUT]}
    mounts = [_mount(f.container, f.host) for f in (*files.libraries, *files.others)]
    if hook:
        edits["hooks"] = _hooks(files, hook)
    else:
        host = {f.container.rpartition("/")[2]: f.host for f in files.libraries}
        mounts += [_mount(link, host[target]) for link, target in sorted(files.links.items()) if target in host]
    if mounts:
        edits["mounts"] = mounts
    return _spec(DRIVER_KIND, {DRIVER: edits})


def extras_spec(found: Mapping[str, Sequence[str]], dev_root: str) -> dict[str, Any] | None:
    """`found` are existing device nodes, relative to the root of devices, by the name of the extra."""
    root = dev_root.rstrip("/")
    devices = {
        extra: {
            "env": [KEEP_OUT],
            "deviceNodes": [{"path": f"/dev/{n}", "hostPath": f"{root}/{n}", "permissions": "rw"} for n in nodes],
        }
        for extra, nodes in sorted(found.items())
        if nodes
    }
    return _spec(EXTRA_KIND, devices) if devices else None


def _hooks(files: DriverFiles, hook: str) -> list[dict[str, Any]]:
    program = hook.rpartition("/")[2]
    start = [program, "hook"] if program == "nvidia-ctk" else [program]
    links = [word for link, target in sorted(files.links.items()) for word in ("--link", f"{target}::{link}")]
    folders = dict.fromkeys(f.container.rpartition("/")[0] for f in files.libraries)
    cache = [word for folder in folders for word in ("--folder", folder)]
    made = [("create-symlinks", links), ("update-ldcache", cache)]
    return [
        {"hookName": "createContainer", "path": hook, "args": [*start, verb, *words]} for verb, words in made if words
    ]


def _mount(container: str, host: str) -> dict[str, Any]:
    return {"hostPath": host, "containerPath": container, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}


def _spec(kind: str, devices: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": dict(edits)} for name, edits in devices.items()],
    }
