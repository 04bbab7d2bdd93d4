"""One request to the API server and its answer: connections kept open, JSON by orjson, errors as ApiError."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson
import urllib3

from cluster import metrics
from cluster.clock import Clock
from cluster.errors import ApiError, TooManyRequests, Unreachable, of_status
from cluster.kinds import Kind

Object = dict[str, Any]
Token = Callable[[], str | None]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

METHODS = {
    "get": "GET", "list": "GET", "watch": "GET",
    "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE",
}  # fmt: skip
"""RBAC verb -> HTTP method."""

CONNECT_SECONDS = 5.0
READ_AGAIN = 2
"""How often a read is sent again when its connection broke; an idle connection may have died unnoticed."""
PATIENCE_SECONDS = 5.0
"""How long one call may wait in all when the server says 429: such a request has not been carried out."""


@dataclass(frozen=True, slots=True)
class Call:
    verb: str
    kind: Kind
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None
    waits: bool = True
    """Whether a 429 may be waited for; an eviction's 429 is an answer."""

    @property
    def asked(self) -> str:
        return f"{METHODS[self.verb]} {self.path}"


class Transport:
    """Thread-safe. `token` gives the Authorization header of this moment, or None."""

    def __init__(
        self,
        pool: urllib3.PoolManager,
        host: str,
        token: Token,
        timeout_seconds: float,
        clock: Clock,
    ) -> None:
        self._pool, self._host, self._token = pool, host.rstrip("/"), token
        self._timeout, self._clock = timeout_seconds, clock
        self._never = threading.Event()

    def within(self, timeout_seconds: float) -> "Transport":
        """The same connections with another bound on each request."""
        return Transport(self._pool, self._host, self._token, timeout_seconds, self._clock)

    def object(self, call: Call) -> Object:
        """The object that the server answers. Raises ApiError."""
        response = self.send(call, self._timeout)
        try:
            obj = orjson.loads(response.data)
        except orjson.JSONDecodeError:
            obj = None
        if not isinstance(obj, dict):
            raise Unreachable(call.asked, response.status, "BadAnswer", "the answer is no JSON object")
        return obj

    def send(self, call: Call, read_seconds: float, *, stream: bool = False) -> urllib3.BaseHTTPResponse:
        """The response of a success; with `stream` its body is still to be read. Raises ApiError."""
        waited = 0.0
        while True:
            try:
                return self._with_retries(call, read_seconds, stream)
            except TooManyRequests as error:
                waited += error.retry_after
                if not call.waits or not error.retry_after or waited > PATIENCE_SECONDS:
                    raise
                self._clock.wait(error.retry_after, self._never)

    def _with_retries(self, call: Call, read_seconds: float, stream: bool) -> urllib3.BaseHTTPResponse:
        # Only a read may be sent twice: nobody knows whether a write whose connection broke took effect.
        attempts = 1 + (READ_AGAIN if METHODS[call.verb] == "GET" else 0)
        while True:
            attempts -= 1
            try:
                return self._once(call, read_seconds, stream)
            except urllib3.exceptions.ProtocolError as error:
                if not attempts:
                    raise unreachable(call.asked, error) from error
            except urllib3.exceptions.HTTPError as error:
                raise unreachable(call.asked, error) from error

    def _once(self, call: Call, read_seconds: float, stream: bool) -> urllib3.BaseHTTPResponse:
        status, start = 0, time.perf_counter()
        try:
            response = self._pool.request(
                METHODS[call.verb],
                self._host + call.path + (f"?{urlencode(call.query)}" if call.query else ""),
                body=None if call.body is None else orjson.dumps(call.body),
                headers=self._headers(call),
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, read_seconds), read=read_seconds),
                retries=False,
                preload_content=not stream,
            )
            status = response.status
            if status >= 400:
                raise _failure(call.asked, response)
            return response
        finally:
            metrics.requests.labels(call.verb, call.kind.plural, str(status)).inc()
            metrics.request_seconds.labels(call.verb).observe(time.perf_counter() - start)

    def _headers(self, call: Call) -> dict[str, str]:
        headers = {
            "Accept": JSON,
            "Content-Type": MERGE_PATCH if call.verb == "patch" else JSON,
            "User-Agent": "fallow",
        }
        try:
            token = self._token()
        except Exception as error:  # noqa: BLE001 - see the next line
            # What reads a token file or runs a login command may raise anything; its text may hold the token.
            raise Unreachable(call.asked, 0, "NoToken", f"cannot read the token ({type(error).__name__})") from None
        if token:
            headers["Authorization"] = token.strip()
        return headers


def lines(response: urllib3.BaseHTTPResponse, asked: str) -> Iterator[bytes]:
    """The lines of a streamed body as they come. Raises Unreachable when it breaks off."""
    rest: list[bytes] = []
    try:
        for chunk in response.stream(amt=None):
            first, *others = chunk.split(b"\n")
            rest.append(first)
            for part in others:
                if line := b"".join(rest):
                    yield line
                rest = [part]
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        # ValueError: the response was closed by whoever hung up.
        raise unreachable(asked, error) from error


def unreachable(asked: str, error: Exception) -> Unreachable:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return Unreachable(asked, 0, type(error).__name__, text)


def _failure(asked: str, response: urllib3.BaseHTTPResponse) -> ApiError:
    try:
        status = orjson.loads(response.data)
    except (orjson.JSONDecodeError, urllib3.exceptions.HTTPError):
        status = None
    finally:
        response.release_conn()
    try:
        retry_after = float(response.headers.get("Retry-After") or 0)
    except ValueError:  # the other form of the header is a date
        retry_after = 0.0
    known = status if isinstance(status, dict) else {"message": response.reason}
    return of_status(asked, response.status, known, retry_after)
