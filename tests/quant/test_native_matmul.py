"""Matrix kernels: row invariance bit for bit, equality of all ISAs, accuracy against float64."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from quant import _native
from quant.reference import dequantize
from quant.tensor import QuantTensor
from quant.types import BY_NAME, NF4, QuantType

TYPES = [NF4 if name == "NF4" else BY_NAME[name] for name in _native.weight_types()]
FLOATS = ("F32", "F16", "BF16")
ISAS = _native.available_isas()
# Bytes of a block that hold float16 scales.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
Array = npt.NDArray[np.float32]


def make_tensor(qtype: QuantType, n: int, k: int, seed: int = 0) -> QuantTensor:
    """Random quants with scales of ordinary size, some of them negative or zero."""
    rng = np.random.default_rng(seed)
    if qtype.name in FLOATS:
        values = rng.normal(size=(n, k)).astype(np.float32)
        if qtype.name == "F16":
            return QuantTensor("w", qtype, (n, k), values.astype(np.float16).reshape(-1).view(np.uint8))
        if qtype.name == "BF16":
            return QuantTensor(
                "w",
                qtype,
                (n, k),
                (values.reshape(-1).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
            )
        return QuantTensor("w", qtype, (n, k), values.reshape(-1).view(np.uint8))
    blocks = rng.integers(0, 256, (n * k // qtype.block_size, qtype.block_bytes), dtype=np.uint8)
    scales = rng.normal(size=(len(blocks), 2)) * 0.01
    scales[rng.random(scales.shape) < 0.05] = 0
    for i, offset in enumerate(HALVES.get(qtype.name, ())):
        blocks[:, offset : offset + 2] = scales[:, i : i + 1].astype(np.float16).view(np.uint8)
    if qtype is NF4:
        blocks[:, :4] = np.abs(scales[:, :1]).astype(np.float32).view(np.uint8)
    return QuantTensor("w", qtype, (n, k), blocks.reshape(-1))


def packed(tensor: QuantTensor) -> _native.PackedWeight:
    return _native.PackedWeight(tensor.qtype.name, tensor.data, *tensor.shape)


def activations(m: int, k: int, seed: int = 1) -> Array:
    """Rows of different scale with outliers and a zero block."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, k)) * rng.lognormal(size=(m, 1))
    x[rng.random(x.shape) < 0.01] *= 30
    x[0, :32] = 0
    return x.astype(np.float32)


def widths(qtype: QuantType) -> list[int]:
    """Row lengths: superblocks, and odd multiples of the block as they occur in models."""
    if qtype.block_size == 256:
        return [256, 768]
    return {1: [1, 83, 300], 32: [32, 96, 576, 864], 64: [64, 576]}[qtype.block_size]


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


each_type = pytest.mark.parametrize("qtype", TYPES, ids=lambda t: t.name)
each_isa = pytest.mark.parametrize("isa", ISAS)


@each_isa
@each_type
def test_a_row_does_not_depend_on_the_rows_beside_it(isa: str, qtype: QuantType) -> None:
    """matmul(X)[i] has the bits of matmul(X[i:i+1]) for M = 2..33 and for the tiles of a prefill."""
    kernels = _native.Kernels(isa)
    for k in widths(qtype):
        weight = packed(make_tensor(qtype, 37, k))
        x = activations(100, k)
        alone = np.concatenate([kernels.matmul(x[i : i + 1], weight) for i in range(34)])
        assert np.isfinite(alone).all()
        for m in range(2, 34):
            assert same_bits(kernels.matmul(x[:m], weight), alone[:m]), f"{m} rows of {k}"
        assert same_bits(kernels.matmul(x, weight)[:34], alone)
        assert same_bits(kernels.matmul(x[::-1].copy(), weight)[-34:][::-1], alone), "place in the batch"


@each_type
def test_all_isas_give_the_bits_of_the_scalar_specification(
    qtype: QuantType, random_tensor: Callable[..., QuantTensor]
) -> None:
    for k in widths(qtype):
        for tensor in (make_tensor(qtype, 21, k), random_tensor(qtype, (21, k))):
            weight = packed(tensor)
            x = activations(7, k)
            expected = _native.Kernels("scalar").matmul(x, weight)
            for isa in ISAS:
                got = _native.Kernels(isa).matmul(x, weight)
                undefined = np.isnan(expected)
                assert (np.isnan(got) == undefined).all()
                assert same_bits(np.where(undefined, 0, got), np.where(undefined, 0, expected)), f"{isa}, {k}"


@each_isa
@each_type
def test_ranges_of_output_rows_give_the_same_bits(isa: str, qtype: QuantType) -> None:
    kernels = _native.Kernels(isa)
    k = widths(qtype)[-1]
    weight = packed(make_tensor(qtype, 69, k))
    bias = np.random.default_rng(3).normal(size=69).astype(np.float32)
    x = activations(5, k)
    whole = kernels.matmul(x, weight, bias)
    for cuts in ([0, 16, 69], [0, 32, 48, 64, 69], [0, 64, 69]):
        parts = [kernels.matmul(x, weight, bias, a, b)[:, a:b] for a, b in pairwise(cuts)]
        assert same_bits(np.concatenate(parts, axis=1), whole)
    assert same_bits(whole, kernels.matmul(x, weight) + bias)
    part = kernels.matmul(x, weight, bias, 16, 32)
    assert not part[:, :16].any()
    assert not part[:, 32:].any()


