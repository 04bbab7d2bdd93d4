"""Writes measured activity to the GpuNode: `status.idle`, of which this is the only writer."""

import logging

from cluster import gpunode
from cluster.client import GPUNODES, Client
from cluster.errors import ApiError
from gpu.node import Activity
from idle.capacity import worth_publishing

log = logging.getLogger(__name__)


class IdlePublisher:
    """Belongs to the sampler's thread."""

    def __init__(self, node: str, client: Client) -> None:
        self._node, self._client = node, client
        self._published: dict[str, Activity] = {}

    def publish(self, readings: dict[str, Activity], stale_after_seconds: float) -> int:
        """Write what is worth it; how many GPUs were written. A failed write is tried with the next reading."""
        fresh = {
            gpu: activity
            for gpu, activity in readings.items()
            if worth_publishing(self._published.get(gpu), activity, stale_after_seconds)
        }
        # A value that can no longer be measured is taken back at once, not left to grow old.
        gone = self._published.keys() - readings.keys()
        if not fresh and not gone:
            return 0
        patch = {**{g: gpunode.activity_out(a) for g, a in fresh.items()}, **dict.fromkeys(gone)}
        try:
            self._client.patch(GPUNODES, self._node, {"status": {"idle": patch}}, subresource="status")
        except ApiError as error:
            log.warning("activity of node %s not written: %s", self._node, error)
            return 0
        self._published = {g: a for g, a in {**self._published, **fresh}.items() if g not in gone}
        return len(patch)
