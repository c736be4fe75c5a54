"""The cut head: rows and ids, tokens that join, and that models and drafters work with it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from quant.reference import dequantize
from quant.requantize import quantize, requantize
from quant.types import BY_NAME, F32
from specdec_cli.decoding.drafters.base import DraftRequest
from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.diet import DietOptions
from specdec_cli.draft_head import CutHead
from specdec_cli.errors import UsageError
from specdec_cli.loader import LoadedModel, LoadOptions, load_model
from specdec_cli.protocols import chain_rows
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

N_VOCAB, WIDTH = 500, 64
Q8_0 = BY_NAME["Q8_0"]


class Recorder:
    """A model that remembers what is written to its head."""

    def __init__(self, head: CutHead) -> None:
        self.table = dequantize(head.weight)
        self.head = head
        self.writes: list[tuple[int, int]] = []

    def write_head_rows(self, first: int, packed: npt.NDArray[np.uint8]) -> None:
        count = len(packed) // self.head.weight.row_bytes
        self.writes.append((first, count))
        rows = type(self.head.weight)("rows", self.head.weight.qtype, (count, WIDTH), packed.copy())
        self.table[first : first + count] = dequantize(rows)

    def logits(self) -> npt.NDArray[np.float32]:
        """First column of the head: tells the rows apart."""
        return self.table[:, 0]


def make(ids: Sequence[int] = range(20), capacity: int = 32) -> tuple[CutHead, Recorder]:
    values = np.random.default_rng(0).standard_normal((N_VOCAB, WIDTH)).astype(np.float32)
    head = CutHead.cut(quantize(values, F32, name="output.weight"), ids, Q8_0, capacity=capacity)
    model = Recorder(head)
    head.attach(model)
    return head, model


def expected(head: CutHead, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    return dequantize(requantize(head.source.select_rows(ids), Q8_0))[:, 0]


def check(head: CutHead, model: Recorder, ids: Sequence[int]) -> None:
    """The head offers exactly these ids, each with its own row."""
    logits, found = head.usable(model.logits())
    assert found.tolist() == sorted(ids)
    assert (logits == expected(head, found.tolist())).all()


def test_rows_of_the_fixed_ids() -> None:
    head, model = make([7, 3, 3, 499])
    assert head.weight.shape == (16 + 32, WIDTH)  # padded to a panel, then spare ones
    assert (head.weight.qtype, head.weight.name) == (Q8_0, "output.weight (cut)")
    assert (head.n_vocab, head.num_ids) == (N_VOCAB, 3)
    check(head, model, [3, 7, 499])
    assert not model.table[3:].any()


def test_ids_that_occur_join() -> None:
    head, model = make()
    head.admit([5, 300, 41, 300])
    check(head, model, [*range(20), 41, 300])
    assert model.writes == [(32, 16)]  # one whole panel
    head.admit([300, 41, 5])
    assert len(model.writes) == 1
    head.admit(range(100, 120))  # reaches into the second panel
    check(head, model, [*range(20), 41, 300, *range(100, 120)])
    assert model.writes[1:] == [(32, 16), (48, 16)]


def test_the_oldest_give_way() -> None:
    head, model = make()
    head.admit(range(100, 132))
    check(head, model, [*range(20), *range(100, 132)])
    head.admit([200, 201])
    gone = {i for i in range(100, 132) if i not in head.usable(model.logits())[1]}
    assert len(gone) == 2
    check(head, model, [*range(20), *(set(range(100, 132)) - gone), 200, 201])
    head.admit(sorted(gone))  # and come back
    assert gone <= set(head.usable(model.logits())[1].tolist())
    assert head.num_ids == 52


def test_of_too_many_ids_the_last_ones_join() -> None:
    head, model = make(capacity=16)
    head.admit(range(100, 200))
    check(head, model, [*range(20), *range(184, 200)])


def test_ids_beyond_the_vocabulary_are_ignored() -> None:
    head, model = make()
    head.admit([N_VOCAB, 10**6, -1])
    check(head, model, range(20))
    assert model.writes == []


def test_ids_that_are_not_allowed_are_never_offered() -> None:
    head, model = make()
    head.admit([300, 301])
    allowed = np.ones(400, np.bool_)
    allowed[[3, 300, 350]] = False
    head.restrict(allowed)
    head.admit([350, 450, 302])
    check(head, model, [i for i in [*range(20), 301, 302] if i != 3])


def test_nothing_joins_before_a_model_is_attached() -> None:
    values = np.ones((N_VOCAB, WIDTH), np.float32)
    head = CutHead.cut(quantize(values, F32), range(4), Q8_0, capacity=16)
    head.admit([100])
    assert head.num_ids == 4


def test_models_that_cannot_be_overwritten_are_refused() -> None:
    head, _ = make()
    with pytest.raises(UsageError, match="use --draft-vocab all"):
        head.attach(object())


@pytest.fixture(params=["torch", "native"])
def load(request: pytest.FixtureRequest) -> Callable[..., LoadedModel]:
    """Load a model on either executor, on a diet if one is given."""

    def make(path: Path, diet: DietOptions | None = None) -> LoadedModel:
        return load_model(path, LoadOptions(executor=request.param, diet=diet))

    return make


CUT = DietOptions("keep", 270)  # of 4265: the 265 tokens that the tokenizer makes, and five more


def test_logits_are_those_of_the_whole_head(load: Callable[..., LoadedModel], tiny_gguf: Any) -> None:
    path = tiny_gguf("qwen2", file_type="Q8_0", extra_tokens=4000)
    whole, slim = load(path), load(path, CUT)
    head = slim.cut_head
    assert head is not None
    head.admit([4000, 300, 1234])
    ids = [*whole.tokenizer.encode("the thing"), 1234]
    rows = chain_rows(whole.model.create_sequence(), 0, ids, len(ids))
    wanted = whole.model.forward(rows)
    slim.model.create_sequence()
    for row, logits in zip(wanted, slim.model.forward(rows), strict=True):
        found, kept = head.usable(logits)
        assert kept.tolist() == [*range(270), 300, 1234, 4000]
        assert np.abs(found - row[kept]).max() < 1e-5 * np.abs(row).max()


def test_wrong_rows_are_refused(load: Callable[..., LoadedModel], tiny_gguf: Any) -> None:
    slim = load(tiny_gguf("llama", file_type="Q8_0", extra_tokens=4000), CUT)
    head, model = slim.cut_head, slim.model
    assert head is not None
    for first, size in ((-16, 16), (head.weight.shape[0], 16)):
        with pytest.raises(ValueError, match="rows"):
            model.write_head_rows(first, np.zeros(size * head.weight.row_bytes, np.uint8))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="rows"):
        model.write_head_rows(0, np.zeros(16 * head.weight.row_bytes + 1, np.uint8))  # type: ignore[attr-defined]


def test_a_drafter_proposes_ids_of_the_vocabulary(load: Callable[..., LoadedModel], tiny_gguf: Any) -> None:
    """The draft of a cut head is that of the whole one where all of its tokens are there; else they join."""
    path = tiny_gguf("llama", file_type="Q8_0", extra_tokens=4000)
    whole, slim = load(path), load(path, CUT)
    drafters = [DraftModelDrafter(whole.model), DraftModelDrafter(slim.model, head=slim.cut_head)]
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    context = whole.tokenizer.encode("the thing")

    def drafts(extra: Sequence[int]) -> list[list[int]]:
        ids = [*context, *extra]
        made = []
        for drafter in drafters:
            sampler = Sampler(params, ids, n_vocab=whole.model.n_vocab)
            request = DraftRequest(len(extra), ids, 4, sampler)
            made.append(drafter.propose([request])[0].token_ids)
        return made

    ours, cut = drafts([])
    assert max(ours) >= 270  # most of the vocabulary is missing
    assert cut != ours
    assert max(cut) < 270
    ours, _ = drafts([5])
    assert slim.cut_head is not None
    slim.cut_head.admit(ours)
    ours, cut = drafts([5])
    assert cut == ours


def test_ids_of_the_context_are_drafted_from_then_on(tiny_gguf: Any) -> None:
    slim = load_model(tiny_gguf("llama", extra_tokens=4000), LoadOptions(executor="torch", diet=CUT))
    drafter = DraftModelDrafter(slim.model, head=slim.cut_head, n_shared_vocab=4000, blocked_ids=[3001])
    context = [5, 3000, 3001, 4100, 6]
    sampler = Sampler(SamplingParams(temperature=0.0), context, n_vocab=slim.model.n_vocab)
    drafter.propose([DraftRequest(0, context, 2, sampler)])
    assert slim.cut_head is not None
    _, ids = slim.cut_head.usable(np.zeros(slim.model.n_vocab, np.float32))
    assert ids.tolist() == [*range(270), 3000]  # 3001 is blocked, 4100 not shared
