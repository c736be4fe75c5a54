"""The operations that model definitions are written in.

An architecture file calls these and nothing else, so that one definition serves every executor: eager
execution, recording into a plan, and the native replay of such a plan. All values are matrices [num_rows,
width]; widths are known when a definition is recorded, the number of rows is not.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from quant.tensor import QuantTensor

V = TypeVar("V")


class Activation(StrEnum):
    """Activation of a gated feed-forward layer."""

    SILU = "silu"  # x * sigmoid(x)
    GELU_TANH = "gelu_tanh"  # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding in the split-halves ("NEOX") layout; the loader permutes what is stored
    otherwise.

    Element i of a head's first half and element i of its second half form a pair that is rotated by
    `position * inv_freq[i]` (RoFormer, arXiv 2104.09864). Frequency factors and linear scaling are already
    applied. Rotated width is 2 * len(inv_freq); further elements pass through unchanged.
    """

    inv_freq: tuple[float, ...]
    attn_factor: float = 1.0  # multiplies cos and sin


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer's attention needs besides q, k and v.

    `window` w lets a row at position p see positions p - w + 1 .. p; None sees all. `softcap` c maps scores
    s to c * tanh(s / c). Scores are `scale * q.k`. Query head h reads KV head h // (n_head // n_head_kv).
    """

    layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    softcap: float | None = None


class Ops(Protocol[V]):
    """Operations over values of type V. Weights are packed tensors; an op never looks at their format."""

    def embed(self, table: QuantTensor) -> V:
        """Rows of `table` (n_vocab, n_embd) for the token ids of this forward."""
        ...

    def linear(self, x: V, weight: QuantTensor, bias: QuantTensor | None = None) -> V:
        """`x @ weight.T + bias` for weight (N, K)."""
        ...

    def rms_norm(self, x: V, weight: QuantTensor, eps: float) -> V:
        """x / sqrt(mean(x^2) + eps) * weight, over groups of len(weight) elements (several groups: q and k
        heads)."""
        ...

    def attention(self, q: V, k: V, v: V, spec: AttentionSpec) -> V:
        """Rotate q and k, append k and v to the layer's KV, and attend; result [num_rows, n_head *
        head_dim]."""
        ...

    def add(self, a: V, b: V) -> V:
        """Sum of two values of equal width."""
        ...

    def gated(self, gate: V, up: V, activation: Activation) -> V:
        """activation(gate) * up."""
        ...

    def scale(self, x: V, factor: float) -> V:
        """X * factor."""
        ...

    def softcap(self, x: V, cap: float) -> V:
        """Cap * tanh(x / cap)."""
        ...

    def output_rows(self, x: V) -> V:
        """Only the rows whose logits were asked for, in order."""
        ...
