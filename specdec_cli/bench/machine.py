"""What this machine is: the part of a report without which its figures mean nothing."""

import platform
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_MEGABYTE = 1 << 20


def machine() -> dict[str, Any]:
    """CPU, system and versions, for JSON."""
    return {
        "cpu": cpu_name(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "specdec": package_version("specdec-cli"),
        "kernel_revision": native_info().get("kernel_revision"),
    }


def cpu_name() -> str:
    """Name of the processor as its maker calls it, or its architecture."""
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    if sys.platform == "darwin":
        return command_output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def native_info() -> dict[str, Any]:
    """Instruction sets of the native engine; with the key `problem` when it cannot be used."""
    try:
        from quant import _native
    except ImportError as error:
        return {"problem": str(error).splitlines()[0]}
    info: dict[str, Any] = {
        "available_isas": _native.available_isas(),
        "kernel_revision": _native.KERNEL_REVISION,
    }
    try:
        info["isa"] = _native.active_isa()
    except (RuntimeError, ValueError) as error:  # SPECDEC_FORCE_ISA asks for what is not there
        info["problem"] = str(error).splitlines()[0]
    return info


def package_version(name: str) -> str | None:
    """Version of an installed package, without importing it; None when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def peak_rss_mb() -> float:
    """Largest resident size of this process so far, or since `reset_peak_rss`, in MiB."""
    for line in _lines(Path("/proc/self/status")):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MEGABYTE if sys.platform == "darwin" else peak / 1024


def reset_peak_rss() -> bool:
    """Let `peak_rss_mb` start over at the present size; False where the system does not offer that."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def total_memory() -> int | None:
    """Bytes of memory of the machine; None when unknown."""
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    size = command_output("sysctl", "-n", "hw.memsize") if sys.platform == "darwin" else ""
    return int(size) if size.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def command_output(*command: str, seconds: float = 5) -> str:
    """What a command prints on stdout; empty when it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
