"""What every program has around its work."""

import io
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from cluster.clock import ManualClock
from cluster.process import HealthServer, KeyValue, forever


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def broken() -> str:
    raise RuntimeError("never mind")


@pytest.fixture
def health() -> Iterator[HealthServer]:
    checks = {"cache": lambda: "pods not yet listed", "fine": lambda: ""}
    server = HealthServer("127.0.0.1:0", checks, {"broken": broken}).start()
    yield server
    server.stop()


def test_readiness_says_what_is_missing(health: HealthServer) -> None:
    assert get(health.port, "/readyz") == (503, "cache: pods not yet listed\n")


def test_a_check_that_fails_is_a_reason(health: HealthServer) -> None:
    assert get(health.port, "/healthz") == (503, "broken: the check itself failed: RuntimeError\n")


def test_metrics_and_unknown_paths(health: HealthServer) -> None:
    code, text = get(health.port, "/metrics?x=1")
    assert code == 200
    assert "fallow_cluster_requests_total" in text
    assert get(health.port, "/other")[0] == 404


@pytest.mark.parametrize("address", ["", "nine", "host:nine", "host:70000"])
def test_an_address_that_is_none_is_named_with_a_cure(address: str) -> None:
    with pytest.raises(ValueError, match="write host:port"):
        HealthServer(address, {})


def test_a_port_that_is_taken_is_said(health: HealthServer) -> None:
    with pytest.raises(ValueError, match=r"--metrics-address .*in use"):
        HealthServer(f"127.0.0.1:{health.port}", {})


def test_all_addresses_of_ipv6() -> None:
    server = HealthServer("[::1]:0", {}).start()
    assert server.port
    server.stop()


def test_a_loop_lives_on_and_says_only_what_is_new(caplog: pytest.LogCaptureFixture) -> None:
    stop, said = threading.Event(), iter(["one", "one", None, "two"])

    def tick() -> str:
        sentence = next(said, "")
        if sentence is None:
            raise RuntimeError("unexpected")
        if not sentence:
            stop.set()
        return sentence

    caplog.set_level(logging.INFO)
    forever("loop", tick, 1.0, ManualClock(), stop)
    assert [r.getMessage() for r in caplog.records] == [
        "loop: one",
        "loop: unexpected error, going on",
        "loop: two",
    ]


def test_a_log_line_is_one_line_of_keys_and_values() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(KeyValue())
    logger = logging.Logger("cluster.test")
    logger.addHandler(handler)
    try:
        raise ValueError('a "quoted"\nthing')
    except ValueError:
        logger.exception("it = %s", "so")
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("time=")
    assert ' level=error logger=cluster.test msg="it = so" trace="Traceback' in line
    assert 'a \\"quoted\\"\\nthing' in line
