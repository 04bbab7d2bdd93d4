"""`fallow agent`: device plugin, re-cutting and idle sampling of one node, in one process.

One process, because an NVML session of ours in another would block a GPU reset, and because whoever cuts slices must
be the one who advertises them. Here are its flags; what it does is in `node.py`.
"""

import argparse
import logging
import os
from importlib import import_module
from pathlib import Path

from cluster import process
from cluster.client import Client
from cluster.clock import SystemClock
from fallow.node import Agent
from gpu.hardware import GpuFault, Hardware

log = logging.getLogger(__name__)

HARDWARE = {"nvml": "gpu.nvml", "fake": "gpu.fake"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    process.add_flags(parser, 9402)
    parser.add_argument("--node-name", default=os.environ.get("NODE_NAME", ""), help="this node; default: $NODE_NAME")
    parser.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's directory")
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="where CDI specs are written")
    parser.add_argument("--dev-root", default="/dev", help="where the device nodes of the host are")
    config = os.environ.get("CONFIG_FILE")
    parser.add_argument(
        "--config-file",
        type=Path,
        default=Path(config) if config else None,
        help="NVIDIA's device-plugin configuration: a file, or a directory of them; default: $CONFIG_FILE",
    )
    parser.add_argument("--config-default", default="", help="which of a directory's is taken by nodes without label")
    parser.add_argument("--driver-root", default="/", help="where the driver's libraries are on the host")
    parser.add_argument("--driver-root-here", type=Path, default=None, help="the same place as this process sees it")
    parser.add_argument("--mps-root", default="/run/nvidia/mps", help="pipes and logs of MPS, also on the host")
    parser.add_argument("--mps-control", default="nvidia-cuda-mps-control", help="the program that controls MPS")
    parser.add_argument("--hardware", default="nvml", choices=sorted(HARDWARE), help="nvml, or the double in Python")
    parser.add_argument("--fake-state", type=Path, default=None, help="state file of the double (--hardware fake)")
    parser.add_argument("--sample-seconds", type=float, default=1.0, help="between two readings of activity")


def run(args: argparse.Namespace) -> int:
    process.start_logging(args.log_level)
    if not args.node_name:
        log.error("--node-name is missing: give it, or set NODE_NAME (in a pod: from spec.nodeName)")
        return 2
    try:
        hardware = open_hardware(args.hardware, args.fake_state)
        client = Client.connect(args.kubeconfig or None)
    except (GpuFault, ValueError, OSError) as error:
        log.error("%s", error)
        return 1
    stop = process.stop_on_signals()
    try:
        Agent(args, hardware, client, SystemClock()).run(stop)
    except (ValueError, GpuFault) as error:
        log.error("%s", error)
        return 1
    return 0


def open_hardware(kind: str, state: Path | None) -> Hardware:
    """The hardware door. Raises GpuFault UNAVAILABLE without driver, ValueError when the double lacks its file."""
    if kind == "fake" and state is None:
        raise ValueError("--hardware fake needs --fake-state FILE")
    # Only the chosen door is opened: a machine without pynvml's library can still run the double.
    door = import_module(HARDWARE[kind])
    hardware: Hardware = door.NvmlHardware() if kind == "nvml" else door.FakeHardware(state)
    return hardware
