"""Llama 1 to 3 and what shares its layer: TinyLlama, SmolLM2, Mistral (arXiv 2302.13971, 2310.06825)."""

from specdec_cli.runtime.ops import Ops, V

from .config import ModelConfig
from .weights import Block, Weights


def llama(ops: Ops[V], cfg: ModelConfig, w: Weights[Block]) -> V:
    """Logits of the output rows, [num_outputs, n_vocab]."""
    x = ops.embed(w.token_embd)
    for blk in w.blocks:
        h = ops.rms_norm(x, blk.attn_norm, cfg.rms_eps)
        q, k, v = ops.linear(h, *blk.q), ops.linear(h, *blk.k), ops.linear(h, *blk.v)
        a = ops.attention(q, k, v, cfg.attention[blk.index])
        x = ops.add(x, ops.linear(a, *blk.o))
        h = ops.rms_norm(x, blk.ffn_norm, cfg.rms_eps)
        h = ops.gated(ops.linear(h, *blk.gate), ops.linear(h, *blk.up), cfg.activation)
        x = ops.add(x, ops.linear(h, *blk.down))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, cfg.rms_eps)
    return ops.linear(x, *w.output)
