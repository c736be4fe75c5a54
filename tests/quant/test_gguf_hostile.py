"""Broken and hostile files: cases I1 to I5, I8, I10, I11 and I13, each with its own message."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.errors import QuantError
from quant.gguf_file import GgufFile

OpenError = Callable[..., str]
ARRAY, STRING, UINT8, UINT32, BOOL = 9, 8, 0, 4, 7


def one_tensor(
    raw: Any, dims: tuple[int, ...], type_id: int = 0, offset: int = 0, data: bytes = b""
) -> bytes:
    head = raw.header(tensor_count=1) + raw.tensor_info("weight", dims, type_id, offset)
    return raw.pad(head) + data


def test_i1_array_of_2_63_elements_in_49_bytes(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    data = raw.header(kv_count=1) + raw.kv("k", ARRAY, struct.pack("<IQ", UINT8, 1 << 63))
    assert len(data) == 49
    message = open_error(data)
    assert message.startswith(f"corrupt: {1 << 63} elements in the array of metadata key 'k'")
    assert message.endswith("the file has 49")


@pytest.mark.parametrize("element_type", [0, 4, 7, 8, 9, 12])
@pytest.mark.parametrize("count", [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_i1_huge_array_of_any_type(
    gguf_builder: Any, open_error: OpenError, element_type: int, count: int
) -> None:
    raw = gguf_builder.raw
    data = raw.header(kv_count=1) + raw.kv("key", ARRAY, struct.pack("<IQ", element_type, count) + bytes(64))
    assert f"{count} elements in the array of metadata key 'key'" in open_error(data)


@pytest.mark.parametrize(("field", "what"), [("kv_count", "metadata keys"), ("tensor_count", "tensors")])
@pytest.mark.parametrize("count", [1000, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_i2_huge_counts(gguf_builder: Any, open_error: OpenError, field: str, what: str, count: int) -> None:
    message = open_error(gguf_builder.raw.header(**{field: count}) + bytes(100))
    assert f"{count} {what}" in message


@pytest.mark.parametrize("length", [200, 1 << 32, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("place", ["key", "value", "entry", "tensor"])
def test_i2_huge_string_length(gguf_builder: Any, open_error: OpenError, length: int, place: str) -> None:
    raw, size = gguf_builder.raw, struct.pack("<Q", length)
    text = size + bytes(64)
    data = {
        "key": raw.header(kv_count=1) + text,
        "value": raw.header(kv_count=1) + raw.kv("key", STRING, text),
        "entry": raw.header(kv_count=1)
        + raw.kv("key", ARRAY, struct.pack("<IQ", STRING, 2) + raw.string("a") + text),
        "tensor": raw.header(tensor_count=1) + text,
    }[place]
    message = open_error(data)
    assert message.startswith("corrupt: " if length > 1 << 46 else "truncated: needs at least ")
    assert ("tensor 0" if place == "tensor" else "metadata key") in message


def test_i2_nested_array_of_2_62_elements(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    inner = struct.pack("<IQ", UINT8, 1 << 62)
    data = raw.header(kv_count=1) + raw.kv("key", ARRAY, struct.pack("<IQ", ARRAY, 1) + inner)
    assert f"{1 << 62} elements in the array of metadata key 'key'" in open_error(data)
    outer = struct.pack("<IQ", ARRAY, 1 << 62)
    assert f"{1 << 62} elements" in open_error(
        raw.header(kv_count=1) + raw.kv("key", ARRAY, outer + bytes(64))
    )


def test_i2_deeply_nested_array(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    data = raw.header(kv_count=1) + raw.kv("key", ARRAY, struct.pack("<IQ", ARRAY, 1) * 5000)
    assert open_error(data) == "the array of metadata key 'key' is nested more than 8 deep"


@pytest.mark.parametrize("alignment", [0, 1, 3, 7, 24, 1 << 17, 1 << 30, (1 << 32) - 1])
def test_i3_bad_alignment(gguf_builder: Any, open_error: OpenError, alignment: int) -> None:
    raw = gguf_builder.raw
    data = raw.header(kv_count=1) + raw.entry("general.alignment", alignment)
    assert open_error(data) == f"general.alignment is {alignment}, not a power of two from 8 to 65536"


@pytest.mark.parametrize("value", [b"32", 32.0, True, [32]])
def test_i3_alignment_of_a_wrong_type(gguf_builder: Any, open_error: OpenError, value: Any) -> None:
    raw = gguf_builder.raw
    message = open_error(raw.header(kv_count=1) + raw.entry("general.alignment", value))
    assert message.startswith("general.alignment is ")
    assert message.endswith(", not UINT32")


def test_i3_offset_that_is_not_aligned(gguf_builder: Any, open_error: OpenError) -> None:
    data = one_tensor(gguf_builder.raw, (8,), offset=4, data=bytes(64))
    assert open_error(data) == "tensor 'weight' has offset 4, not a multiple of 32"


@pytest.mark.parametrize(
    "dims",
    [
        (1 << 32, 1 << 32),
        (1 << 16,) * 4,
        (1 << 63, 2),
        ((1 << 62) + 8,),
        ((1 << 64) - 1,),
        (1 << 40, 1 << 24, 1, 3),
    ],
)
def test_i4_dims_whose_product_wraps(gguf_builder: Any, open_error: OpenError, dims: tuple[int, ...]) -> None:
    message = open_error(one_tensor(gguf_builder.raw, dims, data=bytes(64)))
    assert message.startswith("corrupt: tensor 'weight' of shape ")


def test_i4_offsets_and_sizes_whose_sum_wraps(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    message = open_error(one_tensor(raw, (32,), offset=(1 << 64) - 128, data=bytes(128)))
    assert message.startswith("corrupt: tensor 'weight'")
    head = raw.header(tensor_count=2) + raw.tensor_info("a", (1 << 61,), 24, 0)
    head += raw.tensor_info("b", ((1 << 64) - (1 << 61) + 64,), 24, 1 << 61)
    assert open_error(raw.pad(head) + bytes(64)).startswith("corrupt: tensor 'b'")


def test_i4_zero_dimension(gguf_builder: Any, open_error: OpenError) -> None:
    assert open_error(one_tensor(gguf_builder.raw, (8, 0))) == "tensor 'weight' has a dimension of 0: [8, 0]"


@pytest.mark.parametrize(("type_id", "row"), [(2, 31), (8, 48), (12, 128), (14, 300), (41, 64)])
def test_i4_rows_that_are_no_multiple_of_a_block(
    gguf_builder: Any, open_error: OpenError, type_id: int, row: int
) -> None:
    message = open_error(one_tensor(gguf_builder.raw, (row, 4), type_id, data=bytes(4096)))
    assert message.startswith(f"tensor 'weight' has rows of {row} values, not a multiple of ")


@pytest.mark.parametrize("num_dims", [5, 9, 10**6, (1 << 32) - 1])
def test_i5_too_many_dimensions(gguf_builder: Any, open_error: OpenError, num_dims: int) -> None:
    raw = gguf_builder.raw
    data = raw.header(tensor_count=1) + raw.string("weight") + struct.pack("<I", num_dims) + bytes(256)
    assert open_error(data) == f"tensor 'weight' has {num_dims} dimensions, more than 4"


@pytest.mark.parametrize(
    ("type_id", "expected"),
    [
        (4, "tensor 'weight' has type Q4_2, which ggml removed: quantize the model again"),
        (31, "tensor 'weight' has type Q4_0_4_4, which ggml removed: it is Q4_0 repacked"),
        (999, "tensor 'weight' has unknown type id 999"),
        ((1 << 32) - 1, "tensor 'weight' has unknown type id 4294967295"),
    ],
)
def test_types_that_do_not_exist(
    gguf_builder: Any, open_error: OpenError, type_id: int, expected: str
) -> None:
    assert open_error(one_tensor(gguf_builder.raw, (32,), type_id, data=bytes(256))).startswith(expected)


def test_tensors_that_overlap(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    head = raw.header(tensor_count=2) + raw.tensor_info("b", (16,), 0, 32) + raw.tensor_info("a", (16,), 0, 0)
    assert open_error(raw.pad(head) + bytes(96)) == "tensors 'a' and 'b' overlap in the file"
    same = raw.header(tensor_count=2) + raw.tensor_info("a", (8,), 0, 0) + raw.tensor_info("b", (8,), 0, 0)
    assert open_error(raw.pad(same) + bytes(32)) == "tensors 'a' and 'b' overlap in the file"


def test_i8_empty_and_duplicate_names(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    assert open_error(raw.header(kv_count=1) + raw.entry("", 1)) == "metadata key 0 has an empty name"
    twice = raw.header(kv_count=2) + raw.entry("key", 1) + raw.entry("key", 2)
    assert open_error(twice) == "metadata key 'key' occurs twice"
    head = raw.header(tensor_count=1) + raw.tensor_info("", (8,), 0, 0)
    assert open_error(raw.pad(head) + bytes(32)) == "tensor 0 has an empty name"
    info = raw.tensor_info("weight", (8,), 0, 0)
    head = raw.header(tensor_count=2) + info + raw.tensor_info("weight", (8,), 0, 32)
    assert open_error(raw.pad(head) + bytes(64)) == "tensor 'weight' occurs twice"


def test_names_that_are_not_text_or_hostile(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    assert open_error(raw.header(kv_count=1) + raw.entry(b"k\xff", 1)) == (
        "the name of metadata key 0 is not UTF-8 text"
    )
    hostile = b"a\n\x1b[2J" + b"b" * 5000
    message = open_error(raw.header(kv_count=2) + raw.entry(hostile, 1) * 2)
    assert message.startswith(r"metadata key 'a\n\x1b[2Jbbb")
    assert len(message) < 200
    assert "more than the limit of 65535" in open_error(raw.header(kv_count=1) + raw.entry(b"k" * 70000, 1))


@pytest.mark.parametrize("type_id", [13, 255, (1 << 32) - 1])
def test_unknown_value_types(gguf_builder: Any, open_error: OpenError, type_id: int) -> None:
    raw = gguf_builder.raw
    scalar = raw.header(kv_count=1) + raw.kv("key", type_id, bytes(32))
    assert open_error(scalar) == f"metadata key 'key' has unknown value type {type_id}"
    array = raw.header(kv_count=1) + raw.kv("key", ARRAY, struct.pack("<IQ", type_id, 1) + bytes(32))
    assert open_error(array) == f"the array of metadata key 'key' has unknown element type {type_id}"


def test_bools_other_than_0_and_1(gguf_builder: Any, open_error: OpenError) -> None:
    raw = gguf_builder.raw
    assert "is a bool stored as 7" in open_error(raw.header(kv_count=1) + raw.kv("key", BOOL, b"\x07"))
    array = raw.kv("key", ARRAY, struct.pack("<IQ", BOOL, 3) + b"\0\1\2")
    assert "holds bools other than 0 and 1" in open_error(raw.header(kv_count=1) + array)


def test_limits_of_what_fits_into_a_large_file(
    gguf_builder: Any, open_error: OpenError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts that fit into the file but are absurd are refused before they are read."""
    raw = gguf_builder.raw
    monkeypatch.setattr("quant.gguf_parse.MAX_KEYS", 2)
    monkeypatch.setattr("quant.gguf_parse.MAX_TENSORS", 2)
    monkeypatch.setattr("quant.gguf_parse.MAX_ARRAY_ITEMS", 5)
    monkeypatch.setattr("quant.gguf_parse.MAX_FILE_STRINGS", 7)
    monkeypatch.setattr("quant.gguf_parse.MAX_NESTED_ITEMS", 4)
    monkeypatch.setattr("quant.gguf_parse.MAX_STRING_BYTES", 9)
    assert open_error(raw.header(kv_count=3) + bytes(999)) == "3 metadata keys, more than the limit of 2"
    assert open_error(raw.header(tensor_count=3) + bytes(999)) == "3 tensors, more than the limit of 2"
    one = raw.header(kv_count=1)
    assert "6 elements in the array" in open_error(one + raw.entry("key", [1] * 6))
    assert "more than 7 strings" in open_error(
        raw.header(kv_count=2) + raw.entry("a", ["x"] * 4) + raw.entry("b", ["x"] * 4)
    )
    assert "takes 10 bytes, more than the limit of 9" in open_error(one + raw.entry("key", "x" * 10))
    inner = struct.pack("<IQ", UINT8, 2) + b"\1\1"
    nested = raw.kv("key", ARRAY, struct.pack("<IQ", ARRAY, 2) + inner * 2)
    assert "more than 4 items in nested arrays" in open_error(one + nested)


