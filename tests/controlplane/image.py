"""The one image of the test cluster: a static busybox as a single layer, written without any container engine."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

REFERENCE = "docker.io/local/pause:1"
"""With a host part, so that nobody asks a registry. Serves as sandbox and as workload: its entry point sleeps."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
APPLETS = (
    "sh",
    "sleep",
    "env",
    "ls",
    "cat",
    "echo",
    "true",
    "false",
    "test",
    "date",
    "kill",
    "stat",
    "find",
    "sort",
    "nc",
)


def write(path: Path) -> None:
    """A `docker save` style archive."""
    layer = _layer()
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created_by": "fallow tests"}],
    }
    raw = json.dumps(config).encode()
    name = f"{hashlib.sha256(raw).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [REFERENCE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        for member, data in ((name, raw), ("layer.tar", layer), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def _layer() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory in ("bin", "tmp", "dev", "proc", "sys", "etc"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(info)
        data = Path("/bin/busybox").read_bytes()
        info = tarfile.TarInfo("bin/busybox")
        info.size, info.mode = len(data), 0o755
        layer.addfile(info, io.BytesIO(data))
        for applet in APPLETS:
            info = tarfile.TarInfo(f"bin/{applet}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(info)
    return buffer.getvalue()
