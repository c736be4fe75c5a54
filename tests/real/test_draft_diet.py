"""A real draft model on its diet: how often the target still agrees with it, and what a step reads."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specdec_cli.bench.prompts import load_prompts
from specdec_cli.cli.encoder import TemplateEncoder
from specdec_cli.cli.settings import TemplateChoice
from specdec_cli.diet import DietOptions
from specdec_cli.loader import LoadedModel, LoadOptions, load_model
from specdec_cli.protocols import chain_rows

pytestmark = pytest.mark.real

TARGET, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
PROMPTS = Path(__file__).resolve().parents[3] / "shared" / "prompts" / "bench.jsonl"  # else the built-in ones
TOKENS = 96  # of each answer
ROUND = 5  # tokens of the answer that become known at a time
MOST_LOST = 0.02  # of the target's tokens


def load(path, diet=None) -> LoadedModel:
    return load_model(path, LoadOptions(executor="native", n_ctx=1024, threads=2, diet=diet))


def answer(target: LoadedModel, prompt: Sequence[int]) -> list[int]:
    """The target's greedy continuation."""
    sequence, ids = target.model.create_sequence(), list(prompt)
    todo, made = ids, []
    while len(made) < TOKENS and (not made or made[-1] not in target.tokenizer.eog_ids):
        logits = target.model.forward(chain_rows(sequence, target.model.length(sequence), todo, 1))
        target.model.commit(sequence, range(len(todo)))
        todo = [int(logits[0].argmax())]
        made += todo
    target.model.free_sequence(sequence)
    return made


def agreement(draft: LoadedModel, texts: Sequence[tuple[list[int], list[int]]]) -> float:
    """Share of the target's tokens that the draft model would have proposed, each given those before it."""
    hits = total = 0
    for prompt, continuation in texts:
        sequence, ids, known = draft.model.create_sequence(), [*prompt, *continuation], len(prompt)
        while known < len(ids):
            start, end = draft.model.length(sequence), min(known + ROUND, len(ids))
            if draft.cut_head is not None:
                draft.cut_head.admit(ids[start:known])
            rows = chain_rows(sequence, start, ids[start : end - 1], end - known)
            logits = draft.model.forward(rows)
            draft.model.commit(sequence, range(known - start))
            for row, expected in zip(logits, ids[known:end], strict=True):
                usable, kept = (row, None) if draft.cut_head is None else draft.cut_head.usable(row)
                best = int(usable.argmax())
                hits += expected == (best if kept is None else int(kept[best]))
            total, known = total + end - known, end
        draft.model.free_sequence(sequence)
    return hits / total


def test_the_target_agrees_nearly_as_often(model_path) -> None:
    target = load(model_path(TARGET))
    encoder = TemplateEncoder.of(target.metadata, target.tokenizer, TemplateChoice(None, {}))
    texts = []
    for prompt in load_prompts(PROMPTS if PROMPTS.exists() else None).prompts:
        ids = encoder.encode_messages(list(prompt.messages or ()), allow_special=False)
        texts.append((ids, answer(target, ids)))
    whole = load(model_path(DRAFT), DietOptions("keep", "all"))
    slim = load(model_path(DRAFT), DietOptions())
    assert whole.diet is not None
    assert slim.diet is not None
    assert slim.diet.bytes_after < 0.6 * whole.diet.bytes_after
    before, after = agreement(whole, texts), agreement(slim, texts)
    assert before > 0.8  # else this measures nothing
    assert after >= before - MOST_LOST, f"{before:.3f} became {after:.3f}"
