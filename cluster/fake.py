"""An API server in memory that speaks real HTTP on loopback: the double of the cluster door.

For tests, benches and the demonstration. It obeys the rules of the real one (versions, conflicts, 410, status
subresource, Binding that merges annotations, eviction); contract tests hold the two equal. Not there: authentication,
admission, namespaces that must exist. `python -m cluster.fake --kubeconfig FILE` runs it alone.
"""

import argparse
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from cluster.fake_http import Request, Server
from cluster.fake_rules import Address, Failure, Object
from cluster.fake_store import Store
from cluster.kinds import CRDS
from cluster.process import stop_on_signals

__all__ = ["Failure", "FakeApi", "Gate", "Request"]

Matches = Callable[[Request], bool]
Act = Callable[[Request], None]


@dataclass
class _Rule:
    matches: Matches
    act: Act
    times: int
    after: bool


@dataclass
class Gate:
    """A request that is held: `reached` is set when it is there, and it goes on when `open` is set."""

    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)


class FakeApi:
    """`with FakeApi() as api: Client.connect(api.kubeconfig(path))`. `crds`: manifests whose schemas are enforced."""

    def __init__(self, port: int = 0, crds: Sequence[Object] = (), bookmark_seconds: float = 5.0) -> None:
        self.store = Store()
        for crd in crds:
            self.store.create(Address(CRDS.api, CRDS.plural), crd)
        self._rules: list[_Rule] = []
        self._gates: list[Gate] = []
        self._lock = threading.Lock()
        self._server = Server(port, self.store, self._around, bookmark_seconds)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-api", daemon=True)

    def start(self) -> "FakeApi":
        self._thread.start()
        return self

    def stop(self) -> None:
        for gate in self._gates:
            gate.open.set()
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
        """Watches from before this moment, and lists half read, are answered 410."""
        self.store.compact()

    def drop_connections(self) -> None:
        """Every open connection breaks, as when an API server restarts."""
        self._server.drop_connections()

    def on(self, matches: Matches, act: Act, *, times: int = 1, after: bool = False) -> None:
        """Run `act` before (or after) the next `times` matching requests; it may raise Failure, sleep or kill."""
        with self._lock:
            self._rules.append(_Rule(matches, act, times, after))

    def on_nth(self, verb: str, plural: str, number: int, act: Act, *, after: bool = False) -> None:
        """Run `act` at the `number`-th matching request from now (1: the next), such as killing a program there."""
        seen = 0

        def count(request: Request) -> None:
            nonlocal seen
            seen += 1
            if seen == number:
                act(request)

        self.on(_matching(verb, plural), count, times=number, after=after)

    def fail(
        self, verb: str, plural: str, code: int, *, times: int = 1, after: bool = False, retry_after: int = 0
    ) -> None:
        """The next matching requests are answered with this status; with `after` they took effect all the same."""

        def act(_: Request) -> None:
            headers = {"Retry-After": str(retry_after)} if retry_after else {}
            raise Failure(code, "Injected", f"told to fail with {code}", headers)

        self.on(_matching(verb, plural), act, times=times, after=after)

    def lose_reply(self, verb: str, plural: str) -> None:
        """The next matching request takes effect, but its connection breaks before the answer."""
        self.on(_matching(verb, plural), _break_connection, after=True)

    def lose_request(self, verb: str, plural: str, *, times: int = 1) -> None:
        """The connections of the next matching requests break before anything happens."""
        self.on(_matching(verb, plural), _break_connection, times=times)

    def hold(self, verb: str, plural: str, *, after: bool = False) -> Gate:
        """The next matching request waits until the gate is opened."""
        gate = Gate()
        self._gates.append(gate)

        def act(_: Request) -> None:
            gate.reached.set()
            gate.open.wait()

        self.on(_matching(verb, plural), act, after=after)
        return gate

    def _around(self, request: Request, after: bool) -> None:
        with self._lock:
            due = [r for r in self._rules if r.after == after and r.times > 0 and r.matches(request)]
            for rule in due:
                rule.times -= 1
            self._rules = [r for r in self._rules if r.times > 0]
        for rule in due:
            rule.act(request)


def _matching(verb: str, plural: str) -> Matches:
    return lambda request: request.verb == verb and request.at.plural == plural


def _break_connection(_: Request) -> None:
    raise ConnectionAbortedError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.fake", description="An API server in memory, on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="where to write the kubeconfig")
    parser.add_argument("--crd", type=Path, action="append", default=[], help="a manifest whose schema is enforced")
    args = parser.parse_args()
    stop = stop_on_signals()
    with FakeApi(args.port, [yaml.safe_load(path.read_text("utf-8")) for path in args.crd]) as api:
        api.kubeconfig(args.kubeconfig)
        print(json.dumps({"url": api.url, "kubeconfig": str(args.kubeconfig)}), flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
