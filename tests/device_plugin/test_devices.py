"""What a node advertises: one kind per GPU, ids as long as their slices, and nothing of a re-cut before its end."""

from dataclasses import replace

from cluster import names
from device_plugin.devices import NodeGpu, assemble, lists, shaped
from device_plugin.sale import Wish
from gpu.hardware import SeenGpu, SeenSlice
from gpu.node import Mode
from gpu.recut import Shape
from tests.builders import gpu, layout, model

NONE: frozenset[str] = frozenset()


def seen(uuid: str = "GPU-0", *slices: tuple[str, str], mig: bool = False, fault: str = "") -> SeenGpu:
    pieces = tuple(SeenSlice(layout(text)[0], n + 7, 0, uuid_) for n, (text, uuid_) in enumerate(slices))
    return SeenGpu(uuid, 0, 0, "", "", model(), mig=mig or bool(slices), slices=pieces, fault=fault)


def ids(gpus: tuple[NodeGpu, ...]) -> dict[str, list[str]]:
    return {name: [d.id for d in devices] for name, devices in lists(gpus).items()}


def test_a_gpu_is_offered_under_one_resource() -> None:
    cut = assemble([seen("GPU-0", ("1g.10gb@0", "MIG-a"))], {}, {}, NONE, Wish(20))
    assert ids(cut) == {names.mig_resource("1g.10gb"): ["MIG-a"]}
    assert ids(assemble([seen()], {}, {}, NONE, Wish(20))) == {names.WHOLE: ["GPU-0"]}
    shared = assemble([seen()], {}, {"GPU-0": gpu("GPU-0", units=4)}, NONE, Wish(20))
    assert ids(shared) == {names.SHARED: [f"GPU-0::{n}" for n in range(4)]}


def test_slices_found_are_adopted_also_half_made_ones_which_offer_nothing() -> None:
    found = seen("GPU-0", ("1g.10gb@0", "MIG-a"), ("2g.20gb@2", "MIG-b"))
    half = replace(found, slices=(found.slices[0], replace(found.slices[1], uuid=None, ci=None)))
    (adopted,) = assemble([half], {}, {}, NONE, Wish(20))
    assert adopted.layout == layout("1g.10gb@0", "2g.20gb@2")
    assert ids((adopted,)) == {names.mig_resource("1g.10gb"): ["MIG-a"]}


def test_during_a_recut_new_slices_are_not_offered_and_lost_ones_are_not_either() -> None:
    (before,) = assemble([seen("GPU-0", ("1g.10gb@0", "MIG-a"), ("1g.10gb@1", "MIG-b"))], {}, {}, NONE, Wish(20))
    now = seen("GPU-0", ("1g.10gb@0", "MIG-a"), ("2g.20gb@2", "MIG-c"))
    (during,) = assemble([now], {"GPU-0": before}, {}, frozenset({"GPU-0"}), Wish(20))
    assert ids((during,)) == {names.mig_resource("1g.10gb"): ["MIG-a"]}


def test_after_a_restart_in_the_middle_of_a_recut_the_old_offer_stands() -> None:
    remembered = {"GPU-0": gpu("GPU-0", "1g.10gb@0")}
    now = seen("GPU-0", ("1g.10gb@0", "MIG-a"), ("2g.20gb@2", "MIG-c"))
    (during,) = assemble([now], {}, remembered, frozenset({"GPU-0"}), Wish(20))
    assert ids((during,)) == {names.mig_resource("1g.10gb"): ["MIG-a"]}
    # Recorded as whole, with MIG mode on: what the hardware is not is not offered.
    (whole,) = assemble([seen(mig=True)], {}, {"GPU-0": gpu("GPU-0")}, frozenset({"GPU-0"}), Wish(20))
    assert whole.mode is Mode.WHOLE
    assert ids((whole,)) == {names.WHOLE: []}


def test_withheld_ids_are_left_out_and_the_resource_stays_with_an_empty_list() -> None:
    (whole,) = assemble([seen()], {}, {}, NONE, Wish(20))
    target = Shape(Mode.SLICED, layout("1g.10gb@0"))
    held = replace(whole, withheld=whole.lacking(target))
    assert ids((held,)) == {names.WHOLE: []}


def test_only_what_the_target_lacks_goes() -> None:
    (cut,) = assemble([seen("GPU-0", ("1g.10gb@0", "MIG-a"), ("1g.10gb@1", "MIG-b"))], {}, {}, NONE, Wish(20))
    assert cut.lacking(Shape(Mode.SLICED, layout("1g.10gb@0", "2g.20gb@2"))) == {"MIG-b"}
    assert cut.lacking(Shape(Mode.WHOLE)) == {"MIG-a", "MIG-b"}


def test_reshaping_takes_the_new_kind_with_the_policys_units() -> None:
    (whole,) = assemble([seen()], {}, {}, NONE, Wish(20))
    assert ids((shaped(whole, seen(), Shape(Mode.SHARED), 3),)) == {names.SHARED: [f"GPU-0::{n}" for n in range(3)]}


def test_a_gpu_that_cannot_be_read_keeps_its_offer_unhealthy() -> None:
    (before,) = assemble([seen("GPU-0", ("1g.10gb@0", "MIG-a"))], {}, {}, NONE, Wish(20))
    lost = replace(seen("GPU-0"), fault="the GPU has fallen off the bus")
    (after,) = assemble([lost], {"GPU-0": replace(before, healthy=False)}, {}, NONE, Wish(20))
    ((device,),) = lists((after,)).values()
    assert (device.id, device.healthy) == ("MIG-a", False)
