"""The API verbs Fallow uses, plain dicts in and out. The only file that imports `kubernetes`.

Connections are kept open; JSON is read by orjson, because watches of thousands of objects pass through here. Every
method raises an ApiError (see errors.py).
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson
import urllib3
from kubernetes import client as kube_client
from kubernetes import config as kube_config

from cluster import names
from cluster.errors import ApiError, Unreachable, of_status

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object by the path it is reached under."""

    api: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace)]
        parts += [self.plural, quote(name), subresource]
        return "/".join(p for p in parts if p)


PODS = Kind("v1", "Pod", "pods")
NODES = Kind("v1", "Node", "nodes", namespaced=False)
NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)
CONFIGMAPS = Kind("v1", "ConfigMap", "configmaps")
EVENTS = Kind("v1", "Event", "events")
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases")
PDBS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
CRDS = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
GPUNODES = Kind(f"{names.GROUP}/{names.VERSION}", "GpuNode", "gpunodes", namespaced=False)


class Client:
    """One API server. Thread-safe; `timeout_seconds` bounds every request but a watch."""

    def __init__(self, api: kube_client.ApiClient, timeout_seconds: float = 10.0) -> None:
        self._configuration = api.configuration
        self._host = api.configuration.host.rstrip("/")
        self._pool: urllib3.PoolManager = api.rest_client.pool_manager
        self._timeout = timeout_seconds

    @classmethod
    def connect(cls, kubeconfig: str | None = None, timeout_seconds: float = 10.0) -> "Client":
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
        except (kube_config.ConfigException, OSError, TypeError) as error:
            raise ValueError(
                f"cannot connect to Kubernetes: {error} (give --kubeconfig FILE, set KUBECONFIG, or run in a pod)"
            ) from error
        return cls(kube_client.ApiClient(configuration), timeout_seconds)

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        return self._object("GET", kind.path(namespace, name))

    def list(self, kind: Kind, namespace: str = "", **query: Any) -> Object:
        """All objects, page by page; `query` such as `labelSelector`, `fieldSelector`. A List with its items."""
        page = self._object("GET", kind.path(namespace), query={"limit": 2000, **query})
        items = list(page.get("items") or ())
        while token := (page.get("metadata") or {}).get("continue"):
            page = self._object("GET", kind.path(namespace), query={"limit": 2000, "continue": token, **query})
            items += page.get("items") or ()
        return {**page, "items": items}

    def watch(
        self, kind: Kind, resource_version: str, namespace: str = "", timeout_seconds: int = 240, **query: Any
    ) -> Iterator[Object]:
        """Raw watch events until the server closes; raises Gone when the version is too old."""
        query |= {
            "watch": 1,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": timeout_seconds,
        }
        path = kind.path(namespace)
        # Longer than the server's own limit: silence beyond it means the connection is dead.
        response = self._send("GET", path, query=query, read_timeout=timeout_seconds + 15, stream=True)
        try:
            for line in _lines(response, f"watch {path}"):
                event = orjson.loads(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise of_status(f"watch {path}", int(status.get("code") or 500), status)
                yield event
        finally:
            response.close()
            response.release_conn()

    def create(self, kind: Kind, obj: Mapping[str, Any], namespace: str = "") -> Object:
        return self._object("POST", kind.path(namespace), obj)

    def replace(self, kind: Kind, obj: Mapping[str, Any], subresource: str = "") -> Object:
        """PUT; refused with Conflict when the object's resourceVersion is not the newest."""
        meta = obj["metadata"]
        return self._object("PUT", kind.path(meta.get("namespace", ""), meta["name"], subresource), obj)

    def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], namespace: str = "", subresource: str = ""
    ) -> Object:
        """Merge patch (lists replaced, null deletes); a resourceVersion or uid in it is a precondition."""
        return self._object("PATCH", kind.path(namespace, name, subresource), patch, content_type=MERGE_PATCH)

    def delete(self, kind: Kind, name: str, namespace: str = "", *, uid: str = "", grace: int | None = None) -> Object:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return self._object("DELETE", kind.path(namespace, name), options)

    def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Bind the pod with this uid; its annotations gain these in the same update."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._object("POST", PODS.path(namespace, name, "binding"), binding)

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Raises TooManyRequests while a PodDisruptionBudget forbids it."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._object("POST", PODS.path(namespace, name, "eviction"), eviction)

    def reachable(self) -> bool:
        """The API server says that it is ready."""
        try:
            self._send("GET", "/readyz")
        except ApiError:
            return False
        return True

    def _object(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> Object:
        response = self._send(method, path, body, query=query, content_type=content_type)
        try:
            obj = orjson.loads(response.data)
        except orjson.JSONDecodeError as error:
            raise Unreachable(f"{method} {path}", response.status, "BadAnswer", "the answer is no JSON") from error
        return obj if isinstance(obj, dict) else {"items": obj}

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        read_timeout: float | None = None,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        asked = f"{method} {path}"
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else orjson.dumps(body),
                headers=self._headers(content_type),
                timeout=urllib3.Timeout(connect=5, read=read_timeout or self._timeout),
                # Only a read may be sent twice: nobody knows whether a write whose connection broke took effect.
                retries=urllib3.Retry(
                    2, connect=2, read=2, redirect=0, status=0, backoff_factor=0.1, raise_on_status=False
                )
                if method == "GET"
                else False,
                preload_content=not stream,
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(asked, 0, type(error).__name__, _first_line(error)) from error
        if response.status >= 400:
            raise _failure(asked, response)
        return response

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": "fallow"}
        # Reads the projected token again when it has been renewed.
        token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        return headers


def _lines(response: urllib3.BaseHTTPResponse, asked: str) -> Iterator[bytes]:
    rest = b""
    try:
        for chunk in response.stream(amt=None):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line for line in lines if line)
    except urllib3.exceptions.HTTPError as error:
        raise Unreachable(asked, 0, type(error).__name__, _first_line(error)) from error


def _failure(asked: str, response: urllib3.BaseHTTPResponse) -> ApiError:
    try:
        status = orjson.loads(response.data)
    except (orjson.JSONDecodeError, urllib3.exceptions.HTTPError):
        status = {"message": response.reason}
    try:
        retry_after = float(response.headers.get("Retry-After") or 0)
    except ValueError:
        retry_after = 0.0
    return of_status(asked, response.status, status if isinstance(status, dict) else {}, retry_after)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
