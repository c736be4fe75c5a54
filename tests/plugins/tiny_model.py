"""Fixture `tiny_gguf`: tiny random models with a tokenizer and a chat template, written as GGUF files.

    def test_something(tiny_gguf):
        path = tiny_gguf("qwen2", seed=1)          # a Path; equal arguments give the same file
        loaded = load_model(path, LoadOptions(executor="torch"))

The vocabulary: ids 0-2 are the control tokens <|endoftext|>, <|im_start|>, <|im_end|>; id 3 + b is byte b;
then come the merges "th", "the", "in", "an", " t", " the".
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Read when torch is first imported: threads that spin make tests on a busy machine very slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

TinyGguf = Callable[..., Path]

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "i n", "a n", "Ġ t", "Ġt he")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> TinyGguf:
    """Factory `tiny_gguf(architecture="llama", *, seed=0, file_type="F32", tied=False, **sizes) -> Path`.

    `sizes`: n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_ctx, window, extra_tokens (unused
    vocabulary entries at the end), metadata (further or changed entries; None removes one).
    """
    directory = tmp_path_factory.mktemp("tiny_models")
    made: dict[str, Path] = {}

    def make(architecture: str = "llama", **options: Any) -> Path:
        key = repr((architecture, sorted(options.items())))
        if key not in made:
            made[key] = directory / f"{architecture}-{len(made)}.gguf"
            _write(made[key], architecture, **options)
        return made[key]

    return make


def _write(
    path: Path,
    architecture: str,
    *,
    seed: int = 0,
    file_type: str = "F32",
    tied: bool = False,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int = 16,
    n_ff: int = 96,
    n_ctx: int = 512,
    window: int = 24,
    extra_tokens: int = 0,
    metadata: dict[str, Any] | None = None,
) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    tokenizer = _tokenizer(extra_tokens)
    entries = {
        f"{architecture}.block_count": n_layer,
        f"{architecture}.context_length": n_ctx,
        f"{architecture}.embedding_length": n_embd,
        f"{architecture}.feed_forward_length": n_ff,
        f"{architecture}.attention.head_count": n_head,
        f"{architecture}.attention.head_count_kv": n_head_kv,
        f"{architecture}.attention.key_length": head_dim,
        f"{architecture}.attention.value_length": head_dim,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{architecture}.rope.freq_base": 10000.0,
        **({"gemma3.attention.sliding_window": window} if architecture == "gemma3" else {}),
        **tokenizer,
        **(metadata or {}),
    }
    n_vocab = len(tokenizer["tokenizer.ggml.tokens"])
    writer = GGUFWriter(path, architecture)
    for name, value in entries.items():
        if value is not None:
            _add(writer, name, value)
    heads = (n_head * head_dim, n_head_kv * head_dim)
    for name, shape in _shapes(architecture, n_layer, n_embd, heads, head_dim, n_ff).items():
        _add_tensor(writer, name, _random(name, shape, seed), file_type, quantize, GGMLQuantizationType)
    for name in ("token_embd.weight",) if tied else ("token_embd.weight", "output.weight"):
        values = _random(name, (n_vocab, n_embd), seed)
        _add_tensor(writer, name, values, file_type, quantize, GGMLQuantizationType)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def _add_tensor(
    writer: Any, name: str, values: np.ndarray, file_type: str, quantize: Any, types: Any
) -> None:
    if values.ndim == 1 or file_type == "F32":
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, quantize(values, types[file_type]), raw_dtype=types[file_type])


def _random(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    generator = np.random.default_rng([seed, *name.encode()])
    values = generator.standard_normal(shape)
    if "norm" in name:
        values = 1 + values / 10
    elif len(shape) == 1:
        values = values / 10
    elif name not in ("token_embd.weight", "output.weight"):
        values = values * 2 / shape[1] ** 0.5
    elif name == "output.weight":
        values = values * 3 / shape[1] ** 0.5
    return values.astype(np.float32)


def _shapes(
    architecture: str, n_layer: int, n_embd: int, heads: tuple[int, int], head_dim: int, n_ff: int
) -> dict[str, tuple[int, ...]]:
    q_width, kv_width = heads
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (n_embd,),
        "attn_q.weight": (q_width, n_embd),
        "attn_k.weight": (kv_width, n_embd),
        "attn_v.weight": (kv_width, n_embd),
        "attn_output.weight": (n_embd, q_width),
        "ffn_norm.weight": (n_embd,),
        "ffn_gate.weight": (n_ff, n_embd),
        "ffn_up.weight": (n_ff, n_embd),
        "ffn_down.weight": (n_embd, n_ff),
    }
    if architecture == "qwen2":
        block |= {"attn_q.bias": (q_width,), "attn_k.bias": (kv_width,), "attn_v.bias": (kv_width,)}
    if architecture in ("qwen3", "gemma3"):
        block |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
    if architecture == "gemma3":
        block |= {"post_attention_norm.weight": (n_embd,), "post_ffw_norm.weight": (n_embd,)}
    shapes = {f"blk.{i}.{name}": shape for i in range(n_layer) for name, shape in block.items()}
    return {**shapes, "output_norm.weight": (n_embd,)}


def _byte_alphabet() -> list[str]:
    """The visible character that byte-level BPE writes for each byte (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    shown = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [shown[b] for b in range(256)]


def _tokenizer(extra_tokens: int) -> dict[str, Any]:
    merged = [merge.replace(" ", "") for merge in MERGES]
    unused = [f"<unused{i}>" for i in range(extra_tokens)]
    tokens = [*CONTROL_TOKENS, *_byte_alphabet(), *merged, *unused]
    kinds = [3] * len(CONTROL_TOKENS) + [1] * (256 + len(merged)) + [5] * extra_tokens
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
