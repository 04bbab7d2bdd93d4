"""The manifests agree with the code: names, rights, flags, ports, the policy, and the schema of GpuNode."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cluster import gpunode, names
from cluster.facts import read_request
from cluster.gpunode import activity_out, recut_out, wanted_out
from device_plugin.config.plan import plan
from device_plugin.config.read import read
from device_plugin.sale import NodePlan
from fallow import certs
from gpu import catalogue
from gpu.hardware import SeenGpu
from gpu.node import Activity, Mode
from gpu.recut import Phase, Recut, Shape, Wanted
from tests.builders import gpu, layout, model
from tests.repo.test_documents import flags

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"


def load(path: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all((MANIFESTS / path).read_text()) if d]


def everything() -> Iterator[dict[str, Any]]:
    for path in sorted(MANIFESTS.rglob("*.yaml")):
        yield from (d for d in yaml.safe_load_all(path.read_text()) if d)


def workload(service: str) -> dict[str, Any]:
    name = "daemonset" if service == "agent" else "deployment"
    return load(f"base/{service}/{name}.yaml")[0]


def container(service: str) -> dict[str, Any]:
    return workload(service)["spec"]["template"]["spec"]["containers"][-1]


def test_every_file_of_a_kustomization_exists() -> None:
    for path in MANIFESTS.rglob("kustomization.yaml"):
        content = yaml.safe_load(path.read_text())
        patches = [p["path"] for p in content.get("patches", ())]
        files = [f for g in content.get("configMapGenerator", ()) for f in g["files"]]
        for target in (*content["resources"], *patches, *files):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)}: {target}"


def test_the_extender_is_asked_for_every_resource_of_ours() -> None:
    config = load("base/scheduler/kube-scheduler.yaml")[0]
    (extender,) = config["extenders"]
    managed = {r["name"] for r in extender["managedResources"]}
    profiles = {p.name for m in catalogue.models().values() for p in m.profiles}
    assert managed == {names.WHOLE, names.SHARED, *(names.mig_resource(p) for p in profiles)}
    assert extender["nodeCacheCapable"] and not extender["ignorable"]
    assert config["percentageOfNodesToScore"] == 100
    assert config["profiles"] == [{"schedulerName": names.SCHEDULER}]
    assert {extender[v] for v in ("filterVerb", "prioritizeVerb", "bindVerb")} == {"filter", "prioritize", "bind"}
    assert extender["enableHTTPS"] and extender["urlPrefix"].startswith("https://127.0.0.1")


def test_the_shipped_policy_is_the_default() -> None:
    (configmap,) = load("base/policy/configmap.yaml")
    assert configmap["metadata"] == {"name": names.POLICY_CONFIGMAP, "namespace": names.NAMESPACE}
    assert configmap["data"][names.POLICY_KEY].strip() == (ROOT / "policies" / "defaults.yaml").read_text().strip()


@pytest.mark.parametrize("service", ["scheduler", "planner", "agent"])
def test_programs_are_started_with_flags_they_have_and_on_the_ports_they_show(service: str) -> None:
    args = container(service)["args"]
    known = {o for a in flags(service) for o in a.option_strings}
    assert args[0] == service
    assert {a.partition("=")[0] for a in args[1:]} <= known
    port = next(a for a in args if a.startswith("--metrics-address")).rpartition(":")[2]
    assert [p["containerPort"] for p in container(service)["ports"] if p["name"] == "metrics"] == [int(port)]


@pytest.mark.parametrize("service", ["scheduler", "planner"])
def test_what_needs_no_hardware_is_locked_down(service: str) -> None:
    pod = workload(service)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in pod["containers"]:
        context = each["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert not any("hostPath" in v for v in pod["volumes"])


def test_the_secret_has_the_files_that_the_scheduler_mounts() -> None:
    pod = workload("scheduler")["spec"]["template"]["spec"]
    assert {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v} == {certs.SECRET}
    mounted = set(
        re.findall(r"/etc/fallow/tls/([a-z.]+)", json.dumps([pod, load("base/scheduler/kube-scheduler.yaml")]))
    )
    assert mounted <= set(certs.FILES)


WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def rights(service: str) -> dict[tuple[str, str], set[str]]:
    """Verbs by group and resource that this service's roles grant."""
    granted: dict[tuple[str, str], set[str]] = {}
    for doc in load(f"base/{service}/rbac.yaml"):
        for rule in doc.get("rules", ()):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    granted.setdefault((group, resource), set()).update(rule["verbs"])
    return granted


