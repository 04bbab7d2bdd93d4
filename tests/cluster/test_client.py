"""The client's own promises: what is sent twice, what is waited for, what an error says and what it must not say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import client as door
from cluster.client import CONFIGMAPS, NODES, PODS, RIGHTS, Client
from cluster.clock import ManualClock
from cluster.errors import ApiError, Conflict, Gone, NotFound, Refused, TooManyRequests, Unreachable, of_status
from cluster.fake import FakeApi
from tests import builders as b


def config(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def test_a_read_is_sent_again_when_its_connection_breaks(api: FakeApi, client: Client) -> None:
    api.lose_request("list", "pods", times=2)
    assert client.list(PODS)["items"] == []


def test_a_write_is_sent_once(api: FakeApi, client: Client) -> None:
    api.lose_reply("create", "configmaps")
    with pytest.raises(Unreachable) as caught:
        client.create(CONFIGMAPS, config("a"), "default")
    assert caught.value.status == 0
    assert [i["metadata"]["name"] for i in client.list(CONFIGMAPS)["items"]] == ["a"]


def test_connections_that_died_while_idle_are_replaced(api: FakeApi, client: Client) -> None:
    client.list(PODS)
    api.drop_connections()
    client.create(CONFIGMAPS, config("a"), "default")


def test_too_many_requests_is_waited_for(api: FakeApi, tmp_path: Path) -> None:
    clock = ManualClock(0.0)
    client = Client.connect(api.kubeconfig(tmp_path / "k"), clock=clock)
    api.fail("create", "configmaps", 429, times=2, retry_after=2)
    client.create(CONFIGMAPS, config("a"), "default")
    assert clock.monotonic() == 4.0


def test_but_not_for_long_and_not_for_an_eviction(api: FakeApi, tmp_path: Path) -> None:
    clock = ManualClock(0.0)
    client = Client.connect(api.kubeconfig(tmp_path / "k"), clock=clock)
    api.fail("create", "configmaps", 429, retry_after=60)
    with pytest.raises(TooManyRequests) as caught:
        client.create(CONFIGMAPS, config("a"), "default")
    assert caught.value.retry_after == 60
    api.fail("evict", "pods", 429, retry_after=1)
    with pytest.raises(TooManyRequests):
        client.evict("default", "p", "u")
    assert clock.monotonic() == 0.0


def test_a_list_whose_pages_expire_is_read_anew(api: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PAGE", 1)
    for name in ("a", "b"):
        client.create(NODES, {"metadata": {"name": name}})
    api.on_nth("list", "nodes", 2, lambda _: api.compact())
    assert [i["metadata"]["name"] for i in client.list(NODES)["items"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, Refused),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Refused),
        (500, Unreachable),
        (418, ApiError),
    ],
)
def test_an_error_says_what_was_asked(api: FakeApi, client: Client, code: int, kind: type[ApiError]) -> None:
    api.fail("get", "pods", code)
    with pytest.raises(kind) as caught:
        client.get(PODS, "p", "default")
    assert str(caught.value) == f"GET /api/v1/namespaces/default/pods/p: {code} Injected: told to fail with {code}"


def test_a_status_without_anything_is_still_an_error() -> None:
    assert str(of_status("GET /x", 404, {})) == "GET /x: 404 : "
    assert isinstance(of_status("PATCH /x", 422, {"details": {"causes": [{"field": "metadata.uid"}]}}), Conflict)


def test_a_server_that_is_not_there(api: FakeApi, client: Client) -> None:
    api.stop()
    with pytest.raises(Unreachable):
        client.get(PODS, "p", "default")
    with pytest.raises(Unreachable):
        client.create(PODS, b.pod("p"), "default")
    with pytest.raises(Unreachable):
        next(client.watch(PODS, "1"))
    assert not client.reachable()


def test_no_error_carries_a_token(api: FakeApi, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    text = Path(api.kubeconfig(path)).read_text().replace("user: {}", "user: {token: hunter2}")
    path.write_text(text)
    client = Client.connect(str(path))
    api.fail("get", "pods", 403)
    with pytest.raises(ApiError) as caught:
        client.get(PODS, "p", "default")
    assert "hunter2" not in str(caught.value) + repr(vars(caught.value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "file is empty"),
        ("[1, 2", "not YAML"),
        ("- 1", "not a kubeconfig file"),
        ("apiVersion: v1\nkind: Config\ncurrent-context: gone\ncontexts: []\nclusters: []\nusers: []\n", "gone"),
    ],
)
def test_a_bad_kubeconfig_is_named_with_a_cure(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ValueError, match="--kubeconfig FILE") as caught:
        Client.connect(str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_without_any_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="set KUBECONFIG"):
        Client.connect()


def test_a_projected_token_is_read_again_when_it_was_renewed(api: FakeApi, client: Client, tmp_path: Path) -> None:
    tokens = iter(["one\n", "two"])
    seen = []
    transport = client._transport
    transport._token = lambda: next(tokens)
    headers = transport._headers
    transport._headers = lambda call: seen.append(headers(call)["Authorization"]) or {}  # type: ignore[method-assign]
    client.list(PODS)
    client.list(PODS)
    assert seen == ["one", "two"]


def test_a_token_that_cannot_be_read_is_an_api_error(client: Client) -> None:
    def token() -> str:
        raise OSError("secret inside")

    client._transport._token = token
    with pytest.raises(Unreachable, match="cannot read the token") as caught:
        client.list(PODS)
    assert "secret" not in str(caught.value)


def test_every_verb_says_which_right_it_needs() -> None:
    verbs = {n for n in vars(Client) if not n.startswith("_")} - {"connect", "within", "reachable"}
    assert verbs == RIGHTS.keys()


def test_names_are_quoted_in_paths() -> None:
    assert PODS.path("a/b", "c d") == "/api/v1/namespaces/a%2Fb/pods/c%20d"


def test_a_kubeconfig_is_what_the_double_writes(api: FakeApi, tmp_path: Path) -> None:
    config = yaml.safe_load(Path(api.kubeconfig(tmp_path / "k")).read_text())
    assert config["clusters"][0]["cluster"]["server"] == api.url
