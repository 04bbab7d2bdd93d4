"""When the connections of GPUs are read, and what stands when they cannot be."""

from dataclasses import replace

from device_plugin.links import Links
from gpu.hardware import Ancestor, FaultKind, GpuFault, Link, SeenGpu, Topology
from tests.builders import model

ONE, TWO = (SeenGpu(f"GPU-{n}", n, n, "", "", model()) for n in range(2))
KNOWN = Topology({("GPU-0", "GPU-1"): Link(18, Ancestor.SYSTEM, p2p=True)})


class Door:
    """Answers from a list, and counts."""

    def __init__(self, *answers: Topology | FaultKind) -> None:
        self._answers = list(answers)
        self.asked = 0

    def topology(self) -> Topology:
        self.asked += 1
        answer = self._answers.pop(0)
        if isinstance(answer, FaultKind):
            raise GpuFault(answer, "topology")
        return answer


def test_connections_are_read_again_only_when_gpus_change() -> None:
    door = Door(KNOWN, Topology({}), KNOWN, Topology({}))
    links = Links(door.topology)
    for seen in ([ONE, TWO], [TWO, ONE], [ONE, TWO]):
        links.follow(seen)
    assert (door.asked, links.now) == (1, KNOWN)
    links.follow([ONE])
    assert (door.asked, links.now) == (2, Topology({}))
    links.follow([ONE, TWO])
    links.follow([ONE, replace(TWO, mig=True)])
    assert door.asked == 4


def test_without_an_answer_the_last_one_stands_and_is_asked_for_again() -> None:
    links = Links(Door(KNOWN, FaultKind.TIMEOUT, Topology({})).topology)
    links.follow([ONE, TWO])
    lost = [ONE, replace(TWO, fault="lost")]
    links.follow(lost)
    assert links.now == KNOWN
    links.follow(lost)
    assert links.now == Topology({})


def test_what_the_driver_cannot_tell_is_not_asked_for_at_every_look() -> None:
    door = Door(FaultKind.NOT_SUPPORTED)
    links = Links(door.topology)
    links.follow([ONE, TWO])
    links.follow([ONE, TWO])
    assert (door.asked, links.now) == (1, Topology({}))
