"""The pytest fixture of the real cluster. Where it cannot be had, tests are skipped with the reason; under CI=true
that is a failure."""

import functools
import os
import sys
from collections.abc import Iterator

import pytest

from tests.controlplane.build import CannotBuild, binaries, missing_packages
from tests.controlplane.cluster import RealCluster


@functools.cache
def why_not() -> str:
    """Why there can be no real cluster here; "" when there can. Builds it if need be."""
    if sys.platform != "linux":
        return "the real cluster needs Linux"
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


def build_before(session: pytest.Session) -> None:
    """Build when the tests are known and none has begun: a first build takes longer than any test may."""
    wanted = any("real_cluster" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            why_not()
