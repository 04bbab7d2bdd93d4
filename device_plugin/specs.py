"""Keeps the CDI specs on disk in step with what is offered: the spec first, then the ids."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.clock import Clock
from device_plugin import cdi, driver_root, host_spec, metrics
from device_plugin.delivery import Delivery
from device_plugin.devices import NodeGpu
from device_plugin.host_spec import DriverFiles
from device_plugin.state import NodeState

log = logging.getLogger(__name__)


class Specs:
    """Thread-safe. The lock guards files, no call to anybody: a renewal would else write what was before an offer."""

    def __init__(self, directory: Path, dev_root: Callable[[], str], state: NodeState) -> None:
        self._directory, self._dev_root, self._state = directory, dev_root, state
        self._lock = threading.Lock()
        self._missing: tuple[str, ...] = ()

    def offer(self, gpu: NodeGpu) -> None:
        """Write the spec, then offer the ids: a container must never find its device's name missing. Raises OSError."""
        with self._lock:
            cdi.write(self._directory, gpu, self._dev_root())
            self._state.reshape(gpu)

    def renew(self) -> None:
        """Write what has changed and say what is missing on this host; what cannot be written is tried again later."""
        try:
            with self._lock:
                cdi.renew(self._directory, self._state.gpus(), self._dev_root())
        except OSError as error:
            log.error("CDI specs not written to %s: %s", self._directory, error)
        missing = cdi.missing(self._state.gpus(), self._dev_root())
        if missing != self._missing:
            self._missing = missing
            metrics.missing_nodes.set(len(missing))
            log.warning("device nodes not below %s: %s", self._dev_root(), ", ".join(missing) or "none any more")


HOST_SECONDS = 60.0
"""Between two looks at a host whose driver is the same: its library directories hold thousands of files."""


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """Where the user-space driver is: `here` as this process sees it, `on_host`, and a hook program on the host that
    was named by the administrator ("": looked for)."""

    here: Path
    on_host: str = "/"
    hook: str = ""


class HostSpecs:
    """Keeps the specs of the driver's files and of the GPUs' neighbours. `renew` belongs to one thread; `also` may be
    asked by any. What has been named once stays named: a container that restarts asks for it again."""

    def __init__(self, directory: Path, dev_root: Callable[[], str], version: Callable[[], str], clock: Clock) -> None:
        self._directory, self._dev_root, self._version, self._clock = directory, dev_root, version, clock
        self._looked: tuple[object, float] = (None, 0.0)
        self._written: dict[str, object] = {}
        self._extras: frozenset[str] = frozenset()
        self._driver = False

    def renew(self, root: DriverRoot, imex_channels: Sequence[int]) -> None:
        """Look at the host and write what has changed; what cannot be written is tried again later."""
        version, now = self._version(), self._clock.monotonic()
        asked = (root, version, tuple(imex_channels))
        if asked == self._looked[0] and now - self._looked[1] < HOST_SECONDS:
            return
        self._looked = (asked, now)
        files = driver_root.look(root.here, root.on_host, version) if version else DriverFiles()
        hook = root.hook or driver_root.hook(root.here, root.on_host)
        found = driver_root.nodes(self._dev_root(), imex_channels)
        extras = host_spec.extras_spec(found, self._dev_root())
        try:
            if files.libraries or self._driver:
                self._put(cdi.HOST_FILES[0], host_spec.driver_spec(files, hook))
                self._driver = True
            if extras is not None:
                self._put(cdi.HOST_FILES[1], extras)
                self._extras |= {extra for extra, nodes in found.items() if nodes}
        except OSError as error:
            self._looked = (None, 0.0)
            log.error("CDI specs of the host not written to %s: %s", self._directory, error)

    def also(self, ways: Delivery) -> tuple[str, ...]:
        """The CDI names that every container gets beside its devices."""
        wanted = [*sorted(ways.extras), *(f"imex-{c}" for c in ways.imex_channels)]
        driver = (host_spec.driver_name(),) if self._driver else ()
        return (*driver, *(host_spec.extra_name(e) for e in wanted if e in self._extras))

    def _put(self, name: str, content: dict[str, object]) -> None:
        if self._written.get(name) != content:
            self._directory.mkdir(parents=True, exist_ok=True)
            cdi.put(self._directory / name, content)
            self._written[name] = content
            devices = content["devices"]
            log.info("CDI spec %s: %d device(s)", name, len(devices) if isinstance(devices, list) else 0)
