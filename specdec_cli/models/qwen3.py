"""Qwen 3, dense (arXiv 2505.09388): every query and key head is normalized before it is rotated."""

from specdec_cli.runtime.ops import Ops, V

from .config import ModelConfig
from .weights import QkNormBlock, Weights


def qwen3(ops: Ops[V], cfg: ModelConfig, w: Weights[QkNormBlock]) -> V:
    """Logits of the output rows, [num_outputs, n_vocab]."""
    x = ops.embed(w.token_embd)
    for blk in w.blocks:
        h = ops.rms_norm(x, blk.attn_norm, cfg.rms_eps)
        q = ops.rms_norm(ops.linear(h, *blk.q), blk.q_norm, cfg.rms_eps)
        k = ops.rms_norm(ops.linear(h, *blk.k), blk.k_norm, cfg.rms_eps)
        a = ops.attention(q, k, ops.linear(h, *blk.v), cfg.attention[blk.index])
        x = ops.add(x, ops.linear(a, *blk.o))
        h = ops.rms_norm(x, blk.ffn_norm, cfg.rms_eps)
        h = ops.gated(ops.linear(h, *blk.gate), ops.linear(h, *blk.up), cfg.activation)
        x = ops.add(x, ops.linear(h, *blk.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, cfg.rms_eps)
    return ops.linear(x, *w.output)
