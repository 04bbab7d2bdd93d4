"""What a container gets from the host beside the GPU's nodes: the running driver's files, under lasting names."""

import json
from pathlib import Path

import pytest

from cluster.clock import ManualClock
from device_plugin import driver_root
from device_plugin.cdi import renew
from device_plugin.delivery import Delivery
from device_plugin.host_spec import driver_spec, extras_spec
from device_plugin.specs import DriverRoot, HostSpecs

VERSION = "570.86.15"


def driver(root: Path, version: str = VERSION, directory: str = "usr/lib/x86_64-linux-gnu") -> Path:
    """A host with a driver of this version, its links as ldconfig makes them, and /lib linked as distributions do."""
    place = root / directory
    place.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda", "libnvidia-ml"):
        (place / f"{name}.so.{version}").write_text(version)
        for link, target in ((f"{name}.so.1", f"{name}.so.{version}"), (f"{name}.so", f"{name}.so.1")):
            (place / link).unlink(missing_ok=True)
            (place / link).symlink_to(target)
    (place / "libc.so.6").write_text("not the driver's")
    if not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/nvidia-smi").write_text("")
    return root


def mounts(spec: dict) -> dict[str, str]:
    edits = spec["devices"][0]["containerEdits"]
    return {m["containerPath"]: m["hostPath"] for m in edits.get("mounts", ())}


def test_the_libraries_of_the_running_driver_and_no_others(tmp_path: Path) -> None:
    driver(driver(tmp_path), "535.1")
    files = driver_root.look(tmp_path, "/run/nvidia/driver", VERSION)
    assert [f.container for f in files.libraries] == [
        f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}",
        f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}",
    ]
    assert files.libraries[0].host == f"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert [f.container for f in files.others] == ["/usr/bin/nvidia-smi"]


def test_links_are_those_that_lead_to_this_driver(tmp_path: Path) -> None:
    files = driver_root.look(driver(tmp_path), "/", VERSION)
    assert files.links["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert not any("libc.so" in link for link in files.links)


def test_without_hooks_libraries_also_stand_where_their_links_would(tmp_path: Path) -> None:
    found = mounts(driver_spec(driver_root.look(driver(tmp_path), "/", VERSION), ""))
    assert found["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] == f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"


@pytest.mark.parametrize(
    ("program", "start"),
    [
        ("usr/bin/nvidia-cdi-hook", ["nvidia-cdi-hook"]),
        ("usr/bin/nvidia-ctk", ["nvidia-ctk", "hook"]),
    ],
)
def test_with_nvidias_hook_the_container_gets_links_and_a_cache(tmp_path: Path, program: str, start: list[str]) -> None:
    driver(tmp_path)
    (tmp_path / program).write_text("")
    hook = driver_root.hook(tmp_path)
    assert hook == f"/{program}"
    edits = driver_spec(driver_root.look(tmp_path, "/", VERSION), hook)["devices"][0]["containerEdits"]
    links, cache = (h["args"] for h in edits["hooks"])
    assert links[: len(start) + 1] == [*start, "create-symlinks"]
    assert f"libcuda.so.{VERSION}::/usr/lib/x86_64-linux-gnu/libcuda.so.1" in links
    assert cache == [*start, "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"]
    assert all("libcuda.so.1" not in m["containerPath"].rpartition("/")[2] for m in edits["mounts"])


def test_a_host_without_a_driver_of_that_version_gives_nothing(tmp_path: Path) -> None:
    assert not driver_root.look(driver(tmp_path), "/", "1.2.3").libraries
    assert not driver_root.look(tmp_path / "empty", "/", VERSION).libraries
    assert driver_root.hook(tmp_path / "empty") == ""


def test_neighbours_are_named_only_where_their_nodes_are(tmp_path: Path) -> None:
    for node in ("nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0", "nvidia-caps-imex-channels/channel0"):
        (tmp_path / node).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / node).write_text("")
    spec = extras_spec(driver_root.nodes(str(tmp_path), [0, 1]), str(tmp_path))
    assert spec is not None
    assert {d["name"]: [n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in spec["devices"]} == {
        "gds": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"],
        "imex-0": ["/dev/nvidia-caps-imex-channels/channel0"],
        "mofed": ["/dev/infiniband/uverbs0"],
    }
    assert extras_spec(driver_root.nodes(str(tmp_path / "none"), [0]), "/dev") is None


def test_a_name_that_was_given_stands_through_a_driver_upgrade_and_a_driver_that_is_gone(tmp_path: Path) -> None:
    root, specs, version = driver(tmp_path / "host"), tmp_path / "cdi", [VERSION]
    host = HostSpecs(specs, lambda: str(tmp_path / "dev"), lambda: version[0], ManualClock())
    ways = Delivery(extras=frozenset({"gds"}))
    assert host.also(ways) == ()
    host.renew(DriverRoot(root), ())
    assert host.also(ways) == ("fallow.dev/driver=libraries",)
    version[0] = "600.1"
    driver(root, "600.1")
    host.renew(DriverRoot(root), ())
    spec = json.loads((specs / "fallow-driver.json").read_text())
    assert {p.rpartition(".so.")[2] for p in mounts(spec) if "libcuda" in p} >= {"600.1"}
    version[0] = ""
    host.renew(DriverRoot(root), ())
    spec = json.loads((specs / "fallow-driver.json").read_text())
    assert spec["devices"][0]["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    assert host.also(ways) == ("fallow.dev/driver=libraries",)
    renew(specs, [], str(tmp_path / "dev"))
    assert (specs / "fallow-driver.json").exists(), "the specs of GPUs come and go, this one stays"
