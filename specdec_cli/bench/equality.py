"""Promise 1, checked: where two outputs part, and how close the target's choice was there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specdec_cli.decoding.types import GenerationRequest
from specdec_cli.protocols import FloatArray, LanguageModel, chain_rows
from specdec_cli.sampling.sampler import Sampler

_CHUNK = 512  # rows of a pass


@dataclass(frozen=True, slots=True)
class Fork:
    """The first difference of two outputs: `position` in the output, and the token that each has there."""

    position: int
    expected: int | None  # None: that output has ended
    found: int | None


@dataclass(frozen=True, slots=True)
class Contest:
    """The target's choice for one position, computed afresh: the two best, and the gap between them.

    The gap is that of the processed logits at temperature 0, of the perturbed ones above.
    """

    chosen: int
    best: tuple[int, ...]  # ids of the two largest raw logits
    gap: float


def find_fork(expected: Sequence[int], found: Sequence[int]) -> Fork | None:
    """Where `found` leaves `expected`; None when they are equal."""
    for position, (a, b) in enumerate(zip(expected, found, strict=False)):
        if a != b:
            return Fork(position, a, b)
    if len(expected) == len(found):
        return None
    position = min(len(expected), len(found))
    return Fork(position, *(ids[position] if position < len(ids) else None for ids in (expected, found)))


def contest(model: LanguageModel, request: GenerationRequest, output: Sequence[int]) -> Contest:
    """What the target chooses after the prompt and `output`, in a sequence of its own."""
    ids = [*request.prompt_ids, *output]
    logits = _last_logits(model, ids)
    sampler = Sampler(request.sampling, request.prompt_ids, n_vocab=model.n_vocab)
    for token_id in output:
        sampler.accept(token_id)
    best = np.argsort(-logits, kind="stable")[:2]
    choice = sampler.choose(logits, len(ids))
    return Contest(choice.token_id, tuple(best.tolist()), choice.margin)


def _last_logits(model: LanguageModel, ids: Sequence[int]) -> FloatArray:
    """Logits [n_vocab] after `ids`."""
    sequence = model.create_sequence()
    try:
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            last = start + len(chunk) == len(ids)
            logits = model.forward(chain_rows(sequence, start, chunk, 1 if last else 0))
            model.commit(sequence, range(len(chunk)))
        last_row: FloatArray = logits[-1].copy()
        return last_row
    finally:
        model.free_sequence(sequence)
