"""Every test here needs the real cluster."""

from tests.controlplane.fixture import real_cluster

__all__ = ["real_cluster"]
