"""The pytest fixture of the real cluster. Where it cannot be had, tests are skipped with the reason; under CI=true
that is a failure."""

import os
from collections.abc import Iterator

import pytest

from tests.controlplane.build import CannotBuild, binaries, missing_packages
from tests.controlplane.cluster import RealCluster


def why_not() -> str:
    """Why there can be no real cluster here; "" when there can."""
    if os.geteuid() != 0:
        return "the real cluster needs root"
    if missing := missing_packages():
        return f"the real cluster needs Debian packages: apt-get install {' '.join(missing)}"
    try:
        binaries()
    except CannotBuild as problem:
        return str(problem)
    return ""


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[RealCluster]:
    if reason := why_not():
        if os.environ.get("CI") == "true":
            pytest.fail(f"under CI the real cluster must not be skipped: {reason}")
        pytest.skip(reason)
    with RealCluster() as cluster:
        yield cluster.start()
