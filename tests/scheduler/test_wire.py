"""Messages as kube-scheduler writes and reads them."""

import orjson
import pytest

from gpu.placement import Reason
from scheduler import wire
from tests import builders as b

POD = b.pod("p1", asks={"nvidia.com/gpu": "1"})


def _body(**fields: object) -> bytes:
    return orjson.dumps(fields)


def test_names_only() -> None:
    call = wire.read_filter(_body(Pod=POD, Nodes=None, NodeNames=["a", "b"]))
    assert (call.pod, call.names, call.nodes) == (POD, ["a", "b"], None)
    answer = orjson.loads(wire.filter_answer(call, ["b"], {}))
    assert answer == {
        "Nodes": None, "NodeNames": ["b"], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": "",
    }  # fmt: skip


def test_full_nodes_are_answered_with_the_same_objects() -> None:
    nodes = [{"metadata": {"name": n, "labels": {"x": n}}, "status": {}} for n in ("a", "b")]
    call = wire.read_filter(_body(Pod=POD, Nodes={"metadata": {}, "items": nodes}, NodeNames=None))
    assert call.names == ["a", "b"]
    answer = orjson.loads(wire.filter_answer(call, ["b"], {"a": Reason.NO_WHOLE_FREE}))
    assert answer["Nodes"]["items"] == [nodes[1]]
    assert answer["NodeNames"] == ["b"]


def test_keys_are_matched_in_any_case_as_go_does() -> None:
    assert wire.read_filter(_body(pod=POD, nodenames=["a"])).names == ["a"]
    call = wire.read_bind(_body(podName="p", podNamespace="n", podUID="u", node="x"))
    assert call == wire.BindCall("n", "p", "u", "x")


def test_no_node_is_an_empty_list_and_every_reason_is_in_its_map() -> None:
    call = wire.read_filter(_body(Pod=POD, NodeNames=["a", "b"]))
    answer = orjson.loads(wire.filter_answer(call, [], {"a": Reason.NO_WHOLE_FREE, "b": Reason.NO_GPUS}))
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {"a": "not enough free whole GPUs"}
    assert answer["FailedAndUnresolvableNodes"] == {"b": "node has no GPUs managed by Fallow"}


def test_scores_are_a_bare_list_of_integers() -> None:
    assert wire.rank_answer({"a": 10, "b": 0}) == b'[{"Host":"a","Score":10},{"Host":"b","Score":0}]'


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "the body is no JSON"),
        (b"{", "the body is no JSON"),
        (b"\xff\xfe", "the body is no JSON"),
        (b"[]", "the body is a list instead of an object"),
        (b"null", "the body is nothing instead of an object"),
        (_body(), "Pod: nothing"),
        (_body(Pod=7, NodeNames=[]), "Pod: a number"),
        (_body(Pod={}, NodeNames=[]), "Pod: an object instead of a pod with metadata"),
        (_body(Pod={"metadata": {}, "spec": []}), "NodeNames: missing"),
        (_body(Pod={"metadata": {}, "spec": [1]}), "Pod.spec: a list"),
        (_body(Pod=POD), "nodeCacheCapable: true"),
        (_body(Pod=POD, NodeNames="a"), "NodeNames: a text"),
        (_body(Pod=POD, NodeNames=["a", 1]), "NodeNames: a list instead of a list of node names"),
        (_body(Pod=POD, NodeNames={"a": 1}), "NodeNames: an object"),
        (_body(Pod=POD, Nodes=[]), "Nodes: a list"),
        (_body(Pod=POD, Nodes={"items": 3}), "Nodes: an object"),
        (_body(Pod=POD, Nodes={"items": [{}]}), r"Nodes.items\[0\].metadata.name: nothing"),
        (_body(Pod=POD, Nodes={"items": ["a"]}), r"Nodes.items\[0\].metadata.name: nothing"),
    ],
)
def test_a_malformed_filter_body_is_named(body: bytes, complaint: str) -> None:
    with pytest.raises(wire.WireError, match=complaint):
        wire.read_filter(body)


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", [None, "", 5, ["x"]])
def test_a_malformed_bind_body_is_named(missing: str, value: object) -> None:
    fields = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "x", missing: value}
    with pytest.raises(wire.WireError, match=f"^{missing}: "):
        wire.read_bind(orjson.dumps(fields))
