"""A fault makes a GPU unhealthy at once, an application's fault does not, and it comes back by reading well."""

import pytest

from device_plugin.health import APPLICATION_XIDS, GOOD_READS, QUIET_SECONDS, Health, on_read, on_xid


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_faults_of_the_application_leave_the_gpu_healthy(xid: int) -> None:
    assert on_xid(Health(), xid, 1.0) == Health()


@pytest.mark.parametrize("xid", [48, 79, 95, 119, 999])
def test_other_faults_do_not(xid: int) -> None:
    assert on_xid(Health(), xid, 1.0) == Health(False, f"XID {xid}", 1.0)


def test_it_comes_back_only_after_a_quiet_while_and_several_good_reads() -> None:
    health = on_xid(Health(), 79, 0.0)
    for n in range(GOOD_READS + 2):
        health = on_read(health, "", float(n))
    assert not health.healthy
    assert on_read(health, "", QUIET_SECONDS).healthy


def test_a_new_fault_starts_the_wait_anew() -> None:
    health = on_read(on_xid(Health(), 79, 0.0), "", 30.0)
    health = on_read(health, "the GPU has fallen off the bus", 50.0)
    assert (health.since, health.good, health.problem) == (50.0, 0, "the GPU has fallen off the bus")
    for at in (60.0, 70.0, 80.0):
        health = on_read(health, "", at)
    assert not health.healthy
    assert on_read(health, "", 50.0 + QUIET_SECONDS).healthy
