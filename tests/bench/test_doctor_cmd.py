"""`specdec doctor`."""

import json
import subprocess
import sys

import pytest

from specdec_cli.cli import doctor as doctor_module


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch):
    monkeypatch.setattr("specdec_cli.bench.bandwidth.read_bandwidth", lambda threads: 12.25)


def test_json(specdec, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE_DIR", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(b"x" * 1000)
    done = specdec("doctor", "--json")
    assert done.code == 0
    report = done.json
    assert report["cpu"]
    assert report["isa"] in report["available_isas"]
    threads = report["threads"]
    assert 1 <= threads["used"] <= threads["physical"] <= threads["affinity"]
    assert report["read_gb_per_s"] == 12.2
    assert set(report["packages"]) == {"torch", "bitsandbytes", "safetensors", "llguidance", "matplotlib"}
    assert report["directories"]["models"] == {
        "path": str(tmp_path / "models"),
        "exists": True,
        "bytes": 1000,
    }
    assert "native" in report["executors"]
    assert report["problems"] == []


def test_text(specdec):
    done = specdec("doctor")
    assert done.code == 0
    names = [line.split("  ")[0] for line in done.out.splitlines()]
    assert names[:7] == [
        "specdec",
        "cpu",
        "instruction set",
        "threads",
        "memory",
        "read bandwidth",
        "executors",
    ]
    assert "12.2 GB/s" in done.out


def test_a_machine_where_nothing_runs(specdec, monkeypatch):
    monkeypatch.setattr("specdec_cli.bench.machine.native_info", lambda: {"problem": "not built"})
    monkeypatch.setattr(doctor_module, "_packages", lambda: dict.fromkeys(doctor_module._PACKAGES))
    done = specdec("doctor")
    assert done.code == 1
    assert "problem: the native executor is not available: not built" in done.out
    assert "problem: no executor" in done.out


def test_scalar_kernels_are_a_problem():
    assert "scalar" in doctor_module._problems({"isa": "scalar"}, ["native"])[0]
    assert doctor_module._problems({"isa": "avx2"}, ["native"]) == []


def test_little_memory_leaves_the_bandwidth_open():
    assert doctor_module._bandwidth(lambda _: 9.99, 2, 1 << 20) is None
    assert doctor_module._bandwidth(lambda _: 9.99, 2, None) == 10.0


def test_gpus_come_from_nvidia_smi(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A card (UUID: x)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    gpu = doctor_module._gpu("2.13.0+cpu")
    assert gpu == {"nvidia_smi": str(tool), "devices": ["GPU 0: A card (UUID: x)"], "torch_build": "cpu"}


def test_heavy_packages_are_not_imported():
    code = (
        "import sys, json; from specdec_cli.cli.doctor import examine; examine();"
        "heavy = ('torch', 'bitsandbytes', 'matplotlib', 'tokenizers');"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
