"""Who may log in to a cluster of ours, and how: certificates for the API server, tokens and kubeconfigs for others."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.controlplane.keys import Authority, Tokens, service_account_keys, write_private

MAX_NODES = 4
"""The API server reads its token file only at start, so as many nodes as there may ever be are in it."""

NAMESPACE = "fallow-system"
PROGRAMS = ("fallow-scheduler", "fallow-planner", "fallow-agent")


class Credentials:
    """All files lie in `directory`, readable by their owner alone."""

    def __init__(self, directory: Path, address: str) -> None:
        self._directory = directory
        self.url = f"https://{address}:6443"
        authority = Authority(directory)
        self.ca = authority.path
        hosts = [address, "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default", "localhost"]
        self.serving = authority.issue("kube-apiserver", hosts=hosts)
        self.to_kubelets = authority.issue("kube-apiserver-kubelet-client", group="system:masters")
        self.accounts = service_account_keys(directory)
        self._tokens = Tokens(directory / "tokens.csv", _users())
        self.tokens = self._tokens.path

    def kubeconfig_for(self, user: str) -> Path:
        """For `admin`, `system:...` or one of our programs by its service account. Raises KeyError for a stranger."""
        account = f"system:serviceaccount:{NAMESPACE}:{user}" if user in PROGRAMS else user
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fallow",
            "clusters": [{"name": "fallow", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user, "user": {"token": self._tokens.of(account)}}],
            "contexts": [{"name": "fallow", "context": {"cluster": "fallow", "user": user}}],
        }
        path = self._directory / f"{user.replace(':', '-')}.kubeconfig"
        write_private(path, yaml.safe_dump(config).encode())
        return path


def _users() -> dict[str, Sequence[str]]:
    """Each user and its groups."""
    accounts = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
    components = ("kube-controller-manager", "kube-scheduler", "kube-proxy")
    return {
        "admin": ("system:masters",),
        **{f"system:{c}": () for c in components},
        **{f"system:node:node{n}": ("system:nodes",) for n in range(1, MAX_NODES + 1)},
        **{f"system:serviceaccount:{NAMESPACE}:{p}": accounts for p in PROGRAMS},
    }
