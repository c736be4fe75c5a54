"""Writing GGUF files: what is read back, by us and by the gguf package; failures leave nothing behind."""

import errno
import math
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quant.errors import QuantError
from quant.gguf_file import GgufFile
from quant.gguf_writer import TensorEntry, TypedValue, typed_metadata, write_gguf
from quant.requantize import quantize
from quant.tensor import QuantTensor
from quant.types import BY_NAME, F32

METADATA = {
    "general.architecture": TypedValue("STRING", "llama"),
    "a.u8": TypedValue("UINT8", 255),
    "a.i8": TypedValue("INT8", -128),
    "a.u16": TypedValue("UINT16", 65535),
    "a.i16": TypedValue("INT16", -1),
    "a.u32": TypedValue("UINT32", 2**32 - 1),
    "a.i32": TypedValue("INT32", -(2**31)),
    "a.u64": TypedValue("UINT64", 2**64 - 1),
    "a.i64": TypedValue("INT64", -(2**63)),
    "a.f32": TypedValue("FLOAT32", 1.5),
    "a.f64": TypedValue("FLOAT64", 0.1),
    "a.true": TypedValue("BOOL", True),
    "a.text": TypedValue("STRING", "Grüße\n\0"),
    "a.empty": TypedValue("ARRAY[STRING]", []),
    "a.texts": TypedValue("ARRAY[STRING]", ["", "Ġthe", "▁"]),
    "a.ids": TypedValue("ARRAY[INT32]", [1, -1, 0]),
    "a.scores": TypedValue("ARRAY[FLOAT32]", [0.5, -math.inf]),
    "a.bools": TypedValue("ARRAY[BOOL]", [True, False]),
}


def entry(tensor: QuantTensor) -> TensorEntry:
    return TensorEntry(tensor.name, tensor.qtype, tensor.shape, lambda: tensor)


def tensors() -> list[QuantTensor]:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((3, 256)).astype(np.float32)
    return [
        quantize(values, BY_NAME["Q4_K"], name="matrix"),
        quantize(values[0, :5], F32, name="vector"),  # 20 bytes: padding follows
        quantize(values.reshape(2, 3, 128), BY_NAME["Q8_0"], name="cube"),
    ]


@pytest.mark.parametrize("alignment", [None, 256])
def test_read_back_as_written(tmp_path: Path, alignment: int | None) -> None:
    metadata = dict(METADATA)
    if alignment is not None:
        metadata["general.alignment"] = TypedValue("UINT32", alignment)
    path = tmp_path / "out.gguf"
    size = write_gguf(path, metadata, [entry(tensor) for tensor in tensors()])
    assert path.stat().st_size == size
    with GgufFile.open(path) as file:
        assert typed_metadata(file.metadata) == metadata
        assert list(file.tensors) == ["matrix", "vector", "cube"]
        for written in tensors():
            read = file.tensors[written.name]
            assert (read.qtype, read.shape) == (written.qtype, written.shape)
            assert (read.data == written.data).all()


def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    from gguf import GGUFReader

    path = tmp_path / "out.gguf"
    metadata = {key: value for key, value in METADATA.items() if value.value != []}  # it cannot read those
    write_gguf(path, metadata, [entry(tensor) for tensor in tensors()])
    reader = GGUFReader(path)
    for key, expected in metadata.items():
        assert reader.fields[key].contents() == expected.value
    for read, written in zip(reader.tensors, tensors(), strict=True):
        assert (read.name, read.tensor_type.name) == (written.name, written.qtype.name)
        assert tuple(reversed(read.shape.tolist())) == written.shape
        assert (np.asarray(read.data).view(np.uint8).reshape(-1) == written.data).all()


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    def make() -> QuantTensor:
        return QuantTensor("t", F32, (1 << 18,), np.zeros(1 << 20, np.uint8))

    entries = [TensorEntry(f"t{i}", F32, (1 << 18,), make) for i in range(16)]
    tracemalloc.start()
    try:
        size = write_gguf(tmp_path / "out.gguf", METADATA, entries)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 16 << 20
    assert peak < 4 << 20


