"""Gemma 3, text part (arXiv 2503.19786): scaled embeddings, q/k norms, norms after each part, local
layers."""

from specdec_cli.runtime.ops import Ops, V

from .config import ModelConfig
from .weights import SandwichBlock, Weights


def gemma3(ops: Ops[V], cfg: ModelConfig, w: Weights[SandwichBlock]) -> V:
    """Logits of the output rows, [num_outputs, n_vocab]."""
    x = ops.embed(w.token_embd)
    if cfg.embedding_scale is not None:
        x = ops.scale(x, cfg.embedding_scale)
    for blk in w.blocks:
        h = ops.rms_norm(x, blk.attn_norm, cfg.rms_eps)
        q = ops.rms_norm(ops.linear(h, *blk.q), blk.q_norm, cfg.rms_eps)
        k = ops.rms_norm(ops.linear(h, *blk.k), blk.k_norm, cfg.rms_eps)
        a = ops.attention(q, k, ops.linear(h, *blk.v), cfg.attention[blk.index])
        x = ops.add(x, ops.rms_norm(ops.linear(a, *blk.o), blk.post_attn_norm, cfg.rms_eps))
        h = ops.rms_norm(x, blk.ffn_norm, cfg.rms_eps)
        h = ops.gated(ops.linear(h, *blk.gate), ops.linear(h, *blk.up), cfg.activation)
        x = ops.add(x, ops.rms_norm(ops.linear(h, *blk.down), blk.post_ffn_norm, cfg.rms_eps))
    x = ops.rms_norm(ops.output_rows(x), w.output_norm, cfg.rms_eps)
    logits = ops.linear(x, *w.output)
    return logits if cfg.final_softcap is None else ops.softcap(logits, cfg.final_softcap)
