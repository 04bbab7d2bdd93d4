"""Who still uses what goes: by the books, by the kubelet, by the driver; silence counts as use."""

import pytest

from cluster import names
from device_plugin.claims import Held
from device_plugin.devices import Device, NodeGpu
from device_plugin.users import in_books, in_driver, in_kubelet, node_shows
from gpu.hardware import GpuProcess, SeenGpu, SeenSlice
from gpu.node import Mode, Stage
from gpu.recut import Shape
from tests.builders import gpu, layout, model, node, placement, share

ONE, TWO = layout("1g.10gb@0", "2g.20gb@2")
SEEN = SeenGpu(
    "GPU-0", 0, 0, "", "", model(), mig=True, slices=(SeenSlice(ONE, 7, 0, "MIG-a"), SeenSlice(TWO, 3, 0, "MIG-b"))
)
CUT = NodeGpu(SEEN, Mode.SLICED, SEEN.slices)
PLAIN = SeenGpu("GPU-0", 0, 0, "", "", model())
BOOKS = node(
    gpu("GPU-0", "1g.10gb@0", "2g.20gb@2"),
    placements=(
        placement("claimed", share("GPU-0", "1g.10gb@0"), claimed=True),
        placement("promised", share("GPU-0", "2g.20gb@2")),
    ),
)
KEEP_ONE = Shape(Mode.SLICED, (ONE,))
KEEP_TWO = Shape(Mode.SLICED, (TWO,))


@pytest.mark.parametrize(
    ("target", "claimed", "promised"),
    [
        (KEEP_ONE, (), ("default/promised",)),
        (KEEP_TWO, ("default/claimed",), ()),
        (Shape(Mode.SLICED, (ONE, TWO)), (), ()),
        (Shape(Mode.WHOLE), ("default/claimed",), ("default/promised",)),
        (Shape(Mode.SHARED), ("default/claimed",), ("default/promised",)),
    ],
)
def test_the_books_name_who_holds_or_is_promised_what_goes(
    target: Shape, claimed: tuple[str, ...], promised: tuple[str, ...]
) -> None:
    assert in_books(BOOKS, Stage.CLAIMED, CUT, target) == claimed
    assert in_books(BOOKS, Stage.PROMISED, CUT, target) == promised


def test_books_that_are_not_there_count_as_users() -> None:
    assert in_books(None, Stage.CLAIMED, CUT, KEEP_ONE) != ()


def test_the_kubelet_names_who_was_given_an_id_that_goes() -> None:
    held = [Held("ns", "p", "main", "r", ("MIG-a",)), Held("ns", "q", "main", "r", ("MIG-b", "MIG-c"))]
    assert in_kubelet(held, frozenset({"MIG-b"})) == ("ns/q",)
    assert in_kubelet(held, frozenset()) == ()


@pytest.mark.parametrize(
    ("gpu_", "seen", "target", "users"),
    [
        (CUT, SEEN, KEEP_ONE, ("process 2",)),
        (CUT, SEEN, KEEP_TWO, ("process 1",)),
        (CUT, SEEN, Shape(Mode.WHOLE), ("process 1", "process 2")),
        (NodeGpu(PLAIN), PLAIN, Shape(Mode.SHARED), ("process 1", "process 2")),
        (NodeGpu(PLAIN), PLAIN, KEEP_ONE, ("process 1", "process 2")),
        (NodeGpu(PLAIN, Mode.SHARED, units=20), PLAIN, Shape(Mode.SHARED), ()),
    ],
)
def test_the_driver_names_processes_on_what_goes(
    gpu_: NodeGpu, seen: SeenGpu, target: Shape, users: tuple[str, ...]
) -> None:
    assert in_driver(seen, gpu_, target, [GpuProcess(1, None, 7), GpuProcess(2, None, 3)]) == users


@pytest.mark.parametrize(
    ("allocatable", "agrees"),
    [
        ({names.SHARED: "1k", "cpu": "2"}, True),
        ({names.SHARED: "1000"}, True),
        ({names.SHARED: "999"}, False),
        ({}, False),
        ({names.SHARED: "1k", names.WHOLE: "1"}, False),
        ({names.SHARED: "1k", names.WHOLE: "0"}, True),
    ],
)
def test_the_node_shows_what_is_advertised_in_whatever_form_kubernetes_writes_it(
    allocatable: dict[str, str], agrees: bool
) -> None:
    lists = {
        names.SHARED: tuple(Device(str(n), True, None) for n in range(1000)),
        names.WHOLE: (Device("x", False, None),),
    }
    assert node_shows({"status": {"allocatable": allocatable}}, lists) is agrees
