"""The API double and a client on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.client import Client
from cluster.fake import FakeApi


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as api:
        yield api


@pytest.fixture
def client(api: FakeApi, tmp_path: Path) -> Client:
    return Client.connect(api.kubeconfig(tmp_path / "kubeconfig"))
