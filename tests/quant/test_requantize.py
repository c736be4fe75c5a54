"""Quantizers: by hand, against the gguf package, round trips with named tolerances, bad values."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quant import requantize as module
from quant.errors import QuantError
from quant.lanes import decode_lanes
from quant.reference import dequantize
from quant.requantize import QUANTIZABLE, quantize, requantize, requantize_all
from quant.tensor import QuantTensor
from quant.types import BF16, BY_NAME, F16, F32, QuantType

FloatArray = npt.NDArray[np.float32]

BLOCK_TYPES = [qtype for qtype in QUANTIZABLE if qtype.block_size > 1]
# Root mean square error over that of the values, normally distributed: a few percent above the measured ones
# (0.0819, 0.0723, 0.0407, 0.0047, 0.0743, 0.0173).
TOLERANCES = {"Q4_0": 0.084, "Q4_1": 0.075, "Q5_0": 0.042, "Q8_0": 0.0055, "Q4_K": 0.077, "Q6_K": 0.0185}


def normal(shape: tuple[int, ...], seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def relative_error(values: FloatArray, restored: FloatArray) -> float:
    return float(np.sqrt(((values - restored) ** 2).sum() / (values**2).sum()))


def by_gguf(values: FloatArray, qtype: QuantType) -> tuple[npt.NDArray[np.uint8], FloatArray]:
    """Packed bytes and restored values of the gguf package."""
    from gguf import GGMLQuantizationType, quants

    packed = quants.quantize(values, GGMLQuantizationType[qtype.name])
    return packed.view(np.uint8).reshape(-1), quants.dequantize(packed, GGMLQuantizationType[qtype.name])


@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda t: t.name)
def test_round_trip_within_tolerance(qtype: QuantType) -> None:
    values = normal((64, 1024))
    restored = dequantize(quantize(values, qtype))
    assert relative_error(values, restored) < TOLERANCES[qtype.name]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0"])
def test_better_than_the_gguf_package(name: str) -> None:
    values = normal((64, 1024), seed=1)
    ours = relative_error(values, dequantize(quantize(values, BY_NAME[name])))
    theirs = relative_error(values, by_gguf(values, BY_NAME[name])[1])
    assert ours < 0.97 * theirs


@pytest.mark.parametrize("qtype", [F32, F16, BF16, BY_NAME["Q8_0"]], ids=lambda t: t.name)
def test_same_bytes_as_the_gguf_package(qtype: QuantType) -> None:
    values = normal((16, 256), seed=2)
    expected, _ = by_gguf(values, qtype)
    assert (quantize(values, qtype).data == expected).mean() > 0.9999  # Q8_0: halves round to even here


def test_q4_0_by_hand() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :3] = -4.0, 3.5, 0.5  # steps -8, 7 and 1 of 0.5
    values[0, 16] = -1.0  # step -2
    data = quantize(values, BY_NAME["Q4_0"]).data
    assert data[:2].tobytes() == np.float16(0.5).tobytes()
    assert data[2:].tolist() == [0x60, 0x8F, 0x89, *[0x88] * 13]


def test_q4_0_positive_extreme_has_a_negative_scale() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 0] = 4.0
    tensor = quantize(values, BY_NAME["Q4_0"])
    assert dequantize(tensor).tolist() == values.tolist()
    assert tensor.data[:2].tobytes() == np.float16(-0.5).tobytes()


def test_q4_1_by_hand() -> None:
    values = np.full((1, 32), 1.0, np.float32)
    values[0, 1], values[0, 16] = 16.0, 5.0  # steps 15 and 4 of 1 above 1
    data = quantize(values, BY_NAME["Q4_1"]).data
    assert data[:4].tobytes() == np.array([1.0, 1.0], np.float16).tobytes()
    assert data[4:].tolist() == [0x40, 0x0F, *[0] * 14]


def test_q8_0_by_hand() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 0], values[0, 31] = -127.0, 64.0
    data = quantize(values, BY_NAME["Q8_0"]).data
    assert data[:2].tobytes() == np.float16(1.0).tobytes()
    assert data[2:].view(np.int8).tolist() == [-127, *[0] * 30, 64]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_values_of_the_type_itself_are_kept(name: str) -> None:
    """What a tensor of the type can hold exactly, with every step used in each block, comes back."""
    qtype = BY_NAME[name]
    low, high = {"Q4_0": (-8, 7), "Q5_0": (-16, 15), "Q8_0": (-127, 127), "Q6_K": (-32, 31)}.get(
        name, (0, 15)
    )
    rng = np.random.default_rng(3)
    groups = rng.integers(low, high + 1, (16, 32)).astype(np.float32)
    groups[:, [0, 1, 30, 31]] = low, high, low, high
    values = np.ldexp(groups, rng.integers(-3, 1, (16, 1))).reshape(2, 256)
    if name == "Q6_K":  # 127 scale steps for the whole superblock
        values = groups.reshape(2, 256) * np.float32(0.25)
    restored = dequantize(quantize(values, qtype))
    assert relative_error(values, restored) < {"Q4_K": 0.02, "Q6_K": 0.005}.get(name, 1e-6)


@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-39, 1e-7, 60000.0])
def test_equal_values(qtype: QuantType, value: float) -> None:
    restored = dequantize(quantize(np.full((2, 256), value, np.float32), qtype))
    # Scales are float16: what is smaller than its subnormal numbers is 0.
    assert np.allclose(restored, value, rtol=0.01, atol=1e-7)


@pytest.mark.parametrize("qtype", [*BLOCK_TYPES, F16], ids=lambda t: t.name)
@pytest.mark.parametrize("value", [1e9, -3e38])
def test_too_large_values_name_the_tensor(qtype: QuantType, value: float) -> None:
    values = normal((4, 256))
    values[2, 77] = value
    with pytest.raises(QuantError, match=r"^tensor 'blk\.0\.w' holds values .*too large"):
        quantize(values, qtype, name="blk.0.w")


@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_values_name_the_tensor(qtype: QuantType, value: float) -> None:
    values = normal((4, 256))
    values[3, 255] = value
    with pytest.raises(QuantError, match=r"^tensor 'w' holds values that are not finite"):
        quantize(values, qtype, name="w")


def test_bf16_rounds_to_even_and_keeps_nan() -> None:
    values = np.array([[1.0, 1.00390625, 1.01171875, np.nan, np.inf, -0.0]], np.float32)  # two ties
    restored = dequantize(quantize(values, BF16))
    assert restored[0, :3].tolist() == [1.0, 1.0, 1.015625]
    assert np.isnan(restored[0, 3])
    assert restored[0, 4] == np.inf
    assert np.signbit(restored[0, 5])


LANE_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q3_K", "F16")


@pytest.mark.parametrize(
    ("name", "unit"),
    [(name, unit) for name in LANE_TYPES for unit in (32, 256) if unit >= BY_NAME[name].block_size],
)
def test_lanes_have_the_bits_of_the_reference(
    random_tensor: Callable[..., QuantTensor], name: str, unit: int
) -> None:
    qtype = BY_NAME[name]
    tensor = random_tensor(qtype, (6, 512))
    lanes = decode_lanes(qtype, tensor.data.reshape(-1, qtype.block_bytes), unit)
    assert lanes.shape == (32, unit // 32, 6 * 512 // unit)
    values = lanes.transpose(2, 1, 0).reshape(tensor.shape)
    assert (values.view(np.uint32) == dequantize(tensor).view(np.uint32)).all()


@pytest.mark.parametrize("source", ["Q5_0", "Q6_K", "Q8_0", "IQ4_NL", "Q2_K", "BF16"])
@pytest.mark.parametrize("target", QUANTIZABLE, ids=lambda t: t.name)
def test_every_source_equals_quantizing_its_values(source: str, target: QuantType) -> None:
    values = normal((8, 512), seed=4)
    from_type = BY_NAME[source]
    if from_type in QUANTIZABLE:
        tensor = quantize(values, from_type)
    else:
        data = np.random.default_rng(5).integers(
            0, 48, 8 * 512 // from_type.block_size * from_type.block_bytes
        )
        tensor = QuantTensor("t", from_type, (8, 512), data.astype(np.uint8))
    direct = quantize(dequantize(tensor), target)
    if from_type != target:
        assert (requantize(tensor, target).data == direct.data).all()
    else:
        assert requantize(tensor, target) is tensor


def test_threads_and_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    values = normal((37, 768), seed=6)
    whole = {qtype: quantize(values, qtype) for qtype in QUANTIZABLE}
    monkeypatch.setattr(module, "_CHUNK_VALUES", 1024)
    for qtype, expected in whole.items():
        assert (quantize(values, qtype, threads=3).data == expected.data).all()


def test_rows_of_32_values() -> None:
    values = normal((5, 96), seed=7)  # five rows do not fill superblocks
    tensor = quantize(values, BY_NAME["Q4_0"])
    assert tensor.shape == (5, 96)
    assert (tensor.select_rows([3]).data == quantize(values[3:4], BY_NAME["Q4_0"]).data).all()


def test_a_row_of_a_superblock_type_to_blocks_of_32() -> None:
    tensor = quantize(normal((3, 256), seed=8), BY_NAME["Q6_K"])
    direct = quantize(dequantize(tensor), BY_NAME["Q8_0"])
    assert (requantize(tensor, BY_NAME["Q8_0"]).data == direct.data).all()


def test_rows_that_do_not_fit_the_block_are_named() -> None:
    with pytest.raises(
        QuantError, match=r"^tensor 'w' cannot be Q4_K: rows of 96 values are not multiples of 256$"
    ):
        quantize(normal((4, 96)), BY_NAME["Q4_K"], name="w")


def test_a_type_without_quantizer_is_named() -> None:
    with pytest.raises(QuantError, match=r"^there is no quantizer for type IQ2_XS; there are Q4_0, "):
        quantize(normal((1, 256)), BY_NAME["IQ2_XS"])


def test_progress_counts_values_up_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_VALUES", 256)
    calls: list[tuple[int, int]] = []
    wanted = [
        (quantize(normal((2, 256)), F32), BY_NAME["Q8_0"]),
        (quantize(normal((3, 256)), F32), BY_NAME["Q4_0"]),
    ]
    results = requantize_all(wanted, threads=2, progress=lambda done, total: calls.append((done, total)))
    assert [tensor.qtype.name for tensor in results] == ["Q8_0", "Q4_0"]
    assert calls == [(256 * i, 5 * 256) for i in range(1, 6)]


@settings(max_examples=60, deadline=None)
@given(
    values=arrays(np.float32, (1, 256), elements=st.floats(-1000, 1000, width=32)),
    qtype=st.sampled_from(BLOCK_TYPES),
)
def test_error_is_bounded_by_the_step(values: FloatArray, qtype: QuantType) -> None:
    """No value is off by more than the coarsest step that its group or superblock can have."""
    restored = dequantize(quantize(values, qtype))
    span = float(np.abs(values).max())
    steps = {"Q4_0": 8, "Q4_1": 7, "Q5_0": 16, "Q8_0": 127, "Q4_K": 7, "Q6_K": 30}[qtype.name]
    assert np.abs(restored - values).max() <= 1.25 * span / steps + 1e-6
