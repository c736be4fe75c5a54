"""The self-check of the torch executor: in which row tiles does every op shape of a plan keep a row's bits
here?"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from quant.tensor import QuantTensor

from .ops import Activation, AttentionSpec
from .plan import Plan, replay
from .torch_attention import SLOW_ATTENTION, AttentionTiling, probe_attention
from .torch_tiles import ONE_BY_ONE, Tiling, probe
from .torch_weights import BLOCK_ROWS


def silu(x: Tensor) -> Tensor:
    """X * sigmoid(x)."""
    return x / (1.0 + torch.exp(-x))


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), arXiv 1606.08415."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def mean_square(x: Tensor) -> Tensor:
    """Mean of the squares of every row, [rows, 1]."""
    return (x * x).mean(-1, keepdim=True)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: silu,
    Activation.GELU_TANH: gelu_tanh,
}


@dataclass(slots=True)
class Tilings:
    """Row tiles by op shape. A shape that is not listed runs row by row; `thread_safe` tells of all of
    them."""

    linear: dict[tuple[int, int], Tiling] = field(default_factory=dict)  # by (rows of a weight block, K)
    mean_square: dict[int, Tiling] = field(default_factory=dict)  # by width
    activation: dict[tuple[Activation, int], Tiling] = field(default_factory=dict)  # by (kind, width)
    tanh: dict[int, Tiling] = field(default_factory=dict)  # by width
    attention: dict[tuple[int, int, int, bool], AttentionTiling] = field(default_factory=dict)
    thread_safe: bool = True

    def linear_tiling(self, num_rows: int, k: int) -> Tiling:
        """Tiles for `x @ w.T` with w (num_rows, k)."""
        return self.linear.get((num_rows, k), ONE_BY_ONE)

    def attention_tiling(self, spec: AttentionSpec) -> AttentionTiling:
        """Tiles for an attention geometry."""
        return self.attention.get(_geometry(spec), SLOW_ATTENTION)


def probe_plan(plan: Plan, *, threads: int) -> Tilings:
    """Probe every distinct op shape of a plan on this machine (results are kept for the process)."""
    found = Tilings()
    replay(plan, _ProbingOps(found, threads))
    return found


def _geometry(spec: AttentionSpec) -> tuple[int, int, int, bool]:
    return spec.n_head, spec.n_head_kv, spec.head_dim, spec.softcap is not None


class _ProbingOps:
    """Ops over widths: replaying a plan meets every shape that a forward pass will have."""

    def __init__(self, found: Tilings, threads: int) -> None:
        self._found = found
        self._threads = threads

    def _note(self, tiling: Tiling) -> Tiling:
        self._found.thread_safe &= tiling.thread_safe
        return tiling

    def embed(self, table: QuantTensor) -> int:
        return table.shape[1]

    def linear(self, x: int, weight: QuantTensor, bias: QuantTensor | None = None) -> int:  # noqa: ARG002
        n = weight.shape[0]
        for num_rows in {min(BLOCK_ROWS, n), n % BLOCK_ROWS or min(BLOCK_ROWS, n)}:
            self._found.linear[num_rows, x] = self._note(_probe_linear(num_rows, x, self._threads))
        return n

    def rms_norm(self, x: int, weight: QuantTensor, eps: float) -> int:  # noqa: ARG002
        width = weight.shape[0]
        self._found.mean_square[width] = self._note(_probe_mean_square(width, self._threads))
        return x

    def attention(self, q: int, k: int, v: int, spec: AttentionSpec) -> int:  # noqa: ARG002
        tiling, thread_safe = _probe_attention(*_geometry(spec), self._threads)
        self._found.attention[_geometry(spec)] = tiling
        self._found.thread_safe &= thread_safe
        return q

    def add(self, a: int, b: int) -> int:  # noqa: ARG002
        return a

    def gated(self, gate: int, up: int, activation: Activation) -> int:  # noqa: ARG002
        tiling = _probe_activation(activation, gate, self._threads)
        self._found.activation[activation, gate] = self._note(tiling)
        return gate

    def scale(self, x: int, factor: float) -> int:  # noqa: ARG002
        return x

    def softcap(self, x: int, cap: float) -> int:  # noqa: ARG002
        self._found.tanh[x] = self._note(_probe_tanh(x, self._threads))
        return x

    def output_rows(self, x: int) -> int:
        return x


@cache
def _probe_linear(num_rows: int, k: int, threads: int) -> Tiling:
    weight = torch.rand(num_rows, k, generator=torch.Generator().manual_seed(1)) - 0.5
    return probe(lambda x: x @ weight.T, k, threads=threads)


@cache
def _probe_mean_square(width: int, threads: int) -> Tiling:
    return probe(mean_square, width, threads=threads)


@cache
def _probe_activation(activation: Activation, width: int, threads: int) -> Tiling:
    return probe(ACTIVATIONS[activation], width, threads=threads)


@cache
def _probe_tanh(width: int, threads: int) -> Tiling:
    return probe(torch.tanh, width, threads=threads)


@cache
def _probe_attention(
    n_head: int, n_head_kv: int, head_dim: int, softcap: bool, threads: int
) -> tuple[AttentionTiling, bool]:
    spec = AttentionSpec(
        layer=0,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        scale=1.0,
        rope=None,
        softcap=30.0 if softcap else None,
    )
    return probe_attention(spec, threads=threads)
