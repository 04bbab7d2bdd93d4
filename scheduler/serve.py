"""Puts the extender on a socket: mutual TLS, or plain HTTP on loopback and nowhere else."""

import ipaddress
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from cluster.process import spawn

KEEP_ALIVE_SECONDS = 120
"""Go's client keeps idle connections for 90 s and does not always repeat a POST on one that the server just closed."""


class ListenError(ValueError):
    """The extender cannot be put there. The text names the flag and the cure."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form. All three or none: a server that knows its own name only would let anybody bind pods."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    @property
    def on(self) -> bool:
        return bool(self.cert or self.key or self.client_ca)


def listen(address: str, tls: Tls) -> socket.socket:
    """The listening socket of `host:port`. Raises ListenError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal() or not host:
        raise ListenError(f"--listen {address!r}: write host:port, such as 127.0.0.1:8888")
    _check(address, host, tls)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ListenError(f"--listen {address}: {error}; choose another address, or stop who has it") from error


def server(app: Any, tls: Tls) -> uvicorn.Server:
    """Raises ListenError when the certificates cannot be used."""
    files = {}
    if tls.on:
        files = {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key, "ssl_ca_certs": tls.client_ca}
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=10,
        access_log=False,
        log_config=None,
        server_header=False,
        ssl_cert_reqs=ssl.CERT_REQUIRED,
        **files,  # type: ignore[arg-type]
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ListenError(f"--tls-cert {tls.cert}, --tls-key, --client-ca {tls.client_ca}: {error}") from error
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return uvicorn.Server(config)


def serve(serving: uvicorn.Server, sock: socket.socket, stop: threading.Event) -> None:
    """Until `stop`; calls under way are answered first."""
    thread = spawn("extender", lambda: serving.run(sockets=[sock]))
    stop.wait()
    serving.should_exit = True
    thread.join(timeout=15)


def _check(address: str, host: str, tls: Tls) -> None:
    if not tls.on and not _loopback(host):
        raise ListenError(
            f"--listen {address}: without TLS only loopback may be listened on, or anybody could bind pods; "
            "give --tls-cert, --tls-key and --client-ca, or listen on 127.0.0.1"
        )
    if not tls.on:
        return
    for flag, path in (("--tls-cert", tls.cert), ("--tls-key", tls.key), ("--client-ca", tls.client_ca)):
        if not path:
            raise ListenError(f"{flag} is missing: --tls-cert, --tls-key and --client-ca belong together")
        if not Path(path).is_file():
            raise ListenError(f"{flag} {path}: no such file")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
