"""Logits processors. Each narrows or shifts the candidates; those with a memory can go back.

Semantics and default order are llama.cpp's, arithmetic is float64.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..errors import UsageError
from .candidates import Candidates, IdArray, top_indices
from .elementary import Float64Array, exp, log
from .params import SamplingParams

_TOP_P_START = 1024  # entries that are put in order at first, where there are many


class Processor(Protocol):
    """One step between raw logits and the choice of a token."""

    def apply(self, candidates: Candidates) -> None:
        """Change the candidates of one position; must depend on them and on the accepted tokens only."""
        ...

    def accept(self, token_id: int) -> None:
        """Take note of the next token of the sequence."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted tokens, without a trace."""
        ...


class Stateless:
    """Base of processors without a memory."""

    def accept(self, token_id: int) -> None:
        """Nothing to remember."""

    def rollback(self, count: int) -> None:
        """Nothing to forget."""


class LogitBias(Stateless):
    """Adds a constant to the logits of some tokens; minus infinity bans them."""

    def __init__(self, biases: Sequence[tuple[int, float]], n_vocab: int) -> None:
        for token_id, _ in biases:
            if token_id >= n_vocab:
                raise UsageError(f"logit_bias names token {token_id}, the vocabulary has {n_vocab}")
        total: dict[int, float] = {}
        for token_id, bias in biases:
            total[token_id] = total.get(token_id, 0.0) + bias
        self._ids: IdArray = np.array(list(total), np.int64)
        self._biases = np.array(list(total.values()), np.float64)

    def apply(self, candidates: Candidates) -> None:
        """Shift the named tokens that are there."""
        where, which = candidates.locate(self._ids)
        logits = candidates.writable()
        logits[where] += self._biases[which]
        candidates.set_logits(logits, ordered=False)


class Penalties:
    """Repetition, presence and frequency penalty over the last `repeat_last_n` tokens, prompt included.

    For a token seen c > 0 times: a logit l becomes l / repeat (l > 0) or l * repeat (Keskar et al., arXiv
    1909.05858), then c * frequency + presence is taken off.
    """

    def __init__(self, params: SamplingParams, context_ids: Sequence[int]) -> None:
        self._repeat = params.repeat_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._window = params.repeat_last_n if params.repeat_last_n >= 0 else None
        start = 0 if self._window is None else max(0, len(context_ids) - self._window)
        self._history: list[int] = []
        self._counts: dict[int, int] = {}  # of the tokens in the window
        for token_id in context_ids[start:]:
            self.accept(token_id)

    def apply(self, candidates: Candidates) -> None:
        """Penalise the tokens of the window."""
        if not self._counts:
            return
        ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        where, which = candidates.locate(ids)
        counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))[which]
        logits = candidates.writable()
        old = logits[where]
        new = np.where(old > 0, old / self._repeat, old * self._repeat)
        logits[where] = new - (counts * self._frequency + self._presence)
        candidates.set_logits(logits, ordered=False)

    def accept(self, token_id: int) -> None:
        """Move the window on by one token."""
        self._history.append(token_id)
        self._add(token_id, 1)
        if self._window is not None and len(self._history) > self._window:
            self._add(self._history[-self._window - 1], -1)

    def rollback(self, count: int) -> None:
        """Move the window back by `count` tokens."""
        if count > len(self._history):
            raise ValueError(f"rollback of {count} tokens, {len(self._history)} were accepted")
        for _ in range(count):
            self._add(self._history.pop(), -1)
            if self._window is not None and len(self._history) >= self._window:
                self._add(self._history[-self._window], 1)

    def _add(self, token_id: int, change: int) -> None:
        count = self._counts.get(token_id, 0) + change
        if count:
            self._counts[token_id] = count
        else:
            del self._counts[token_id]


class TopK(Stateless):
    """Keeps the k largest logits; lowest ids first among equals."""

    def __init__(self, k: int) -> None:
        self._k = k

    def apply(self, candidates: Candidates) -> None:
        """Narrow to k."""
        if self._k < len(candidates):
            candidates.best()
            candidates.keep_top(self._k)


class TopP(Stateless):
    """Keeps the smallest set of most likely tokens with a total probability of p (Holtzman et al., arXiv
    1904.09751).
    """

    def __init__(self, p: float) -> None:
        self._p = p

    def apply(self, candidates: Candidates) -> None:
        """Narrow to the nucleus."""
        best = candidates.best()
        weights = np.cumsum(exp(candidates.logits.astype(np.float64) - best))
        goal = self._p * float(weights[-1])
        if not candidates.ordered:
            weights = self._order_enough(candidates, best, goal)
        candidates.keep_first(int(np.searchsorted(weights, goal)) + 1)

    @staticmethod
    def _order_enough(candidates: Candidates, best: float, goal: float) -> Float64Array:
        """Put the largest logits in order, as many as it takes to reach `goal`; return their running
        weights.
        """
        logits = candidates.logits
        count = _TOP_P_START
        while True:
            indices = top_indices(logits, count)
            weights = np.cumsum(exp(logits[indices].astype(np.float64) - best))
            if weights[-1] >= goal or count >= len(logits):
                candidates.keep_ordered(indices)
                return weights
            count *= 4


class MinP(Stateless):
    """Keeps tokens of at least p times the probability of the most likely one (Nguyen et al., arXiv
    2407.01082).
    """

    def __init__(self, p: float) -> None:
        self._offset = float(log(np.array([p]))[0])

    def apply(self, candidates: Candidates) -> None:
        """Drop what is too far below the best."""
        logits = candidates.logits
        keep = np.flatnonzero(logits.astype(np.float64) >= candidates.best() + self._offset)
        if len(keep) < len(logits):
            candidates.select(keep)


class Temperature(Stateless):
    """Divides the logits by a temperature above 0."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature

    def apply(self, candidates: Candidates) -> None:
        """Scale."""
        candidates.set_logits(candidates.writable() / self._temperature, ordered=True)


def build_chain(params: SamplingParams, context_ids: Sequence[int], n_vocab: int) -> list[Processor]:
    """The processors that `params` ask for, in order; raises UsageError for ids outside the vocabulary.

    At temperature 0 the steps that cannot change which token is the most likely one are left out.
    """
    chain: list[Processor] = [LogitBias(params.logit_bias, n_vocab)] if params.logit_bias else []
    for name in params.samplers:
        processor = _build(name, params, context_ids)
        if processor is not None:
            chain.append(processor)
    return chain


def _build(name: str, params: SamplingParams, context_ids: Sequence[int]) -> Processor | None:
    """One processor of the chain, or None where its settings leave it without effect."""
    if name == "penalties":
        neutral = (params.repeat_penalty, params.presence_penalty, params.frequency_penalty) == (1, 0, 0)
        return None if neutral or params.repeat_last_n == 0 else Penalties(params, context_ids)
    if params.temperature == 0:
        return None
    if name == "top_k" and params.top_k > 0:
        return TopK(params.top_k)
    if name == "top_p" and params.top_p < 1:
        return TopP(params.top_p)
    if name == "min_p" and params.min_p > 0:
        return MinP(params.min_p)
    if name == "temperature" and params.temperature != 1:
        return Temperature(params.temperature)
    return None
