"""The real `fallow scheduler` over HTTP, against the API double: as kube-scheduler would talk to it."""

import json
import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from cluster import names
from cluster.client import CONFIGMAPS, EVENTS, GPUNODES, NODES, PODS, Client
from cluster.fake import FakeApi
from gpu.node import Gpu
from tests import builders as b
from tests.processes.certificates import Authority
from tests.processes.running import Program


class Cluster:
    """An API double with nodes, and the real program on it."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api, self.folder = api, folder
        self.kubeconfig = api.kubeconfig(folder / "kubeconfig")
        self.client = Client.connect(self.kubeconfig)

    def node(self, name: str, *gpus: Gpu) -> None:
        self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        obj = b.gpunode_object(name, *gpus)
        self.client.create(GPUNODES, {k: v for k, v in obj.items() if k != "status"})
        self.client.patch(GPUNODES, name, {"status": obj["status"]}, subresource="status")

    def pod(self, name: str, **asks: str) -> dict[str, Any]:
        wants = {resource.replace("_", "/"): amount for resource, amount in asks.items()}
        return self.client.create(PODS, b.pod(name, asks=wants), "default")

    def scheduler(self, *flags: str) -> Program:
        return Program(
            "fallow", "scheduler", "--kubeconfig", self.kubeconfig, "--metrics-address", "127.0.0.1:0",
            *(flags or ("--listen", "127.0.0.1:0")),
        )  # fmt: skip


OPEN: list[httpx.Client] = []
"""Connections to close when the test is over."""


class Caller:
    """What kube-scheduler does."""

    def __init__(self, program: Program, scheme: str = "http", **options: Any) -> None:
        program.said("ready: ")
        address = program.said(r"extender on (\S+),")[1]
        self.http = httpx.Client(base_url=f"{scheme}://{address}", timeout=10, **options)
        OPEN.append(self.http)

    def filter(self, pod: dict[str, Any], *nodes: str) -> dict[str, Any]:
        return self.post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})

    def bind(self, pod: dict[str, Any], node: str) -> str:
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return self.post("/bind", body)["Error"]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def free_units(self, node: str) -> int:
        books = self.http.get("/snapshot").json()["nodes"][node]
        held = sum(s.get("units", 0) for p in books["placements"] for s in p["shares"])
        return sum(g["units"] for g in books["gpus"].values()) - held


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApi() as api:
        cluster = Cluster(api, tmp_path)
        cluster.node("n1", b.gpu("GPU-1", units=20))
        cluster.node("n2", b.gpu("GPU-2"), b.gpu("GPU-3", "1g.10gb@0"))
        yield cluster
        while OPEN:
            OPEN.pop().close()


def test_a_pod_is_filtered_bound_and_promised(cluster: Cluster) -> None:
    with cluster.scheduler() as program:
        caller = Caller(program)
        pod = cluster.pod("p1", **{"nvidia.com_gpu.shared": "8"})
        answer = caller.filter(pod, "n1", "n2", "n3")
        assert (answer["NodeNames"], answer["FailedNodes"], answer["Error"]) == (["n1"], {}, "")
        assert caller.bind(pod, "n1") == ""
        bound = cluster.client.get(PODS, "p1", "default")
        assert bound["spec"]["nodeName"] == "n1"
        promise = json.loads(bound["metadata"]["annotations"][names.PROMISE])
        assert promise["shares"] == [{"gpu": "GPU-1", "units": 8}]
        large = caller.filter(cluster.pod("p2", **{"nvidia.com_gpu.shared": "13"}), "n1", "n2", "n3")
        assert large["NodeNames"] == []
        assert large["FailedNodes"] == {
            "n1": "no shared GPU with that many free units on one GPU",
            "n2": "no GPU is shared at present",
        }
        assert large["FailedAndUnresolvableNodes"] == {"n3": "node has no GPUs managed by Fallow"}
        assert caller.post("/prioritize", {"Pod": pod, "NodeNames": ["n1", "n2"]})[1] == {"Host": "n2", "Score": 0}
        figures = caller.http.get("/metrics").text
        assert 'fallow_scheduler_decisions_total{outcome="bound",verb="bind"} 1.0' in figures
        assert 'fallow_scheduler_refusals_total{reason="no_gpus"} 1.0' in figures
        assert caller.http.get("/healthz").text == caller.http.get("/readyz").text == "ok\n"
        assert program.end() == 0


def test_a_lost_bind_reply_and_a_restart_lose_nothing(cluster: Cluster) -> None:
    pods = [cluster.pod(f"p{i}", **{"nvidia.com_gpu.shared": "8"}) for i in range(3)]
    with cluster.scheduler() as program:
        caller = Caller(program)
        cluster.api.lose_reply("bind", "pods")
        assert caller.bind(pods[0], "n1") == ""
        assert caller.bind(pods[1], "n1") == ""
        program.end(signal.SIGKILL)
    with cluster.scheduler() as program:
        caller = Caller(program)
        assert caller.free_units("n1") == 4
        assert caller.bind(pods[0], "n1") == "", "repeated after the restart"
        assert "n1" in caller.bind(pods[2], "n1")
        assert caller.filter(pods[2], "n1")["NodeNames"] == []


BAD_PODS = {
    "half a slice": ({"nvidia.com/mig-1g.10gb": "500m"}, "'500m' is no whole number"),
    "minus one": ({"nvidia.com/gpu": "-1"}, "'-1' is no whole number"),
    "words": ({"nvidia.com/gpu": "two"}, "'two' is no whole number"),
    "unknown profile": ({"nvidia.com/mig-tiny": "1"}, "names no MIG profile"),
}


def test_bad_input_gets_an_answer_that_names_it(cluster: Cluster) -> None:
    strange = b.pod("odd", asks={"nvidia.com/gpu": "1"})
    strange["spec"]["containers"] = [{"resources": "lots"}]
    with cluster.scheduler() as program:
        caller = Caller(program)
        for asks, complaint in BAD_PODS.values():
            answer = caller.filter(b.pod("bad", asks=asks), "n1", "n2")
            assert answer["NodeNames"] == []
            assert list(answer["FailedAndUnresolvableNodes"]) == ["n1", "n2"]
            assert complaint in answer["FailedAndUnresolvableNodes"]["n1"]
        bodies = [b"", b"{", b"[]", b'{"Pod": 1}', b'{"Pod": {"metadata": {}}}', b"\xff" * 10,
                  orjson.dumps({"Pod": strange, "NodeNames": ["n1"]})]  # fmt: skip
        for path in ("/filter", "/prioritize", "/bind"):
            for body in bodies:
                answer = caller.http.post(path, content=body)
                assert answer.status_code == 400, (path, body)
                assert answer.json()["Error"]
        assert caller.http.get("/filter").status_code == 405
        assert caller.http.post("/nowhere").status_code == 404
        free = caller.filter(b.pod("no-gpu", asks={"cpu": "1"}), "n1", "n2", "n3")
        assert free["NodeNames"] == ["n1", "n2", "n3"]
        assert not any("Traceback" in line for line in program.lines)


def test_rubbish_on_objects_closes_only_what_it_concerns(cluster: Cluster) -> None:
    cluster.client.patch(
        GPUNODES, "n2", {"status": {"gpus": {"GPU-2": {"model": "of-nobody"}}, "idle": []}}, subresource="status"
    )
    rubbish = b.pod("r", asks={"nvidia.com/gpu.shared": "8"}, annotations={names.PROMISE: "{}", names.CLAIM: "x"})
    stored = cluster.client.create(PODS, rubbish, "default")
    cluster.client.bind("default", "r", stored["metadata"]["uid"], "n1", {})
    with cluster.scheduler() as program:
        caller = Caller(program)
        assert caller.filter(cluster.pod("w", **{"nvidia.com_gpu": "1"}), "n1", "n2")["NodeNames"] == []
        assert caller.filter(cluster.pod("s", **{"nvidia.com_mig-1g.10gb": "1"}), "n1", "n2")["NodeNames"] == ["n2"]


def test_the_policy_is_read_at_once_and_a_broken_edit_changes_nothing(cluster: Cluster) -> None:
    def edit(text: str) -> None:
        cluster.client.patch(
            CONFIGMAPS, names.POLICY_CONFIGMAP, {"data": {names.POLICY_KEY: text}}, namespace=names.NAMESPACE
        )

    def answers(caller: Caller, wanted: list[str]) -> bool:
        return caller.filter(b.pod("x", asks={"nvidia.com/gpu": "1"}), "n2", "n4")["NodeNames"] == wanted

    cluster.node("n4", b.gpu("GPU-4"))
    configmap = {"metadata": {"name": names.POLICY_CONFIGMAP}, "data": {names.POLICY_KEY: "version: v1\n"}}
    cluster.client.create(CONFIGMAPS, configmap, names.NAMESPACE)
    with cluster.scheduler() as program:
        caller = Caller(program)
        assert answers(caller, ["n2"])
        edit("version: v1\nplacing:\n  answer: advisory\n")
        _until(lambda: answers(caller, ["n2", "n4"]))
        edit("version: v1\nplacing:\n  anser: exact\n")
        program.said("policy not changed: .*line 3")
        assert answers(caller, ["n2", "n4"])
        _until(lambda: any("line 3" in e["message"] for e in cluster.client.list(EVENTS)["items"]))


def test_only_who_has_a_certificate_of_the_right_ca_is_heard(cluster: Cluster) -> None:
    ours, theirs = Authority(cluster.folder), Authority(cluster.folder, "stranger")
    cert, key = ours.issue("extender")
    flags = ("--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", ours.ca)
    trust = ssl.create_default_context(cafile=ours.ca)
    known, strange = (ssl.create_default_context(cafile=ours.ca) for _ in range(2))
    known.load_cert_chain(*ours.issue("kube-scheduler"))
    strange.load_cert_chain(*theirs.issue("mallory"))
    with cluster.scheduler(*flags) as program:
        caller = Caller(program, "https", verify=known)
        pod = cluster.pod("p1", **{"nvidia.com_gpu": "1"})
        assert caller.filter(pod, "n1", "n2")["NodeNames"] == ["n2"]
        for context in (trust, strange):
            with pytest.raises(httpx.TransportError):
                Caller(program, "https", verify=context).filter(pod, "n1", "n2")
        with pytest.raises(httpx.TransportError):
            Caller(program).filter(pod, "n1", "n2")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--listen", "0.0.0.0:0"), "without TLS only loopback may be listened on"),
        (("--listen", "nonsense"), "write host:port"),
        (("--listen", "127.0.0.1:0", "--tls-cert", "x"), "--tls-key is missing|--tls-cert x: no such file"),
        (("--listen", "127.0.0.1:0", "--metrics-address", "x"), "--metrics-address 'x': write host:port"),
        (("--listen", "127.0.0.1:99999"), "--listen 127.0.0.1:99999: "),
    ],
)
def test_it_does_not_start_where_it_must_not(cluster: Cluster, flags: tuple[str, ...], complaint: str) -> None:
    with cluster.scheduler(*flags) as program:
        assert program.wait() == 2
        program.said(complaint)


def test_until_everything_is_listed_nobody_is_answered(cluster: Cluster) -> None:
    cluster.api.fail("list", "gpunodes", 503, times=100)
    with cluster.scheduler() as program:
        address = program.said(r"extender on (\S+),")[1]
        url = f"http://{address}"
        assert "gpunodes" in httpx.get(f"{url}/readyz").text
        body = {"Pod": b.pod("p", asks={"nvidia.com/gpu": "1"}), "NodeNames": ["n2"]}
        assert httpx.post(f"{url}/filter", json=body).status_code == 503
        assert program.end() == 0


def _until(true: Any, tries: int = 200) -> None:
    pause = threading.Event()
    assert any(true() or pause.wait(0.05) for _ in range(tries)), "never came true"
