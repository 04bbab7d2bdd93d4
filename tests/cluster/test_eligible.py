"""Where a pod may run: Kubernetes' rules, one by one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.eligible import barred, may_run
from tests import builders


def node(name: str = "n1", *taints: dict[str, Any], unschedulable: bool = False, **labels: str) -> dict[str, Any]:
    spec = {"taints": list(taints), "unschedulable": unschedulable}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}, "spec": spec}


def pod(*terms: Any, **spec: Any) -> dict[str, Any]:
    """`terms` are those of a required node affinity."""
    if terms:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        spec["affinity"] = {"nodeAffinity": required}
    return builders.pod(**spec)


def label(key: str, operator: str, *values: Any) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def name(operator: str, *values: str, key: str = "metadata.name") -> dict[str, Any]:
    return {"matchFields": [{"key": key, "operator": operator, "values": list(values)}]}


def taint(effect: str = "NoSchedule", key: str = "team", value: str = "a") -> dict[str, Any]:
    return {"key": key, "value": value, "effect": effect}


def test_no_constraints_no_bars() -> None:
    assert may_run(pod(), node())
    assert may_run({}, {})


def test_every_label_of_the_selector_must_be_there() -> None:
    selector = {"kubernetes.io/hostname": "n1", "gpu": "h100"}
    assert may_run(pod(nodeSelector=selector), node(gpu="h100"))
    assert not may_run(pod(nodeSelector=selector), node())
    assert not may_run(pod(nodeSelector=selector), node("n2", gpu="h100"))


@pytest.mark.parametrize(
    ("term", "here"),
    [
        (label("gen", "In", "8", "9"), True),
        (label("gen", "In", "8"), False),
        (label("gen", "In"), False),
        (label("gen", "NotIn", "8"), True),
        (label("gen", "NotIn", "9"), False),
        (label("gen", "NotIn"), False),
        (label("none", "NotIn", "9"), True),
        (label("gen", "Exists"), True),
        (label("none", "Exists"), False),
        (label("gen", "Exists", "9"), False),
        (label("none", "DoesNotExist"), True),
        (label("gen", "DoesNotExist"), False),
        (label("none", "DoesNotExist", "9"), False),
        (label("gen", "Gt", "8"), True),
        (label("gen", "Gt", "9"), False),
        (label("gen", "Lt", "10"), True),
        (label("gen", "Lt", "9"), False),
        (label("gen", "Gt", "-1"), True),
        (label("gen", "Gt", "8", "7"), False),
        (label("gen", "Gt", "eight"), False),
        (label("word", "Gt", "8"), False),
        (label("none", "Lt", "8"), False),
        (label("gen", "Like", "9"), False),
        (name("In", "n1"), True),
        (name("In", "n2"), False),
        (name("NotIn", "n2"), True),
        (name("NotIn", "n1"), False),
        (name("In", "n1", "n2"), False),
        (name("Exists"), False),
        (name("In", "n1", key="metadata.namespace"), False),
        ({}, False),
        ({"matchExpressions": [], "matchFields": []}, False),
        (label("gen", "Exists") | name("In", "n1"), True),
        (label("gen", "Exists") | name("In", "n2"), False),
    ],
)
def test_one_term(term: dict[str, Any], here: bool) -> None:
    assert may_run(pod(term), node(gen="9", word="x")) is here


def test_any_term_is_enough_and_all_of_a_term_is_needed() -> None:
    wrong, right, rubbish = label("gen", "In", "1"), label("gen", "In", "9"), {"matchExpressions": [None]}
    both = {"matchExpressions": wrong["matchExpressions"] + right["matchExpressions"]}
    assert may_run(pod(wrong, right), node(gen="9"))
    assert may_run(pod(rubbish, {}, right), node(gen="9"))
    assert not may_run(pod(both), node(gen="9"))
    assert not may_run(pod(right, nodeSelector={"zone": "b"}), node(gen="9")), "selector and affinity both count"


def test_affinity_that_is_preferred_or_without_terms() -> None:
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    assert may_run(pod(affinity=preferred), node())
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert not may_run(pod(affinity=required), node())


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Equal", "value": "a"}, True),
        ({"key": "team", "value": "a"}, True),
        ({"key": "team", "value": "b"}, False),
        ({"key": "team"}, False),
        ({"operator": "Equal", "value": "a"}, False),
        ({"key": "team", "operator": "Like", "value": "a"}, False),
        ({"key": "team", "value": "a", "effect": "NoSchedule", "tolerationSeconds": 9}, True),
    ],
)
def test_one_toleration(toleration: dict[str, Any], tolerated: bool) -> None:
    assert may_run(pod(tolerations=[toleration]), node("n1", taint())) is tolerated


def test_taints() -> None:
    for effect, free in (("NoSchedule", False), ("NoExecute", False), ("PreferNoSchedule", True)):
        assert may_run(pod(), node("n1", taint(effect))) is free
    one = [{"key": "team", "value": "a"}]
    assert not may_run(pod(tolerations=one), node("n1", taint(), taint(key="gpu")))
    assert may_run(pod(tolerations=[*one, {"key": "gpu", "operator": "Exists"}]), node("n1", taint(), taint(key="gpu")))
    assert may_run(pod(tolerations=[{"key": "lone"}]), node("n1", {"key": "lone", "effect": "NoExecute"}))


def test_taints_that_are_numbers() -> None:
    slow = taint(key="latency", value="90")
    assert may_run(pod(tolerations=[{"key": "latency", "operator": "Lt", "value": "100"}]), node("n1", slow))
    assert not may_run(pod(tolerations=[{"key": "latency", "operator": "Gt", "value": "90"}]), node("n1", slow))
    assert not may_run(pod(tolerations=[{"key": "latency", "operator": "Gt", "value": "x"}]), node("n1", slow))


def test_a_cordoned_node() -> None:
    cordoned = node(unschedulable=True)
    assert not may_run(pod(), cordoned)
    assert may_run(pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]), cordoned)


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": "gpu"},
        {"nodeSelector": {"none": None}},
        {"nodeSelector": ["gpu"]},
        {"affinity": "n1"},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [1]}}},
        {"tolerations": "all"},
        {"tolerations": [None]},
        {"tolerations": 3},
    ],
)
def test_a_pod_that_cannot_be_read_may_run_nowhere(spec: dict[str, Any]) -> None:
    assert not may_run(pod(**spec), node())


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "In", "Gt", "Exists", "gen", "NoSchedule", "9"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["key", "operator", "values", "value", "effect", "matchFields", "matchExpressions"]), inner
        )
    ),
    max_leaves=8,
)


@given(junk, junk, junk, junk)
def test_rubbish_never_raises(one: Any, two: Any, three: Any, four: Any) -> None:
    for spec in (one, {"nodeSelector": one, "tolerations": two}):
        assert may_run({"spec": spec}, {"metadata": {"labels": three}, "spec": {"taints": four}}) in (True, False)
    assert may_run(pod(one, {"matchExpressions": two}, tolerations=[three]), node("n1", four, gen="9")) in (True, False)


def test_nodes_a_pod_is_barred_from() -> None:
    nodes = {n: node(n) for n in ("n1", "n2", "n3")}
    pinned = pod(nodeSelector={"kubernetes.io/hostname": "n1"})
    found = barred({"a": pinned, "b": pod(), "c": pod(name("In", "n1"))}, nodes)
    assert found == {"a": {"n2", "n3"}, "b": set(), "c": {"n2", "n3"}}
    assert found["a"] is found["c"]
    assert all(may_run(pinned, node(n)) == (n not in found["a"]) for n in ("n1", "n2", "n3"))


constraints = st.builds(
    lambda terms, selector, tolerations: pod(*terms, nodeSelector=selector, tolerations=tolerations),
    st.lists(
        st.builds(
            label, st.sampled_from(["gen", "zone"]), st.sampled_from(["In", "NotIn", "Gt", "Exists"]), st.just("9")
        )
        | st.builds(name, st.sampled_from(["In", "NotIn"]), st.sampled_from(["n0", "n1"])),
        max_size=2,
    ),
    st.dictionaries(st.just("gen"), st.sampled_from(["8", "9", "10"])),
    st.lists(st.sampled_from([{"operator": "Exists"}, {"key": "team", "value": "a"}]), max_size=1),
)
kinds = st.builds(
    lambda gen, taints, cordoned: lambda n: node(n, *taints, unschedulable=cordoned, **gen),
    st.dictionaries(st.sampled_from(["gen", "zone"]), st.sampled_from(["8", "9", "10", "x"])),
    st.lists(st.sampled_from([taint(), taint(key="gpu"), taint("NoExecute", value="b")]), max_size=2),
    st.booleans(),
)


@given(st.lists(constraints, max_size=4), st.lists(kinds, max_size=4))
def test_many_together_are_as_each_alone(pods: list[Any], made: list[Any]) -> None:
    nodes = {f"n{i}": make(f"n{i}") for i, make in enumerate(made)}
    for i, shut in barred({str(i): p for i, p in enumerate(pods)}, nodes).items():
        assert shut == {n for n, obj in nodes.items() if not may_run(pods[int(i)], obj)}
