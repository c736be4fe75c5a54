"""What the machine offers to an executor: cores, memory, and the devices that a name can mean."""

import os
from dataclasses import dataclass
from pathlib import Path

from specdec_cli.errors import UsageError

DEVICES = ("cpu",)


def check_device(name: str) -> str:
    """Return `name` when an executor can run there; UsageError otherwise."""
    if name not in DEVICES:
        raise UsageError(f'device "{name}" is not available; available are {", ".join(DEVICES)}')
    return name


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """What bounds the number of threads."""

    affinity: int  # logical CPUs that this process may run on
    cores: int  # physical cores behind them
    cgroup: int | None  # whole CPUs that the cgroup grants; None: no limit

    @property
    def usable(self) -> int:
        """Physical cores within all limits, at least 1."""
        return max(1, self.cores if self.cgroup is None else min(self.cores, self.cgroup))


def core_limits() -> CoreLimits:
    """Read the affinity mask, the topology and the cgroup's limit."""
    cpus = _affinity()
    return CoreLimits(len(cpus), len({_core_of(cpu) for cpu in cpus}), _cgroup_cpus())


def usable_cores() -> int:
    """Physical cores within the process's affinity mask and cgroup limit, at least 1."""
    return core_limits().usable


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping, within the cgroup's limit; None when unknown."""
    known = [size for size in (_meminfo_available(), _cgroup_memory()) if size is not None]
    return min(known) if known else None


def _affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core_of(cpu: int) -> str:
    """An identity of the physical core behind a logical CPU (its set of hyperthreads)."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return _read(siblings) or f"cpu{cpu}"


def _cgroup_cpus() -> int | None:
    """Whole CPUs that the cgroup (version 2) grants, or None without a limit."""
    parts = (_read(Path("/sys/fs/cgroup/cpu.max")) or "max").split()
    if len(parts) != 2 or parts[0] == "max":
        return None
    return max(1, int(parts[0]) // int(parts[1]))


def _meminfo_available() -> int | None:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_memory() -> int | None:
    limit = _read(Path("/sys/fs/cgroup/memory.max")) or "max"
    used = _read(Path("/sys/fs/cgroup/memory.current"))
    return None if limit == "max" or used is None else max(0, int(limit) - int(used))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
