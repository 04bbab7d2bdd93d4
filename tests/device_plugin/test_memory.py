"""The memory guard at work: on the double's processes, through the API server in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import facts, names
from cluster.cache import Cache
from cluster.client import EVENTS, PODS, Client
from cluster.clock import ManualClock
from cluster.events import Events
from cluster.fake import FakeApi
from device_plugin.cgroups import Cgroups, uid_in
from device_plugin.devices import NodeGpu
from device_plugin.memory import MemoryGuard, Office
from gpu import fake
from gpu.node import Mode
from policies.model import Sharing
from tests import builders

UID = "0a1b2c3d-0000-1111-2222-333344445555"
PID = 4242


class Rig:
    """A node with one shared GPU and one pod that holds a quarter of it."""

    def __init__(self, path: Path, api: FakeApi) -> None:
        self.api = api
        fake.create(path / "gpus.json", ["h100-80gb"])
        self.hardware = fake.FakeHardware(path / "gpus.json")
        seen = self.hardware.gpus()[0]
        self.gpu, self.clock = NodeGpu(seen, Mode.SHARED, units=20), ManualClock()
        self.client = Client.connect(api.kubeconfig(path / "kubeconfig"))
        self.cache = Cache(self.clock)
        shares = facts.write_shares((builders.share(self.gpu.uuid, units=5),), 0.0)
        pod = builders.pod(node="n1", annotations={names.CLAIM: shares}, phase="Running")
        del pod["metadata"]["uid"]
        self.pod = self.client.create(PODS, pod, "default")
        books = builders.gpu(self.gpu.uuid, units=20, mode=Mode.SHARED)
        for kind, obj in (
            ("nodes", {"metadata": {"name": "n1"}}),
            ("gpunodes", builders.gpunode_object("n1", books)),
            ("pods", self.pod),
        ):
            self.cache.take(kind, "ADDED", obj)
            self.cache.listed(kind)
        self.place = path / "proc" / str(PID)
        self.place.mkdir(parents=True)
        (self.place / "cgroup").write_text(f"0::/kubepods.slice/kubepods-pod{self.uid.replace('-', '_')}.slice/x\n")
        self.cgroup = path / "cgroup" / "kubepods" / "besteffort" / f"pod{self.uid}"
        office = Office("n1", self.client, self.cache, Events(self.client, self.clock, "agent"), self.clock)
        self.rules = Sharing()
        self.guard = MemoryGuard(
            office, self.hardware, Cgroups(path / "proc", path / "cgroup"), lambda: (self.gpu,), lambda: self.rules
        )

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    def uses(self, mib: int) -> None:
        self.hardware.clear_processes(self.gpu.uuid)
        self.hardware.add_process(self.gpu.uuid, PID, memory_mib=mib)

    def ticks(self, seconds: int) -> None:
        for _ in range(seconds // 5):
            self.guard.tick()
            self.clock.advance(5)

    def going(self) -> bool:
        return "deletionTimestamp" in self.client.get(PODS, "p1", "default")["metadata"]

    def events(self) -> list[str]:
        return [e["reason"] for e in self.client.list(EVENTS)["items"]]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with FakeApi() as api:
        yield Rig(tmp_path, api)


def test_a_pod_within_its_share_is_left_alone(rig: Rig) -> None:
    rig.uses(rig.gpu.seen.model.memory_mib // 4)
    rig.ticks(120)
    assert rig.events() == []
    assert rig.guard.condition()["status"] == "True"


def test_a_pod_above_its_share_is_reported_once_and_stays(rig: Rig) -> None:
    rig.uses(rig.gpu.seen.model.memory_mib // 2)
    rig.ticks(25)
    assert rig.events() == []
    rig.ticks(120)
    assert rig.events() == [names.MEMORY_ABOVE_SHARE]
    condition = rig.guard.condition()
    assert (condition["type"], condition["status"]) == ("SharesKept", "False")
    assert "default/p1" in condition["message"]
    assert not rig.going()
    rig.uses(100)
    rig.ticks(10)
    assert rig.guard.condition()["status"] == "True"


def test_where_the_policy_says_so_it_has_to_go(rig: Rig) -> None:
    rig.rules = Sharing(on_memory_excess="evict", memory_grace_seconds=10)
    rig.uses(rig.gpu.seen.model.memory_mib // 2)
    rig.ticks(20)
    assert rig.going()
    assert rig.events() == [names.EVICTED_FOR_MEMORY]


def test_an_eviction_that_is_refused_is_tried_again(rig: Rig) -> None:
    rig.rules = Sharing(on_memory_excess="evict", memory_grace_seconds=10)
    rig.api.fail("evict", "pods", 429, times=2)
    rig.uses(rig.gpu.seen.model.memory_mib // 2)
    rig.ticks(20)
    assert not rig.going()
    rig.ticks(10)
    assert rig.going()
    assert set(rig.events()) == {names.MEMORY_ABOVE_SHARE, names.EVICTED_FOR_MEMORY}


def test_where_the_driver_limits_memory_the_share_is_its_limit_as_soon_as_the_pods_cgroup_is_there(rig: Rig) -> None:
    rig.hardware.wear(rig.gpu.uuid, limits_memory=True)
    rig.ticks(5)
    assert rig.hardware.limits(rig.gpu.uuid) == {}
    rig.cgroup.mkdir(parents=True)
    rig.ticks(10)
    assert rig.hardware.limits(rig.gpu.uuid) == {str(rig.cgroup): rig.gpu.seen.model.memory_mib // 4}


def test_a_driver_that_knows_no_limits_is_not_asked_again(rig: Rig) -> None:
    rig.cgroup.mkdir(parents=True)
    rig.ticks(10)
    rig.hardware.wear(rig.gpu.uuid, limits_memory=True)
    rig.ticks(10)
    assert rig.hardware.limits(rig.gpu.uuid) == {}


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        (f"0::/kubepods/burstable/pod{UID}/c0ffee", UID),
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-c0ffee.scope", UID),
        (f"12:memory:/kubepods/pod{UID}/c0ffee\n1:name=systemd:/", UID),
        ("0::/system.slice/containerd.service", ""),
        ("0::/user.slice/podman-1.scope", ""),
    ],
)
def test_a_pods_uid_is_read_from_its_cgroup(text: str, uid: str) -> None:
    assert uid_in(text) == uid


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods/pod{UID}",
        f"kubepods/burstable/pod{UID}",
        f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice",
    ],
)
def test_a_pods_cgroup_is_found_under_both_of_the_kubelets_drivers(tmp_path: Path, path: str) -> None:
    assert Cgroups(root=tmp_path).of_pod(UID) == ""
    (tmp_path / path).mkdir(parents=True)
    assert Cgroups(root=tmp_path).of_pod(UID) == str(tmp_path / path)
