"""What every program of Fallow needs around its work: signals, logging, health, metrics and loops that live on."""

import argparse
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest

from cluster.clock import Clock

log = logging.getLogger(__name__)

loop_failures = Counter("fallow_cluster_loop_failures_total", "Unexpected errors that a loop lived on after", ["loop"])


def add_flags(parser: argparse.ArgumentParser, metrics_port: int) -> None:
    """The flags that all programs share."""
    parser.add_argument(
        "--kubeconfig", default="", help="kubeconfig file; empty: $KUBECONFIG, then the pod's own account"
    )
    parser.add_argument(
        "--namespace", default="fallow-system", help="namespace of the policy, the lease and our own pods"
    )
    parser.add_argument(
        "--metrics-address", default=f":{metrics_port}", help="host:port of /metrics, /healthz and /readyz"
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="what to log"
    )


def start_logging(level: str) -> None:
    """One line per message on standard error."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set. Main thread only."""
    stop = threading.Event()

    def on_signal(number: int, _: object) -> None:
        log.info("stopping: %s", signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop


def forever(name: str, tick: Callable[[], str], seconds: float, clock: Clock, stop: threading.Event) -> None:
    """Call `tick` every `seconds` until stopped; log its sentence when it changes; live on after the unexpected."""
    said = ""
    while not stop.is_set():
        try:
            sentence = tick()
            if sentence and sentence != said:
                log.info("%s: %s", name, sentence)
            said = sentence
        except Exception:
            loop_failures.labels(name).inc()
            log.exception("%s: unexpected error, going on", name)
        clock.wait(seconds, stop)


def spawn(name: str, run: Callable[[], None]) -> threading.Thread:
    """A daemon thread. If it dies, so does the program: half a program is worse than none."""

    def body() -> None:
        try:
            run()
        except BaseException:
            log.exception("thread %s died, stopping the program", name)
            os.kill(os.getpid(), signal.SIGTERM)
            raise

    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


class HealthServer:
    """`/metrics`, `/healthz` and `/readyz`; each check returns "" when all is well, else the reason."""

    def __init__(
        self, address: str, ready: Mapping[str, Callable[[], str]], alive: Mapping[str, Callable[[], str]] | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            raise ValueError(f"--metrics-address {address!r}: write host:port, such as 127.0.0.1:9400 or :9400")
        handler = type("Handler", (_Health,), {"checks": {"/readyz": ready, "/healthz": alive or {}}})
        self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def start(self) -> "HealthServer":
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Health(BaseHTTPRequestHandler):
    checks: Mapping[str, Mapping[str, Callable[[], str]]]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, CONTENT_TYPE_LATEST, generate_latest())
        elif path in self.checks:
            wrong = {name: why for name, check in self.checks[path].items() if (why := check())}
            text = "".join(f"{name}: {why}\n" for name, why in wrong.items()) or "ok\n"
            self._send(503 if wrong else 200, "text/plain; charset=utf-8", text.encode())
        else:
            self._send(404, "text/plain", b"not found: try /metrics, /healthz or /readyz\n")

    def log_message(self, format: str, *args: object) -> None:
        """Probes every few seconds are no news."""

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
