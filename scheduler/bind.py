"""Binds a pod: choose its shares once more on the newest books, promise them, write node and promise in one Binding.

A failure is an answer: kube-scheduler tries the pod again. Repeating a bind is harmless: what counts is where the API
server shows the pod. Only the uid is a precondition of the Binding; the pod's resourceVersion would be outdated by
every status that kube-scheduler itself writes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster import facts, names
from cluster.cache import Cache
from cluster.client import PODS, Client
from cluster.clock import Clock
from cluster.errors import ApiError, Conflict, NotFound, Unreachable
from gpu.node import NodeGpus
from gpu.placement import Answer, PodRequest, Refusal, place
from policies.model import Policy
from scheduler.decide import scoring_of
from scheduler.promises import Promises
from scheduler.wire import BindCall


@dataclass(frozen=True, slots=True)
class Outcome:
    """`word` for the metric: bound, refused (no room, or a pod that cannot be bound) or failed. `error` for people."""

    word: str
    error: str = ""


BOUND = Outcome("bound")


class Binder:
    """Thread-safe; as many binds at once as there are threads."""

    def __init__(
        self, client: Client, cache: Cache, promises: Promises, policy: Callable[[], Policy], clock: Clock
    ) -> None:
        self._client, self._cache, self._promises, self._policy, self._clock = client, cache, promises, policy, clock

    def bind(self, call: BindCall) -> Outcome:
        """Never raises for what the API server or the pod's author does."""
        try:
            pod = self._pod(call)
            request = facts.read_request(pod)
        except NotFound:
            return self._gone(call)
        except ApiError as error:
            return Outcome("failed", str(error))
        except facts.FactError as error:
            return Outcome("refused", str(error))
        if facts.pod_ref(pod).uid != call.uid:
            return Outcome("refused", f"pod {call.namespace}/{call.name} has been replaced by another of that name")
        if bound := facts.bound_node(pod):
            return _settled(bound, call.node)
        return self._bind_promised(call, request) if request else self._write(call, {})

    def _pod(self, call: BindCall) -> Any:
        return self._cache.pod(call.uid) or self._client.get(PODS, call.name, call.namespace)

    def _bind_promised(self, call: BindCall, request: PodRequest) -> Outcome:
        # As exact as it is written down, so that the watch brings back the same value.
        policy, now = self._policy(), round(self._clock.now(), 3)

        def choose(node: NodeGpus) -> Answer:
            return place(node, request, scoring_of(policy, now))

        answer = self._promises.make(request.pod, call.node, choose, policy.placing.promise_seconds)
        if isinstance(answer, Refusal):
            detail = f" ({answer.detail})" if answer.detail else ""
            return Outcome("refused", f"node {call.node}: {answer.reason.value}{detail}")
        promised = answer.placement
        return self._write(call, {names.PROMISE: facts.write_shares(promised.shares, promised.at)})

    def _write(self, call: BindCall, annotations: dict[str, str]) -> Outcome:
        try:
            self._client.bind(call.namespace, call.name, call.uid, call.node, annotations)
        except (Conflict, Unreachable) as error:
            return self._after_doubt(call, error)
        except NotFound:
            return self._gone(call)
        except ApiError as error:
            self._promises.withdraw(call.uid, call.node)
            return Outcome("refused", str(error))
        self._promises.confirm(call.uid, call.node)
        return BOUND

    def _after_doubt(self, call: BindCall, error: ApiError) -> Outcome:
        """The reply was lost, or an earlier one was: the API server knows. In doubt the promise stands."""
        try:
            pod = self._client.get(PODS, call.name, call.namespace)
        except NotFound:
            return self._gone(call)
        except ApiError:
            return Outcome("failed", str(error))
        bound = facts.bound_node(pod) if facts.pod_ref(pod).uid == call.uid else ""
        if bound == call.node:
            self._promises.confirm(call.uid, call.node)
            return BOUND
        if bound or isinstance(error, Conflict):
            self._promises.withdraw(call.uid, call.node)
        return Outcome("failed", str(error))

    def _gone(self, call: BindCall) -> Outcome:
        self._promises.withdraw(call.uid, call.node)
        return Outcome("refused", f"pod {call.namespace}/{call.name} does not exist any more")


def _settled(bound: str, wanted: str) -> Outcome:
    return BOUND if bound == wanted else Outcome("refused", f"the pod is bound to node {bound} already")