@each_isa
@each_type
def test_matmul_is_exact_up_to_float_rounding(isa: str, qtype: QuantType) -> None:
    """Against float64 over the same weights and the same int8 activations: only float32 sums may differ."""
    kernels = _native.Kernels(isa)
    for k in widths(qtype):
        tensor = make_tensor(qtype, 40, k)
        weight, values = packed(tensor), dequantize(tensor).astype(np.float64)
        x = activations(9, k)
        if qtype.name in FLOATS:
            used = x.astype(np.float64)
        else:
            q, scale = kernels.quantize(x)
            used = q * np.repeat(scale.astype(np.float64), 32, axis=1)[:, :k]
        if qtype is NF4:  # the table is rounded to int8
            values = kernels.dequantize_rows(weight, np.arange(40)).astype(np.float64)
        magnitude = np.abs(used) @ np.abs(values).T
        # Integer minima meet block sums of 16 bits: a hundredth of the error of int8 activations.
        tolerance = 4e-5 if qtype.name in ("Q2_K", "Q4_K", "Q5_K") else 1e-6
        error = np.abs(kernels.matmul(x, weight) - used @ values.T)
        assert (error <= tolerance * magnitude).all(), (error / magnitude).max()


@each_isa
@each_type
def test_rows_of_a_packed_weight_are_the_reference_values(isa: str, qtype: QuantType) -> None:
    """A tied head serves embedding rows: they equal the reference dequantization."""
    for k in widths(qtype):
        tensor = make_tensor(qtype, 37, k)
        rows = np.array([36, 0, 17, 17, 15, 16])
        got = _native.Kernels(isa).dequantize_rows(packed(tensor), rows)
        expected = dequantize(tensor)[rows]
        if qtype is NF4:
            absmax = np.abs(expected).max()
            assert np.abs(got - expected).max() < 0.005 * absmax
        else:
            assert (got == expected).all()


@each_isa
def test_activations_are_rounded_per_block_of_32(isa: str) -> None:
    x = activations(6, 1000)
    q, scale = _native.Kernels(isa).quantize(x)
    blocks = np.zeros((6, 1024), np.float32)
    blocks[:, :1000] = x
    largest = np.abs(blocks.reshape(6, 32, 32)).max(axis=2)
    assert same_bits(scale, largest / np.float32(127))
    error = np.abs(q * np.repeat(scale, 32, axis=1)[:, :1000].astype(np.float64) - x)
    assert (error <= np.repeat(scale, 32, axis=1)[:, :1000] * 0.5001).all()
    assert np.abs(q.astype(int)).max() == 127
    assert not q[0, :32].any()
    assert scale[0, 0] == 0


@each_isa
@each_type
def test_a_row_with_nan_or_infinity_is_nan_and_spoils_no_other(isa: str, qtype: QuantType) -> None:
    k = widths(qtype)[-1]
    kernels = _native.Kernels(isa)
    weight = packed(make_tensor(qtype, 20, k))
    x = activations(4, k)
    clean = kernels.matmul(x, weight)
    x[1, k // 2] = np.nan
    x[2, 3] = np.inf
    y = kernels.matmul(x, weight)
    assert np.isnan(y[1]).all()
    assert not np.isfinite(y[2]).any()
    assert same_bits(y[[0, 3]], clean[[0, 3]])


@each_isa
def test_tiny_and_huge_activations_do_not_overflow(isa: str) -> None:
    weight = packed(make_tensor(BY_NAME["Q8_0"], 16, 64))
    kernels = _native.Kernels(isa)
    for size in (1e-44, 1e-38, 1e-36, 1e-30, 1e30):
        assert np.isfinite(kernels.matmul(np.full((2, 64), size, np.float32), weight)).all()


@each_isa
@pytest.mark.parametrize("qtype", [t for t in TYPES if t.name not in FLOATS], ids=lambda t: t.name)
def test_extreme_quants_do_not_saturate(isa: str, qtype: QuantType) -> None:
    """All weights and all activations at their largest, with equal and with opposite signs."""
    k = max(256, widths(qtype)[0])
    kernels = _native.Kernels(isa)
    for fill in (0x00, 0xFF, 0x80, 0x7F, 0x88):
        blocks = np.full((16 * k // qtype.block_size, qtype.block_bytes), fill, np.uint8)
        for offset in HALVES.get(qtype.name, ()):
            blocks[:, offset : offset + 2] = np.array([0.5], np.float16).view(np.uint8)
        if qtype is NF4:
            blocks[:, :4] = np.array([0.5], np.float32).view(np.uint8)
        tensor = QuantTensor("w", qtype, (16, k), blocks.reshape(-1))
        values = kernels.dequantize_rows(packed(tensor), np.arange(16)).astype(np.float64)
        for x in (np.ones((1, k)), -np.ones((1, k)), np.tile([1.0, -1.0], k // 2)[np.newaxis]):
            got = kernels.matmul(x.astype(np.float32), packed(tensor))
            assert np.allclose(got, x @ values.T, rtol=2e-6, atol=1e-5 * np.abs(values).max() * k), (
                f"fill {fill:#x}"
            )
