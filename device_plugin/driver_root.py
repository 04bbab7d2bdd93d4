"""Looks for the user-space driver below its root and for device nodes: what the host really has."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from device_plugin.host_spec import IMEX_NODE, NODES, DriverFiles, File

LIBRARY_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
"""Where distributions and NVIDIA's driver container put libraries."""
PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
HOOKS = ("usr/bin/nvidia-cdi-hook", "usr/bin/nvidia-ctk", "usr/local/nvidia/toolkit/nvidia-cdi-hook")
"""Where NVIDIA's container toolkit puts the program of its CDI hooks; the last one is the GPU operator's."""


def look(root: Path, on_host: str, version: str) -> DriverFiles:
    """The files of the driver of this version below `root`, which is `on_host` on the host. Empty when there are none.

    Only files that carry the version in their name: another driver's libraries must not get in.
    """
    libraries: dict[str, File] = {}
    links: dict[str, str] = {}
    seen: set[Path] = set()
    for directory in (root / d for d in LIBRARY_DIRECTORIES):
        if not directory.is_dir() or directory.resolve() in seen:
            continue  # /lib is a link to /usr/lib nearly everywhere
        seen.add(directory.resolve())
        for library in sorted(directory.glob(f"*.so.{version}")):
            if library.is_file() and not library.is_symlink():
                libraries.setdefault(library.name, _file(library, root, on_host))
        for link in sorted(directory.glob("*.so*")):
            if link.is_symlink() and (target := link.resolve().name) in libraries:
                links.setdefault(str("/" / link.relative_to(root)), target)
    if not libraries:
        return DriverFiles()
    firmware = sorted((root / "lib/firmware/nvidia" / version).glob("*.bin"))
    others = [*firmware, *(root / "usr/bin" / p for p in PROGRAMS), *(root / s for s in SOCKETS)]
    there = tuple(_file(p, root, on_host) for p in others if p.exists())
    return DriverFiles(tuple(libraries[n] for n in sorted(libraries)), links, there)


def hook(host: Path, on_host: str = "/") -> str:
    """The program for CDI hooks on the host, whose root is `host` here; "" when there is none."""
    found = next((h for h in HOOKS if (host / h).exists()), "")
    return f"{on_host.rstrip('/')}/{found}" if found else ""


def nodes(dev_root: str, imex_channels: Sequence[int]) -> Mapping[str, tuple[str, ...]]:
    """The device nodes of each extra that are there, relative to the root of devices."""
    root = Path(dev_root)
    found = {
        extra: tuple(sorted(str(n.relative_to(root)) for pattern in patterns for n in root.glob(pattern)))
        for extra, patterns in NODES.items()
    }
    for channel in imex_channels:
        node = IMEX_NODE.format(channel)
        found[f"imex-{channel}"] = (node,) if (root / node).exists() else ()
    return found


def _file(path: Path, root: Path, on_host: str) -> File:
    inside = str("/" / path.relative_to(root))
    return File(inside, on_host.rstrip("/") + inside)
