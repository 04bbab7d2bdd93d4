"""GPUs drawn as tiles: one row per GPU, one cell per placement unit, who holds what and what lies idle.

Draws values, decides nothing. The same drawing serves the terminal and the picture in the README.
"""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from gpu.node import Gpu, Mode, NodeGpus, Share
from gpu.recut import Phase, Recut

WIDTH = 48
"""Characters per GPU: divisible by the axes of all known models (4, 8 and 12)."""

COLOURS = ("green", "cyan", "magenta", "blue", "yellow", "red", "bright_green", "bright_cyan", "bright_magenta")
IDLE = "grey37"
NOT_CUT = "grey23"


def cluster(nodes: tuple[NodeGpus, ...], recuts: Mapping[str, Recut]) -> RenderableType:
    """A panel per node. `recuts` are the journals by GPU UUID."""
    return Group(*(Panel(node_rows(n, recuts), title=n.name, title_align="left", width=WIDTH + 46) for n in nodes))


def node_rows(node: NodeGpus, recuts: Mapping[str, Recut]) -> Text:
    rows = Text("\n").join(_row(node, gpu, recuts.get(gpu.uuid)) for gpu in node.gpus)
    return rows if node.gpus else Text("no GPUs", style=IDLE)


def used(nodes: tuple[NodeGpus, ...]) -> float:
    """Share of all GPU capacity that pods hold, between 0 and 1; a slice counts as its part of the axis."""
    gpus = [(n, g) for n in nodes for g in n.gpus]
    return sum(_held(n, g) for n, g in gpus) / len(gpus) if gpus else 0.0


def _held(node: NodeGpus, gpu: Gpu) -> float:
    use = node.use(gpu)
    if use.whole:
        return 1.0
    if gpu.mode is Mode.SHARED:
        return use.units / gpu.units if gpu.units else 0.0
    return sum(s.profile.size for s in use.slices) / gpu.model.axis if gpu.model.axis else 0.0


def _row(node: NodeGpus, gpu: Gpu, recut: Recut | None) -> Text:
    row = Text(f"{gpu.index} {gpu.model.key[:16]:<16} ", no_wrap=True)
    row.append_text(_bar(node, gpu))
    state = gpu.mode.value
    if recut is not None and not recut.phase.final:
        state = f"{recut.phase.value.lower()} -> {recut.target.mode}"
    elif recut is not None and recut.phase is Phase.STUCK:
        state = "STUCK"
    row.append(f" {state:<17}", style="bold red" if state == "STUCK" else "bold")
    if gpu.activity is not None:
        row.append(f"{gpu.activity.busy:4.0%}", style="yellow" if gpu.activity.busy > 0.5 else "dim")
    return row


def _bar(node: NodeGpus, gpu: Gpu) -> Text:
    held = [(p.pod.name, s) for p in node.seats for s in p.shares if s.gpu == gpu.uuid]
    if gpu.mode is Mode.WHOLE:
        return _cell(held[0][0], WIDTH, _colour(held[0][0])) if held else _cell("idle", WIDTH, IDLE)
    return _shared(gpu, held) if gpu.mode is Mode.SHARED else _sliced(gpu, held)


def _shared(gpu: Gpu, held: list[tuple[str, Share]]) -> Text:
    bar, left = Text(), WIDTH
    for name, share in held:
        width = min(left, round(WIDTH * share.units / max(1, gpu.units)))
        left -= width
        bar.append_text(_cell(f"{name} {share.units}", width, _colour(name)))
    return bar.append_text(_cell("idle", left, IDLE))


def _sliced(gpu: Gpu, held: list[tuple[str, Share]]) -> Text:
    unit = WIDTH // max(1, gpu.model.axis)
    holder = {share.slice: name for name, share in held}
    bar, at = Text(), 0
    for piece in gpu.layout:
        bar.append_text(_cell("", (piece.start - at) * unit, NOT_CUT))
        name = holder.get(piece)
        label = f"{name} {piece.profile.name}" if name else piece.profile.name
        bar.append_text(_cell(label, piece.profile.size * unit, _colour(name) if name else IDLE))
        at = piece.start + piece.profile.size
    return bar.append_text(_cell("", (gpu.model.axis - at) * unit, NOT_CUT))


def _cell(label: str, width: int, colour: str) -> Text:
    if width <= 0:
        return Text()
    text = label[: max(0, width - 1)].ljust(width - 1) + "▕"
    ink = "white" if colour in (IDLE, NOT_CUT) else "black"
    return Text(text, style=f"{ink} on {colour}")


def _colour(name: str) -> str:
    return COLOURS[sum(name.encode()) % len(COLOURS)]
