"""Builds the control plane, containerd and KWOK from Go modules, once, into a cache outside the checkout.

A fresh machine pays about 11 minutes for Kubernetes and 2 for the rest; later runs find the binaries by the hash of the
module files.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
KUBERNETES = "1.37.2"
OLDEST_GO = (1, 26)


class CannotBuild(Exception):
    """What is missing on this machine, and how to get it."""


@dataclass(frozen=True)
class Binaries:
    controlplane: Path
    containerd: Path
    ctr: Path
    shim_dir: Path
    kwok: Path
    kwok_stages: Path


@dataclass(frozen=True)
class Part:
    name: str
    says: str
    packages: tuple[str, ...]
    flags: tuple[str, ...]


_VERSION = "k8s.io/component-base/version"
_STAMPS = {
    "gitVersion": f"v{KUBERNETES}",
    "gitMajor": "1",
    "gitMinor": "37",
    "gitCommit": "none",
    "gitTreeState": "clean",
}
PARTS = (
    Part(
        "kubernetes",
        f"Kubernetes {KUBERNETES} (about 11 minutes the first time)",
        (".",),
        # Without these the components call themselves v0.0.0 and refuse each other.
        ("-ldflags", "-s -w " + " ".join(f"-X {_VERSION}.{k}={v}" for k, v in _STAMPS.items())),
    ),
    Part(
        "containerd",
        "containerd (about a minute)",
        tuple(f"github.com/containerd/containerd/v2/cmd/{c}" for c in ("containerd", "containerd-shim-runc-v2", "ctr")),
        ("-ldflags", "-s -w", "-tags", "no_btrfs no_zfs no_devmapper no_aufs"),
    ),
    Part("kwok", "KWOK (about a minute)", ("sigs.k8s.io/kwok/cmd/kwok",), ("-ldflags", "-s -w")),
)


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fallow"


def binaries() -> Binaries:
    """Everything built, from the cache if it can be. Raises CannotBuild."""
    _check_go()
    places = {part.name: built(part) for part in PARTS}
    return Binaries(
        controlplane=places["kubernetes"] / "controlplane",
        containerd=places["containerd"] / "containerd",
        ctr=places["containerd"] / "ctr",
        shim_dir=places["containerd"],
        kwok=places["kwok"] / "kwok",
        kwok_stages=places["kwok"] / "stage",
    )


def missing_packages() -> list[str]:
    """Debian packages of packages.txt that this machine lacks."""
    lines = (line.split() for line in (HERE / "packages.txt").read_text().splitlines() if not line.startswith("#"))
    return [package for package, file in lines if not Path(file).exists()]


def install_packages() -> None:
    """By apt-get, as root. Raises CannotBuild."""
    missing = missing_packages()
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise CannotBuild(f"missing: {', '.join(missing)}; install them with: apt-get install {' '.join(missing)}")
    print(f"installing {', '.join(missing)}", file=sys.stderr, flush=True)
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *missing]):
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise CannotBuild(f"`{' '.join(command)}` failed")


def _check_go() -> None:
    go = shutil.which("go")
    if not go:
        raise CannotBuild("Go is missing: install Go 1.26 or newer")
    text = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    match = re.match(r"go(\d+)\.(\d+)", text)
    if not match or (int(match[1]), int(match[2])) < OLDEST_GO:
        raise CannotBuild(f"Go 1.26 or newer is needed, this is {text.strip()}")


def built(part: Part) -> Path:
    """Where this part lies, from the cache if it can be. Raises CannotBuild."""
    source = HERE / part.name
    digest = hashlib.sha256(repr((part.name, part.packages, part.flags)).encode())
    for name in sorted(p.name for p in source.iterdir() if p.suffix in (".mod", ".sum", ".go")):
        digest.update(name.encode() + (source / name).read_bytes())
    place = cache_dir() / "controlplane" / f"{part.name}-{digest.hexdigest()[:16]}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _lock(place.parent / f"{part.name}.lock", part.says):
        if not place.is_dir():
            for left in place.parent.glob(f".{part.name}-*"):  # of a build that was killed
                shutil.rmtree(left)
            _build(part, source, place)
    return place


def _build(part: Part, source: Path, place: Path) -> None:
    out = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{part.name}-"))
    command = ["go", "build", "-trimpath", "-mod=readonly", *part.flags, "-o", f"{out}/", *part.packages]
    with _progress(f"building {part.says}"):
        env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(out)
        raise CannotBuild(f"building {part.name} failed:\n{done.stderr[-3000:]}")
    if part.name == "kubernetes":
        next(out.iterdir()).rename(out / "controlplane")
    if part.name == "kwok":
        _copy_stages(source, out / "stage")
    out.rename(place)


def _copy_stages(source: Path, target: Path) -> None:
    """KWOK run outside a cluster has no stages of its own: take those of the module."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]
    module = Path(subprocess.run(command, cwd=source, capture_output=True, text=True, check=True).stdout.strip())
    target.mkdir()
    for name in (
        "node/fast/node-initialize.yaml",
        "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        "pod/fast/pod-ready.yaml",
        "pod/fast/pod-complete.yaml",
        "pod/fast/pod-delete.yaml",
    ):
        shutil.copyfile(module / "kustomize/stage" / name, target / Path(name).name)


@contextmanager
def _lock(path: Path, says: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with _progress(f"another run is building {says}; waiting for it"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _progress(says: str) -> Iterator[None]:
    """A line at once and every half minute: eleven silent minutes look like a hang."""
    started, done = time.monotonic(), threading.Event()

    def tell() -> None:
        print(f"{says} ...", file=sys.stderr, flush=True)
        while not done.wait(30):
            minutes, seconds = divmod(int(time.monotonic() - started), 60)
            print(f"{says} ... {minutes} min {seconds:02d} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
