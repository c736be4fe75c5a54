"""Architecture name to definition, and the one way from a file's tensors to a bound definition."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from quant.tensor import QuantTensor
from specdec_cli.runtime.ops import Ops, V

from .config import ModelConfig
from .gemma3 import gemma3
from .llama import llama
from .qwen2 import qwen2
from .qwen3 import qwen3
from .weights import Block, QkNormBlock, SandwichBlock, Weights, canonicalise

Definition = Callable[[Ops[Any], ModelConfig, Weights[Any]], Any]

ARCHITECTURES: dict[str, tuple[Definition, type[Block]]] = {
    "llama": (llama, Block),
    "qwen2": (qwen2, Block),
    "qwen3": (qwen3, QkNormBlock),
    "gemma3": (gemma3, SandwichBlock),
}


class BoundModel(Protocol):
    """A definition with its configuration and weights: runs on any Ops."""

    def __call__(self, ops: Ops[V], /) -> V:
        """Return the logits as a value of `ops`."""
        ...


def bind(cfg: ModelConfig, tensors: Mapping[str, QuantTensor]) -> BoundModel:
    """Check and arrange `tensors` for the architecture of `cfg` and return its definition bound to them."""
    definition, block_type = ARCHITECTURES[cfg.architecture]
    weights = canonicalise(cfg, tensors, block_type)

    def run(ops: Ops[V], /) -> V:
        logits: V = definition(ops, cfg, weights)
        return logits

    return run
