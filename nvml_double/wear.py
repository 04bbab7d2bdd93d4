"""What else may be told of a GPU: signs of wear, what its driver can, its fabric, how busy one of its instances is."""

from nvml_double import layout
from nvml_double.control import DoubleError, Machine

RECOVERY_ACTIONS = 7
"""The highest of NVML's recovery actions (field 230)."""


def wear(
    machine: Machine,
    gpu: int,
    *,
    recovery: int | None = None,
    remap_pending: bool | None = None,
    remap_failed: bool | None = None,
    uncorrectable: int | None = None,
) -> None:
    """Signs that a GPU is worn or wants to be reset. Raises DoubleError for what NVML could not say."""
    if recovery is not None and not 0 <= recovery <= RECOVERY_ACTIONS:
        raise DoubleError(f"recovery action {recovery}: NVML knows 0 to {RECOVERY_ACTIONS}")
    if uncorrectable is not None and not 0 <= uncorrectable < 2**31:
        raise DoubleError(f"{uncorrectable} uncorrectable errors: expected a number from 0")
    with machine.of_gpu(gpu) as raw:
        for name, value in (
            ("recovery_action", recovery),
            ("remap_pending", remap_pending),
            ("remap_failed", remap_failed),
            ("ecc_uncorrected", uncorrectable),
        ):
            if value is not None:
                setattr(raw, name, int(value))


def can(machine: Machine, gpu: int, *, limit_memory: bool) -> None:
    """Whether the driver limits the memory of a cgroup on this GPU (the R615 class does)."""
    with machine.of_gpu(gpu) as raw:
        raw.limits_memory = int(limit_memory)


def fabric(machine: Machine, gpu: int, cluster: bytes, clique: int) -> None:
    """The NVLink domain of several machines that the GPU is in; 16 zero bytes: none."""
    if len(cluster) != 16:
        raise DoubleError(f"a cluster UUID has 16 bytes, not {len(cluster)}")
    with machine.of_gpu(gpu) as raw:
        raw.cluster[0], raw.cluster[1] = (int.from_bytes(cluster[n : n + 8], "little") for n in (0, 8))
        raw.clique = clique


def busy_instance(machine: Machine, gpu: int, gi: int, busy: float) -> None:
    """How busy one GPU instance is, as GPM sees it; a share between 0 and 1."""
    if not 0 <= busy <= 1:
        raise DoubleError(f"busy {100 * busy:g}%: expected 0 to 100")
    with machine.of_gpu(gpu) as raw:
        if not 0 <= gi < layout.INSTANCES or not raw.instances[gi].used:
            raise DoubleError(f"GPU {gpu} has no GPU instance {gi}")
        raw.instances[gi].busy = round(100 * busy)


def driver(machine: Machine, version: str) -> None:
    """The version of the driver, as after an upgrade."""
    if not version or len(version) > 31:
        raise DoubleError(f"{version!r}: a driver version has 1 to 31 characters")
    with machine.state() as state:
        state.driver = version.encode()
