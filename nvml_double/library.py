"""The C library: compiled once per state of its sources, and the calls it has."""

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from nvml_double import layout

HERE = Path(__file__).parent
SOURCES = ("state.c", "mig.c", "ci.c", "migdevice.c", "device.c", "topology.c", "settings.c", "gpm.c")
LIBRARY = "libnvidia-ml.so.1"


class DoubleError(Exception):
    """The double cannot be built or set as asked; the text says what to do."""


def compiler() -> str | None:
    """The C compiler of this machine, None when there is none."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(directory: Path) -> Path:
    """The library, in a folder below `directory` named after its sources; built only once. Raises DoubleError."""
    found = compiler()
    if found is None:
        raise DoubleError("no C compiler: install gcc, or use the double in Python (fallow agent --hardware fake)")
    digest = hashlib.sha256(layout.header().encode())
    for name in (*SOURCES, "double.h"):
        digest.update((HERE / name).read_bytes())
    place = directory / digest.hexdigest()[:16]
    try:
        if not (place / LIBRARY).exists():
            directory.mkdir(parents=True, exist_ok=True)
            _compile(found, directory, place)
    except OSError as error:
        raise DoubleError(f"cannot build in {directory}: {error.strerror}") from error
    return place / LIBRARY


def _compile(found: str, directory: Path, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as work:
        (Path(work) / "layout.h").write_text(layout.header())
        flags = [
            "-std=c11",
            "-O1",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ]
        out = Path(work) / "out"
        out.mkdir()
        command = [found, *flags, f"-I{work}", f"-I{HERE}", f"-Wl,-soname,{LIBRARY}", "-o", str(out / LIBRARY)]
        done = subprocess.run(
            [*command, *(str(HERE / s) for s in SOURCES)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DoubleError(f"{found} failed:\n{done.stderr}")
        try:
            out.rename(place)
        except OSError:
            # Somebody else built the same at the same time.
            if not (place / LIBRARY).exists():
                raise


def calls() -> tuple[str, ...]:
    """The C names of all calls that the library exports."""
    text = "".join((HERE / name).read_text("utf-8") for name in SOURCES)
    names = re.findall(r"^(?:EXPORT Return |NUMBER\(|ABSENT\()(nvml\w+)", text, re.MULTILINE)
    return tuple(sorted(set(names)))
