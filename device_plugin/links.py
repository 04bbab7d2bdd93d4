"""How this node's GPUs are connected, as last read. Read seldom: a look asks the driver about every pair and link."""

import logging
from collections.abc import Callable, Iterable

from gpu.hardware import FaultKind, GpuFault, SeenGpu, Topology

log = logging.getLogger(__name__)


class Links:
    """`follow` belongs to one thread; `now` may be asked by any. Without an answer the last one stands, and at first
    none: NUMA nodes and indexes then decide alone."""

    def __init__(self, ask: Callable[[], Topology]) -> None:
        self._ask = ask
        self._of: frozenset[tuple[str, bool, bool]] | None = None
        self._problem = ""
        self.now = Topology({})

    def follow(self, seen: Iterable[SeenGpu]) -> None:
        """Read anew when GPUs came, went or came back, or MIG mode changed: it switches NVLinks off."""
        of = frozenset((g.uuid, g.mig, bool(g.fault)) for g in seen)
        if of == self._of:
            return
        try:
            self.now, self._of, self._problem = self._ask(), of, ""
        except GpuFault as fault:
            if fault.kind is FaultKind.NOT_SUPPORTED:
                self._of = of  # it will not be able to later either
            if str(fault) != self._problem:
                self._problem = str(fault)
                log.warning("how GPUs are connected cannot be read: %s; what was known stands", fault)
