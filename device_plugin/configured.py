"""The configuration in force on this node: read at every look, swapped whole, the last good one kept.

A broken edit changes nothing, not even through a restart: the last good text lies beside the kubelet's checkpoint. A
node that never had a good one offers nothing until it has.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster import names
from device_plugin import metrics
from device_plugin.cdi import put
from device_plugin.config.choose import NotChosen, choose
from device_plugin.config.model import Config
from device_plugin.config.plan import delivery, plan
from device_plugin.config.read import ENVIRONMENT, overlay, read
from device_plugin.delivery import Delivery
from device_plugin.sale import NodePlan
from device_plugin.specs import DriverRoot
from gpu.hardware import SeenGpu
from policies.document import DocumentError, Fault, line_of

log = logging.getLogger(__name__)

LAST_GOOD = "fallow-config.json"
ENVIRONMENT_ONLY = "environment"


@dataclass(frozen=True)
class InForce:
    """One configuration at work. `config` None: there is none, and the policy decides."""

    name: str = ""
    config: Config | None = None
    plan: NodePlan = field(default_factory=NodePlan)

    def driver_root(self, usual: DriverRoot) -> DriverRoot:
        """Where the driver's files are; `usual` is what the agent's flags say."""
        if self.config is None:
            return usual
        flags, plugin = self.config.flags, self.config.flags.plugin
        here = plugin.container_driver_root
        return DriverRoot(
            Path(here) if here else usual.here,
            flags.nvidia_driver_root or usual.on_host,
            plugin.nvidia_ctk_path or usual.hook,
        )

    def dev_root(self, usual: str) -> str:
        """Where device nodes are. NVIDIA's key names the directory above /dev."""
        root = self.config.flags.nvidia_dev_root if self.config else None
        return f"{root.rstrip('/')}/dev" if root else usual

    def mps_root(self, usual: str) -> str:
        return (self.config.flags.mps_root if self.config else None) or usual

    @property
    def delivery(self) -> Delivery:
        return Delivery() if self.config is None else delivery(self.config)


class NodeConfig:
    """`look` belongs to one thread; the rest may be asked by any. `path` is a file, a directory (a mounted ConfigMap)
    or None; `label` gives the node's label; `tell` writes an Event (reason, text, whether it is a warning)."""

    def __init__(
        self,
        path: Path | None,
        default: str,
        label: Callable[[], str],
        keep: Path,
        tell: Callable[[str, str, bool], None],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._path, self._default, self._label, self._tell = path, default, label, tell
        self._kept = keep / LAST_GOOD
        self._environment = {k: v for k, v in environment.items() if k in ENVIRONMENT and v}
        self._current: InForce | None = None
        self._problem = ""

    @property
    def current(self) -> InForce:
        return self._current or InForce()

    def ready(self) -> str:
        """Empty while a good configuration is known (or it is certain that there is none), else what is wrong."""
        return "" if self._current is not None else self._problem or "the configuration has not been read yet"

    def condition(self) -> Mapping[str, str]:
        """Of the GpuNode: what is in force, or why the newest text is not."""
        notes = "; ".join(self.current.plan.notes)
        said = self._problem or notes or (f"{self.current.name} is in force" if self.current.name else "none is given")
        return {
            "type": "ConfigApplied",
            "status": "False" if self._problem else "True",
            "reason": "Invalid" if self._problem else "Noted" if notes else "Applied",
            "message": said[:1024],
        }

    def look(self, gpus: tuple[SeenGpu, ...]) -> None:
        """Read what is there now and make a plan for these GPUs; a fault leaves what is in force as it is."""
        name, text = "", ""
        try:
            chosen = self._chosen()
            name, text = chosen or ("", "")
            fresh = self._made(name, text, gpus)
        except (DocumentError, OSError, UnicodeDecodeError) as error:
            self._refuse(str(error), gpus)
            return
        metrics.config_valid.set(1)
        self._problem = ""
        if fresh == self._current:
            return
        before, self._current = self._current, fresh
        self._keep(name, text)
        if before is None or (before.name, before.config) != (fresh.name, fresh.config):
            metrics.config_loads.labels("applied").inc()
            log.info("configuration: %s", fresh.name or "none, the policy decides")
            if fresh.name:
                self._tell(names.CONFIG_APPLIED, f"device-plugin configuration {fresh.name} is in force", False)
        for note in fresh.plan.notes:
            if before is None or note not in before.plan.notes:
                log.warning("configuration %s: %s", fresh.name, note)
                self._tell(names.CONFIG_NOTED, f"{fresh.name}: {note}", True)

    def _made(self, name: str, text: str, gpus: tuple[SeenGpu, ...]) -> InForce:
        """Raises DocumentError."""
        if not name and not self._environment:
            return InForce()
        config = overlay(read(text, name) if name else Config(), self._environment)
        match plan(config, gpus):
            case NodePlan() as made:
                return InForce(name or ENVIRONMENT_ONLY, config, made)
            case faults:
                raise DocumentError(name or ENVIRONMENT_ONLY, tuple(_placed(f, text) for f in faults))

    def _chosen(self) -> tuple[str, str] | None:
        """Name and text of this node's configuration; None when there is none. Raises OSError and DocumentError."""
        if self._path is None:
            return None
        if self._path.is_file():
            return self._path.name, self._path.read_text("utf-8")
        # A mounted ConfigMap: one file per key, and links of the kubelet's own that begin with two dots.
        files = {p.name: p for p in self._path.iterdir() if not p.name.startswith("..") and p.is_file()}
        label = self._label()
        if not files and not label:
            return None
        name = choose(label, self._default, dict.fromkeys(files, ""))
        if isinstance(name, NotChosen):
            raise DocumentError(str(self._path), (Fault(None, "", name.why),))
        return name, files[name].read_text("utf-8")

    def _refuse(self, problem: str, gpus: tuple[SeenGpu, ...]) -> None:
        metrics.config_valid.set(0)
        if self._current is None:
            self._remember(gpus)
        if problem == self._problem:
            return
        self._problem = problem
        metrics.config_loads.labels("refused").inc()
        kept = (
            f"{self._current.name or 'none'} stays in force"
            if self._current
            else "nothing is offered until it is mended"
        )
        log.error("configuration not taken: %s; %s", problem, kept)
        self._tell(names.CONFIG_INVALID, f"{problem}; {kept}", True)

    def _remember(self, gpus: tuple[SeenGpu, ...]) -> None:
        """After a restart: what the agent before this one had in force."""
        try:
            kept = json.loads(self._kept.read_text("utf-8"))
            self._current = self._made(str(kept["name"]), str(kept["text"]), gpus)
        except (OSError, ValueError, KeyError, TypeError):
            return

    def _keep(self, name: str, text: str) -> None:
        try:
            put(self._kept, {"name": name, "text": text})
        except OSError as error:
            log.warning("the configuration in force is not kept for a restart: %s", error)


def _placed(fault: Fault, text: str) -> Fault:
    """With the line where its key stands."""
    return Fault(line_of(text, tuple(fault.path.split("."))) if text else None, fault.path, fault.problem)
