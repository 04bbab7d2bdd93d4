"""The kinds of object Fallow reads or writes, by the path they are reached under."""

from dataclasses import dataclass
from urllib.parse import quote

from cluster import names


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object; `api` is `v1` or `group/version`."""

    api: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural, quote(name, safe=""), subresource]
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
