"""Log-probabilities that a model gives to a text.

Every token is scored given those before it. A text that does not fit into the context is cut into windows:
the first is a whole context; each further one begins with half a context of tokens that were scored already
(after the BOS, if the text has one) and scores what follows. So every later token has at least half a context
before it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specdec_cli.errors import SpecdecError
from specdec_cli.protocols import FloatArray, LanguageModel, chain_rows

_MAX_ROWS = 64  # logits of a forward take rows x n_vocab x 4 bytes


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of n tokens: `token_logprobs[i]` (natural logarithm) is token i + 1's, given tokens 0..i."""

    token_ids: tuple[int, ...]  # [n]
    token_logprobs: tuple[float, ...]  # [n - 1]
    argmax: tuple[int, ...]  # [n] most likely token after token i, the lowest id of equals

    @property
    def mean_logprob(self) -> float:
        """Mean over all scored tokens."""
        return math.fsum(self.token_logprobs) / len(self.token_logprobs)

    @property
    def perplexity(self) -> float:
        """exp(-mean log-probability), infinite where that overflows."""
        try:
            return math.exp(-self.mean_logprob)
        except OverflowError:
            return math.inf


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [start, end) go through the model, after the BOS if `with_bos`; rows from `new` on count."""

    start: int
    new: int
    end: int
    with_bos: bool


def windows(n: int, n_ctx: int, *, bos: bool) -> Iterator[Window]:
    """Cut n tokens into windows of at most n_ctx; `bos` tells that the first one is the BOS."""
    end = min(n, n_ctx)
    yield Window(0, 0, end, with_bos=False)
    room = n_ctx - 1 if bos else n_ctx
    while end < n:
        new, start = end, end - room // 2
        end = min(n, start + room)
        yield Window(start, new, end, with_bos=bos)


def _score_window(
    model: LanguageModel, ids: Sequence[int], first: int, on_rows: Callable[[FloatArray], None]
) -> None:
    """Run `ids` through a fresh sequence and hand over the logits of the rows from `first` on, in order."""
    sequence = model.create_sequence()
    try:
        for begin in range(0, len(ids), _MAX_ROWS):
            chunk = ids[begin : begin + _MAX_ROWS]
            outputs = min(len(chunk), max(0, begin + len(chunk) - first))
            logits = model.forward(chain_rows(sequence, begin, chunk, outputs))
            model.commit(sequence, range(len(chunk)))
            if outputs:
                on_rows(logits)
    finally:
        model.free_sequence(sequence)


def log_probability(logits: FloatArray, token_id: int) -> float:
    """log softmax(logits)[token_id] in double precision."""
    x = logits.astype(np.float64)
    top = float(x.max())
    return float(x[token_id]) - top - math.log(float(np.exp(x - top).sum()))


def score_tokens(
    model: LanguageModel,
    token_ids: Sequence[int],
    *,
    bos_id: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Score a text; `bos_id` is what it begins with, if it does. Raises SpecdecError below two tokens."""
    n = len(token_ids)
    if n < 2:
        raise SpecdecError(f"nothing to score: the text has {n} tokens, at least 2 are needed")
    if model.n_ctx < 4:
        raise SpecdecError(
            f"a context of {model.n_ctx} tokens is too small for scoring, at least 4 are needed"
        )
    logprobs: list[float] = []
    argmax: list[int] = []

    def take(logits: FloatArray) -> None:
        for row in logits:
            position = len(argmax)
            if not math.isfinite(float(row.max())):
                raise SpecdecError(f"the model gave no finite logits after token {position}")
            argmax.append(int(row.argmax()))
            if position + 1 < n:
                logprobs.append(log_probability(row, token_ids[position + 1]))
        if progress is not None:
            progress(len(argmax), n)

    bos = bos_id is not None and token_ids[0] == bos_id
    for window in windows(n, model.n_ctx, bos=bos):
        ids = list(token_ids[window.start : window.end])
        first = window.new - window.start
        if window.with_bos and bos_id is not None:
            ids.insert(0, bos_id)
            first += 1
        _score_window(model, ids, first, take)
    return Scores(tuple(token_ids), tuple(logprobs), tuple(argmax))
