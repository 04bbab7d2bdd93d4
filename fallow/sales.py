"""What this node sells and how: the configuration, sharing, MPS daemons and CDI specs, put together.

Wiring: it hands values on. What they mean is decided in `device_plugin`.
"""

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import names
from cluster.cache import Cache
from cluster.clock import Clock
from cluster.events import Events
from device_plugin import mps
from device_plugin.allocate import Terms
from device_plugin.claims import Held
from device_plugin.configured import NodeConfig
from device_plugin.daemons import Daemons
from device_plugin.sale import Wish
from device_plugin.sharing import Sharing
from device_plugin.specs import DriverRoot, HostSpecs, Specs
from device_plugin.state import NodeState
from gpu.hardware import GpuFault, Hardware
from gpu.node import Placement


@dataclass(frozen=True)
class Shop:
    """What the sale needs of its node: `units` is the policy's number of units of a shared GPU."""

    node: str
    hardware: Hardware
    cache: Cache
    events: Events
    clock: Clock
    units: Callable[[], int]


class Sales:
    """`read`, `follow` and `renew` belong to one thread; the rest may be asked by any."""

    def __init__(self, args: argparse.Namespace, shop: Shop) -> None:
        self._args, self._shop = args, shop
        keep = args.kubelet_dir / "device-plugins"
        self.config = NodeConfig(args.config_file, args.config_default, self._label, keep, self._tell)
        self._daemons = Daemons(
            lambda: self.config.current.mps_root(args.mps_root),
            args.mps_control,
            shop.hardware.set_exclusive,
            shop.clock,
            lambda: self.state.renew(),
        )
        self.state = NodeState(self._daemons.lack)
        self.specs = Specs(args.cdi_dir, self._dev_root, self.state)
        self._host = HostSpecs(args.cdi_dir, self._dev_root, self._driver_version, shop.clock)
        self._sharing = Sharing(self.state)

    def wish(self) -> Wish:
        return Wish(self._shop.units(), self.config.current.plan)

    def terms(self) -> Terms:
        plan, ways = self.config.current.plan, self.config.current.delivery
        return Terms(
            delivery=replace(ways, also=self._host.also(ways)),
            refuse_more_than_one=plan.refuse_more_than_one,
            dev_root=self._dev_root(),
            exists=os.path.exists,
            mps=self._daemons.client,
        )

    def follow(self, held: Callable[[], tuple[Held, ...]], placements: Iterable[Placement]) -> None:
        """Sell GPUs as they are to be sold now, where nobody holds them."""
        self._sharing.follow(self.wish(), held, placements)

    def renew(self) -> None:
        """Daemons and specs in step with what is sold."""
        self._daemons.follow(mps.wanted(self.state.gpus(), self.config.current.plan.refuse_more_than_one))
        self.specs.renew()
        args, current = self._args, self.config.current
        usual = DriverRoot(args.driver_root_here or Path(args.driver_root), args.driver_root)
        self._host.renew(current.driver_root(usual), current.delivery.imex_channels)

    def _dev_root(self) -> str:
        return self.config.current.dev_root(str(self._args.dev_root))

    def _driver_version(self) -> str:
        try:
            return self._shop.hardware.driver().version
        except GpuFault:
            return ""  # no driver, or one that does not tell: then its files cannot be told from another's

    def _label(self) -> str:
        node = self._shop.cache.node(self._shop.node) or {}
        return str(((node.get("metadata") or {}).get("labels") or {}).get(names.CONFIG, ""))

    def _tell(self, reason: str, text: str, warning: bool) -> None:
        """On the Node, for whoever looks after it."""
        node = self._shop.cache.node(self._shop.node)
        if node is not None:
            self._shop.events.write({"apiVersion": "v1", "kind": "Node", **node}, reason, text, warning=warning)