@pytest.fixture
def valid_bytes(gguf_builder: Any) -> bytes:
    """A valid file whose last byte belongs to a tensor."""
    tensors = {
        "a": np.ones((4, 32), np.float32),
        "b": (np.ones((8, 64)), "Q8_0"),
        "c": np.ones(8, np.float32),
    }
    return gguf_builder.write({"tokenizer.ggml.tokens": ["x", "yy"], "n": 3}, tensors).read_bytes()


def test_i10_file_cut_in_the_data(valid_bytes: bytes, open_error: OpenError) -> None:
    total = len(valid_bytes)
    for cut in (total // 2, total * 99 // 100, total - 1):
        assert open_error(valid_bytes[:cut]) == f"truncated: needs {total} bytes, has {cut}"


def test_i10_file_cut_anywhere_in_the_header(valid_bytes: bytes, open_error: OpenError) -> None:
    for cut in range(4, 300, 7):
        message = open_error(valid_bytes[:cut])
        assert message.startswith("truncated: needs ")
        assert f" bytes, has {cut}" in message


def test_i10_a_missing_last_padding_is_no_truncation(gguf_builder: Any) -> None:
    path = gguf_builder.write({}, {"a": np.ones(3, np.float32)})
    path.write_bytes(path.read_bytes()[:-20])
    with GgufFile.open(path) as file:
        assert file.tensors["a"].data.view("<f4").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html><html><body>404</body></html>",
        b"\xef\xbb\xbf\r\n  <html lang='en'>",
        b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
        b"<HTML>" + bytes(4096),
    ],
)
def test_i11_html_page(open_error: OpenError, data: bytes) -> None:
    assert open_error(data).startswith("not a GGUF file but an HTML page: ")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "the file is empty"),
        (b"abc", "not a GGUF file: only 3 bytes"),
        (b"GGU", "not a GGUF file: only 3 bytes"),
        (b"GGUF", "truncated: needs at least 24 bytes, has 4"),
        (b"GGUF\x03\0\0\0", "truncated: needs at least 24 bytes, has 8"),
        (b"\x93NUMPY" + bytes(99), "not a GGUF file: begins with b'\\x93NUM'"),
        (b"PK\x03\x04" + bytes(99), "not a GGUF file but a zip archive (perhaps a PyTorch checkpoint)"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00",
            "not a GGUF file but a Git LFS pointer, the file itself was not downloaded",
        ),
    ],
)
def test_i11_other_files(open_error: OpenError, data: bytes, expected: str) -> None:
    assert open_error(data) == expected


