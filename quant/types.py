"""Every tensor type that a GGUF file can hold: block size, bytes per block, bits per weight."""

from dataclasses import dataclass

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType


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


BY_GGML_ID: dict[int, QuantType] = {
    int(ggml_type): QuantType(ggml_type.name, int(ggml_type), *GGML_QUANT_SIZES[ggml_type])
    for ggml_type in GGMLQuantizationType
    if ggml_type in GGML_QUANT_SIZES
}
BY_NAME: dict[str, QuantType] = {t.name: t for t in BY_GGML_ID.values()}

F32 = BY_NAME["F32"]
F16 = BY_NAME["F16"]
BF16 = BY_NAME["BF16"]