def test_progress_ends_at_the_size(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    entries = [entry(tensor) for tensor in tensors()]
    size = write_gguf(
        tmp_path / "out.gguf", METADATA, entries, progress=lambda done, total: calls.append((done, total))
    )
    assert len(calls) == 3
    assert calls == sorted(calls)
    assert calls[-1] == (size, size)


def failing(error: BaseException) -> TensorEntry:
    def make() -> QuantTensor:
        raise error

    return TensorEntry("bad", F32, (4,), make)


@pytest.mark.parametrize("error", [QuantError("tensor 'bad' is odd"), KeyboardInterrupt(), MemoryError()])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out.gguf"
    with pytest.raises(type(error)):
        write_gguf(path, METADATA, [entry(tensors()[0]), failing(error)])
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, METADATA, [failing(KeyboardInterrupt())], overwrite=True)
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


def test_replacing_a_file_that_is_the_source(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, METADATA, [entry(tensor) for tensor in tensors()])
    with GgufFile.open(path) as file:
        metadata = typed_metadata(file.metadata)
        write_gguf(path, metadata, [entry(tensor) for tensor in file.tensors.values()], overwrite=True)
        assert (file.tensors["matrix"].data == tensors()[0].data).all()  # the old file, still mapped
    with GgufFile.open(path) as file:
        assert (file.tensors["cube"].data == tensors()[2].data).all()


def test_existing_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(QuantError, match=r"out\.gguf: exists already$"):
        write_gguf(path, METADATA, [])
    assert path.read_bytes() == b"precious"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"

    def make() -> QuantTensor:
        path.write_bytes(b"precious")
        return tensors()[0]

    with pytest.raises(QuantError, match="exists already"):
        write_gguf(path, METADATA, [TensorEntry("matrix", BY_NAME["Q4_K"], (3, 256), make)])
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (lambda d: d, "is a directory$"),
        (lambda d: d / "no" / "out.gguf", r"the directory .*no does not exist$"),
        (lambda _: Path("/dev/null"), "exists and is not a regular file$"),
    ],
)
def test_places_where_no_file_can_be(tmp_path: Path, place: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(QuantError, match=message):
        write_gguf(place(tmp_path), METADATA, [], overwrite=True)


def test_a_full_disk_is_noticed_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(QuantError, match=r"not enough disk space: needs \d+ bytes, 100 are free$"):
        write_gguf(tmp_path / "out.gguf", METADATA, [failing(AssertionError("made"))])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "the disk or quota is full"), (errno.EIO, "Input/output error")]
)
def test_errors_of_the_disk_name_the_file(tmp_path: Path, number: int, reason: str) -> None:
    with pytest.raises(QuantError, match=rf"out\.gguf: cannot be written: {reason}$"):
        write_gguf(tmp_path / "out.gguf", METADATA, [failing(OSError(number, reason))])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (TypedValue("UINT8", 256), "UINT8"),
        (TypedValue("UINT32", "text"), "UINT32"),
        (TypedValue("STRING", 5), "STRING"),
        (TypedValue("ARRAY[INT32]", 5), r"ARRAY\[INT32\]"),
        (TypedValue("ARRAY[ARRAY]", [[1]]), "arrays of arrays cannot be written"),
        (TypedValue("COMPLEX", 1), "unknown type COMPLEX"),
    ],
)
def test_values_that_do_not_fit_name_the_key(tmp_path: Path, value: TypedValue, problem: str) -> None:
    with pytest.raises(QuantError, match=rf"out\.gguf: metadata key 'some\.key' is no .*{problem}"):
        write_gguf(tmp_path / "out.gguf", {"some.key": value}, [])


def test_types_that_files_do_not_have_are_named(tmp_path: Path) -> None:
    from dataclasses import replace

    own = replace(BY_NAME["Q4_0"], name="NF4", ggml_id=None)
    with pytest.raises(QuantError, match=r"GGUF files have no type NF4 \(tensor 't'\)$"):
        write_gguf(tmp_path / "out.gguf", METADATA, [TensorEntry("t", own, (32,), lambda: tensors()[0])])


def test_a_tensor_made_otherwise_than_planned_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not as planned"):
        write_gguf(tmp_path / "out.gguf", METADATA, [TensorEntry("t", F32, (4,), lambda: tensors()[0])])
    assert list(tmp_path.iterdir()) == []


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "out.gguf"
    plain.touch()
    write_gguf(path, METADATA, [])
    assert path.stat().st_mode == plain.stat().st_mode