@pytest.mark.parametrize("magic", [b"GGML", b"lmgg", b"fmgg", b"tjgg"])
def test_i11_old_magic(open_error: OpenError, magic: bytes) -> None:
    assert open_error(magic + bytes(99)).startswith("not a GGUF file but its predecessor GGML, ")


@pytest.mark.parametrize("version", [0, 1, 4, 99, (1 << 32) - 1])
def test_i11_versions(gguf_builder: Any, open_error: OpenError, version: int) -> None:
    message = open_error(gguf_builder.raw.header(version=version))
    assert message.startswith(f"unsupported GGUF version {version}, versions 2 and 3 are supported (")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_i11_big_endian(gguf_builder: Any, open_error: OpenError, version: int) -> None:
    message = open_error(gguf_builder.raw.header(version=version, endian=">"))
    assert message == "a big-endian GGUF file; only little-endian ones are supported"


def test_i11_version_2_is_accepted(gguf_builder: Any) -> None:
    raw = gguf_builder.raw
    head = raw.header(version=2, kv_count=1, tensor_count=1)
    head += raw.entry("general.architecture", "llama") + raw.tensor_info("weight", (2, 3), 0, 0)
    values = np.arange(6, dtype=np.float32)
    with GgufFile.open(gguf_builder.write_bytes(raw.pad(head) + values.tobytes())) as file:
        assert file.version == 2
        assert file.architecture == "llama"
        assert file.tensors["weight"].shape == (3, 2)
        assert np.array_equal(file.tensors["weight"].data.view("<f4"), values)


