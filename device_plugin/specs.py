"""Keeps the CDI specs on disk in step with what is offered: the spec first, then the ids."""

import logging
import threading
from pathlib import Path

from device_plugin import cdi, metrics
from device_plugin.devices import NodeGpu
from device_plugin.state import NodeState

log = logging.getLogger(__name__)


class Specs:
    """Thread-safe. The lock guards files, no call to anybody: a renewal would else write what was before an offer."""

    def __init__(self, directory: Path, dev_root: str, state: NodeState) -> None:
        self._directory, self._dev_root, self._state = directory, dev_root, state
        self._lock = threading.Lock()
        self._missing: tuple[str, ...] = ()

    def offer(self, gpu: NodeGpu) -> None:
        """Write the spec, then offer the ids: a container must never find its device's name missing. Raises OSError."""
        with self._lock:
            cdi.write(self._directory, gpu, self._dev_root)
            self._state.reshape(gpu)

    def renew(self) -> None:
        """Write what has changed and say what is missing on this host; what cannot be written is tried again later."""
        try:
            with self._lock:
                cdi.renew(self._directory, self._state.gpus(), self._dev_root)
        except OSError as error:
            log.error("CDI specs not written to %s: %s", self._directory, error)
        missing = cdi.missing(self._state.gpus(), self._dev_root)
        if missing != self._missing:
            self._missing = missing
            metrics.missing_nodes.set(len(missing))
            log.warning("device nodes not below %s: %s", self._dev_root, ", ".join(missing) or "none any more")