@pytest.mark.parametrize(
    ("service", "writes"),
    [
        (
            "scheduler",
            {
                ("", "pods/binding"): {"create"},
                ("", "events"): {"create", "patch"},
                ("coordination.k8s.io", "leases"): {"create", "update"},
            },
        ),
        (
            "planner",
            {
                ("fallow.dev", "gpunodes"): {"patch"},
                ("", "events"): {"create", "patch"},
                ("coordination.k8s.io", "leases"): {"create", "update"},
            },
        ),
        (
            "agent",
            {
                ("", "nodes"): {"patch"},
                ("", "pods"): {"patch"},
                ("", "pods/eviction"): {"create"},
                ("", "events"): {"create", "patch"},
                ("fallow.dev", "gpunodes"): {"create"},
                ("fallow.dev", "gpunodes/status"): {"patch"},
            },
        ),
    ],
)
def test_each_program_may_write_its_own_facts_and_nothing_else(service: str, writes: dict) -> None:
    granted = {what: verbs & WRITES for what, verbs in rights(service).items() if verbs & WRITES}
    assert granted == writes
    assert not any("*" in verbs or "secrets" in what[1] for what, verbs in rights(service).items())


@pytest.mark.parametrize("path", sorted((MANIFESTS / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_an_example_is_a_request_that_we_read(path: Path) -> None:
    (pod,) = yaml.safe_load_all(path.read_text())
    if pod["kind"] == "ConfigMap":
        for name, text in pod["data"].items():
            gpus = [SeenGpu(f"GPU-{n}", n, n, "", "", model()) for n in range(4)]
            assert isinstance(plan(read(text, name), gpus), NodePlan)
        return
    assert pod["spec"]["schedulerName"] == names.SCHEDULER
    request = read_request(pod)
    assert request is not None
    assert {w.mode for w in request.wants} == {
        {"whole": Mode.WHOLE, "share": Mode.SHARED, "slice": Mode.SLICED}[path.stem]
    }


def test_what_we_write_is_what_the_schema_of_gpunode_allows() -> None:
    (crd,) = load("base/crd/gpunode.yaml")
    (version,) = crd["spec"]["versions"]
    assert (crd["spec"]["group"], version["name"]) == (names.GROUP, names.VERSION)
    schema = strict(version["schema"]["openAPIV3Schema"])
    shape = Shape(Mode.SLICED, layout("1g.10gb@0"))
    sliced = gpu("GPU-0", "1g.10gb@0")
    details = {
        "GPU-0": {"name": "H100", "minor": 0, "busId": "0", "slices": {"1g.10gb@0": {"uuid": "MIG", "gi": 7, "ci": 0}}}
    }
    obj = gpunode.empty("n1", "uid")
    obj["spec"]["gpus"] = {"GPU-0": wanted_out(Wanted(1, shape, "why", 2))}
    obj["status"] = gpunode.inventory([sliced, gpu("GPU-1", units=20), gpu("GPU-2")], details) | {
        "recuts": {"GPU-0": recut_out(Recut(1, Phase.HOLD, 1.5, Shape(Mode.WHOLE), shape))},
        "idle": {"GPU-2": activity_out(Activity(0.5, 1.5, "test"))},
    }
    jsonschema.validate(obj, schema)


def strict(schema: Any) -> Any:
    """The API server drops unknown fields silently: here one is a failure."""
    if isinstance(schema, dict):
        schema = {k: strict(v) for k, v in schema.items() if k != "nullable"}
        top = schema.get("properties", {}).get("metadata") == {"type": "object"}
        if "properties" in schema and "additionalProperties" not in schema and not top:
            schema["additionalProperties"] = False
        return schema
    return [strict(v) for v in schema] if isinstance(schema, list) else schema
