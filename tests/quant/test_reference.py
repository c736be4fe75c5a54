"""Dequantization: by hand, against values computed by ggml, and against the gguf package."""

import hashlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from quant.errors import QuantError
from quant.reference import dequantize, dequantize_rows
from quant.tensor import QuantTensor
from quant.types import BY_NAME, QuantType

GGML_VALUES = json.loads((Path(__file__).parent / "data" / "ggml_values.json").read_text())["types"]
NOT_IN_GGUF_PACKAGE = {"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K", "Q1_0", "Q2_0"}
BuildTensor = Callable[..., QuantTensor]


def f16(value: float) -> bytes:
    return np.float16(value).tobytes()


def values_of(type_name: str, packed: bytes) -> list[float]:
    qtype = BY_NAME[type_name]
    shape = (len(packed) // qtype.block_bytes * qtype.block_size,)
    values = dequantize(QuantTensor("t", qtype, shape, np.frombuffer(packed, np.uint8)))
    assert values.dtype == np.float32
    assert values.shape == shape
    return values.tolist()


def test_q4_0_by_hand() -> None:
    """Low nibbles are values 0 to 15, high nibbles 16 to 31, both with an offset of 8."""
    values = values_of("Q4_0", f16(0.5) + bytes([0x0F, 0xF0, 0x98, *[0x88] * 13]))
    assert values[:4] == [3.5, -4.0, 0.0, 0.0]
    assert values[16:20] == [-4.0, 3.5, 0.5, 0.0]
    assert values[3:16] == values[19:32] == [0.0] * 13


def test_q8_0_by_hand() -> None:
    values = values_of("Q8_0", f16(-2.0) + np.arange(-16, 16, dtype=np.int8).tobytes())
    assert values == [-2.0 * i for i in range(-16, 16)]


def test_q4_k_by_hand() -> None:
    """Eight sub-blocks of 32 with 6-bit scale and minimum: d * scale * q - dmin * minimum.

    Scales 0 to 3 lie in bytes 0 to 3, minima 0 to 3 in bytes 4 to 7; scales and minima 4 to 7 have their low
    nibbles in bytes 8 to 11 and their upper two bits in the upper bits of bytes 0 to 7.
    """
    scales = [1, 2, 3, 4, 17, 34, 51, 63]
    minima = [5, 6, 7, 8, 0, 16, 33, 63]
    packed = [scales[i] | (scales[i + 4] >> 4) << 6 for i in range(4)]
    packed += [minima[i] | (minima[i + 4] >> 4) << 6 for i in range(4)]
    packed += [scales[i + 4] & 15 | (minima[i + 4] & 15) << 4 for i in range(4)]
    codes = [[(7 * block + i) % 16 for i in range(32)] for block in range(8)]
    nibbles = [codes[2 * p][i] | codes[2 * p + 1][i] << 4 for p in range(4) for i in range(32)]
    values = values_of("Q4_K", f16(0.25) + f16(2.0) + bytes(packed) + bytes(nibbles))
    assert values == [0.25 * scales[b] * codes[b][i] - 2.0 * minima[b] for b in range(8) for i in range(32)]


def test_q6_k_by_hand() -> None:
    """Sixteen sub-blocks of 16 with int8 scales; 4 low bits and 2 high bits per value, offset 32.

    Each half of 128 values has 64 bytes of low bits: low nibbles of bytes 0-31, of bytes 32-63, then their
    high nibbles; and 32 bytes of high bits, two per quarter.
    """
    codes = [(11 * i + 3) % 64 for i in range(256)]
    scales = [3 * j - 20 for j in range(16)]
    low, high = bytearray(128), bytearray(64)
    for index, code in enumerate(codes):
        half, quarter, i = index // 128, index % 128 // 32, index % 32
        low[64 * half + 32 * (quarter % 2) + i] |= (code & 15) << (4 * (quarter // 2))
        high[32 * half + i] |= (code >> 4) << (2 * quarter)
    packed = bytes(low) + bytes(high) + np.array(scales, np.int8).tobytes() + f16(0.5)
    assert values_of("Q6_K", packed) == [0.5 * scales[i // 16] * (codes[i] - 32) for i in range(256)]


def test_q8_1_by_hand() -> None:
    """Scale and sum, both float16; the sum does not enter."""
    codes = np.arange(-10, 22, dtype=np.int8)
    assert values_of("Q8_1", f16(0.5) + f16(99.0) + codes.tobytes()) == (0.5 * codes).tolist()


def test_q8_k_by_hand() -> None:
    codes = np.arange(-128, 128).astype(np.int8)
    packed = np.float32(0.125).tobytes() + codes.tobytes() + np.full(16, 77, np.int16).tobytes()
    assert values_of("Q8_K", packed) == (0.125 * codes.astype(float)).tolist()


def test_q1_0_by_hand() -> None:
    values = values_of("Q1_0", f16(3.0) + bytes([0b0000_0101, *[0] * 14, 0b1000_0000]))
    assert values == [3.0 if i in (0, 2, 127) else -3.0 for i in range(128)]


def test_q2_0_by_hand() -> None:
    values = values_of("Q2_0", f16(0.5) + bytes([0b11_10_01_00, *[0b01_01_01_01] * 15]))
    assert values == [-0.5, 0.0, 0.5, 1.0] + [0.0] * 60


@pytest.mark.parametrize(
    ("type_name", "dtype", "given"),
    [
        ("F16", "<f2", [0.0, -1.5, 65504.0, 6e-8]),
        ("F64", "<f8", [1 / 3, -1e-300, 1e300, 2.5]),
        ("F32", "<f4", [1 / 3, -0.0, 1e38, 1e-45]),
        ("I8", "<i1", [-128, 127, 0, 1]),
        ("I16", "<i2", [-32768, 32767, 0, 1]),
        ("I32", "<i4", [-(1 << 31), (1 << 31) - 1, 16777217, 1]),
        ("I64", "<i8", [-(1 << 63), 1 << 40, 0, 1]),
    ],
)
def test_plain_types(type_name: str, dtype: str, given: list[float]) -> None:
    packed = np.array(given, dtype)
    with np.errstate(over="ignore"):
        expected = packed.astype(np.float32)
    assert values_of(type_name, packed.tobytes()) == expected.tolist()


def test_bf16_is_the_upper_half_of_a_float32() -> None:
    exact = np.array([1.0, -2.5, 3.140625, 2.0**-120], np.float32)
    assert values_of("BF16", (exact.view("<u4") >> 16).astype("<u2").tobytes()) == exact.tolist()


@pytest.mark.parametrize("type_name", list(GGML_VALUES))
def test_equals_ggml_bit_for_bit(type_name: str) -> None:
    known = GGML_VALUES[type_name]
    packed = np.frombuffer(bytes.fromhex(known["packed"]), np.uint8)
    qtype = BY_NAME[type_name]
    shape = (2, len(packed) // qtype.block_bytes * qtype.block_size // 2)
    if shape[1] % qtype.block_size:
        shape = (1, 2 * shape[1])
    values = dequantize(QuantTensor("t", qtype, shape, packed))
    assert values.reshape(-1)[:6].tolist() == known["first"]
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == known["sha256"]


def test_every_type_is_compared_with_something() -> None:
    by_hand = {"F32", "F64", "I8", "I16", "I32", "I64", "Q8_1"}
    assert set(GGML_VALUES) | by_hand == set(BY_NAME)


@pytest.mark.parametrize(
    "qtype", [t for n, t in BY_NAME.items() if n not in NOT_IN_GGUF_PACKAGE], ids=lambda t: t.name
)
def test_equals_the_gguf_package(qtype: QuantType, random_tensor: BuildTensor) -> None:
    """Same values when the package sees the whole matrix at once: cutting into chunks changes nothing."""
    tensor = random_tensor(qtype, (300, 1024))
    packed = tensor.data.reshape(300, tensor.row_bytes)
    expected = quants.dequantize(packed, GGMLQuantizationType[qtype.name]).astype(np.float32, copy=False)
    values = dequantize(tensor)
    assert values.shape == (300, 1024)
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("qtype", list(BY_NAME.values()), ids=lambda t: t.name)
def test_rows_equal_those_of_the_whole(qtype: QuantType, random_tensor: BuildTensor) -> None:
    tensor = random_tensor(qtype, (9, 2, 256))
    whole = dequantize(tensor)
    rows = np.array([8, 0, 3, 3])
    selected = dequantize_rows(tensor, rows)
    assert selected.shape == (4, 2, 256)
    assert selected.tobytes() == whole[rows].tobytes()
    assert dequantize_rows(tensor, []).shape == (0, 2, 256)


@pytest.mark.parametrize("rows", [[-1], [9], [0, 1 << 40]])
def test_rows_outside_are_errors(rows: list[int], random_tensor: BuildTensor) -> None:
    with pytest.raises(QuantError, match=r"^tensor 'random': row .* is outside of 9 rows$"):
        dequantize_rows(random_tensor(BY_NAME["Q8_0"], (9, 64)), rows)
    with pytest.raises(QuantError, match="has no rows to select"):
        dequantize_rows(random_tensor(BY_NAME["F32"], (9,)), [0])


def test_the_result_is_new_and_writable(random_tensor: BuildTensor) -> None:
    tensor = random_tensor(BY_NAME["F32"], (4, 8))
    before = tensor.data.copy()
    dequantize(tensor)[:] = 1.0
    assert np.array_equal(tensor.data, before)


def test_data_need_not_be_aligned() -> None:
    packed = np.zeros(33, np.uint8)
    packed[1:] = np.arange(8, dtype="<f4").view(np.uint8)
    values = dequantize(QuantTensor("t", BY_NAME["F32"], (8,), packed[1:]))
    assert values.tolist() == list(range(8))


@pytest.mark.parametrize("qtype", list(BY_NAME.values()), ids=lambda t: t.name)
def test_broken_scales_give_no_warning(qtype: QuantType) -> None:
    data = np.full(8 * qtype.block_bytes, 0xFF, np.uint8)
    values = dequantize(QuantTensor("t", qtype, (8 * qtype.block_size,), data))
    assert values.size == 8 * qtype.block_size


@pytest.mark.parametrize("type_name", ["Q4_K", "IQ2_S", "F16", "F32"])
def test_a_large_tensor_is_not_held_twice(type_name: str, random_tensor: BuildTensor) -> None:
    tensor = random_tensor(BY_NAME[type_name], (2048, 2048))
    dequantize_rows(tensor, [0])  # the package decodes its tables once
    tracemalloc.start()
    values = dequantize(tensor)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert values.nbytes == 1 << 24
    assert peak < values.nbytes + (6 << 20)


def test_a_type_that_the_package_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(quants, "dequantize", refuse)
    tensor = QuantTensor("t", BY_NAME["NVFP4"], (64,), np.zeros(36, np.uint8))
    with pytest.raises(QuantError, match="cannot dequantize type NVFP4"):
        dequantize(tensor)


def test_tensor_checks_its_shape() -> None:
    q8_0 = BY_NAME["Q8_0"]
    with pytest.raises(QuantError, match=r"tensor 'w' of type Q8_0 and shape \(2, 32\) takes 68 bytes"):
        QuantTensor("w", q8_0, (2, 32), np.zeros(67, np.uint8))
    with pytest.raises(QuantError, match="multiples of 32 values"):
        QuantTensor("w", q8_0, (2, 33), np.zeros(68, np.uint8))
    with pytest.raises(QuantError, match="tensor 'w' has shape"):
        QuantTensor("w", q8_0, (), np.zeros(0, np.uint8))
