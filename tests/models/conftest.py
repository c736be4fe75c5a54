"""Tiny random models made with Transformers, and their GGUF files as converters write them."""

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, architecture: str) -> str:
    """GGUF name of a Transformers parameter."""
    name = name.removeprefix("model.")
    top = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    module, _, kind = name.rpartition(".")
    if module in top:
        return f"{top[module]}.{kind}"
    _, index, rest = module.split(".", 2)
    names = LAYER_NAMES | (GEMMA_NAMES if architecture == "gemma3" else {})
    return f"blk.{index}.{names[rest]}.{kind}"


def interleave(values: np.ndarray, n_head: int) -> np.ndarray:
    """The row order of Q and K in llama-type files: element i of both halves of a head side by side."""
    per_head = values.reshape(n_head, 2, values.shape[0] // n_head // 2, *values.shape[1:])
    return per_head.swapaxes(1, 2).reshape(values.shape)


def llama3_factors(head_dim: int, base: float, scaling: Mapping[str, Any]) -> np.ndarray:
    """Divisors of the rotary frequencies of Llama 3.1's scaling, as converters store them."""
    low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (i / head_dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(scaling["factor"])
        else:
            smooth = (
                scaling["original_max_position_embeddings"] / wavelength - scaling["low_freq_factor"]
            ) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.asarray(factors, np.float32)


def export_gguf(model: Any, architecture: str, write: Callable[..., Path], metadata: dict[str, Any]) -> Path:
    """Write a Transformers model as an F32 GGUF file."""
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    rope = dict(c.rope_parameters)
    entries = {
        "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(c.rms_norm_eps),
        "rope.dimension_count": head_dim,
    }
    if head_dim != c.hidden_size // c.num_attention_heads:
        entries |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    tensors: dict[str, np.ndarray] = {}
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        target, array = gguf_name(name, architecture), values.numpy()
        if architecture == "gemma3" and target.endswith("norm.weight"):
            array = array + np.float32(1)
        if architecture == "llama" and ("attn_q." in target or "attn_k." in target):
            array = interleave(array, c.num_attention_heads if "attn_q." in target else c.num_key_value_heads)
        tensors[target] = array
    global_rope = rope.get("full_attention", rope)
    entries["rope.freq_base"] = float(global_rope["rope_theta"])
    if global_rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(head_dim, entries["rope.freq_base"], global_rope)
    elif global_rope["rope_type"] == "linear":
        entries |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(global_rope["factor"])}
    if architecture == "gemma3":
        entries["attention.sliding_window"] = c.sliding_window
    named = {f"{architecture}.{key}": value for key, value in (entries | metadata).items()}
    return write(named, tensors, arch=architecture)


@pytest.fixture
def transformers_pair(gguf_builder: Any) -> Callable[..., tuple[Any, Path]]:
    """Factory (architecture, metadata=None, **config) -> (Transformers model in float32, its GGUF file).

    `family` names a Transformers family that shares the architecture, such as mistral.
    """

    def make(
        architecture: str,
        *,
        family: str | None = None,
        metadata: dict[str, Any] | None = None,
        seed: int = 0,
        **config: Any,
    ) -> tuple[Any, Path]:
        model = _random_model(family or architecture, seed, config)
        return model, export_gguf(model, architecture, gguf_builder.write, metadata or {})

    return make


def _random_model(architecture: str, seed: int, config: dict[str, Any]) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        classes = {
            "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
            "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
            "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
            "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
            "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
        }
        config_class, model_class = classes[architecture]
        model = model_class(config_class(attn_implementation="eager", **config)).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(noise / 5 + (0 if architecture == "gemma3" else 1))
            elif parameter.ndim == 1:
                parameter.copy_(noise / 5)
            elif "embed" in name:
                parameter.copy_(noise / (parameter.shape[1] ** 0.5 if architecture == "gemma3" else 1))
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[1] ** 0.5)
    return model
