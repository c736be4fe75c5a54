"""The table of tensor types against the gguf package, and the names of types that do not exist any more."""

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from quant.errors import QuantError
from quant.types import BY_GGML_ID, BY_NAME, QuantType, type_of_id


@pytest.mark.parametrize("ggml_type", list(GGML_QUANT_SIZES), ids=lambda t: t.name)
def test_every_type_of_the_gguf_package_is_known(ggml_type: GGMLQuantizationType) -> None:
    ours = BY_NAME[ggml_type.name]
    assert ours.ggml_id == int(ggml_type)
    block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    if ours.name == "Q8_1":
        # ggml's block has held two float16 instead of two float32 since 2023; the package kept the old size.
        block_bytes = 2 + 2 + 32
    assert (ours.block_size, ours.block_bytes) == (block_size, block_bytes)


def test_lookup_tables_agree() -> None:
    assert {t.name for t in BY_GGML_ID.values()} == set(BY_NAME)
    assert all(BY_GGML_ID[i].ggml_id == i for i in BY_GGML_ID)
    assert len(BY_NAME) == len(BY_GGML_ID) >= 35


@pytest.mark.parametrize(
    ("name", "bits"), [("F32", 32.0), ("Q4_0", 4.5), ("Q8_0", 8.5), ("Q6_K", 6.5625), ("IQ1_S", 1.5625)]
)
def test_bits_per_weight(name: str, bits: float) -> None:
    assert BY_NAME[name].bits_per_weight == bits


@pytest.mark.parametrize(
    ("ggml_id", "expected"),
    [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (32, "Q4_0_4_8"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (37, "IQ4_NL_4_8"),
        (38, "IQ4_NL_8_8"),
    ],
)
def test_removed_types_are_named(ggml_id: int, expected: str) -> None:
    with pytest.raises(QuantError, match=rf"^type {expected}, which ggml removed: "):
        type_of_id(ggml_id)


def test_unknown_ids_are_errors_and_known_ids_are_types() -> None:
    with pytest.raises(QuantError, match=r"^unknown type id 4711 "):
        type_of_id(4711)
    assert type_of_id(12) == QuantType("Q4_K", 12, 256, 144)
