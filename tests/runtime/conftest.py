"""Tiny models on the torch executor, and ways to compute the same logits by different routes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quant.gguf_file import GgufFile
from specdec_cli.loader import build_plan
from specdec_cli.protocols import LanguageModel, Rows, chain_rows

IDS = np.random.default_rng(5).integers(3, 259, 150).tolist()
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"n_head": 6, "n_head_kv": 2, "head_dim": 12, "n_embd": 72},
    "qwen2": {"n_head": 7, "n_head_kv": 1, "n_embd": 112},
    "qwen3": {"n_head": 4, "n_head_kv": 4, "head_dim": 10},
    "gemma3": {"n_layer": 7, "n_embd": 40, "window": 70},
}


@pytest.fixture(scope="session")
def tiny_plan(tiny_gguf: Callable[..., Any]) -> Callable[..., Any]:
    """Factory (architecture, **sizes) -> recorded plan of a tiny model with awkward sizes."""

    def make(architecture: str, **sizes: Any) -> Any:
        with GgufFile.open(tiny_gguf(architecture, **{**SHAPES[architecture], **sizes})) as file:
            return build_plan(file.metadata, file.tensors)[1]

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny_plan: Callable[..., Any]) -> Callable[..., LanguageModel]:
    """Factory (architecture, *, n_ctx=256, threads=1, ...) -> TorchModel."""
    from specdec_cli.runtime.torch_model import TorchModel

    def make(architecture: str, **options: Any) -> LanguageModel:
        return TorchModel(tiny_plan(architecture), **{"n_ctx": 256, "threads": 1, **options})

    return make


def _feed(model: LanguageModel, sequence: int, ids: list[int], chunk: int) -> np.ndarray:
    """Append ids in chunks and return all their logits [len(ids), n_vocab]."""
    parts = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        parts.append(model.forward(chain_rows(sequence, model.length(sequence), part, len(part))))
        model.commit(sequence, range(len(part)))
    return np.concatenate(parts)


def _logits(model: LanguageModel, ids: list[int], chunk: int) -> np.ndarray:
    """Logits of a fresh sequence computed in chunks."""
    sequence = model.create_sequence()
    try:
        return _feed(model, sequence, ids, chunk)
    finally:
        model.free_sequence(sequence)


def _join(*parts: Rows) -> Rows:
    """One batch of several independent ones."""
    shifts = np.cumsum([0, *(len(part.token_ids) for part in parts[:-1])])
    return Rows(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
        sequences=np.concatenate([part.sequences for part in parts]),
        parents=np.concatenate(
            [np.where(p.parents < 0, -1, p.parents + shift) for p, shift in zip(parts, shifts, strict=True)]
        ).astype(np.int32),
        outputs=np.concatenate([p.outputs + shift for p, shift in zip(parts, shifts, strict=True)]),
    )


def _tree(sequence: int, start: int, nodes: list[tuple[int, int]]) -> Rows:
    """Rows of a draft tree given as (token id, parent row or -1), logits of all."""
    depth: list[int] = []
    for _, parent in nodes:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    n = len(nodes)
    return Rows(
        token_ids=np.asarray([token for token, _ in nodes], np.int32),
        positions=np.asarray([start + d for d in depth], np.int32),
        sequences=np.full(n, sequence, np.int32),
        parents=np.asarray([parent for _, parent in nodes], np.int32),
        outputs=np.arange(n, dtype=np.int32),
    )


@pytest.fixture(scope="session")
def lm() -> SimpleNamespace:
    """`ids` (150 tokens), `feed`, `logits`, `join` and `tree`."""
    return SimpleNamespace(ids=IDS, feed=_feed, logits=_logits, join=_join, tree=_tree)
