"""What only the double can do: faults on request, forgetting, and holding our own writes against our own schema."""

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import gpunode
from cluster.client import CONFIGMAPS, GPUNODES, NODES, PDBS, PODS, Client
from cluster.errors import Gone, Refused, TooManyRequests, Unreachable
from cluster.fake import FakeApi
from cluster.fake_schema import faults, prune
from gpu.node import Activity, Mode
from gpu.recut import Phase, Recut, Shape, Wanted
from tests import builders as b

CRD = yaml.safe_load((Path(__file__).parents[2] / "manifests/base/crd/gpunode.yaml").read_text("utf-8"))


def config(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def test_a_watch_from_before_a_compaction_is_gone(api: FakeApi, client: Client) -> None:
    version = client.create(NODES, {"metadata": {"name": "a"}})["metadata"]["resourceVersion"]
    client.create(NODES, {"metadata": {"name": "b"}})
    api.compact()
    with pytest.raises(Gone):
        next(client.watch(NODES, version))


def test_history_has_an_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.fake_store.HISTORY", 4)
    first = client.create(NODES, {"metadata": {"name": "n"}})["metadata"]["resourceVersion"]
    for number in range(6):
        client.patch(NODES, "n", {"metadata": {"labels": {"n": str(number)}}})
    with pytest.raises(Gone):
        next(client.watch(NODES, first))


def test_a_failure_may_take_effect_all_the_same(api: FakeApi, client: Client) -> None:
    api.fail("create", "configmaps", 500, after=True)
    with pytest.raises(Unreachable):
        client.create(CONFIGMAPS, config("a"), "default")
    assert client.get(CONFIGMAPS, "a", "default")


def test_a_test_acts_at_the_nth_request(api: FakeApi, client: Client) -> None:
    seen: list[str] = []
    api.on_nth("create", "configmaps", 2, lambda r: seen.append(r.body["metadata"]["name"]))
    for name in "abc":
        client.create(CONFIGMAPS, config(name), "default")
    assert seen == ["b"]


def test_a_request_is_held_until_its_gate_opens(api: FakeApi, client: Client) -> None:
    gate = api.hold("create", "configmaps")
    thread = threading.Thread(target=lambda: client.create(CONFIGMAPS, config("a"), "default"))
    thread.start()
    assert gate.reached.wait(10)
    assert client.list(CONFIGMAPS)["items"] == []
    gate.open.set()
    thread.join(10)
    assert client.get(CONFIGMAPS, "a", "default")


def test_a_budget_is_spent(client: Client) -> None:
    spec = {"selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}}
    client.create(PDBS, {"metadata": {"name": "b"}, "spec": spec}, "default")
    client.patch(PDBS, "b", {"status": {"disruptionsAllowed": 1}}, "default", "status")
    uids = {}
    for name in ("one", "two"):
        pod = b.pod(name)
        pod["metadata"]["labels"] = {"app": "a"}
        uids[name] = client.create(PODS, pod, "default")["metadata"]["uid"]
        client.patch(PODS, name, {"status": {"phase": "Running"}}, "default", "status")
    client.evict("default", "one", uids["one"])
    with pytest.raises(TooManyRequests):
        client.evict("default", "two", uids["two"])


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/api/v1/pods"), ("POST", "/api/v1/pods"), ("DELETE", "/api/v1/nodes")],
)
def test_a_method_that_a_path_lacks(api: FakeApi, client: Client, method: str, path: str) -> None:
    assert client._transport._pool.request(method, api.url + path, body=b"{}", retries=False).status == 405


def test_other_kinds_of_patch_are_refused(api: FakeApi, client: Client) -> None:
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    url = f"{api.url}/api/v1/nodes/n"
    assert client._transport._pool.request("PATCH", url, body=b"{}", headers=headers, retries=False).status == 415


def test_a_body_that_is_no_object_is_refused(api: FakeApi, client: Client) -> None:
    for body in (b"{", b"[]"):
        url = f"{api.url}/api/v1/nodes"
        assert client._transport._pool.request("POST", url, body=body, retries=False).status == 400


def test_what_fallow_writes_passes_its_own_schema_whole(tmp_path: Path) -> None:
    shape, cut = Shape(Mode.WHOLE), Shape(Mode.SLICED, b.layout("1g.10gb@0"))
    gpus = (b.gpu("GPU-0", "1g.10gb@0"), b.gpu("GPU-1", units=20), b.gpu("GPU-2"))
    recut = Recut(3, Phase.APPLY, 1000.5, shape, cut, 1, "cutting", 7)
    status = {
        **gpunode.inventory(gpus, {}),
        "recuts": {"GPU-0": gpunode.recut_out(recut)},
        "idle": {"GPU-0": gpunode.activity_out(Activity(0.5, 12.5, "nvml"))},
    }
    spec = {"gpus": {"GPU-0": gpunode.wanted_out(Wanted(3, cut, "for two pods", 7))}}
    with FakeApi(crds=[CRD]) as api:
        client = Client.connect(api.kubeconfig(tmp_path / "k"))
        client.create(GPUNODES, {**gpunode.empty("n1"), "spec": spec})
        client.patch(GPUNODES, "n1", {"status": status}, subresource="status")
        shown = client.get(GPUNODES, "n1")
        assert (shown["spec"], shown["status"]) == (spec, status)
        with pytest.raises(Refused):
            client.patch(GPUNODES, "n1", {"status": {"gpus": {"GPU-0": {"mode": "odd"}}}}, subresource="status")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 2.0], [True, 1.5, "1", None]),
        ({"type": "number", "maximum": 1}, [1, 0.5], [2, True]),
        ({"type": "string", "maxLength": 2}, ["ab"], ["abc", 1]),
        ({"type": "string", "nullable": True}, ["a", None], [1]),
        ({"type": "array", "maxItems": 1, "items": {"type": "string"}}, [[], ["a"]], [["a", "b"], [1], {}]),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, [{}, {"a": True}], [{"a": 1}, []]),
    ],
)
def test_schemas(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert [list(faults(v, schema, "x")) for v in good] == [[]] * len(good)
    assert all(list(faults(v, schema, "x")) for v in bad)


def test_unknown_fields_may_be_kept() -> None:
    keep = {"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
    assert prune({"kind": "K", "a": {"b": 1}, "c": 2}, keep) == {"kind": "K", "a": {"b": 1}}
