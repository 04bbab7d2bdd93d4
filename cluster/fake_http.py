"""The API double's HTTP: paths to verbs, keep-alive, chunked watches. No authentication."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from cluster.fake_rules import Address, Failure, Object, rule_of
from cluster.fake_select import matcher
from cluster.fake_store import Store
from cluster.kinds import PODS

_PATH = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|binding|eviction))?$"
)


@dataclass(frozen=True)
class Request:
    """One request as a test may look at it; `verb` is get, list, watch, create, replace, patch, delete, bind, evict."""

    verb: str
    at: Address
    subresource: str
    body: Object


class Server(ThreadingHTTPServer):
    """`around(request, after)` is asked before and after each request; it may raise Failure or ConnectionAbortedError
    (the connection breaks without an answer), or take its time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, port: int, store: Store, around: Callable[[Request, bool], None], bookmark_seconds: float
    ) -> None:
        self.store, self.around, self.bookmark_seconds = store, around, bookmark_seconds
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Answer)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self._lock:
            self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is no news here."""


class _Answer(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet an answer

    def do_GET(self) -> None:
        self._answer("get")

    def do_POST(self) -> None:
        self._answer("create")

    def do_PUT(self) -> None:
        self._answer("replace")

    def do_PATCH(self) -> None:
        self._answer("patch")

    def do_DELETE(self) -> None:
        self._answer("delete")

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: tests read the store, not a log."""

    def _answer(self, verb: str) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._dispatch(verb, raw)
        except Failure as failure:
            self._send(failure.code, _status(failure), failure.headers)
        except ConnectionAbortedError:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _dispatch(self, verb: str, raw: bytes) -> None:
        url = urlsplit(self.path)
        if url.path in ("/version", "/readyz", "/healthz"):
            self._send(200, {"gitVersion": "v1.37.0-fake"})
            return
        query = {k: v[-1] for k, v in parse_qs(url.query).items()}
        if verb == "patch" and self.headers.get("Content-Type") != "application/merge-patch+json":
            raise Failure(415, "UnsupportedMediaType", "the double understands application/merge-patch+json only")
        request = _request(verb, url.path, query, _body(raw))
        rule = rule_of(request.at)
        matches = matcher(rule, query)
        self.server.around(request, False)
        if request.verb == "watch":
            self._watch(request, query)
            return
        store = self.server.store
        if request.verb == "list":
            limit, token = _number(query, "limit"), query.get("continue", "")
            items, version, rest = store.page(request.at, matches, limit, token)
            answer = _list(rule.kind.kind, request.at.api, items, version, rest, rule.custom)
        else:
            answer = _act(store, request)
        self.server.around(request, True)
        self._send(201 if verb == "create" else 200, answer)

    def _watch(self, request: Request, query: dict[str, str]) -> None:
        end = time.monotonic() + (_number(query, "timeoutSeconds") or 3600)
        idle = min(self.server.bookmark_seconds, end - time.monotonic())
        since, matches = _number(query, "resourceVersion"), matcher(rule_of(request.at), query)
        events = self.server.store.watch(request.at, since, matches, idle)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            for event, obj in events:
                self._chunk(orjson.dumps({"type": event, "object": obj}) + b"\n")
                if time.monotonic() >= end:
                    break
        except Failure as failure:
            self._chunk(orjson.dumps({"type": "ERROR", "object": _status(failure)}) + b"\n")
        except OSError:
            self.close_connection = True
            return
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, code: int, obj: Any, headers: dict[str, str] | None = None) -> None:
        data = orjson.dumps(obj)
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()


def _request(verb: str, path: str, query: dict[str, str], body: Object) -> Request:
    match = _PATH.match(path)
    if not match:
        raise Failure(404, "NotFound", "the server could not find the requested resource")
    part = {k: unquote(v) for k, v in match.groupdict(default="").items()}
    api = f"{part['group']}/{part['version']}" if part["group"] else part["version"]
    at = Address(api, part["plural"], part["namespace"], part["name"])
    if verb == "get" and not at.name:
        verb = "watch" if query.get("watch") in ("1", "true") else "list"
    elif verb == "create" and part["sub"]:
        verb = {"binding": "bind", "eviction": "evict"}.get(part["sub"], "")
    rule = rule_of(at)
    whole = not at.name or (rule.kind.namespaced and not at.namespace)
    if (verb in ("replace", "patch", "delete", "bind", "evict") and whole) or (
        verb == "create" and (at.name or (rule.kind.namespaced and not at.namespace))
    ):
        raise Failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    strange = part["sub"] == "status" and not rule.status
    if not verb or strange or (verb in ("bind", "evict") and rule.kind != PODS):
        raise Failure(404, "NotFound", "the server could not find the requested resource")
    return Request(verb, at, part["sub"], body)


def _act(store: Store, request: Request) -> Any:
    at, body = request.at, request.body
    match request.verb:
        case "get":
            return store.get(at)
        case "create":
            return store.create(at, body)
        case "replace":
            return store.replace(at, body, request.subresource)
        case "patch":
            return store.patch(at, body, request.subresource)
        case "bind":
            store.bind(at, body)
        case "evict":
            options = body.get("deleteOptions") or {}
            uid = (options.get("preconditions") or {}).get("uid", "")
            store.evict(at, uid, options.get("gracePeriodSeconds"))
        case _:
            uid = (body.get("preconditions") or {}).get("uid", "")
            deleted = store.delete(at, body.get("gracePeriodSeconds"), uid)
            if at.plural == PODS.plural:
                return deleted
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _list(kind: str, api: str, items: list[Object], version: int, rest: str, custom: bool) -> Object:
    # The items of a built-in kind's list do not say what they are; those of a custom one do.
    shown = items if custom else [{k: v for k, v in i.items() if k not in ("kind", "apiVersion")} for i in items]
    meta = {"resourceVersion": str(version), **({"continue": rest} if rest else {})}
    return {"kind": f"{kind}List", "apiVersion": api, "metadata": meta, "items": shown}


def _number(query: dict[str, str], key: str) -> int:
    value = query.get(key) or "0"
    if not value.isdecimal():
        raise Failure(400, "BadRequest", f"{key}: {value!r} is no number")
    return int(value)


def _body(raw: bytes) -> Object:
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise Failure(400, "BadRequest", f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Failure(400, "BadRequest", "the body must be an object")
    return body


def _status(failure: Failure) -> Object:
    causes = [{"reason": "FieldValueInvalid", "field": f} for f in failure.fields]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": failure.reason,
        "message": failure.message,
        "code": failure.code,
        **({"details": {"causes": causes}} if causes else {}),
    }
