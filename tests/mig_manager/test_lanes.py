import threading

from mig_manager.lanes import Lanes


def test_a_lane_that_hangs_stops_no_other_and_gets_no_second_job() -> None:
    hang, started = threading.Event(), []

    def slow() -> str:
        started.append(1)
        hang.wait()
        return "slow done"

    lanes = Lanes(wait_seconds=0.05)
    assert lanes.run({"a": slow, "b": lambda: "b done"}) == {"a": "the hardware has not answered yet", "b": "b done"}
    assert lanes.run({"a": slow, "b": lambda: "b again"}) == {
        "a": "the hardware has not answered yet",
        "b": "b again",
    }
    assert started == [1]
    hang.set()
    assert Lanes(wait_seconds=5).run({"a": lambda: "free"}) == {"a": "free"}


def test_a_job_that_breaks_is_reported_and_the_lane_goes_on() -> None:
    def broken() -> str:
        raise KeyError("x")

    lanes = Lanes(wait_seconds=5)
    assert lanes.run({"a": broken}) == {"a": "unexpected error, see the log"}
    assert lanes.run({"a": lambda: "fine"}) == {"a": "fine"}
