"""Damaged files give QuantError or a file that can be read to its end: no other exception, no hang."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quant.errors import QuantError
from quant.gguf_checks import validate_tokenizer_metadata
from quant.gguf_file import GgufFile
from quant.reference import dequantize

NASTY = [0, 1, 4, 7, 31, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 1]


def look_at_everything(path: Path) -> None:
    with GgufFile.open(path) as file:
        for tensor in file.tensors.values():
            assert dequantize(tensor).size == tensor.num_elements
        file.fingerprint()
        assert isinstance(file.architecture, str)
        assert len(dict(file.metadata)) == len(file.metadata)
        validate_tokenizer_metadata(file.metadata)


def read_everything(path: Path) -> bool:
    """Open a file and look at all of it; False when QuantError says in one line that it is broken."""
    started = time.process_time()
    complaint = ""
    try:
        look_at_everything(path)
    except QuantError as error:
        complaint = str(error)
    assert complaint.isprintable()
    assert time.process_time() - started < 1.0
    return not complaint


@pytest.fixture
def sample(gguf_builder: Any) -> bytes:
    """A small valid file with every kind of entry."""
    raw = gguf_builder.raw
    entries = [
        raw.entry("general.architecture", "llama"),
        raw.entry("general.alignment", 32),
        raw.entry("tokenizer.ggml.tokens", ["a", "b", "été"]),
        raw.entry("tokenizer.ggml.scores", [0.0, 1.0, 2.0]),
        raw.entry("tokenizer.ggml.token_type", [1, 1, 3]),
        raw.entry("tokenizer.ggml.merges", ["a b"]),
        raw.entry("tokenizer.ggml.eos_token_id", 2),
        raw.entry("flags", [True, False]),
        raw.entry("flag", True),
        raw.kv("nested", 9, struct.pack("<IQIQ", 9, 1, 0, 2) + b"\1\2"),
        raw.entry("split.count", gguf_builder.Typed(1, "UINT16")),
    ]
    head = raw.header(kv_count=len(entries), tensor_count=3) + b"".join(entries)
    head += (
        raw.tensor_info("w", (32, 2), 8, 0)
        + raw.tensor_info("n", (8,), 0, 96)
        + raw.tensor_info("k", (256,), 12, 128)
    )
    return raw.pad(head) + np.random.default_rng(0).integers(0, 256, 128 + 144, dtype=np.uint8).tobytes()


def test_the_sample_is_valid(sample: bytes, gguf_builder: Any) -> None:
    assert read_everything(gguf_builder.write_bytes(sample))


def test_every_byte_of_the_header_changed(sample: bytes, gguf_builder: Any) -> None:
    outcomes = set()
    for position in range(len(sample) - 272):
        damaged = bytearray(sample)
        damaged[position] ^= (0x01, 0x80, 0xFF)[position % 3]
        outcomes.add(read_everything(gguf_builder.write_bytes(damaged)))
    assert outcomes == {True, False}


def test_every_word_of_the_header_replaced(sample: bytes, gguf_builder: Any) -> None:
    outcomes = set()
    for position in range(len(sample) - 272):
        for number in NASTY[position % 6 :: 6]:
            damaged = sample[:position] + struct.pack("<Q", number) + sample[position + 8 :]
            outcomes.add(read_everything(gguf_builder.write_bytes(damaged)))
    assert outcomes == {True, False}


def test_cut_at_every_byte(sample: bytes, gguf_builder: Any) -> None:
    for length in range(len(sample)):
        assert not read_everything(gguf_builder.write_bytes(sample[:length]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage(sample: bytes, gguf_builder: Any, data: st.DataObject) -> None:
    damaged = bytearray(sample)
    places = st.integers(0, len(sample) - 1)
    for position, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        damaged[position] = value
    for position, number in data.draw(st.lists(st.tuples(places, st.sampled_from(NASTY)), max_size=2)):
        damaged[position : position + 8] = struct.pack("<Q", number)
    start, length = data.draw(places), data.draw(st.integers(0, 40))
    if data.draw(st.booleans()):
        del damaged[start : start + length]
    read_everything(gguf_builder.write_bytes(bytes(damaged)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=300))
def test_random_bytes_after_the_magic(gguf_builder: Any, body: bytes) -> None:
    read_everything(gguf_builder.write_bytes(b"GGUF\x03\0\0\0" + body))


def test_a_large_hostile_file_takes_bounded_time(gguf_builder: Any, open_error: Callable[..., str]) -> None:
    """Millions of empty strings fit into a file of zeros; they are counted and refused, not read."""
    raw = gguf_builder.raw
    head = raw.header(kv_count=1) + raw.kv("key", 9, struct.pack("<IQ", 8, 1 << 23))
    path = gguf_builder.write_bytes(head)
    with path.open("r+b") as file:
        file.truncate(1 << 27)
    assert "more than the limit of" in open_error(path)