@pytest.mark.parametrize("arch", ["some-new-model", "", "flux", "sd3", None])
def test_i13_any_architecture_can_be_read(gguf_builder: Any, arch: str | None) -> None:
    """What is not supported is for the models to say; the file itself is in order."""
    raw = gguf_builder.raw
    entries = raw.entry("general.architecture", arch) if arch is not None else raw.entry("other", 1)
    with GgufFile.open(gguf_builder.write_bytes(raw.header(kv_count=1) + entries)) as file:
        assert file.architecture == (arch or "")


def test_i13_architecture_that_is_no_text(gguf_builder: Any) -> None:
    raw = gguf_builder.raw
    path = gguf_builder.write_bytes(raw.header(kv_count=1) + raw.entry("general.architecture", 5))
    with (
        GgufFile.open(path) as file,
        pytest.raises(QuantError, match=r"general\.architecture is not text but '5'"),
    ):
        _ = file.architecture


def test_paths_that_are_no_files(tmp_path: Path, open_error: OpenError) -> None:
    assert open_error(tmp_path / "absent.gguf") == "cannot be opened: No such file or directory"
    assert open_error(tmp_path) == "is a directory, not a GGUF file"
    os.mkfifo(tmp_path / "pipe.gguf")
    assert open_error(tmp_path / "pipe.gguf") == "is not a regular file"


def test_text_that_is_not_utf8(gguf_builder: Any) -> None:
    """A stray byte in a description is shown as such; in a list of tokens it is an error."""
    raw = gguf_builder.raw
    head = (
        raw.header(kv_count=2)
        + raw.entry("general.author", b"Andr\xe9")
        + raw.entry("tokens", [b"ok", b"\xff"])
    )
    with GgufFile.open(gguf_builder.write_bytes(head)) as file:
        assert file.metadata["general.author"] == "Andr\ufffd"
        assert file.metadata.array_length("tokens") == 2
        with pytest.raises(QuantError, match=r"^metadata key 'tokens': entry 1 is not UTF-8 text$"):
            _ = file.metadata["tokens"]
