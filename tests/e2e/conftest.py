"""Every test here runs on the real cluster, with Fallow deployed once for all of them."""

from collections.abc import Iterator

import pytest

from tests.controlplane.cluster import RealCluster
from tests.controlplane.fixture import build_before, real_cluster
from tests.e2e.deployed import Deployed

__all__ = ["fallow", "real_cluster", "running"]


@pytest.fixture(scope="session")
def running(real_cluster: RealCluster) -> Iterator[Deployed]:
    """Fallow's manifests, two nodes with two GPUs each, all programs up."""
    deployed = Deployed(real_cluster)
    try:
        deployed.apply()
        deployed.start_all()
        yield deployed
    finally:
        deployed.stop()


@pytest.fixture
def fallow(running: Deployed, request: pytest.FixtureRequest) -> Iterator[Deployed]:
    """The same, with no pods, the policy at the tests' defaults and every program up."""
    running.reset()
    yield running
    report = getattr(request.node, "failed_report", None)
    if report:
        print(running.logs())


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before(session)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.failed:
        item.failed_report = report  # type: ignore[attr-defined]
