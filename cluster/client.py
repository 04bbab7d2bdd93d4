"""The API verbs Fallow uses, plain dicts in and out. The only file that imports `kubernetes`.

Every method raises an ApiError (see errors.py). A method that writes sends its request once: after Unreachable nobody
knows whether it took effect, and the caller looks before trying again.
"""

import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import orjson
import yaml
from kubernetes import client as kube_client
from kubernetes import config as kube_config

from cluster.clock import Clock, SystemClock
from cluster.errors import ApiError, Gone, Unreachable, of_status
from cluster.kinds import (
    CONFIGMAPS,
    CRDS,
    EVENTS,
    GPUNODES,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    Kind,
)  # fmt: skip
from cluster.transport import Call, Object, Transport, lines

__all__ = [
    "CONFIGMAPS", "CRDS", "EVENTS", "GPUNODES", "LEASES", "NAMESPACES", "NODES", "PDBS", "PODS", "RIGHTS", "Client",
    "Kind", "Object",
]  # fmt: skip

RIGHTS = {
    "get": ("get", ""), "list": ("list", ""), "watch": ("watch", ""),
    "create": ("create", ""), "replace": ("update", ""), "patch": ("patch", ""), "delete": ("delete", ""),
    "bind": ("create", "binding"), "evict": ("create", "eviction"),
}  # fmt: skip
"""Method -> the RBAC verb it needs and the subresource it needs it on ("": the object, or the `subresource` given)."""

PAGE = 2000
WATCH_SECONDS = 240
SILENCE_SECONDS = 15
"""Added to the server's own limit on a watch: silence beyond both means that the connection is dead."""


class Client:
    """One API server. Thread-safe; a time-out in seconds bounds every request but a watch."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod
    def connect(
        cls, kubeconfig: str | None = None, timeout_seconds: float = 10.0, clock: Clock | None = None
    ) -> "Client":
        """By this kubeconfig file, else `$KUBECONFIG`, else as a pod in the cluster.

        Raises ValueError that says what is missing.
        """
        configuration = kube_client.Configuration()
        configuration.connection_pool_maxsize = 16
        path = kubeconfig or os.environ.get("KUBECONFIG")
        try:
            if path:
                kube_config.load_kube_config(config_file=path, client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            pool = kube_client.ApiClient(configuration).rest_client.pool_manager
        except (kube_config.ConfigException, yaml.YAMLError, OSError, *_MALFORMED) as error:
            raise ValueError(
                f"cannot connect to Kubernetes{f' by {path}' if path else ''}: {_reason(error)} "
                "(give --kubeconfig FILE, set KUBECONFIG, or run in a pod)"
            ) from error

        def token() -> str | None:
            # Reads the projected token again when it may have been renewed.
            return configuration.get_api_key_with_prefix("BearerToken", alias="authorization")

        return cls(Transport(pool, configuration.host, token, timeout_seconds, clock or SystemClock()))

    def within(self, timeout_seconds: float) -> "Client":
        """The same connections with another bound on each request."""
        return Client(self._transport.within(timeout_seconds))

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        return self._transport.object(Call("get", kind, kind.path(namespace, name)))

    def list(self, kind: Kind, namespace: str = "", **query: Any) -> Object:
        """All objects of one moment; `query` such as `labelSelector`, `fieldSelector`. A List with its items."""
        try:
            return self._pages(kind, namespace, query)
        except Gone:  # the moment of the first page was forgotten before the last one was read
            return self._pages(kind, namespace, query)

    def watch(
        self,
        kind: Kind,
        resource_version: str,
        namespace: str = "",
        timeout_seconds: int = WATCH_SECONDS,
        *,
        opened: Callable[[Callable[[], None]], None] = lambda hang_up: None,
        **query: Any,
    ) -> Generator[Object, None, None]:
        """Raw watch events until the server closes; raises Gone when the version is too old.

        `opened` gets a function that ends the watch from any thread.
        """
        query |= {"watch": 1, "resourceVersion": resource_version}
        query |= {"allowWatchBookmarks": "true", "timeoutSeconds": timeout_seconds}
        call = Call("watch", kind, kind.path(namespace), query=query)
        response = self._transport.send(call, timeout_seconds + SILENCE_SECONDS, stream=True)
        try:
            opened(response.shutdown)
            for line in lines(response, call.asked):
                yield _event(line, call.asked)
        finally:
            response.close()
            response.release_conn()

    def create(self, kind: Kind, obj: Mapping[str, Any], namespace: str = "") -> Object:
        return self._transport.object(Call("create", kind, kind.path(namespace), obj))

    def replace(self, kind: Kind, obj: Mapping[str, Any], subresource: str = "") -> Object:
        """PUT; refused with Conflict when the object's resourceVersion is not the newest."""
        meta = obj["metadata"]
        path = kind.path(meta.get("namespace", ""), meta["name"], subresource)
        return self._transport.object(Call("update", kind, path, obj))

    def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], namespace: str = "", subresource: str = ""
    ) -> Object:
        """Merge patch (lists replaced, null deletes); a resourceVersion or uid in it is a precondition (Conflict)."""
        return self._transport.object(Call("patch", kind, kind.path(namespace, name, subresource), patch))

    def delete(self, kind: Kind, name: str, namespace: str = "", *, uid: str = "", grace: int | None = None) -> Object:
        """Only the object with this uid, if one is given; `grace` in seconds."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return self._transport.object(Call("delete", kind, kind.path(namespace, name), options))

    def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Bind the pod with this uid; its annotations gain these in the same update."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._transport.object(Call("create", PODS, PODS.path(namespace, name, "binding"), binding))

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Raises TooManyRequests while a PodDisruptionBudget forbids it."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = PODS.path(namespace, name, "eviction")
        self._transport.object(Call("create", PODS, path, eviction, waits=False))

    def reachable(self) -> bool:
        """The API server says that it is ready."""
        try:
            self._transport.send(Call("get", Kind("", "", "readyz", namespaced=False), "/readyz"), 5.0)
        except ApiError:
            return False
        return True

    def _pages(self, kind: Kind, namespace: str, query: Mapping[str, Any]) -> Object:
        items: list[Object] = []
        token = ""
        while True:
            asked = {"limit": PAGE, **query, **({"continue": token} if token else {})}
            page = self._transport.object(Call("list", kind, kind.path(namespace), query=asked))
            items += page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                break
        for item in items:  # the items of a List do not say what they are
            item.setdefault("apiVersion", kind.api)
            item.setdefault("kind", kind.kind)
        return {**page, "items": items}


_MALFORMED = (TypeError, AttributeError, KeyError, ValueError)
"""What the library raises when a kubeconfig is YAML, but not of the form it expects."""


def _reason(error: Exception) -> str:
    if isinstance(error, _MALFORMED):
        return f"not a kubeconfig file ({type(error).__name__})"  # the text might quote a credential
    if isinstance(error, yaml.YAMLError):
        mark = getattr(error, "problem_mark", None)
        return "not YAML" + (f" (line {mark.line + 1})" if mark else "")
    return str(error)


def _event(line: bytes, asked: str) -> Object:
    try:
        event = orjson.loads(line)
        kind, obj = event["type"], event["object"]
        if kind != "ERROR" and isinstance(obj["metadata"], dict):
            return dict(event)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise Unreachable(asked, 200, "BadAnswer", "a watch event that cannot be read") from error
    raise of_status(asked, int(obj.get("code") or 500), obj)
