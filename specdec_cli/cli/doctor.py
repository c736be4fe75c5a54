"""`specdec doctor`: what this machine offers, what is installed, and what is missing."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from specdec_cli.cli.options import DebugOption, JsonOption
from specdec_cli.cli.plain import print_json, print_text, table

_PACKAGES = {  # distribution -> what it is for
    "torch": "torch executor, GPU",
    "bitsandbytes": "bitsandbytes models",
    "safetensors": "Hugging Face checkpoints",
    "llguidance": "structured output",
    "matplotlib": "bench --plot",
}
_GIGABYTE = 1 << 30


def doctor(
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Show CPU, instruction sets, threads, memory and its speed, packages, GPU and directories.

    Takes about a second, for the memory bandwidth. Exit code 1 when no model can run here.
    """
    report = examine()
    if json_output:
        print_json(report)
    else:
        print_text(table(_rows(report)))
        for problem in report["problems"]:
            print_text(f"problem: {problem}")
    if report["executors"] == []:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that `doctor` shows."""
    from specdec_cli.bench.bandwidth import read_bandwidth
    from specdec_cli.bench.machine import machine, native_info, total_memory
    from specdec_cli.runtime.device import available_memory, core_limits

    limits = core_limits()
    native = native_info()
    packages = _packages()
    available = available_memory()
    executors = [
        name
        for name, there in (("native", "problem" not in native), ("torch", packages["torch"] is not None))
        if there
    ]
    return {
        **machine(),
        "threads": {
            "used": limits.usable,
            "physical": limits.cores,
            "affinity": limits.affinity,
            "cgroup": limits.cgroup,
        },
        "isa": native.get("isa"),
        "available_isas": native.get("available_isas", []),
        "executors": executors,
        "memory_bytes": total_memory(),
        "available_memory_bytes": available,
        "read_gb_per_s": _bandwidth(read_bandwidth, limits.usable, available),
        "packages": packages,
        "gpu": _gpu(packages["torch"]),
        "directories": _directories(),
        "problems": _problems(native, executors),
    }


def _bandwidth(measure: Callable[[int], float], threads: int, available: int | None) -> float | None:
    """GB/s; None where there is hardly enough memory to measure it."""
    if available is not None and available < _GIGABYTE // 2:
        return None
    return round(measure(threads), 1)


def _packages() -> dict[str, str | None]:
    from specdec_cli.bench.machine import package_version

    return {name: package_version(name) for name in _PACKAGES}


def _gpu(torch: str | None) -> dict[str, Any]:
    """GPUs that nvidia-smi lists, and whether the installed torch was built for them (by its version)."""
    from specdec_cli.bench.machine import command_output

    tool = shutil.which("nvidia-smi")
    listed = command_output(tool, "-L") if tool is not None else ""
    return {
        "nvidia_smi": tool,
        "devices": listed.splitlines(),
        "torch_build": None if torch is None else (torch.partition("+")[2] or "default"),
    }


def _directories() -> dict[str, dict[str, Any]]:
    from specdec_cli.registry.paths import cache_dir, extra_models_dir, models_cache_dir, user_catalog_path

    places = {
        "cache": cache_dir(),
        "models": models_cache_dir(),
        "models_of_the_user": extra_models_dir(),
        "catalog_of_the_user": user_catalog_path()[0],
    }
    return {
        name: {"path": str(path), "exists": path.exists(), "bytes": _size(path)}
        for name, path in places.items()
        if path is not None
    }


def _size(path: Path) -> int:
    """Bytes of all files below; 0 where there is nothing or it may not be read."""
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    except OSError:
        return 0


def _problems(native: dict[str, Any], executors: list[str]) -> list[str]:
    problems = []
    if "problem" in native:
        problems.append(f"the native executor is not available: {native['problem']}")
    elif native["isa"] == "scalar":
        problems.append("no fast kernels for this CPU: the scalar ones are ten times slower")
    if not executors:
        problems.append("no executor: reinstall specdec-cli, or pip install 'specdec-cli[torch]'")
    return problems


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What people see: a name and a value per line."""
    threads, gpu = report["threads"], report["gpu"]
    cgroup = "no limit" if threads["cgroup"] is None else threads["cgroup"]
    speed = report["read_gb_per_s"]
    rows = [
        ("specdec", f"{report['specdec']}, Python {report['python']}, {report['system']}"),
        ("cpu", report["cpu"]),
        (
            "instruction set",
            f"{report['isa'] or 'n/a'} (available: {', '.join(report['available_isas']) or 'none'})",
        ),
        (
            "threads",
            f"{threads['used']} (physical cores {threads['physical']}, CPUs allowed {threads['affinity']}, "
            f"cgroup {cgroup})",
        ),
        ("memory", f"{_gib(report['memory_bytes'])}, available {_gib(report['available_memory_bytes'])}"),
        ("read bandwidth", "n/a" if speed is None else f"{speed:.1f} GB/s with {threads['used']} threads"),
        ("executors", ", ".join(report["executors"]) or "none"),
        ("gpu", "; ".join(gpu["devices"]) or "none found"),
    ]
    for name, version in report["packages"].items():
        rows.append((name, f"{version or 'not installed'} ({_PACKAGES[name]})"))
    for name, place in report["directories"].items():
        state = _gib(place["bytes"]) if place["exists"] else "not there yet"
        rows.append((name.replace("_", " "), f"{place['path']} ({state})"))
    return rows


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / _GIGABYTE:.2f} GiB"
