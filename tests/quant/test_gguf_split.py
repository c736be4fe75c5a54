"""Split models: opened by their first shard, and case I12 (a piece alone says what is missing)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.errors import QuantError
from quant.gguf_file import GgufFile
from quant.reference import dequantize

OpenError = Callable[..., str]


@pytest.fixture
def shards(gguf_builder: Any, tmp_path: Path) -> list[Path]:
    """A model of three shards with one tensor each."""
    tensors = {f"w{i}": np.full((2, 8), i, np.float32) for i in range(3)}
    first = gguf_builder.write({"a": 1}, tensors, name="model.gguf", split_max_tensors=1)
    assert first == tmp_path / "model-00001-of-00003.gguf"
    return [tmp_path / f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


def split_file(
    gguf_builder: Any,
    name: str,
    *,
    number: Any,
    count: Any,
    tensor: str,
    total: Any = None,
    data: bytes = bytes(32),
) -> Path:
    """A shard with one tensor, made by hand."""
    raw, typed = gguf_builder.raw, gguf_builder.Typed
    entries = [
        raw.entry("split.no", typed(number, "UINT16")),
        raw.entry("split.count", typed(count, "UINT16")),
    ]
    if total is not None:
        entries.append(raw.entry("split.tensors.count", typed(total, "INT32")))
    head = raw.header(kv_count=len(entries), tensor_count=1) + b"".join(entries)
    return gguf_builder.write_bytes(raw.pad(head + raw.tensor_info(tensor, (8,), 0, 0)) + data, name)


def test_all_shards_open_as_one(shards: list[Path]) -> None:
    with GgufFile.open(shards[0]) as file:
        assert file.paths == tuple(shards)
        assert file.path == shards[0]
        assert file.file_size == sum(path.stat().st_size for path in shards)
        assert list(file.tensors) == ["w0", "w1", "w2"]
        assert [dequantize(t)[0, 0] for t in file.tensors.values()] == [0, 1, 2]
        assert file.metadata["a"] == 1
        whole = file.fingerprint()
    changed = bytearray(shards[2].read_bytes())
    changed[-1] ^= 1
    shards[2].write_bytes(changed)
    with GgufFile.open(shards[0]) as file:
        assert file.fingerprint() != whole


def test_i12_a_missing_shard_is_named(shards: list[Path], open_error: OpenError) -> None:
    shards[1].unlink()
    assert open_error(shards[0]) == "missing model-00002-of-00003.gguf (shard 2 of 3)"
    shards[2].unlink()
    assert open_error(shards[0]) == (
        "missing model-00002-of-00003.gguf (shard 2 of 3), model-00003-of-00003.gguf (shard 3 of 3)"
    )


def test_i12_another_than_the_first_shard(shards: list[Path], open_error: OpenError) -> None:
    expected = "shard 3 of 3 of a split model; give the first, model-00001-of-00003.gguf"
    assert open_error(shards[2]) == expected
    shards[0].unlink()
    assert open_error(shards[2]) == expected


def test_i12_a_renamed_shard(shards: list[Path], open_error: OpenError) -> None:
    renamed = shards[0].rename(shards[0].with_name("other.gguf"))
    assert open_error(renamed).startswith(
        "a split model of 3 shards, but the name does not end in -00001-of-00003.gguf"
    )
    wrong = renamed.rename(renamed.with_name("model-00001-of-00004.gguf"))
    assert open_error(wrong) == "named as a shard of 4, but split.count is 3"


def test_a_broken_shard_is_named(shards: list[Path]) -> None:
    data = shards[1].read_bytes()
    shards[1].write_bytes(data[:-1])
    with pytest.raises(
        QuantError, match=rf"^{shards[1]}: truncated: needs {len(data)} bytes, has {len(data) - 1}$"
    ):
        GgufFile.open(shards[0])
    shards[1].write_bytes(b"<!doctype html>")
    with pytest.raises(QuantError, match=rf"^{shards[1]}: not a GGUF file but an HTML page"):
        GgufFile.open(shards[0])


def test_shards_in_the_wrong_place(shards: list[Path]) -> None:
    shards[1].write_bytes(shards[2].read_bytes())
    with pytest.raises(QuantError, match=rf"^{shards[1]}: is not shard 2 of 3 of {shards[0]}$"):
        GgufFile.open(shards[0])


def test_shards_that_do_not_add_up(gguf_builder: Any, open_error: OpenError) -> None:
    first = split_file(gguf_builder, "m-00001-of-00002.gguf", number=0, count=2, tensor="a", total=3)
    split_file(gguf_builder, "m-00002-of-00002.gguf", number=1, count=2, tensor="b")
    assert open_error(first) == "the 2 shards hold 2 tensors, split.tensors.count says 3"
    split_file(gguf_builder, "m-00001-of-00002.gguf", number=0, count=2, tensor="a", total=2)
    split_file(gguf_builder, "m-00002-of-00002.gguf", number=1, count=2, tensor="a")
    assert open_error(first) == "tensor 'a' occurs in two shards"


def test_hostile_split_count(gguf_builder: Any, open_error: OpenError) -> None:
    """65535 shards that are not there: named in short."""
    first = split_file(gguf_builder, "m-00001-of-65535.gguf", number=0, count=65535, tensor="a")
    with pytest.raises(QuantError, match=r"missing m-00002-of-65535.gguf .* \(65534 in all\)$") as caught:
        GgufFile.open(first)
    assert len(str(caught.value)) < 500
    raw = gguf_builder.raw
    text = gguf_builder.write_bytes(raw.header(kv_count=1) + raw.entry("split.count", "2"))
    assert open_error(text) == "split.count is not an integer"


def test_one_shard_is_a_plain_file(gguf_builder: Any) -> None:
    path = split_file(gguf_builder, "m-00001-of-00001.gguf", number=0, count=1, tensor="a")
    with GgufFile.open(path) as file:
        assert list(file.tensors) == ["a"]


@pytest.mark.parametrize("stem", ["big.Q6_K.gguf.part{}of2", "big.Q6_K.gguf-part{}of2"])
def test_i12_raw_parts(gguf_builder: Any, open_error: OpenError, stem: str) -> None:
    whole = gguf_builder.write({}, {"w": np.ones(64, np.float32)}).read_bytes()
    first = gguf_builder.write_bytes(whole[:200], stem.format(1))
    message = open_error(first)
    assert message == f"part 1 of 2 of a file cut into pieces; missing: {stem.format(2)}"
    gguf_builder.write_bytes(whole[200:], stem.format(2))
    message = open_error(first)
    assert message.endswith(f"join them: cat {stem.format(1)} {stem.format(2)} > big.Q6_K.gguf")
    assert open_error(first.with_name(stem.format(2))).startswith(
        "part 2 of 2 of a file cut into pieces; join"
    )


def test_i12_raw_parts_by_letter(gguf_builder: Any, open_error: OpenError) -> None:
    path = gguf_builder.write_bytes(b"GGUF", "big.gguf-split-a")
    assert open_error(path) == (
        "piece 'a' of a file cut into pieces; join them: cat big.gguf-split-* > big.gguf"
    )
