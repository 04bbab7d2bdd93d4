"""An API server in memory that speaks real HTTP on loopback: the double of the cluster door.

For tests, benches and the demonstration. It obeys the rules of the real one (versions, conflicts, 410, status
subresource, Binding that merges annotations, eviction); contract tests hold the two equal. No authentication.
`python -m cluster.fake --kubeconfig FILE` runs it alone.
"""

import argparse
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import yaml

from cluster.fake_store import Address, Failure, Object, Store

_PATH = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|binding|eviction))?$"
)
KINDS = {"gpunodes": "GpuNode", "poddisruptionbudgets": "PodDisruptionBudget", "configmaps": "ConfigMap"}


@dataclass(frozen=True)
class Request:
    """One request as a test may look at it; `verb` is get, list, watch, create, replace, patch, delete, bind, evict."""

    verb: str
    at: Address
    subresource: str
    body: Object


@dataclass
class _Rule:
    matches: Callable[[Request], bool]
    act: Callable[[Request], None]
    times: int
    after: bool


class FakeApi:
    """`with FakeApi() as api: Client.connect(api.kubeconfig(path))`."""

    def __init__(self, port: int = 0, validate: Callable[[Object], None] = lambda obj: None) -> None:
        self.store = Store(validate)
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = _Server(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-api", daemon=True)

    def start(self) -> "FakeApi":
        self._thread.start()
        return self

    def stop(self) -> None:
        self.store.close()
        self._server.shutdown()
        self._server.server_close()
        self._server.drop_connections()

    def __enter__(self) -> "FakeApi":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kubeconfig(self, path: Path) -> str:
        """Writes a kubeconfig for this server and returns its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return str(path)

    def compact(self) -> None:
        self.store.compact()

    def drop_connections(self) -> None:
        """Every open connection breaks, as when an API server restarts."""
        self._server.drop_connections()

    def on(
        self,
        matches: Callable[[Request], bool],
        act: Callable[[Request], None],
        *,
        times: int = 1,
        after: bool = False,
    ) -> None:
        """Run `act` before (or after) the next `times` matching requests; it may raise Failure, sleep or kill."""
        with self._lock:
            self._rules.append(_Rule(matches, act, times, after))

    def fail(self, verb: str, plural: str, code: int, *, times: int = 1, after: bool = False) -> None:
        """The next matching requests are answered with this status; with `after` they took effect all the same."""

        def act(_: Request) -> None:
            raise Failure(code, "Injected", f"told to fail with {code}")

        self.on(lambda r: r.verb == verb and r.at.plural == plural, act, times=times, after=after)

    def lose_reply(self, verb: str, plural: str) -> None:
        """The next matching request takes effect, but its connection breaks before the answer."""

        def act(_: Request) -> None:
            raise ConnectionAbortedError

        self.on(lambda r: r.verb == verb and r.at.plural == plural, act, after=True)

    def apply_rules(self, request: Request, *, after: bool) -> None:
        with self._lock:
            due = [r for r in self._rules if r.after == after and r.times > 0 and r.matches(request)]
            for rule in due:
                rule.times -= 1
        for rule in due:
            rule.act(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[Any] = set()

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(2)
            except OSError:
                self._open.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is no news here."""


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

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
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        try:
            self._dispatch(verb, raw)
        except Failure as failure:
            self._send(failure.code, _status(failure), failure.headers)
        except ConnectionAbortedError:
            self.close_connection = True
            self.connection.shutdown(2)

    def _dispatch(self, verb: str, raw: bytes) -> None:
        url = urlsplit(self.path)
        if url.path in ("/version", "/readyz", "/healthz"):
            self._send(200, {"gitVersion": "v1.37.0-fake"})
            return
        match = _PATH.match(url.path)
        if not match:
            raise Failure(404, "NotFound", f"no such path: {url.path}")
        query = {k: v[-1] for k, v in parse_qs(url.query).items()}
        body = _body(raw)
        part = match.groupdict(default="")
        api = f"{part['group']}/{part['version']}" if part["group"] else part["version"]
        at = Address(api, part["plural"], part["namespace"], part["name"])
        request = Request(_verb(verb, at, part["sub"], query), at, part["sub"], body)
        self.api.apply_rules(request, after=False)
        if request.verb == "watch":
            self._watch(at, query)
            return
        answer = _act(self.api.store, request, query)
        self.api.apply_rules(request, after=True)
        self._send(201 if verb == "create" else 200, answer)

    def _watch(self, at: Address, query: dict[str, str]) -> None:
        since = int(query.get("resourceVersion") or 0)
        end = time.monotonic() + float(query.get("timeoutSeconds") or 3600)
        events = self.api.store.watch(at, since, _matcher(query), idle=0.5)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event, obj in events:
                self._chunk(orjson.dumps({"type": event, "object": obj}) + b"\n")
                if time.monotonic() > end:
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


def _verb(verb: str, at: Address, subresource: str, query: dict[str, str]) -> str:
    if verb == "get" and not at.name:
        return "watch" if query.get("watch") in ("1", "true") else "list"
    if verb == "create":
        return {"binding": "bind", "eviction": "evict"}.get(subresource, "create")
    return verb


def _act(store: Store, request: Request, query: dict[str, str]) -> Any:
    at, body = request.at, request.body
    match request.verb:
        case "list":
            items, version = store.list(at, _matcher(query))
            return {"kind": "List", "apiVersion": at.api, "metadata": {"resourceVersion": str(version)}, "items": items}
        case "get":
            return store.get(at)
        case "create":
            return store.create(at, {"kind": _kind(at.plural), **body})
        case "replace":
            return store.replace(at, body, request.subresource)
        case "patch":
            return store.patch(at, body, request.subresource)
        case "bind":
            store.bind(at, body)
        case "evict":
            store.evict(at, ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid", ""))
        case "delete":
            return store.delete(at, body.get("gracePeriodSeconds"), (body.get("preconditions") or {}).get("uid", ""))
    return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def _kind(plural: str) -> str:
    return KINDS.get(plural, plural.removesuffix("s").capitalize())


def _body(raw: bytes) -> Object:
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise Failure(400, "BadRequest", f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise Failure(400, "BadRequest", "the body must be an object")
    return body


def _status(failure: Failure) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": failure.reason,
        "message": failure.message,
        "code": failure.code,
    }


def _matcher(query: dict[str, str]) -> Callable[[Object], bool]:
    labels = _pairs(query.get("labelSelector", ""))
    fields = _pairs(query.get("fieldSelector", ""))

    def matches(obj: Object) -> bool:
        have = obj["metadata"].get("labels") or {}
        return all((have.get(k) == v) is same for k, v, same in labels) and all(
            (_field(obj, k) == v) is same for k, v, same in fields
        )

    return matches


def _pairs(selector: str) -> list[tuple[str, str, bool]]:
    pairs = []
    for term in filter(None, selector.split(",")):
        key, sign, value = re.split(r"(!=|==|=)", term, maxsplit=1)
        pairs.append((key.strip(), value.strip(), sign != "!="))
    return pairs


def _field(obj: Object, path: str) -> str:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="where to write the kubeconfig")
    args = parser.parse_args()
    api = FakeApi(args.port).start()
    api.kubeconfig(args.kubeconfig)
    print(json.dumps({"url": api.url, "kubeconfig": str(args.kubeconfig)}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
