"""Measured activity: what is published, and that what cannot be measured counts as busy."""

from typing import Any

from gpu.hardware import FaultKind, GpuFault, Reading
from gpu.node import Activity
from idle.capacity import worth_publishing
from idle.publish import IdlePublisher
from idle.sample import sample


class Meters:
    """Hardware of which only the activity is asked."""

    def __init__(self, **busy: float) -> None:
        self._busy = busy

    def activity(self, gpu: str) -> Reading:
        if gpu not in self._busy:
            raise GpuFault(FaultKind.NOT_SUPPORTED, "activity", gpu)
        return Reading(self._busy[gpu], 0.0, 0, "test")


class Api:
    def __init__(self) -> None:
        self.patches: list[dict[str, Any]] = []

    def patch(self, kind: Any, name: str, patch: dict[str, Any], **_: Any) -> None:
        self.patches.append(patch["status"]["idle"])


def test_a_gpu_that_cannot_be_measured_is_left_out() -> None:
    assert sample(Meters(a=0.5), ["a", "b"], 7.0) == {"a": Activity(0.5, 7.0, "test")}  # type: ignore[arg-type]


def test_a_large_change_is_published_at_once_a_small_one_soon_and_a_steady_value_before_it_grows_old() -> None:
    old = Activity(0.5, 0.0, "test")
    assert worth_publishing(None, old, 30)
    assert worth_publishing(old, Activity(0.75, 1.0, "test"), 30)
    assert not worth_publishing(old, Activity(0.6, 1.0, "test"), 30)
    assert worth_publishing(old, Activity(0.6, 5.0, "test"), 30)
    assert not worth_publishing(old, Activity(0.52, 1.0, "test"), 30)
    assert worth_publishing(old, Activity(0.52, 10.0, "test"), 30)
    assert worth_publishing(old, Activity(0.5, 1.0, "another source"), 30)


def test_a_value_that_can_no_longer_be_measured_is_taken_back() -> None:
    api = Api()
    publisher = IdlePublisher("n1", api)  # type: ignore[arg-type]
    publisher.publish({"a": Activity(0.5, 0.0, "test")}, 30)
    publisher.publish({"a": Activity(0.5, 1.0, "test")}, 30)
    publisher.publish({}, 30)
    publisher.publish({}, 30)
    assert api.patches == [{"a": {"busy": 0.5, "at": 0.0, "source": "test"}}, {"a": None}]
