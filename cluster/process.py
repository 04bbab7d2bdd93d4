"""What every program of Fallow needs around its work: signals, logging, health, metrics and loops that live on."""

import argparse
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cluster import metrics, names
from cluster.clock import Clock

log = logging.getLogger(__name__)

Check = Callable[[], str]
"""Returns "" when all is well, else the reason why not."""

PROBE_SECONDS = 10.0


def add_flags(parser: argparse.ArgumentParser, metrics_port: int) -> None:
    """The flags that all programs share."""
    parser.add_argument(
        "--kubeconfig", default="", help="kubeconfig file; empty: $KUBECONFIG, then the pod's own account"
    )
    parser.add_argument(
        "--namespace", default=names.NAMESPACE, help="namespace of the policy, the lease and our own pods"
    )
    parser.add_argument(
        "--metrics-address", default=f":{metrics_port}", help="host:port of /metrics, /healthz and /readyz"
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="what to log"
    )


class KeyValue(logging.Formatter):
    """One line per message, `key=value`; a trace is the last value, its line ends written as \\n."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            pairs["trace"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_quoted(value)}" for key, value in pairs.items())


def _quoted(value: str) -> str:
    if re.fullmatch(r"[^\s\"=\\]+", value):
        return value
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{text}"'


def start_logging(level: str) -> None:
    """One line per message on standard error."""
    stream = logging.StreamHandler()
    stream.setFormatter(KeyValue())
    logging.basicConfig(level=level.upper(), handlers=[stream], force=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second one ends the program at once. Main thread only."""
    stop = threading.Event()

    def on_signal(number: int, _: object) -> None:
        log.info("stopping: %s", signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
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
            metrics.loop_failures.labels(name).inc()
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

    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


class HealthServer:
    """`/metrics`, `/healthz` and `/readyz`. Raises ValueError that says why it cannot listen."""

    def __init__(self, address: str, ready: Mapping[str, Check], alive: Mapping[str, Check] | None = None) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"--metrics-address {address!r}: write host:port, such as 127.0.0.1:9400 or :9400")
        probe = type("Probe", (_Probe,), {"checks": {"/readyz": ready, "/healthz": alive or {}}})
        host = host.strip("[]")
        kind = type("Server", (_Server,), {"address_family": socket.AF_INET6 if ":" in host else socket.AF_INET})
        try:
            self._server: ThreadingHTTPServer = kind((host, int(port)), probe)
        except OSError as error:
            raise ValueError(f"--metrics-address {address!r}: {error.strerror or error}") from error
        self.port: int = self._server.server_address[1]

    def start(self) -> "HealthServer":
        threading.Thread(target=self._server.serve_forever, args=(0.5,), name="health", daemon=True).start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a probe from %s broke off", client_address, exc_info=True)


class _Probe(BaseHTTPRequestHandler):
    checks: Mapping[str, Mapping[str, Check]]
    protocol_version = "HTTP/1.1"
    timeout = PROBE_SECONDS  # whoever connects and says nothing holds no thread for ever

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, CONTENT_TYPE_LATEST, generate_latest())
        elif path in self.checks:
            wrong = {name: why for name, check in self.checks[path].items() if (why := _ask(name, check))}
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


def _ask(name: str, check: Check) -> str:
    try:
        return check()
    except Exception as error:
        log.exception("check %s failed", name)
        return f"the check itself failed: {type(error).__name__}"
