"""Each contract runs on the double and on the real API server: the one that FALLOW_TEST_KUBECONFIG names (a scratch
cluster: objects are made and deleted there), else one that is started for it."""

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.client import CRDS, GPUNODES, NAMESPACES, NODES, Client, Kind
from cluster.errors import ApiError, Conflict, NotFound
from cluster.fake import FakeApi
from tests.controlplane.cluster import RealCluster
from tests.controlplane.fixture import why_not

CRD = yaml.safe_load((Path(__file__).parents[2] / "manifests/base/crd/gpunode.yaml").read_text("utf-8"))
ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts")


@dataclass
class Api:
    """An API server, and a namespace of this test's own."""

    client: Client
    namespace: str
    double: bool
    made: list[tuple[Kind, str]] = field(default_factory=list)

    def node(self, name: str, **node: Any) -> dict[str, Any]:
        return self._make(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.own(name)}, **node})

    def gpunode(self, name: str, **rest: Any) -> dict[str, Any]:
        meta = {"name": self.own(name)}
        return self._make(GPUNODES, {"apiVersion": GPUNODES.api, "kind": "GpuNode", "metadata": meta, **rest})

    def own(self, name: str) -> str:
        """A name of this test's own for a cluster-scoped object."""
        return f"{self.namespace}-{name}"

    def _make(self, kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
        made = self.client.create(kind, obj)
        self.made.append((kind, made["metadata"]["name"]))
        return made

    def clean(self) -> None:
        for kind, name in [*self.made, (NAMESPACES, self.namespace)]:
            try:
                self.client.delete(kind, name)
            except NotFound:
                continue


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with FakeApi(crds=[CRD]) as api:
        yield Client.connect(api.kubeconfig(tmp_path_factory.mktemp("double") / "kubeconfig"))


@pytest.fixture(scope="session")
def real() -> Iterator[Client]:
    if given := os.environ.get("FALLOW_TEST_KUBECONFIG"):
        yield _ready(Client.connect(given))
        return
    if reason := why_not():
        if os.environ.get("CI") == "true":
            pytest.fail(f"under CI the real API server must not be skipped: {reason}")
        pytest.skip(reason)
    with RealCluster() as cluster:
        yield _ready(cluster.start(real_nodes=0).admin)


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.e2e)])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    client = request.getfixturevalue(request.param)
    world = Api(client, f"contract-{uuid.uuid4().hex[:8]}", request.param == "double")
    client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}})
    if not world.double:  # pods are refused until the controller has made the account
        _until_found(client, ACCOUNTS, "default", world.namespace)
    yield world
    world.clean()


def _ready(client: Client) -> Client:
    """With our CRD installed and served."""
    try:
        client.create(CRDS, CRD)
    except Conflict:
        return client
    for _ in range(300):
        try:
            client.list(GPUNODES)
        except NotFound:
            time.sleep(0.1)
        else:
            break
    return client


def _until_found(client: Client, kind: Kind, name: str, namespace: str) -> None:
    for _ in range(300):
        try:
            client.get(kind, name, namespace)
        except ApiError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"{kind.kind} {namespace}/{name} never came")
