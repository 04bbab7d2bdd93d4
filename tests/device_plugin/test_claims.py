"""What the kubelet lists against what pods carry: which claims are missing."""

from cluster import facts, names
from cluster.facts import write_shares
from device_plugin.claims import Held, missing, shares_of, unknown
from device_plugin.devices import NodeGpu
from gpu.hardware import SeenGpu, SeenSlice
from gpu.node import Mode, Share
from tests.builders import layout, model, pod

PIECE = layout("1g.10gb@0")[0]
GPUS = (
    NodeGpu(SeenGpu("GPU-0", 0, 0, "", "", model(), mig=True), Mode.SLICED, (SeenSlice(PIECE, 7, 0, "MIG-a"),)),
    NodeGpu(SeenGpu("GPU-1", 1, 1, "", "", model()), Mode.SHARED, units=20),
    NodeGpu(SeenGpu("GPU-2", 2, 2, "", "", model())),
)
STARTED = "2026-12-01T00:00:00Z"


def held(pod_name: str, resource: str, *ids: str, container: str = "main") -> Held:
    return Held("default", pod_name, container, resource, ids)


def started(name: str, **annotations: str) -> dict:
    obj = pod(name, node="n1", annotations=annotations)
    obj["status"]["startTime"] = STARTED
    return obj


def test_units_are_one_share_however_the_kubelet_splits_its_list() -> None:
    ids = [f"GPU-1::{n}" for n in range(8)]
    one_each = [held("p", names.SHARED, i) for i in ids]
    assert shares_of(one_each, GPUS) == {("default", "p"): (Share("GPU-1", units=8),)}
    assert shares_of([held("p", names.SHARED, *ids)], GPUS) == shares_of(one_each, GPUS)


def test_each_container_has_its_own_share_of_units() -> None:
    listed = [held("p", names.SHARED, "GPU-1::0", container="a"), held("p", names.SHARED, "GPU-1::1", container="b")]
    assert shares_of(listed, GPUS)["default", "p"] == (Share("GPU-1", units=1), Share("GPU-1", units=1))


def test_a_slice_handed_on_by_an_init_container_is_one_share() -> None:
    listed = [held("p", names.mig_resource("1g.10gb"), "MIG-a", container=c) for c in ("init", "main")]
    assert shares_of(listed, GPUS)["default", "p"] == (Share("GPU-0", PIECE),)


def test_units_that_an_init_container_handed_on_count_once() -> None:
    four, eight = [f"GPU-1::{n}" for n in range(4)], [f"GPU-1::{n}" for n in range(8)]
    listed = [held("p", names.SHARED, *four, container="init"), held("p", names.SHARED, *eight)]
    assert shares_of(listed, GPUS)["default", "p"] == (Share("GPU-1", units=8),)


def test_ids_that_nobody_can_explain_are_named() -> None:
    listed = [held("p", names.WHOLE, "GPU-2"), held("q", names.WHOLE, "GPU-9"), held("r", "example.com/nic", "nic-0")]
    assert unknown(listed, GPUS) == {"GPU-9 (default/q)"}


def test_a_claim_is_written_when_it_is_missing_wrong_or_unreadable_and_not_again() -> None:
    listed = [held("p", names.WHOLE, "GPU-2")]
    right = write_shares([Share("GPU-2")], 1.0)
    for annotations in ({}, {names.CLAIM: write_shares([Share("GPU-1", units=1)], 1.0)}, {names.CLAIM: "{"}):
        (claim,) = missing(listed, [started("p", **annotations)], GPUS)
        assert claim.shares == (Share("GPU-2"),)
    assert missing(listed, [started("p", **{names.CLAIM: right})], GPUS) == ()


def test_a_pod_that_the_kubelet_has_not_started_gets_no_claim_from_its_predecessor() -> None:
    assert missing([held("p", names.WHOLE, "GPU-2")], [pod("p", node="n1")], GPUS) == ()


def test_foreign_resources_and_unknown_ids_are_no_claims() -> None:
    listed = [held("p", "example.com/nic", "nic-0"), held("q", names.WHOLE, "GPU-9")]
    assert missing(listed, [started("p"), started("q")], GPUS) == ()


def test_two_equal_pods_that_swapped_slices_are_put_right() -> None:
    two = layout("1g.10gb@0", "1g.10gb@1")
    gpu = NodeGpu(
        SeenGpu("GPU-0", 0, 0, "", "", model(), mig=True),
        Mode.SLICED,
        (SeenSlice(two[0], 7, 0, "MIG-a"), SeenSlice(two[1], 8, 0, "MIG-b")),
    )
    resource = names.mig_resource("1g.10gb")
    claims = missing([held("p", resource, "MIG-b"), held("q", resource, "MIG-a")], [started("p"), started("q")], [gpu])
    books = {"GPU-0": gpu.books()}
    told = {c.pod: facts.read_shares(write_shares(c.shares, 0), books, "")[0] for c in claims}
    assert told == {"p": (Share("GPU-0", two[1]),), "q": (Share("GPU-0", two[0]),)}
