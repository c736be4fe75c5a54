"""One round: rows of all sequences in one target pass, verification, commit. Plain decoding is an empty
draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from ..protocols import FloatArray, LanguageModel, Rows
from .drafters.base import ROOT, Draft
from .verify import verify


class Speaker(Protocol):
    """Chooses and emits the tokens of one sequence."""

    def choose(self, logits: FloatArray) -> int:
        """The target's token after the row with these logits [n_vocab]."""
        ...

    def emit(self, token_id: int, *, from_draft: bool) -> bool:
        """Take the token; return whether the sequence goes on."""
        ...


@dataclass(slots=True)
class Turn:
    """What one sequence contributes to a pass: context tokens that are not computed yet, then the draft.

    Without a speaker this is a piece of a prompt whose logits nobody needs.
    """

    kv: int  # handle of the sequence in the model
    start: int  # committed tokens
    token_ids: Sequence[int]
    speaker: Speaker | None = None
    draft: Draft = field(default_factory=Draft)
    accepted: list[int] = field(
        default_factory=list
    )  # filled in: draft tokens that were accepted, in path order

    @property
    def num_rows(self) -> int:
        """Rows in the pass."""
        return len(self.token_ids) + len(self.draft.token_ids)


def run_round(model: LanguageModel, turns: Sequence[Turn]) -> float:
    """Compute all turns in one target pass, let each sequence speak, commit what was kept.

    Returns the time of the pass in ms.
    """
    rows = build_rows(turns)
    started = perf_counter()
    logits = model.forward(rows)
    elapsed = 1000 * (perf_counter() - started)
    first_row = first_output = 0
    for turn in turns:
        root = first_row + len(turn.token_ids)
        kept = list(range(first_row, root))
        if turn.speaker is not None:
            end = first_output + 1 + len(turn.draft.token_ids)
            turn.accepted = _speak(turn.speaker, turn.draft, logits[first_output:end])
            kept += [root + node for node in turn.accepted]
            first_output = end
        model.commit(turn.kv, kept)
        first_row += turn.num_rows
    return elapsed


def _speak(speaker: Speaker, draft: Draft, logits: FloatArray) -> list[int]:
    """Verify one draft; `logits` [1 + draft length, n_vocab], the context's last row first."""
    return verify(
        draft,
        choose=lambda node: speaker.choose(logits[node - ROOT]),
        emit=lambda token_id, from_draft: speaker.emit(token_id, from_draft=from_draft),
    )


def build_rows(turns: Sequence[Turn]) -> Rows:
    """Flatten turns into rows; logits for the last context token and the draft of those that speak."""
    token_ids: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    outputs: list[int] = []
    for turn in turns:
        first, count = len(token_ids), len(turn.token_ids)
        root = first + count
        token_ids += turn.token_ids
        token_ids += turn.draft.token_ids
        positions += range(turn.start, turn.start + count)
        positions += [turn.start + count + depth for depth in turn.draft.depths()]
        parents.append(-1)
        parents += range(first, root - 1)
        parents += [root + turn.draft.parent(node) for node in range(len(turn.draft.token_ids))]
        if turn.speaker is not None:
            outputs += range(root - 1, len(token_ids))
    sequences = np.repeat([turn.kv for turn in turns], [turn.num_rows for turn in turns])
    return Rows(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        sequences=sequences.astype(np.int32),
        parents=np.array(parents, np.int32),
        outputs=np.array(outputs, np.int32),
    )
