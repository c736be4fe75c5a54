"""The sampler: processors, then Gumbel-max with keyed noise. Target and drafters use the same one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .candidates import Candidates, IdArray, check_best, top_indices
from .elementary import exp
from .noise import gumbel, uniform53
from .params import SamplingParams
from .processors import Processor, build_chain

_MANY = 4096  # candidates from which on the noise is only evaluated where it can matter
_HEAD = 512


class Choice:
    """A chosen token and, on demand, how clear the choice was. Valid until the next forward of the model."""

    __slots__ = ("_greedy", "_values", "token_id")

    def __init__(self, token_id: int, values: npt.NDArray[np.floating], *, greedy: bool) -> None:
        self.token_id = token_id
        self._values = values  # perturbed logits of the candidates that matter; processed logits when greedy
        self._greedy = greedy

    @property
    def margin(self) -> float:
        """Gap between the two best perturbed logits (temperature 0: processed logits); infinite without a
        second.
        """
        best = top_indices(self._values, 2)
        return float(self._values[best[0]]) - float(self._values[best[1]]) if len(best) > 1 else np.inf

    @property
    def confidence(self) -> float:
        """In [0, 1]. Temperature 0: the token's probability; above: 1 - exp(-margin), 0 for a tie."""
        if not self._greedy:
            return 1.0 - float(np.exp(-self.margin))
        return 1.0 / float(np.exp(self._values - self._values.max()).sum(dtype=np.float64))


class Sampler:
    """Chooses tokens for one sequence. The same logits, accepted tokens, seed and position give the same
    token.
    """

    def __init__(
        self,
        params: SamplingParams,
        context_ids: Sequence[int],
        *,
        n_vocab: int,
        processors: Sequence[Processor] = (),
    ) -> None:
        """Start after `context_ids`; `processors` run before those of `params`.

        Raises UsageError for a logit bias outside the vocabulary of `n_vocab` tokens.
        """
        self.params = params
        self._chain = [*processors, *build_chain(params, context_ids, n_vocab)]
        self._num_accepted = 0

    @property
    def num_accepted(self) -> int:
        """Tokens accepted since the start and not rolled back."""
        return self._num_accepted

    def choose(self, logits: npt.NDArray[np.float32], position: int, *, ids: IdArray | None = None) -> Choice:
        """Choose the token at absolute `position` from `logits` [n].

        `ids` [n], ascending, are the token ids of a head that was cut; by default 0..n-1. Ties go to the
        lowest id. Raises LogitsError where there is nothing to choose from.
        """
        greedy = self.params.temperature == 0
        if not greedy or self._chain:
            check_best(float(logits.max()), position)
        candidates = Candidates(logits, position, ids)
        for processor in self._chain:
            processor.apply(candidates)
        values = candidates.logits if greedy else self._perturb(candidates)
        best = int(values.argmax()) if not candidates.ordered else _first_of_best(values, candidates.ids)
        check_best(float(values[best]), position)
        token_id = best if candidates.dense else int(candidates.ids[best])
        return Choice(token_id, values, greedy=greedy)

    def accept(self, token_id: int) -> None:
        """Take note of the next token of the sequence."""
        for processor in self._chain:
            processor.accept(token_id)
        self._num_accepted += 1

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted tokens."""
        if not 0 <= count <= self._num_accepted:
            raise ValueError(f"rollback of {count} tokens, {self._num_accepted} were accepted")
        if count:
            for processor in self._chain:
                processor.rollback(count)
            self._num_accepted -= count

    def _perturb(self, candidates: Candidates) -> npt.NDArray[np.float64]:
        """Add noise; of many candidates only those are kept that can be among the two best."""
        seed, position = self.params.seed, candidates.position
        if len(candidates) > _MANY:
            candidates.select(_contenders(candidates, seed))
        return candidates.writable() + gumbel(seed, position, candidates.ids)


def _first_of_best(values: npt.NDArray[np.floating], ids: IdArray) -> int:
    """Index of the largest value, lowest id among equals, for candidates in any order."""
    best = np.flatnonzero(values == values.max())
    if len(best) == 0:
        return int(values.argmax())
    return int(best[np.argmin(ids[best])])


def _contenders(candidates: Candidates, seed: int) -> npt.NDArray[np.intp]:
    """Indices, in the present order, of all candidates that can be among the two best after perturbation.

    With the second best of the head at b, a token outside of it with logit at most t needs noise above b -
    t, so a uniform above exp(-exp(t - b)): most are ruled out before any logarithm is taken.
    """
    logits = candidates.logits
    ids = candidates.ids
    head = top_indices(logits, _HEAD)
    top = logits[head].astype(np.float64)
    perturbed = np.sort(top + gumbel(seed, candidates.position, ids[head]))
    second = float(perturbed[-2]) if len(perturbed) > 1 else -np.inf
    gap = second - float(top[-1]) - 1e-9 * max(1.0, abs(second))  # room for rounding
    if not gap > 0:
        return np.flatnonzero(logits > -np.inf)
    bound = float(exp(-exp(np.array([-gap])))[0]) * (1.0 - 1e-12)
    contending = uniform53(seed, candidates.position, ids) > bound
    contending[head] = True
    return np.flatnonzero(contending)
