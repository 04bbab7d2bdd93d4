"""Runs the MPS control daemons of this node: starts, watches, adopts and ends them.

A daemon outlives an agent that dies or is replaced, for its clients die with it: it runs in a session of its own and
is found again by the record beside its pipes. While one is not up, its GPU is unhealthy, so nobody is sent there.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.clock import Clock
from device_plugin import metrics, mps
from device_plugin.allocate import Denial
from device_plugin.delivery import Grant
from device_plugin.devices import NodeGpu
from device_plugin.mps import Daemon
from gpu.hardware import FaultKind, GpuFault

log = logging.getLogger(__name__)

RECORD = "daemon.json"
ANSWER_SECONDS = 2.0
"""A daemon that does not answer a command by then is taken for hanging."""
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Between two starts of a daemon that does not stay up: doubled each time."""


@dataclass
class _Running:
    """One daemon. `child` is None for an adopted one."""

    daemon: Daemon
    pid: int
    child: subprocess.Popen[bytes] | None
    told: bool = False


class Daemons:
    """`follow` belongs to one thread; `lack` and `client` may be asked by any. `root` gives NVIDIA's mpsRoot, the
    same path here and on the host; `control` the program nvidia-cuda-mps-control."""

    def __init__(
        self,
        root: Callable[[], str],
        control: str,
        set_exclusive: Callable[[str, bool], None],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._root, self._control, self._clock = root, control, clock
        self._set_exclusive, self._changed = set_exclusive, changed
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._lacks: dict[str, str] = {}
        self._failures: dict[str, tuple[int, float]] = {}

    def lack(self, gpu: NodeGpu) -> str:
        """Why a GPU sold by MPS must not be given out now; "" for every other."""
        if not mps.by_mps(gpu):
            return ""
        with self._lock:
            return self._lacks.get(gpu.uuid, "its MPS control daemon has not been started yet")

    def client(self, gpu: str, units: int, replicas: int, memory_mib: int) -> Grant | Denial:
        """What a container on this GPU gets; see mps.client."""
        with self._lock:
            lack = self._lacks.get(gpu, "it has not been started yet")
        if lack:
            return Denial(f"the MPS control daemon of GPU {gpu}: {lack}")
        return mps.client(mps.places(self._root(), gpu), units, replicas, memory_mib)

    def follow(self, wanted: Mapping[str, Daemon]) -> None:
        """Once per look: end what is not wanted any more, start what is missing, ask each whether it lives."""
        for uuid in sorted(self._leftovers() | self._running.keys() - wanted.keys()):
            if uuid not in wanted:
                self._end(uuid)
        lacks = {uuid: self._keep(daemon) for uuid, daemon in sorted(wanted.items())}
        with self._lock:
            before, self._lacks = self._lacks, lacks
        for uuid in lacks:
            if lacks[uuid] != before.get(uuid):
                log.info("MPS control daemon of GPU %s: %s", uuid, lacks[uuid] or "up")
        metrics.mps_daemons.labels("up").set(sum(not w for w in lacks.values()))
        metrics.mps_daemons.labels("down").set(sum(bool(w) for w in lacks.values()))
        if lacks != before:
            self._changed()

    def _keep(self, daemon: Daemon) -> str:
        """Why the daemon is not ready, "" when it is."""
        now = self._running.get(daemon.gpu)
        if now is not None and now.daemon != daemon:
            self._end(daemon.gpu)  # nobody holds a unit while a GPU is sold anew
            now = None
        now = now or self._adopt(daemon)
        if now is None:
            return self._start(daemon)
        if died := self._death(now):
            self._forget(daemon.gpu)
            return f"it has ended ({died}); see {mps.places(self._root(), daemon.gpu).log}"
        try:
            if not now.told:
                for order in mps.orders(daemon):
                    self._say(daemon, order)
                now.told = True
            self._say(daemon, mps.PROBE)
        except OSError as error:
            return f"it does not answer: {error}"
        self._failures.pop(daemon.gpu, None)
        return ""

    def _start(self, daemon: Daemon) -> str:
        tries, at = self._failures.get(daemon.gpu, (0, 0.0))
        if tries and self._clock.monotonic() - at < min(LONGEST_SECONDS, FIRST_SECONDS * 2**tries):
            return f"it did not stay up; it is started again soon (tried {tries} times)"
        self._failures[daemon.gpu] = (tries + 1, self._clock.monotonic())
        where = mps.places(self._root(), daemon.gpu)
        try:
            self._exclude(daemon.gpu, on=True)
            for directory in (where.pipe, where.log, where.shm):
                Path(directory).mkdir(parents=True, exist_ok=True)
            # Clients of any user put their shared memory here, as in any /dev/shm.
            Path(where.shm).chmod(0o1777)
            with (Path(where.log) / "output").open("ab") as output:
                child = subprocess.Popen(
                    [self._control, "-f"],
                    env={**os.environ, **mps.environment(daemon, where)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            record = {"pid": child.pid, "replicas": daemon.replicas, "capped": daemon.capped, "born": _born(child.pid)}
            self._record(daemon.gpu).write_text(json.dumps(record))
        except (OSError, GpuFault) as error:
            return f"it cannot be started: {error}"
        metrics.mps_starts.inc()
        self._running[daemon.gpu] = _Running(daemon, child.pid, child)
        return "it is starting"

    def _adopt(self, daemon: Daemon) -> _Running | None:
        """The daemon that an agent before this one has started, when it is as it is wanted now."""
        try:
            record = json.loads(self._record(daemon.gpu).read_text())
            pid = int(record["pid"])
            same = (record["replicas"], record["capped"]) == (daemon.replicas, daemon.capped)
            alive = bool(record["born"]) and _born(pid) == record["born"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not alive:
            return None
        found = _Running(daemon, pid, None)
        self._running[daemon.gpu] = found
        if not same:
            self._end(daemon.gpu)
            return None
        log.info("MPS control daemon of GPU %s adopted (process %d)", daemon.gpu, pid)
        return found

    def _end(self, uuid: str) -> None:
        now = self._running.get(uuid) or self._adopt(Daemon(uuid, 0, 0, capped=False))
        if now is not None:
            with contextlib.suppress(OSError):
                self._say(now.daemon, mps.QUIT)
            _stop(now)
            log.info("MPS control daemon of GPU %s ended", uuid)
        self._forget(uuid)
        self._failures.pop(uuid, None)
        try:
            self._exclude(uuid, on=False)
        except GpuFault as fault:
            log.warning("GPU %s stays in exclusive compute mode: %s", uuid, fault)

    def _leftovers(self) -> set[str]:
        """GPUs whose daemon was started by an agent before this one."""
        return {p.parent.name for p in Path(self._root()).glob(f"*/{RECORD}")}

    def _exclude(self, uuid: str, *, on: bool) -> None:
        """As CUDA's manual asks: nobody reaches the GPU beside the server. Raises GpuFault."""
        try:
            self._set_exclusive(uuid, on)
        except GpuFault as fault:
            if fault.kind not in (FaultKind.NOT_SUPPORTED, FaultKind.NOT_FOUND):
                raise

    def _say(self, daemon: Daemon, command: str) -> str:
        """The daemon's answer to one command. Raises OSError."""
        where = mps.places(self._root(), daemon.gpu)
        try:
            done = subprocess.run(
                [self._control],
                env={**os.environ, **mps.environment(daemon, where)},
                input=f"{command}\n".encode(),
                capture_output=True,
                timeout=ANSWER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{command}: no answer within {ANSWER_SECONDS} s") from error
        if done.returncode:
            raise OSError(f"{command}: {done.stderr.decode(errors='replace').strip() or done.returncode}")
        return done.stdout.decode(errors="replace").strip()

    def _death(self, now: _Running) -> str:
        if now.child is not None:
            code = now.child.poll()
            return "" if code is None else f"status {code}"
        return "" if _born(now.pid) else "its process is gone"

    def _forget(self, uuid: str) -> None:
        self._running.pop(uuid, None)
        self._record(uuid).unlink(missing_ok=True)

    def _record(self, uuid: str) -> Path:
        return Path(self._root()) / uuid / RECORD


def _stop(now: _Running) -> None:
    """By signal, should `quit` not have been enough. Waits a moment for a child, so that none is left undead."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(now.pid, signal.SIGTERM)
    if now.child is not None:
        try:
            now.child.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            now.child.kill()
            now.child.wait()


def _born(pid: int) -> str:
    """When the process was started, in the kernel's ticks: with the pid its identity. "" when it is gone or undead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
