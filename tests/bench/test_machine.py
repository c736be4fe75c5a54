"""What the machine says about itself, and how fast it reads."""

import numpy as np
import pytest

from specdec_cli.bench import bandwidth as bandwidth_module
from specdec_cli.bench import machine as machine_module
from specdec_cli.bench.bandwidth import read_bandwidth
from specdec_cli.bench.machine import (
    command_output,
    cpu_name,
    machine,
    native_info,
    package_version,
    peak_rss_mb,
    reset_peak_rss,
    total_memory,
)


def test_cpu_name_comes_from_the_system(monkeypatch):
    monkeypatch.setattr(
        machine_module, "_lines", lambda path: ["processor : 0", "model name\t: A CPU @ 3 GHz"]
    )
    assert cpu_name() == "A CPU @ 3 GHz"
    monkeypatch.setattr(machine_module, "_lines", lambda path: [])
    assert cpu_name()


def test_versions():
    assert package_version("numpy") == np.__version__
    assert package_version("no-such-distribution-here") is None
    described = machine()
    assert described["specdec"] == package_version("specdec-cli")
    assert described["kernel_revision"] == native_info()["kernel_revision"]


def test_native_info_names_the_instruction_sets():
    info = native_info()
    assert info["isa"] in info["available_isas"]
    assert "scalar" in info["available_isas"]


def test_an_instruction_set_that_is_not_there_is_a_problem(monkeypatch):
    from quant import _native

    def refuse():
        raise RuntimeError("SPECDEC_FORCE_ISA: unknown instruction set mmx\nmore")

    monkeypatch.setattr(_native, "active_isa", refuse)
    info = native_info()
    assert info["problem"] == "SPECDEC_FORCE_ISA: unknown instruction set mmx"
    assert "isa" not in info


def test_peak_memory_grows_and_starts_over():
    if not reset_peak_rss():
        pytest.skip("this system cannot reset the peak")
    before = peak_rss_mb()
    block = np.ones(64 << 17)  # 64 MiB
    assert block[-1] == 1
    assert peak_rss_mb() > before + 60
    del block
    reset_peak_rss()
    assert peak_rss_mb() < before + 30


def test_total_memory():
    total = total_memory()
    assert total is None or total > 1 << 28


def test_commands_that_fail_say_nothing():
    assert command_output("printf", "a\\n") == "a"
    assert command_output("false") == ""
    assert command_output("no-such-command-here") == ""
    assert command_output("sleep", "5", seconds=0.05) == ""


def test_bandwidth_is_bytes_over_the_median_time(monkeypatch):
    times = iter([0, 9, 10, 11, 20, 22, 30, 35])  # durations 9 (warm-up), 1, 2, 5
    monkeypatch.setattr(bandwidth_module, "perf_counter", lambda: next(times))
    assert read_bandwidth(2, repetitions=3, num_bytes=8000) == pytest.approx(8000 / 2 / 1e9)


def test_bandwidth_of_this_machine_is_plausible():
    assert 0.05 < read_bandwidth(1, repetitions=2, num_bytes=8 << 20) < 5000
