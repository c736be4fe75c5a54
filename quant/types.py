"""Every tensor type that a GGUF file can hold: block size, bytes per block, bits per weight.

Sizes are those of ggml's `ggml_type_size` and `ggml_blck_size`. They are listed here rather than imported so
that opening a file does not import the gguf package, and because its table still has the 40-byte Q8_1 of old.
"""

from dataclasses import dataclass

from .errors import QuantError


@dataclass(frozen=True, slots=True)
class QuantType:
    """A packed number format: `block_size` consecutive values of a row take `block_bytes` bytes."""

    name: str
    ggml_id: int | None  # None for formats that GGUF files do not hold
    block_size: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Storage per value, scales included."""
        return 8.0 * self.block_bytes / self.block_size


_GGML_TYPES = (
    QuantType("F32", 0, 1, 4),
    QuantType("F16", 1, 1, 2),
    QuantType("Q4_0", 2, 32, 18),
    QuantType("Q4_1", 3, 32, 20),
    QuantType("Q5_0", 6, 32, 22),
    QuantType("Q5_1", 7, 32, 24),
    QuantType("Q8_0", 8, 32, 34),
    QuantType("Q8_1", 9, 32, 36),
    QuantType("Q2_K", 10, 256, 84),
    QuantType("Q3_K", 11, 256, 110),
    QuantType("Q4_K", 12, 256, 144),
    QuantType("Q5_K", 13, 256, 176),
    QuantType("Q6_K", 14, 256, 210),
    QuantType("Q8_K", 15, 256, 292),
    QuantType("IQ2_XXS", 16, 256, 66),
    QuantType("IQ2_XS", 17, 256, 74),
    QuantType("IQ3_XXS", 18, 256, 98),
    QuantType("IQ1_S", 19, 256, 50),
    QuantType("IQ4_NL", 20, 32, 18),
    QuantType("IQ3_S", 21, 256, 110),
    QuantType("IQ2_S", 22, 256, 82),
    QuantType("IQ4_XS", 23, 256, 136),
    QuantType("I8", 24, 1, 1),
    QuantType("I16", 25, 1, 2),
    QuantType("I32", 26, 1, 4),
    QuantType("I64", 27, 1, 8),
    QuantType("F64", 28, 1, 8),
    QuantType("IQ1_M", 29, 256, 56),
    QuantType("BF16", 30, 1, 2),
    QuantType("TQ1_0", 34, 256, 54),
    QuantType("TQ2_0", 35, 256, 66),
    QuantType("MXFP4", 39, 32, 17),
    QuantType("NVFP4", 40, 64, 36),
    QuantType("Q1_0", 41, 128, 18),
    QuantType("Q2_0", 42, 64, 18),
)

# Types that ggml has dropped; the ids stay reserved. What to do instead completes "which ggml removed: ...".
_REMOVED_TYPES = {
    4: ("Q4_2", "quantize the model again"),
    5: ("Q4_3", "quantize the model again"),
    31: ("Q4_0_4_4", "it is Q4_0 repacked for one CPU, use the Q4_0 file"),
    32: ("Q4_0_4_8", "it is Q4_0 repacked for one CPU, use the Q4_0 file"),
    33: ("Q4_0_8_8", "it is Q4_0 repacked for one CPU, use the Q4_0 file"),
    36: ("IQ4_NL_4_4", "it is IQ4_NL repacked for one CPU, use the IQ4_NL file"),
    37: ("IQ4_NL_4_8", "it is IQ4_NL repacked for one CPU, use the IQ4_NL file"),
    38: ("IQ4_NL_8_8", "it is IQ4_NL repacked for one CPU, use the IQ4_NL file"),
}

BY_GGML_ID: dict[int, QuantType] = {t.ggml_id: t for t in _GGML_TYPES if t.ggml_id is not None}
BY_NAME: dict[str, QuantType] = {t.name: t for t in _GGML_TYPES}

F32 = BY_NAME["F32"]
F16 = BY_NAME["F16"]
BF16 = BY_NAME["BF16"]
# Not a GGUF type: bitsandbytes' 4-bit NormalFloat (QLoRA, arXiv 2305.14314). A block is a float32 absmax and
# 32 bytes with element 2i in the high nibble.
NF4 = QuantType("NF4", None, 64, 36)


def type_of_id(ggml_id: int) -> QuantType:
    """Type of a GGUF type id.

    Raises QuantError that names a removed type or an unknown id.
    """
    found = BY_GGML_ID.get(ggml_id)
    if found is not None:
        return found
    if ggml_id in _REMOVED_TYPES:
        name, advice = _REMOVED_TYPES[ggml_id]
        raise QuantError(f"type {name}, which ggml removed: {advice}")
    raise QuantError(f"unknown type id {ggml_id} (newer than this version, or a corrupt file)")
