"""Reading valid files: metadata of every type, tensors as views, fingerprint; and the real models."""

import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.errors import QuantError
from quant.gguf_file import GgufFile
from quant.gguf_metadata import Metadata
from quant.reference import dequantize
from quant.types import BY_NAME

ALIASES = ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma3-270m"]

METADATA = {
    "u8": ("UINT8", 255),
    "i8": ("INT8", -128),
    "u16": ("UINT16", 65535),
    "i16": ("INT16", -32768),
    "u32": ("UINT32", (1 << 32) - 1),
    "i32": ("INT32", -(1 << 31)),
    "f32": ("FLOAT32", 0.25),
    "bool": ("BOOL", True),
    "text": ("STRING", "été 🙂\n"),
    "u64": ("UINT64", (1 << 64) - 1),
    "i64": ("INT64", -(1 << 63)),
    "f64": ("FLOAT64", 0.1),
}


def test_scalars_of_every_type(gguf_builder: Any) -> None:
    values = {key: gguf_builder.Typed(value, name) for key, (name, value) in METADATA.items()}
    with GgufFile.open(gguf_builder.write(values)) as file:
        assert list(file.metadata) == ["general.architecture", *METADATA]
        for key, (name, value) in METADATA.items():
            assert file.metadata[key] == value
            assert type(file.metadata[key]) is type(value)
            assert file.metadata.type_name(key) == name


def test_arrays_of_every_type(gguf_builder: Any) -> None:
    values = {key: gguf_builder.Typed([value] * 3, name) for key, (name, value) in METADATA.items()}
    with GgufFile.open(gguf_builder.write(values)) as file:
        for key, (name, value) in METADATA.items():
            assert file.metadata.array_length(key) == 3
            assert file.metadata[key] == [value] * 3
            assert {type(item) for item in file.metadata[key]} == {type(value)}
            assert file.metadata.type_name(key) == f"ARRAY[{name}]"
            assert file.metadata[key] is file.metadata[key]


def test_empty_and_nested_arrays(gguf_builder: Any) -> None:
    raw = gguf_builder.raw
    u8 = struct.pack("<IQ", 0, 2) + b"\x01\x02"
    strings = struct.pack("<IQ", 8, 1) + raw.string("x")
    data = raw.header(kv_count=4)
    data += raw.entry("none", []) + raw.kv("no numbers", 9, struct.pack("<IQ", 4, 0))
    data += raw.kv("nested", 9, struct.pack("<IQ", 9, 3) + u8 + strings + struct.pack("<IQ", 9, 1) + u8)
    data += raw.entry("after", 7)
    with GgufFile.open(gguf_builder.write_bytes(data)) as file:
        assert file.metadata["none"] == file.metadata["no numbers"] == []
        assert file.metadata["nested"] == [[1, 2], ["x"], [[1, 2]]]
        assert file.metadata.type_name("nested") == "ARRAY[ARRAY]"
        assert file.metadata.array_length("nested") == 3
        assert file.metadata["after"] == 7


def test_metadata_is_a_mapping(gguf_builder: Any) -> None:
    with GgufFile.open(gguf_builder.write({"a": 1, "list": ["x"]})) as file:
        metadata = file.metadata
    assert isinstance(metadata, Metadata)
    assert dict(metadata) == {"general.architecture": "llama", "a": 1, "list": ["x"]}
    assert "list" in metadata
    assert "absent" not in metadata
    assert metadata.get("absent", 5) == 5
    assert len(metadata) == 3
    with pytest.raises(KeyError):
        _ = metadata["absent"]
    with pytest.raises(QuantError, match="metadata key 'a' is UINT32, not an array"):
        metadata.array_length("a")


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_tensors_of_several_types(gguf_builder: Any, alignment: int | None) -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((6, 64)).astype(np.float32)
    packed = rng.integers(0, 64, 2 * 210, dtype=np.uint8).tobytes()
    given = {
        "f32": matrix,
        "f16": matrix.astype(np.float16),
        "cube": matrix.reshape(3, 2, 64),
        "i32": np.arange(5, dtype=np.int32),
        "q8": (matrix, "Q8_0"),
        "q6": gguf_builder.Packed(packed, (1, 512), "Q6_K"),
    }
    with GgufFile.open(gguf_builder.write({}, given, alignment=alignment)) as file:
        tensors = file.tensors
        assert list(tensors) == list(given)
        assert {name: t.qtype.name for name, t in tensors.items()} == {
            "f32": "F32", "f16": "F16", "cube": "F32", "i32": "I32", "q8": "Q8_0", "q6": "Q6_K",
        }  # fmt: skip
        assert np.array_equal(dequantize(tensors["f32"]), matrix)
        assert np.array_equal(dequantize(tensors["cube"]), matrix.reshape(3, 2, 64))
        assert np.array_equal(dequantize(tensors["f16"]), matrix.astype(np.float16))
        assert dequantize(tensors["i32"]).tolist() == [0, 1, 2, 3, 4]
        assert np.abs(dequantize(tensors["q8"]) - matrix).max() < np.abs(matrix).max() / 127
        assert tensors["q6"].data.tobytes() == packed
        assert tensors["q6"].shape == (1, 512)


