"""Hyperparameters of a model, read from GGUF metadata. Whatever is not known is refused by name, never
guessed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quant.tensor import QuantTensor
from specdec_cli.errors import ModelError
from specdec_cli.runtime.ops import Activation, AttentionSpec, Rope

from .metadata import MetadataReader

ROPE_FACTORS = "rope_freqs.weight"  # divisors of the rotary frequencies, e.g. Llama 3.1's scaling

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_tanh": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}


@dataclass(frozen=True, slots=True)
class Traits:
    """What an architecture implies and its metadata need not say.

    `window_pattern` n: when a sliding window is given, layer i has it if i % n < n - 1; 0 gives it to all
    layers and None means that windows are not supported. `local_freq_base`: RoPE base of the layers with a
    window, when it differs from that of the others.
    """

    activation: Activation = Activation.SILU
    interleaved_rope: bool = False  # Q and K rows stored so that neighbours form a rotary pair
    window_pattern: int | None = None
    local_freq_base: float | None = None
    scaled_embedding: bool = False
    qkv_bias: bool = False  # biases of q, k and v are required, not just allowed


TRAITS = {
    "llama": Traits(interleaved_rope=True, window_pattern=0),
    "qwen2": Traits(qkv_bias=True),
    "qwen3": Traits(),
    "gemma3": Traits(
        activation=Activation.GELU_TANH, window_pattern=6, local_freq_base=10000.0, scaled_embedding=True
    ),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a model. `attention[i]` says all about layer i's attention, RoPE and window
    included."""

    architecture: str
    n_vocab: int  # rows of the embedding table, padding included
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    rms_eps: float
    activation: Activation
    attention: tuple[AttentionSpec, ...]
    embedding_scale: float | None  # None: embeddings are used as they are
    final_softcap: float | None
    traits: Traits

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], tensors: Mapping[str, QuantTensor]) -> "ModelConfig":
        """Read and check a model's metadata; ModelError names the key that is wrong or not supported."""
        architecture = check_architecture(metadata)
        traits = TRAITS[architecture]
        read = MetadataReader(metadata, architecture)
        _refuse_unsupported(read, architecture)
        n_embd = read.integer("embedding_length")
        n_layer = read.integer("block_count", maximum=10_000)
        n_head = read.integer("attention.head_count", maximum=65_536)
        n_head_kv = read.integer("attention.head_count_kv", n_head, maximum=65_536)
        head_dim = read.integer("attention.key_length", n_embd // n_head, maximum=65_536)
        if n_head % n_head_kv:
            raise ModelError(f"{n_head} attention heads cannot share {n_head_kv} key-value heads evenly")
        if read.integer("attention.value_length", head_dim) != head_dim:
            raise ModelError(f"{read.name('attention.value_length')} differs from the key length {head_dim}")
        return cls(
            architecture=architecture,
            n_vocab=_vocabulary_size(tensors),
            n_ctx_train=read.integer("context_length"),
            n_embd=n_embd,
            n_layer=n_layer,
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=head_dim,
            n_ff=read.integer("feed_forward_length"),
            rms_eps=read.real("attention.layer_norm_rms_epsilon"),
            activation=_activation(read, traits),
            attention=_attention(read, traits, (n_embd, n_layer, n_head, n_head_kv, head_dim), tensors),
            embedding_scale=float(np.float32(n_embd**0.5)) if traits.scaled_embedding else None,
            final_softcap=read.optional_real("final_logit_softcapping"),
            traits=traits,
        )


def check_architecture(metadata: Mapping[str, Any]) -> str:
    """Return the architecture's name, or raise ModelError when no definition of it exists."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in TRAITS:
        known = ", ".join(sorted(TRAITS))
        shown = f'"{name}"' if isinstance(name, str) else "(general.architecture is missing)"
        raise ModelError(f"unsupported architecture {shown}; supported are {known}")
    return name


def _refuse_unsupported(read: MetadataReader, architecture: str) -> None:
    """Features that change the result and that no definition implements."""
    read.refuse_unless("expert_count", (0,), "mixture of experts")
    read.refuse_unless("use_parallel_residual", (False,), "parallel residual")
    read.refuse_unless("attention.clamp_kqv", (0.0,), "clamping of q, k and v")
    read.refuse_unless("attention.temperature_scale", (0.0,), "attention temperature")
    read.refuse_unless("attention.causal", (True,), "attention that is not causal")
    read.refuse_unless("logit_scale", (0.0, 1.0), "a logit scale")
    read.refuse_unless("residual_scale", (0.0, 1.0), "a residual scale")
    read.refuse_unless("embedding_scale", (0.0, 1.0), "an embedding scale")
    if architecture != "gemma3":
        read.refuse_unless("final_logit_softcapping", (0.0,), "a soft cap of the logits")


def _vocabulary_size(tensors: Mapping[str, QuantTensor]) -> int:
    table = tensors.get("token_embd.weight")
    if table is None:
        raise ModelError("tensor token_embd.weight is missing")
    if len(table.shape) != 2:
        raise ModelError(f"tensor token_embd.weight has shape {table.shape}; a matrix is needed")
    return table.shape[0]


def _activation(read: MetadataReader, traits: Traits) -> Activation:
    name = read.text("hidden_activation", "")
    if name and name not in ACTIVATIONS:
        raise ModelError(f'unsupported activation "{name}" ({read.name("hidden_activation")})')
    return ACTIVATIONS[name] if name else traits.activation


def _attention(
    read: MetadataReader,
    traits: Traits,
    sizes: tuple[int, int, int, int, int],
    tensors: Mapping[str, QuantTensor],
) -> tuple[AttentionSpec, ...]:
    n_embd, n_layer, n_head, n_head_kv, head_dim = sizes
    rope = Rope(_scaled_frequencies(read, head_dim, tensors))
    local_rope = rope
    if traits.local_freq_base is not None:
        # Scaling and frequency factors stretch the layers that see the whole context, not the local ones.
        base = read.real("rope.freq_base_swa", traits.local_freq_base)
        local_rope = Rope(tuple(_frequencies(base, _rotated_width(read, head_dim)).tolist()))
    # Gemma 3 27B scales queries by its nominal head size; its key length is another number.
    nominal = n_embd / n_head if (traits.scaled_embedding and n_layer == 62) else head_dim
    scale = read.optional_real("attention.scale") or nominal**-0.5
    softcap = read.optional_real("attn_logit_softcapping")
    return tuple(
        AttentionSpec(
            layer=layer,
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=head_dim,
            scale=scale,
            rope=rope if window is None else local_rope,
            window=window,
            softcap=softcap,
        )
        for layer, window in enumerate(_windows(read, traits, n_layer))
    )


def _windows(read: MetadataReader, traits: Traits, n_layer: int) -> list[int | None]:
    """Sliding window of every layer, None for the layers that see the whole context."""
    window = read.integer("attention.sliding_window", 0, minimum=0)
    if window == 0 or (traits.window_pattern is None and window >= read.integer("context_length")):
        return [None] * n_layer
    if traits.window_pattern is None:
        raise ModelError(
            f"a sliding window ({read.name('attention.sliding_window')} = {window}) is not supported"
        )
    pattern = read.raw("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != n_layer:
            raise ModelError(
                f"{read.name('attention.sliding_window_pattern')} does not have {n_layer} entries"
            )
        return [window if is_local else None for is_local in pattern]
    n = read.integer("attention.sliding_window_pattern", traits.window_pattern, minimum=0)
    return [window if n == 0 or layer % n < n - 1 else None for layer in range(n_layer)]


def _rotated_width(read: MetadataReader, head_dim: int) -> int:
    width = read.integer("rope.dimension_count", head_dim)
    if width % 2 or width > head_dim:
        raise ModelError(
            f"{read.name('rope.dimension_count')} is {width}; an even number up to {head_dim} is needed"
        )
    return width


def _frequencies(base: float, width: int) -> npt.NDArray[np.float64]:
    """base^(-2i/width), arXiv 2104.09864 section 3.2.2."""
    return np.power(base, -np.arange(0, width, 2, dtype=np.float64) / width)


def _scaled_frequencies(
    read: MetadataReader, head_dim: int, tensors: Mapping[str, QuantTensor]
) -> tuple[float, ...]:
    """Rotary frequencies with linear scaling and the file's frequency factors applied."""
    kind = read.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear") or any(name.startswith("rope_factors") for name in tensors):
        raise ModelError(f'unsupported RoPE scaling type "{kind}" ({read.name("rope.scaling.type")})')
    frequencies = _frequencies(read.real("rope.freq_base", 10000.0), _rotated_width(read, head_dim))
    if kind == "linear":
        frequencies /= read.real("rope.scaling.factor", read.optional_real("rope.scale_linear") or 1.0)
    factors = tensors.get(ROPE_FACTORS)
    if factors is not None:
        if factors.shape != frequencies.shape or factors.qtype.name != "F32":
            raise ModelError(
                f"tensor {ROPE_FACTORS} is {factors.qtype.name} of shape {factors.shape}; "
                f"F32 of shape {frequencies.shape} is needed"
            )
        values = np.frombuffer(factors.data, "<f4")
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ModelError(f"tensor {ROPE_FACTORS} holds values that are not finite and above zero")
        frequencies /= values
    return tuple(frequencies.tolist())
