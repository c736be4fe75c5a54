"""The weight tree that model definitions read, and its construction from a file's tensors.

The tree has one form whatever the file's conventions: Q and K rows are in the split-halves rotary layout,
tied heads are the embedding table itself. Everything stays packed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from quant.tensor import QuantTensor
from specdec_cli.errors import ModelError

from .config import ROPE_FACTORS, ModelConfig

B = TypeVar("B", bound="Block")


class Linear(NamedTuple):
    """A linear layer: weight (N, K) and perhaps a bias (N,)."""

    weight: QuantTensor
    bias: QuantTensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One transformer layer with a gated feed-forward part."""

    index: int
    attn_norm: QuantTensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    ffn_norm: QuantTensor
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class QkNormBlock(Block):
    """A layer that normalizes every query and key head."""

    q_norm: QuantTensor
    k_norm: QuantTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SandwichBlock(QkNormBlock):
    """A layer that also normalizes what attention and feed-forward add to the residual stream."""

    post_attn_norm: QuantTensor
    post_ffn_norm: QuantTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Generic[B]):
    """All tensors of a model. A tied head is `Linear(token_embd)`."""

    token_embd: QuantTensor
    blocks: tuple[B, ...]
    output_norm: QuantTensor
    output: Linear


GGUF_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attn_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
}


def canonicalise(cfg: ModelConfig, tensors: Mapping[str, QuantTensor], block_type: type[B]) -> Weights[B]:
    """Arrange a GGUF file's tensors as a tree; ModelError names missing, extra and misshapen ones."""
    expected = _expected(cfg, block_type)
    required = {name for name, (_, is_required) in expected.items() if is_required}
    _complain("missing", sorted(required - tensors.keys()))
    ignored = {ROPE_FACTORS} | {f"blk.{i}.attn_rot_embd.weight" for i in range(cfg.n_layer)}
    _complain("unexpected", sorted(tensors.keys() - expected.keys() - ignored))
    for name in sorted(expected.keys() & tensors.keys()):
        wanted = expected[name][0]
        if tensors[name].shape != wanted:
            raise ModelError(f"tensor {name} has shape {tensors[name].shape}; {wanted} is needed")
    embedding = tensors["token_embd.weight"]
    head = Linear(tensors.get("output.weight", embedding), tensors.get("output.bias"))
    return Weights(
        token_embd=embedding,
        blocks=tuple(_block(cfg, tensors, block_type, index) for index in range(cfg.n_layer)),
        output_norm=tensors["output_norm.weight"],
        output=head,
    )


def _complain(what: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ModelError(f"{what} tensor {names[0]}{more}")


def _block_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every weight that a block can have."""
    q_width, kv_width = cfg.n_head * cfg.head_dim, cfg.n_head_kv * cfg.head_dim
    norm = (cfg.n_embd,)
    return {
        "attn_norm": norm,
        "q": (q_width, cfg.n_embd),
        "k": (kv_width, cfg.n_embd),
        "v": (kv_width, cfg.n_embd),
        "o": (cfg.n_embd, q_width),
        "q_norm": (cfg.head_dim,),
        "k_norm": (cfg.head_dim,),
        "post_attn_norm": norm,
        "ffn_norm": norm,
        "gate": (cfg.n_ff, cfg.n_embd),
        "up": (cfg.n_ff, cfg.n_embd),
        "down": (cfg.n_embd, cfg.n_ff),
        "post_ffn_norm": norm,
    }


def _expected(cfg: ModelConfig, block_type: type[Block]) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Tensor name to (shape, whether it must be there)."""
    expected: dict[str, tuple[tuple[int, ...], bool]] = {
        "token_embd.weight": ((cfg.n_vocab, cfg.n_embd), True),
        "output_norm.weight": ((cfg.n_embd,), True),
        "output.weight": ((cfg.n_vocab, cfg.n_embd), False),
        "output.bias": ((cfg.n_vocab,), False),
    }
    shapes = _block_shapes(cfg)
    for index in range(cfg.n_layer):
        for name, kind in _block_fields(block_type):
            prefix = f"blk.{index}.{GGUF_NAMES[name]}"
            expected[f"{prefix}.weight"] = (shapes[name], True)
            if kind is Linear:
                expected[f"{prefix}.bias"] = (
                    shapes[name][:1],
                    cfg.traits.qkv_bias and name in ("q", "k", "v"),
                )
    return expected


def _block_fields(block_type: type[Block]) -> list[tuple[str, type]]:
    hints = get_type_hints(block_type)
    return [(field.name, hints[field.name]) for field in fields(block_type) if field.name != "index"]


def _block(cfg: ModelConfig, tensors: Mapping[str, QuantTensor], block_type: type[B], index: int) -> B:
    values: dict[str, QuantTensor | Linear] = {}
    for name, kind in _block_fields(block_type):
        prefix = f"blk.{index}.{GGUF_NAMES[name]}"
        weight = tensors[f"{prefix}.weight"]
        if kind is not Linear:
            values[name] = weight
            continue
        bias = tensors.get(f"{prefix}.bias")
        if cfg.traits.interleaved_rope and name in ("q", "k"):
            order = split_halves_order(cfg, index, cfg.n_head if name == "q" else cfg.n_head_kv)
            weight = weight.select_rows(order)
            bias = _select_elements(bias, order) if bias is not None else None
        values[name] = Linear(weight, bias)
    return block_type(index=index, **values)  # type: ignore[arg-type]


def split_halves_order(cfg: ModelConfig, layer: int, n_head: int) -> npt.NDArray[np.intp]:
    """Row order that turns neighbouring rotary pairs (0, 1), (2, 3), ... of each head into split halves.

    Converters of llama-type checkpoints store the rows of Q and K so that elements 2i and 2i + 1 rotate
    together; here element i and element i + width / 2 do. Elements past the rotated width stay where they
    are.
    """
    rope = cfg.attention[layer].rope
    width = 2 * len(rope.inv_freq) if rope is not None else 0
    within = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2), np.arange(width, cfg.head_dim)])
    order = (np.arange(n_head)[:, None] * cfg.head_dim + within).reshape(-1)
    return np.asarray(order, np.intp)


def _select_elements(bias: QuantTensor, order: npt.NDArray[np.intp]) -> QuantTensor:
    column = QuantTensor(bias.name, bias.qtype, (*bias.shape, 1), bias.data)
    return QuantTensor(bias.name, bias.qtype, bias.shape, column.select_rows(order).data)
