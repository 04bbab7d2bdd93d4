"""A small stand-in for kube-scheduler that speaks the real extender protocol, for tests and the demonstration.

Like the real one it refuses for lack of allocatable before it asks any extender, assumes a pod on its node until the
watch shows it there, writes the PodScheduled condition, and tries a refused pod again only after a backoff and when
something in the cluster changed. It knows no affinity, taints or preemption, and scores nothing itself.
"""

import argparse
import http.client
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import orjson

from cluster import facts, names
from cluster.client import NODES, PODS, Client
from cluster.errors import ApiError
from cluster.watch import Watcher
from scheduler.fake_fit import interests_extender, lacks, requests_of, summary, what_counts

log = logging.getLogger(__name__)

Object = Mapping[str, Any]


class ExtenderError(Exception):
    """The extender gave no answer, or one that kube-scheduler takes for an error."""


class Extender:
    """One extender over one kept connection, names only. `timeout_seconds` as kube-scheduler's httpTimeout."""

    def __init__(self, url: str, timeout_seconds: float = 5.0) -> None:
        self._at, self._timeout = urlsplit(url), timeout_seconds
        self._connection: http.client.HTTPConnection | None = None

    def filter(self, pod: Object, offered: list[str]) -> tuple[list[str], dict[str, str]]:
        """Nodes that stay, and why the others go."""
        answer = self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": offered})
        if answer.get("Error"):
            raise ExtenderError(answer["Error"])
        stay = answer.get("NodeNames") or []
        if unknown := set(stay) - set(offered):
            raise ExtenderError(f"extender names nodes that were not offered: {sorted(unknown)}")
        failed = {**(answer.get("FailedNodes") or {}), **(answer.get("FailedAndUnresolvableNodes") or {})}
        return stay, {n: failed.get(n, "node(s) rejected by the extender") for n in offered if n not in stay}

    def prioritize(self, pod: Object, offered: list[str]) -> dict[str, int]:
        answer = self._post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": offered})
        return {entry["Host"]: entry["Score"] for entry in answer}

    def bind(self, pod: Object, node: str) -> None:
        ref = facts.pod_ref(pod)
        args = {"PodName": ref.name, "PodNamespace": ref.namespace, "PodUID": ref.uid, "Node": node}
        if error := self._post("bind", args).get("Error"):
            raise ExtenderError(error)

    def _post(self, verb: str, body: Object) -> Any:
        try:
            connection = self._connection or http.client.HTTPConnection(self._at.netloc, timeout=self._timeout)
            self._connection = connection
            path = f"{self._at.path.rstrip('/')}/{verb}"
            connection.request("POST", path, orjson.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            if answer.status != 200:
                raise ExtenderError(f"{verb} failed with status {answer.status}: {data[:200].decode(errors='replace')}")
            return orjson.loads(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise ExtenderError(f"{verb}: {error or type(error).__name__}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(slots=True)
class _Try:
    """How often a pod was tried, when it may be again (monotonic), and the last event it knew of."""

    times: int
    not_before: float
    seen: int


class KubeScheduler:
    """Schedules pods of one scheduler name, one at a time, until stopped. Backoff in seconds, doubling."""

    def __init__(
        self,
        client: Client,
        extender: Extender,
        scheduler_name: str = names.SCHEDULER,
        backoff: tuple[float, float] = (1.0, 10.0),
    ) -> None:
        self._client, self._extender, self._name, self._backoff = client, extender, scheduler_name, backoff
        self._changed = threading.Condition()
        self._pods: dict[str, Object] = {}
        self._nodes: dict[str, Object] = {}
        self._assumed: dict[str, str] = {}
        self._tries: dict[str, _Try] = {}
        self._events, self._seen, self._stopped = 0, 0, False
        self._watchers = [Watcher(client, PODS, self._take_pod), Watcher(client, NODES, self._take_node)]
        self._thread = threading.Thread(target=self._run, name="kube-scheduler", daemon=True)

    def start(self) -> "KubeScheduler":
        for watcher in self._watchers:
            watcher.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        for watcher in self._watchers:
            watcher.stop()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout=10)
        self._extender.close()

    def _run(self) -> None:
        for watcher in self._watchers:
            watcher.listed.wait()
        while (pod := self._next()) is not None:
            try:
                self._cycle(pod)
            except ApiError as error:
                log.warning("scheduling %s: %s", facts.pod_ref(pod), error)
                self._put_aside(pod, wait_for_event=False)

    def _next(self) -> Object | None:
        """The most important pod that may be tried now; waits for one. None when stopped."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                waiting = [p for p in self._pods.values() if self._is_ours(p)]
                waiting.sort(
                    key=lambda p: (-int(p["spec"].get("priority") or 0), facts.created_at(p), p["metadata"]["name"])
                )
                due = [(self._due_at(p), p) for p in waiting]
                if pod := next((p for at, p in due if at <= now), None):
                    self._seen = self._events  # what happens during the attempt counts as news after it
                    return pod
                pause = min((at for at, _ in due), default=float("inf")) - now
                self._changed.wait(min(pause, 3600.0))
            return None

    def _is_ours(self, pod: Object) -> bool:
        named = pod["spec"].get("schedulerName") == self._name
        return named and facts.waiting(pod) and pod["metadata"]["uid"] not in self._assumed

    def _due_at(self, pod: Object) -> float:
        tried = self._tries.get(pod["metadata"]["uid"])
        if tried is None:
            return 0.0
        return tried.not_before if self._events > tried.seen else float("inf")

    def _cycle(self, pod: Object) -> None:
        """One pod, as the real one goes about it: resources, extender filter, scores, assume, bind."""
        uid = pod["metadata"]["uid"]
        fits, refused = self._with_room(pod)
        try:
            if fits and interests_extender(pod):
                fits, more = self._extender.filter(pod, fits)
                refused |= more
            if not fits:
                self._put_aside(pod, wait_for_event=True)
                self._say(pod, "Unschedulable", summary(refused))
                return
            node = fits[0] if len(fits) == 1 else self._best(pod, fits)
            with self._changed:
                self._assumed[uid] = node
            self._bind(pod, node)
        except (ExtenderError, ApiError) as error:
            with self._changed:
                self._assumed.pop(uid, None)
            self._put_aside(pod, wait_for_event=False)
            self._say(pod, "SchedulerError", str(error))

    def _with_room(self, pod: Object) -> tuple[list[str], dict[str, str]]:
        asks = requests_of(pod)
        with self._changed:
            used: dict[str, Counter[str]] = {}
            for other in self._pods.values():
                node = facts.bound_node(other) or self._assumed.get(other["metadata"]["uid"], "")
                if node and not facts.over(other):
                    used.setdefault(node, Counter()).update(requests_of(other))
            lacking = {name: lacks(node, used.get(name, Counter()), asks, pod) for name, node in self._nodes.items()}
        return sorted(n for n, why in lacking.items() if not why), {n: why for n, why in lacking.items() if why}

    def _best(self, pod: Object, fits: list[str]) -> str:
        scores = self._extender.prioritize(pod, fits) if interests_extender(pod) else {}
        return max(fits, key=lambda n: scores.get(n, 0))

    def _bind(self, pod: Object, node: str) -> None:
        if interests_extender(pod):
            self._extender.bind(pod, node)
        else:
            ref = facts.pod_ref(pod)
            self._client.bind(ref.namespace, ref.name, ref.uid, node, {})

    def _put_aside(self, pod: Object, *, wait_for_event: bool) -> None:
        uid = pod["metadata"]["uid"]
        with self._changed:
            times = self._tries[uid].times + 1 if uid in self._tries else 1
            first, longest = self._backoff
            delay = min(longest, first * 2 ** (times - 1))
            self._tries[uid] = _Try(times, time.monotonic() + delay, self._seen if wait_for_event else -1)

    def _say(self, pod: Object, reason: str, message: str) -> None:
        """The PodScheduled condition, which people and autoscalers read."""
        ref = facts.pod_ref(pod)
        others = [c for c in (pod.get("status") or {}).get("conditions") or () if c.get("type") != "PodScheduled"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }
        patch = {"metadata": {"uid": ref.uid}, "status": {"conditions": [*others, said]}}
        try:
            self._client.patch(PODS, ref.name, patch, ref.namespace, "status")
        except ApiError as error:
            log.info("condition of %s not written: %s", ref, error)

    def _take_pod(self, event: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        with self._changed:
            old = self._pods.pop(uid, None)
            if event != "DELETED":
                self._pods[uid] = pod
            if event == "DELETED" or facts.bound_node(pod):
                self._assumed.pop(uid, None)
                self._tries.pop(uid, None)
            if facts.bound_node(pod) or old is None or what_counts(old) != what_counts(pod):
                self._events += 1
            self._changed.notify_all()

    def _take_node(self, event: str, node: dict[str, Any]) -> None:
        name = node["metadata"]["name"]
        with self._changed:
            old = self._nodes.pop(name, None)
            if event != "DELETED":
                self._nodes[name] = node
            if old is None or what_counts(old) != what_counts(node):
                self._events += 1
                self._changed.notify_all()


def _turn(pod: Object) -> tuple[int, float, str]:
    return -int(pod["spec"].get("priority") or 0), facts.created_at(pod), str(pod["metadata"]["name"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--extender", required=True, help="URL prefix of the extender, such as http://127.0.0.1:8888")
    args = parser.parse_args()
    logging.basicConfig(level="INFO")
    KubeScheduler(Client.connect(args.kubeconfig), Extender(args.extender)).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
