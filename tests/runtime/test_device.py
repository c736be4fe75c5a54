"""What the machine offers."""

import pytest

from specdec_cli.errors import UsageError
from specdec_cli.runtime import device


@pytest.fixture
def files(monkeypatch):
    """Contents of the system's files, by path."""
    contents: dict[str, str] = {}
    monkeypatch.setattr(device, "_read", lambda path: contents.get(str(path)))
    return contents


def test_hyperthreads_of_a_core_count_once(files, monkeypatch):
    monkeypatch.setattr(device, "_affinity", lambda: [0, 1, 4, 5])
    for cpu, siblings in ((0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5")):
        files[f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = siblings
    assert device.usable_cores() == 2


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("900000 100000", 8)]
)
def test_m4_a_cgroup_limits_the_cores(files, monkeypatch, limit, cores):
    monkeypatch.setattr(device, "_affinity", lambda: list(range(8)))
    files["/sys/fs/cgroup/cpu.max"] = limit
    assert device.usable_cores() == cores


def test_available_memory_is_the_smaller_of_the_machines_and_the_cgroups(files):
    assert device.available_memory() is None
    files["/proc/meminfo"] = "MemTotal: 900 kB\nMemAvailable:    500 kB\n"
    assert device.available_memory() == 500 * 1024
    files["/sys/fs/cgroup/memory.max"] = "300000"
    files["/sys/fs/cgroup/memory.current"] = "100000"
    assert device.available_memory() == 200000
    files["/sys/fs/cgroup/memory.max"] = "max"
    assert device.available_memory() == 500 * 1024


def test_this_machine_has_a_core():
    assert device.usable_cores() >= 1


def test_unknown_devices_are_refused_by_name():
    assert device.check_device("cpu") == "cpu"
    with pytest.raises(UsageError, match='device "cuda:0" is not available; available are cpu'):
        device.check_device("cuda:0")
