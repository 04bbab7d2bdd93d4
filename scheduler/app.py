"""The extender's HTTP face. Each route reads, asks one pure function, answers. The only file that imports fastapi.

Filter and prioritize run on the event loop, one at a time, as kube-scheduler asks them; bind waits for the API server
and so runs on a thread.
"""

import time
from asyncio import get_running_loop
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cluster import facts, gpunode
from cluster.clock import Clock
from gpu.node import Placement, Snapshot
from gpu.placement import PodRequest
from policies.model import Policy
from scheduler import decide, metrics, wire
from scheduler.bind import Binder
from scheduler.memo import Memo
from scheduler.promises import Promises

MAX_BODY_BYTES = 64 * 2**20
"""Five thousand full Node objects of 10 KB each come to 50 MB; names only to 0.2 MB."""

BINDS_AT_ONCE = 8
"""Threads that wait for the API server. More of them bind no faster, and each needs a kept connection of its own: one
that finds none free costs a TLS handshake."""


@dataclass(frozen=True)
class Extender:
    """What the routes work on. `ready` says why not yet, or nothing."""

    promises: Promises
    binder: Binder
    policy: Callable[[], Policy]
    clock: Clock
    ready: Callable[[], str]
    memo: Memo = field(default_factory=Memo)

    def filter(self, call: wire.FilterCall) -> tuple[str, bytes]:
        """The word for the metric, and the answer."""
        try:
            request = _request(call)
        except facts.FactError as error:
            return "refused", wire.filter_refusal(call, str(error))
        if request is None:
            return "fits", wire.filter_answer(call, call.names, {})
        policy = self.policy()
        verdict = decide.filter(self._standing(request, policy), call.names, policy)
        if not verdict.nodes:
            for reason, number in Counter(verdict.refusals.values()).items():
                metrics.refusals.labels(reason.name.lower()).inc(number)
        return "fits" if verdict.nodes else "none", wire.filter_answer(call, verdict.nodes, verdict.refusals)

    def prioritize(self, call: wire.FilterCall) -> tuple[str, bytes]:
        try:
            request = _request(call)
        except facts.FactError:
            return "refused", wire.rank_answer(dict.fromkeys(call.names, 0))
        if request is None:
            return "fits", wire.rank_answer(dict.fromkeys(call.names, 0))
        return "fits", wire.rank_answer(decide.rank(self._standing(request, self.policy()), call.names))

    def bind(self, call: wire.BindCall) -> tuple[str, bytes]:
        outcome = self.binder.bind(call)
        return outcome.word, wire.bind_answer(outcome.error)

    def _standing(self, request: PodRequest, policy: Policy) -> decide.Standing:
        snapshot = self.promises.snapshot(besides=request.pod.uid)
        return self.memo.standing(snapshot, request, decide.scoring_of(policy, self.clock.now()))


def application(extender: Extender, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """The routes over one extender."""
    app = FastAPI(title="Fallow scheduler extender", openapi_url=None, docs_url=None, redoc_url=None)

    binding = ThreadPoolExecutor(BINDS_AT_ONCE, thread_name_prefix="bind")

    async def answer(verb: str, request: Request, work: Callable[[bytes], Any]) -> Response:
        begun = time.perf_counter()
        outcome, status, body = "malformed", 400, b""
        try:
            if why := extender.ready():
                outcome, status, body = "not_ready", 503, wire.bind_answer(f"not ready: {why}")
            else:
                outcome, body = await work(await _read(request, max_body_bytes))
                status = 200
        except wire.WireError as error:
            body = wire.bind_answer(str(error))
        metrics.decisions.labels(verb, outcome).inc()
        metrics.seconds.labels(verb).observe(time.perf_counter() - begun)
        return Response(body, status, media_type="application/json")

    async def filter_nodes(request: Request) -> Response:
        async def work(body: bytes) -> tuple[str, bytes]:
            return extender.filter(wire.read_filter(body))

        return await answer("filter", request, work)

    async def prioritize(request: Request) -> Response:
        async def work(body: bytes) -> tuple[str, bytes]:
            return extender.prioritize(wire.read_filter(body))

        return await answer("prioritize", request, work)

    async def bind(request: Request) -> Response:
        async def work(body: bytes) -> tuple[str, bytes]:
            return await get_running_loop().run_in_executor(binding, extender.bind, wire.read_bind(body))

        return await answer("bind", request, work)

    # Plain routes: nothing here is for a framework to parse, and every tenth of a millisecond is cluster time.
    for path, route in (("/filter", filter_nodes), ("/prioritize", prioritize), ("/bind", bind)):
        app.add_route(path, route, methods=["POST"])
    _add_views(app, extender)
    return app


def _add_views(app: FastAPI, extender: Extender) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz")
    async def readyz() -> Response:
        why = extender.ready()
        return Response(f"{why}\n" if why else "ok\n", 503 if why else 200, media_type="text/plain")

    @app.get("/metrics")
    async def prometheus() -> Response:
        metrics.promises.set(len(extender.promises))
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/snapshot")
    async def snapshot() -> Response:
        body = await run_in_threadpool(lambda: orjson.dumps(_snapshot_out(extender.promises.snapshot())))
        return Response(body, media_type="application/json")


async def _read(request: Request, limit: int) -> bytes:
    """Raises WireError for a body above the limit, before it is held in memory."""
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise wire.WireError(f"the body is larger than {limit} bytes; set nodeCacheCapable: true (names only)")
    return b"".join(chunks)


def _request(call: wire.FilterCall) -> PodRequest | None:
    """Raises FactError for what the pod's author must correct, WireError for what no API server would let through."""
    try:
        return facts.read_request(call.pod)
    except facts.FactError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise wire.WireError(
            f"Pod.spec: no pod specification ({error}); send the pod as the API server has it"
        ) from error


def _snapshot_out(snapshot: Snapshot) -> dict[str, Any]:
    """The books as they stand, promises included, for people and for replaying."""
    return {
        "at": snapshot.at,
        "nodes": {
            n.name: {**gpunode.inventory(n.gpus, {}), "placements": [_placement_out(p) for p in n.placements]}
            for n in snapshot.nodes
        },
    }


def _placement_out(placement: Placement) -> dict[str, Any]:
    return {
        "pod": str(placement.pod),
        "uid": placement.pod.uid,
        "stage": placement.stage.value,
        **orjson.loads(facts.write_shares(placement.shares, placement.at)),
    }
