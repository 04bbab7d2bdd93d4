"""One pod's whole journey on a real control plane with real kubelets, for each kind of want."""

import json

from cluster import names
from tests.e2e.deployed import Deployed

SLICE = "nvidia.com/mig-1g.10gb"
SHARED = "nvidia.com/gpu.shared"
WHOLE = "nvidia.com/gpu"


def shares(pod: dict, annotation: str = names.CLAIM) -> list[dict]:
    return json.loads(pod["metadata"]["annotations"][annotation])["shares"]


def all_gpus(fallow: Deployed) -> dict[str, str]:
    """Mode of every GPU of the cluster, by UUID."""
    nodes = [fallow.gpunode(n.name) for n in fallow.cluster.nodes]
    return {uuid: g["mode"] for n in nodes for uuid, g in n["status"]["gpus"].items()}


def test_a_slice_that_nobody_has_cut_yet(fallow: Deployed) -> None:
    fallow.whole_again()
    fallow.pod("eval", {SLICE: 1})
    pod = fallow.running("eval")
    promised = shares(pod, names.PROMISE)[0]
    node = pod["spec"]["nodeName"]
    piece = fallow.gpunode(node)["status"]["gpus"][promised["gpu"]]["slices"][promised["slice"]]
    env, nodes = fallow.sees("eval")
    assert env["FALLOW_DEVICES"] == piece["uuid"]
    minor = fallow.gpunode(node)["status"]["gpus"][promised["gpu"]]["minor"]
    gi = 3 + 9 * (15 * minor + piece["gi"])
    caps = {f"/dev/nvidia-caps/nvidia-cap{n}" for n in (gi, gi + 1 + piece["ci"])}
    assert {n for n in nodes if "-cap" in n} - {"/dev/nvidia-caps"} == caps
    assert {n for n in nodes if n[-1].isdigit() and "caps" not in n} == {f"/dev/nvidia{minor}"}
    assert shares(fallow.claimed("eval")) == [promised]
    assert any(e["involvedObject"]["name"] == node for e in fallow.events(names.RECUT_DONE))

    # When the pod ends, the slice is free again: an equal pod gets the very same one, and nothing is cut for it.
    generation = fallow.gpunode(node)["spec"]["gpus"][promised["gpu"]]["generation"]
    fallow.gone("eval")
    fallow.pod("again", {SLICE: 1})
    assert shares(fallow.running("again"), names.PROMISE) == [promised]
    assert fallow.gpunode(node)["spec"]["gpus"][promised["gpu"]]["generation"] == generation


def test_whole_gpus_that_wait_have_an_idle_cut_gpu_joined_again(fallow: Deployed) -> None:
    fallow.pod("slice", {SLICE: 1})
    fallow.running("slice")
    fallow.gone("slice")
    count = len(all_gpus(fallow))
    for number in range(count):
        fallow.pod(f"whole-{number}", {WHOLE: 1})
    held = [shares(fallow.claimed_running(f"whole-{n}"))[0]["gpu"] for n in range(count)]
    assert sorted(held) == sorted(all_gpus(fallow))
    assert set(all_gpus(fallow).values()) == {"whole"}


def test_shares_sit_together_and_one_that_does_not_fit_waits_with_a_reason(fallow: Deployed) -> None:
    fallow.whole_again()
    for name in ("prep", "tune"):
        fallow.pod(name, {SHARED: 8})
    first, second = (shares(fallow.claimed_running(n)) for n in ("prep", "tune"))
    assert first == second
    assert first[0]["units"] == 8
    assert fallow.sees("prep")[0]["FALLOW_UNITS"] == "8/20"

    fallow.pod("third", {SHARED: 8})
    third = shares(fallow.claimed_running("third"))
    assert third[0]["gpu"] != first[0]["gpu"]

    fallow.pod("greedy", {SHARED: 21})
    fallow.until(
        lambda: "Insufficient" in fallow.reason("greedy") or "units" in fallow.reason("greedy"),
        20,
        lambda: fallow.explain("greedy"),
    )


def test_a_share_that_no_single_gpu_has_waits_with_a_reason_though_the_node_has_enough(fallow: Deployed) -> None:
    node = fallow.cluster.nodes[0].name
    for number in range(4):
        fallow.pod(f"twelve-{number}", {SHARED: 12})
    for number in range(4):
        fallow.running(f"twelve-{number}")
    fallow.pod("split", {SHARED: 12}, node=node)
    fallow.until(
        lambda: "no shared GPU with that many free units on one GPU" in fallow.reason("split"),
        30,
        lambda: fallow.explain("split"),
    )
    fallow.gone("twelve-0", "twelve-1", "twelve-2", "twelve-3")
    fallow.running("split")


def test_a_gpu_is_offered_under_one_kind_at_a_time_and_whole_is_exclusive(fallow: Deployed) -> None:
    for name, asks in (("slice", {SLICE: 1}), ("share", {SHARED: 5}), ("whole", {WHOLE: 1})):
        fallow.pod(name, asks)
    held = {n: shares(fallow.claimed_running(n))[0]["gpu"] for n in ("slice", "share", "whole")}
    assert len(set(held.values())) == 3
    modes = all_gpus(fallow)
    assert {n: modes[gpu] for n, gpu in held.items()} == {"slice": "sliced", "share": "shared", "whole": "whole"}
    offered = [fallow.allocatable(n.name) for n in fallow.cluster.nodes]
    assert sum(o.get(WHOLE, 0) for o in offered) == list(modes.values()).count("whole")
    assert sum(o.get(SHARED, 0) for o in offered) == 20 * list(modes.values()).count("shared")
