"""The command lines of the control plane: what each component is told, and nothing about when it is started."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.controlplane.credentials import Credentials

SERVICES = "10.96.0.0/16"
_ETCD, _PEER = "http://127.0.0.1:2379", "http://127.0.0.1:2380"


def etcd(data: Path) -> list[str]:
    return [
        "etcd",
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        "--name=default",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_PEER}",
        f"--initial-advertise-peer-urls={_PEER}",
        f"--initial-cluster=default={_PEER}",
    ]


def apiserver(address: str, login: Credentials) -> list[str]:
    return [
        "kube-apiserver",
        f"--etcd-servers={_ETCD}",
        "--secure-port=6443",
        "--bind-address=0.0.0.0",
        f"--advertise-address={address}",
        f"--tls-cert-file={login.serving[0]}",
        f"--tls-private-key-file={login.serving[1]}",
        f"--client-ca-file={login.ca}",
        f"--token-auth-file={login.tokens}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default",
        f"--service-account-signing-key-file={login.accounts[0]}",
        f"--service-account-key-file={login.accounts[1]}",
        f"--service-cluster-ip-range={SERVICES}",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={login.to_kubelets[0]}",
        f"--kubelet-client-key={login.to_kubelets[1]}",
    ]


def controller_manager(login: Credentials) -> list[str]:
    return [
        "kube-controller-manager",
        *_logged_in(login.kubeconfig_for("system:kube-controller-manager")),
        f"--kubeconfig={login.kubeconfig_for('system:kube-controller-manager')}",
        f"--service-account-private-key-file={login.accounts[0]}",
        f"--root-ca-file={login.ca}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        # At the default of 20 requests a second, its start takes seconds: it makes an account for each controller.
        "--kube-api-qps=500",
        "--kube-api-burst=500",
        "--bind-address=127.0.0.1",
    ]


def scheduler(config: Path, login: Credentials, address: str, port: int) -> list[str]:
    logged_in = _logged_in(login.kubeconfig_for("system:kube-scheduler"))
    return ["kube-scheduler", f"--config={config}", f"--bind-address={address}", f"--secure-port={port}", *logged_in]


def scheduler_config(login: Credentials, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A KubeSchedulerConfiguration with these fields on top of ours."""
    kubeconfig = str(login.kubeconfig_for("system:kube-scheduler"))
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        # The default of 50 requests a second would be what every measurement measures.
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 2000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        **fields,
    }


def proxy_config(login: Credentials, node: str, address: str) -> dict[str, Any]:
    """One kube-proxy serves all nodes: they share the cluster's network namespace."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(login.kubeconfig_for("system:kube-proxy"))},
        "hostnameOverride": node,
        "clusterCIDR": "10.91.0.0/16",
        "conntrack": {"maxPerCore": 0},  # the limits of connection tracking belong to the whole machine
        "healthzBindAddress": f"{address}:10256",
    }


def _logged_in(kubeconfig: Path) -> list[str]:
    return [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