def test_a_tensor_without_dimensions_is_one_number(gguf_builder: Any) -> None:
    raw = gguf_builder.raw
    head = raw.pad(raw.header(tensor_count=1) + raw.tensor_info("scale", (), 0, 0))
    with GgufFile.open(gguf_builder.write_bytes(head + struct.pack("<f", 2.5))) as file:
        assert file.tensors["scale"].shape == (1,)
        assert dequantize(file.tensors["scale"]).tolist() == [2.5]


def test_tensors_may_lie_in_any_order_with_gaps(gguf_builder: Any) -> None:
    raw = gguf_builder.raw
    head = raw.header(tensor_count=2)
    head += raw.tensor_info("late", (4,), 0, 96) + raw.tensor_info("early", (4,), 0, 0)
    values = np.arange(28, dtype=np.float32)
    with GgufFile.open(gguf_builder.write_bytes(raw.pad(head) + values.tobytes())) as file:
        assert dequantize(file.tensors["late"]).tolist() == [24, 25, 26, 27]
        assert dequantize(file.tensors["early"]).tolist() == [0, 1, 2, 3]


def test_data_are_read_only_views_that_outlive_the_file(gguf_builder: Any) -> None:
    path = gguf_builder.write({"tokens": ["a", "b"]}, {"w": np.arange(8, dtype=np.float32)})
    with GgufFile.open(path) as file:
        tensor, metadata = file.tensors["w"], file.metadata
        assert not tensor.data.flags.writeable
        assert not tensor.data.flags.owndata
        assert file.file_size == path.stat().st_size
        assert file.path == path
        assert file.paths == (path,)
        with pytest.raises(TypeError):
            file.tensors["x"] = tensor  # type: ignore[index]
    assert not file.tensors
    assert dequantize(tensor).tolist() == list(range(8))
    assert metadata["tokens"] == ["a", "b"]


def test_fingerprint(gguf_builder: Any, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)

    def fingerprint(path: Path) -> str:
        with GgufFile.open(path) as file:
            value = file.fingerprint()
            assert file.fingerprint() is value
        assert file.fingerprint() is value, "known after closing"
        return value

    path = gguf_builder.write({"a": 1}, {"w": weights})
    first = fingerprint(path)
    assert len(bytes.fromhex(first)) == 32
    assert fingerprint(shutil.copy(path, tmp_path / "copy.gguf")) == first
    others = {
        fingerprint(gguf_builder.write({"a": 2}, {"w": weights})),
        fingerprint(gguf_builder.write({"a": 1}, {"v": weights})),
        fingerprint(gguf_builder.write({"a": 1}, {"w": weights + 1})),
        fingerprint(gguf_builder.write({"a": 1}, {"w": weights.reshape(512, 256)})),
        fingerprint(gguf_builder.write({"a": 1}, {"w": weights.astype(np.float16)})),
    }
    assert len(others | {first}) == 6
    changed_end = bytearray(path.read_bytes())
    changed_end[-1] ^= 1
    assert fingerprint(gguf_builder.write_bytes(bytes(changed_end))) != first


def test_fingerprint_of_a_closed_file(gguf_builder: Any) -> None:
    file = GgufFile.open(gguf_builder.write())
    file.close()
    file.close()
    with pytest.raises(QuantError, match="has been closed"):
        file.fingerprint()


@pytest.mark.real
@pytest.mark.parametrize("alias", ALIASES)
def test_real_models_open_fast(alias: str, model_path: Callable[[str], Path]) -> None:
    path = model_path(alias)
    elapsed = []
    for _ in range(3):
        started = time.perf_counter()
        with GgufFile.open(path) as file:
            tokens = file.metadata["tokenizer.ggml.tokens"]
            file.metadata.get("tokenizer.ggml.merges")
        elapsed.append(time.perf_counter() - started)
    assert len(tokens) > 40_000
    assert min(elapsed) < 0.3


@pytest.mark.real
@pytest.mark.parametrize("alias", ALIASES)
def test_real_models_hold_what_they_should(alias: str, model_path: Callable[[str], Path]) -> None:
    with GgufFile.open(model_path(alias)) as file:
        assert file.version == 3
        assert file.architecture == {"s": "llama", "q": "qwen2", "g": "gemma3"}[alias[0]]
        layers = file.metadata[f"{file.architecture}.block_count"]
        assert sum(name.endswith(".attn_q.weight") for name in file.tensors) == layers
        embedding = file.tensors["token_embd.weight"]
        assert embedding.shape[0] == len(file.metadata["tokenizer.ggml.tokens"])
        assert embedding.shape[1] == file.metadata[f"{file.architecture}.embedding_length"]
        covered = sum(tensor.num_bytes for tensor in file.tensors.values())
        assert 0.95 * file.file_size < covered < file.file_size
        norm = dequantize(file.tensors["output_norm.weight"])
        assert np.isfinite(norm).all()
        assert len({file.fingerprint(), "x"}) == 2


@pytest.mark.real
def test_equals_the_reader_of_the_gguf_package(model_path: Callable[[str], Path]) -> None:
    from gguf import GGUFReader

    path = model_path("smollm2-135m")
    theirs = GGUFReader(path)
    with GgufFile.open(path) as ours:
        fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, field in fields.items():
            assert ours.metadata[key] == field.contents(), key
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            mine = ours.tensors[tensor.name]
            assert mine.qtype == BY_NAME[tensor.tensor_type.name]
            assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
            assert np.array_equal(mine.data, np.asarray(tensor.data).reshape(-1).view(np.uint8))
