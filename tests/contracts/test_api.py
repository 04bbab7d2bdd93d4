"""What Fallow relies on in an API server: objects, preconditions, status, Binding, eviction."""

from typing import Any

import pytest

from cluster.client import CONFIGMAPS, EVENTS, GPUNODES, LEASES, NODES, PDBS, PODS, Kind
from cluster.clock import SystemClock
from cluster.errors import Conflict, NotFound, Refused, TooManyRequests, Unreachable
from cluster.events import Events
from tests.contracts.conftest import Api

GONE = Kind("v1", "Spoon", "spoons")


def pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod that no scheduler takes."""
    containers = [{"name": "main", "image": "docker.io/local/pause:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}, "annotations": {"kept": "1", "over": "old"}},
        "spec": {"schedulerName": "nobody", "containers": containers, **spec},
    }


def bound(api: Api, name: str, **more: Any) -> str:
    """A pod bound to a node of paper; its uid."""
    uid = api.client.create(PODS, pod(name, **more), api.namespace)["metadata"]["uid"]
    api.client.bind(api.namespace, name, uid, "paper", {})
    return str(uid)


def running(api: Api, name: str, **more: Any) -> str:
    uid = bound(api, name, **more)
    api.client.patch(PODS, name, {"status": {"phase": "Running"}}, api.namespace, "status")
    return uid


def test_a_new_object_gets_uid_version_and_time(api: Api) -> None:
    meta = api.client.create(PODS, pod("a"), api.namespace)["metadata"]
    assert meta["uid"]
    assert meta["resourceVersion"]
    assert meta["creationTimestamp"].endswith("Z")
    assert meta["generation"] == 1
    assert api.client.get(PODS, "a", api.namespace)["metadata"]["uid"] == meta["uid"]


def test_a_name_is_taken_once(api: Api) -> None:
    api.client.create(PODS, pod("a"), api.namespace)
    with pytest.raises(Conflict) as caught:
        api.client.create(PODS, pod("a"), api.namespace)
    assert caught.value.reason == "AlreadyExists"


def test_names_are_generated_on_request(api: Api) -> None:
    body = pod("")
    body["metadata"] = {"generateName": "many-"}
    names = {api.client.create(PODS, body, api.namespace)["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2
    assert all(n.startswith("many-") for n in names)


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "-x"])
def test_names_must_be_names(api: Api, name: str) -> None:
    with pytest.raises(Refused) as caught:
        api.client.create(GPUNODES, {"apiVersion": GPUNODES.api, "kind": "GpuNode", "metadata": {"name": name}})
    assert caught.value.status == 422


def test_a_pod_needs_containers(api: Api) -> None:
    with pytest.raises(Refused):
        api.client.create(PODS, pod("a", containers=[]), api.namespace)


def test_a_version_cannot_be_created(api: Api) -> None:
    body = pod("a")
    body["metadata"]["resourceVersion"] = "5"
    with pytest.raises(Unreachable) as caught:
        api.client.create(PODS, body, api.namespace)
    assert caught.value.status == 500


def test_the_body_must_be_of_the_kind_of_the_path(api: Api) -> None:
    with pytest.raises(Refused):
        api.client.create(PODS, {**pod("a"), "kind": "Node"}, api.namespace)


def test_what_is_not_there_is_not_found(api: Api) -> None:
    asks = (
        lambda: api.client.get(PODS, "none", api.namespace),
        lambda: api.client.patch(PODS, "none", {"metadata": {"labels": {"a": "b"}}}, api.namespace),
        lambda: api.client.delete(PODS, "none", api.namespace),
        lambda: api.client.bind(api.namespace, "none", "u", "n", {}),
        lambda: api.client.evict(api.namespace, "none", "u"),
        lambda: api.client.list(GONE, api.namespace),
    )
    for ask in asks:
        with pytest.raises(NotFound):
            ask()


def test_a_merge_patch_replaces_lists_and_drops_nulls(api: Api) -> None:
    name = api.gpunode("g", spec={"gpus": {"A": {"generation": 1, "mode": "sliced", "slices": ["1g@0", "1g@1"]}}})[
        "metadata"
    ]["name"]
    patch = {"spec": {"gpus": {"A": {"slices": ["2g@0"]}, "B": {"generation": 1, "mode": "whole"}}}}
    assert api.client.patch(GPUNODES, name, patch)["spec"]["gpus"]["A"]["slices"] == ["2g@0"]
    after = api.client.patch(GPUNODES, name, {"spec": {"gpus": {"A": None}}})
    assert after["spec"] == {"gpus": {"B": {"generation": 1, "mode": "whole"}}}


def test_a_patch_that_names_an_older_version_conflicts(api: Api) -> None:
    old = api.client.create(PODS, pod("a"), api.namespace)["metadata"]["resourceVersion"]
    mark = {"metadata": {"resourceVersion": old, "labels": {"n": "1"}}}
    api.client.patch(PODS, "a", mark, api.namespace)
    with pytest.raises(Conflict):
        api.client.patch(PODS, "a", mark, api.namespace)


@pytest.mark.parametrize("kind", [PODS, GPUNODES], ids=lambda k: k.plural)
def test_a_patch_that_names_another_uid_conflicts(api: Api, kind: Kind) -> None:
    if kind == PODS:
        made = api.client.create(PODS, pod("a"), api.namespace)["metadata"]
    else:
        made = api.gpunode("a")["metadata"]
    where = made.get("namespace", "")
    with pytest.raises(Conflict):
        api.client.patch(kind, made["name"], {"metadata": {"uid": "other", "labels": {"n": "1"}}}, where)
    right = {"metadata": {"uid": made["uid"], "labels": {"n": "1"}}}
    assert api.client.patch(kind, made["name"], right, where)["metadata"]["labels"]["n"] == "1"


def test_a_write_that_changes_nothing_makes_no_version(api: Api) -> None:
    made = api.gpunode("g", spec={"gpus": {}})
    meta = made["metadata"]
    assert api.client.patch(GPUNODES, meta["name"], {"spec": {"gpus": {}}})["metadata"] == meta
    assert api.client.replace(GPUNODES, made)["metadata"]["resourceVersion"] == meta["resourceVersion"]


def test_a_replace_of_an_older_version_conflicts(api: Api) -> None:
    made = api.gpunode("g", spec={"gpus": {}})
    api.client.patch(GPUNODES, made["metadata"]["name"], {"metadata": {"labels": {"n": "1"}}})
    with pytest.raises(Conflict):
        api.client.replace(GPUNODES, {**made, "spec": {"gpus": {"A": {"generation": 1, "mode": "whole"}}}})


def test_who_may_replace_without_a_version(api: Api) -> None:
    lease = {"apiVersion": LEASES.api, "kind": "Lease", "metadata": {"name": "l"}, "spec": {"leaseTransitions": 1}}
    api.client.create(LEASES, lease, api.namespace)
    with pytest.raises(Refused):
        api.client.replace(LEASES, {**lease, "metadata": {"name": "l", "namespace": api.namespace}})
    text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": api.namespace}}
    api.client.create(CONFIGMAPS, text, api.namespace)
    assert api.client.replace(CONFIGMAPS, {**text, "data": {"a": "b"}})["data"] == {"a": "b"}


def test_status_and_object_leave_each_other_alone(api: Api) -> None:
    made = api.gpunode("g", spec={"gpus": {}}, status={"summary": {"gpus": 9}})
    name = made["metadata"]["name"]
    assert "status" not in made
    shown = api.client.patch(
        GPUNODES,
        name,
        {"metadata": {"annotations": {"a": "1"}}, "spec": None, "status": {"summary": {"gpus": 1}}},
        subresource="status",
    )
    assert (shown["spec"], shown["status"]) == ({"gpus": {}}, {"summary": {"gpus": 1}})
    assert "annotations" not in shown["metadata"]
    assert api.client.patch(GPUNODES, name, {"status": {"summary": {"gpus": 7}}})["status"] == shown["status"]


def test_the_generation_counts_changes_of_the_spec(api: Api) -> None:
    name = api.gpunode("g", spec={"gpus": {}})["metadata"]["name"]

    def generation(patch: dict[str, Any], subresource: str = "") -> int:
        return int(api.client.patch(GPUNODES, name, patch, subresource=subresource)["metadata"]["generation"])

    assert generation({"metadata": {"labels": {"n": "1"}}}) == 1
    assert generation({"status": {"summary": {"gpus": 1}}}, "status") == 1
    assert generation({"spec": {"gpus": {"A": {"generation": 1, "mode": "whole"}}}}) == 2


def test_the_status_of_pods_and_nodes_takes_metadata_too(api: Api) -> None:
    node = api.node("n", status={"allocatable": {"nvidia.com/gpu": "1"}, "capacity": {"nvidia.com/gpu": "1"}})
    name = node["metadata"]["name"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"
    patch = {"metadata": {"annotations": {"a": "1"}}, "status": {"allocatable": {"nvidia.com/gpu": "2"}}}
    shown = api.client.patch(NODES, name, {**patch, "spec": {"unschedulable": True}}, subresource="status")
    assert shown["metadata"]["annotations"]["a"] == "1"
    assert shown["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert not shown["spec"].get("unschedulable")
    api.client.create(PODS, pod("a"), api.namespace)
    shown = api.client.patch(PODS, "a", {**patch, "status": {"message": "m"}}, api.namespace, "status")
    assert (shown["metadata"]["annotations"]["a"], shown["status"]["message"]) == ("1", "m")


def test_the_node_of_a_pod_is_not_set_by_an_update(api: Api) -> None:
    api.client.create(PODS, pod("a"), api.namespace)
    with pytest.raises(Refused):
        api.client.patch(PODS, "a", {"spec": {"nodeName": "n"}}, api.namespace)


@pytest.mark.parametrize(
    ("gpus", "field"),
    [
        ({"A": {"generation": 1, "mode": "odd"}}, "spec.gpus.A.mode"),
        ({"A": {"generation": "1", "mode": "whole"}}, "spec.gpus.A.generation"),
        ({"A": {"generation": 0, "mode": "whole"}}, "spec.gpus.A.generation"),
        ({"A": {"mode": "whole"}}, "spec.gpus.A.generation"),
        ({"A": {"generation": 1, "mode": "sliced", "slices": ["nowhere"]}}, "spec.gpus.A.slices[0]"),
        ({"A": {"generation": True, "mode": "whole"}}, "spec.gpus.A.generation"),
        ({"A": []}, "spec.gpus.A"),
    ],
)
def test_the_schema_refuses(api: Api, gpus: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as caught:
        api.gpunode("g", spec={"gpus": gpus})
    assert caught.value.status == 422
    assert field in caught.value.message


def test_the_schema_drops_what_it_does_not_know(api: Api) -> None:
    made = api.gpunode("g", spec={"odd": 1, "gpus": {"A": {"generation": 1, "mode": "whole", "odd": 2}}})
    assert made["spec"] == {"gpus": {"A": {"generation": 1, "mode": "whole"}}}


def test_a_binding_writes_node_and_annotations_in_one_update(api: Api) -> None:
    made = api.client.create(PODS, pod("a"), api.namespace)["metadata"]
    api.client.bind(api.namespace, "a", made["uid"], "paper", {"over": "new", "added": "1"})
    after = api.client.get(PODS, "a", api.namespace)
    assert after["spec"]["nodeName"] == "paper"
    assert after["metadata"]["annotations"] == {"kept": "1", "over": "new", "added": "1"}
    assert after["metadata"]["generation"] == 1
    assert [(c["type"], c["status"]) for c in after["status"]["conditions"]] == [("PodScheduled", "True")]


def test_what_a_binding_is_refused_for(api: Api) -> None:
    uid = api.client.create(PODS, pod("a"), api.namespace)["metadata"]["uid"]
    with pytest.raises(Conflict):
        api.client.bind(api.namespace, "a", "another", "paper", {})
    api.client.bind(api.namespace, "a", uid, "paper", {})
    with pytest.raises(Conflict):
        api.client.bind(api.namespace, "a", uid, "paper", {})  # to the same node, too
    dying = bound(api, "dying")
    api.client.delete(PODS, "dying", api.namespace)
    with pytest.raises(Conflict):
        api.client.bind(api.namespace, "dying", dying, "paper", {})
    gated = api.client.create(PODS, pod("gated", schedulingGates=[{"name": "x/y"}]), api.namespace)["metadata"]["uid"]
    with pytest.raises(Conflict):
        api.client.bind(api.namespace, "gated", gated, "paper", {})
    api.client.patch(PODS, "gated", {"spec": {"schedulingGates": []}}, api.namespace)
    api.client.bind(api.namespace, "gated", gated, "paper", {})


def test_a_binding_needs_a_node(api: Api) -> None:
    uid = api.client.create(PODS, pod("a"), api.namespace)["metadata"]["uid"]
    with pytest.raises(Unreachable):
        api.client.bind(api.namespace, "a", uid, "", {})


def test_a_pod_on_a_node_is_deleted_in_two_steps(api: Api) -> None:
    bound(api, "a")
    meta = api.client.delete(PODS, "a", api.namespace, grace=5)["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 5
    assert api.client.get(PODS, "a", api.namespace)["metadata"]["deletionTimestamp"] == meta["deletionTimestamp"]
    api.client.delete(PODS, "a", api.namespace, grace=0)
    with pytest.raises(NotFound):
        api.client.get(PODS, "a", api.namespace)


def test_a_pod_on_no_node_or_at_its_end_goes_at_once(api: Api) -> None:
    api.client.create(PODS, pod("waits"), api.namespace)
    bound(api, "ended")
    api.client.patch(PODS, "ended", {"status": {"phase": "Succeeded"}}, api.namespace, "status")
    for name in ("waits", "ended"):
        api.client.delete(PODS, name, api.namespace)
        with pytest.raises(NotFound):
            api.client.get(PODS, name, api.namespace)


def test_only_the_object_with_that_uid_is_deleted(api: Api) -> None:
    uid = api.gpunode("g")["metadata"]["uid"]
    with pytest.raises(Conflict):
        api.client.delete(GPUNODES, api.own("g"), uid="another")
    api.client.delete(GPUNODES, api.own("g"), uid=uid)
    with pytest.raises(NotFound):
        api.client.get(GPUNODES, api.own("g"))


def test_an_eviction_deletes_with_grace_and_says_so(api: Api) -> None:
    uid = running(api, "a")
    with pytest.raises(Conflict):
        api.client.evict(api.namespace, "a", "another")
    api.client.evict(api.namespace, "a", uid)
    after = api.client.get(PODS, "a", api.namespace)
    assert after["metadata"]["deletionTimestamp"]
    assert ("DisruptionTarget", "EvictionByEvictionAPI") in [
        (c["type"], c.get("reason")) for c in after["status"]["conditions"]
    ]


def test_a_budget_without_rest_refuses_an_eviction(api: Api) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    budget = {"apiVersion": PDBS.api, "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    api.client.create(PDBS, budget, api.namespace)
    uid = running(api, "a", labels={"app": "a"})
    with pytest.raises(TooManyRequests):
        api.client.evict(api.namespace, "a", uid)
    api.client.evict(api.namespace, "b", running(api, "b", labels={"app": "b"}))
    waits = api.client.create(PODS, pod("waits", labels={"app": "a"}), api.namespace)["metadata"]["uid"]
    api.client.evict(api.namespace, "waits", waits)
    with pytest.raises(NotFound):
        api.client.get(PODS, "waits", api.namespace)


def test_events_are_written_and_counted(api: Api) -> None:
    about = api.client.create(PODS, pod("a"), api.namespace)
    listed = api.client.list(PODS, api.namespace)["items"][0]
    events = Events(api.client, SystemClock(), "test")
    events.write(about, "Tried", "a message", warning=True)
    events.write(listed, "Tried", "a message", warning=True)
    events.write(about, "Tried", "another message")
    found = api.client.list(EVENTS, api.namespace, fieldSelector="involvedObject.name=a,reason=Tried")["items"]
    assert sorted((e["message"], e["count"], e["type"]) for e in found) == [
        ("a message", 2, "Warning"),
        ("another message", 1, "Normal"),
    ]
    assert {e["involvedObject"]["uid"] for e in found} == {about["metadata"]["uid"]}
