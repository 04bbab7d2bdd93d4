"""Nodes that exist on paper only: KWOK says that they are ready and that their pods run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANNOTATION = {"kwok.x-k8s.io/node": "fake"}
EVERY = {"cpu": "64", "memory": "512Gi", "pods": "250"}


def command(binary: Path, stages: Path, kubeconfig: Path) -> list[str]:
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=false",
        *(f"--manage-nodes-with-annotation-selector={k}={v}" for k, v in ANNOTATION.items()),
        "--node-lease-duration-seconds=40",
        *(f"--config={stage}" for stage in sorted(stages.iterdir())),
    ]


def node(name: str, resources: Mapping[str, str]) -> dict[str, Any]:
    """With these resources besides cpu, memory and pods."""
    capacity = {**EVERY, **resources}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": ANNOTATION, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity},
    }
