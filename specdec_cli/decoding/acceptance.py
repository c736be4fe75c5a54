"""How likely draft tokens are accepted: decayed counts per drafter, position and confidence."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_BINS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 1.5, 2.5, 3.5, 5.0, 8.0, 14.0, 26.0)  # probabilities, then lengths
_POSITIONS = (0, 1, 2, 3, 3, 4, 4, 4, 4)  # [position] class; those beyond are the last one
_LAST_CLASS = 5
_PER_OBSERVATION = 0.95  # what earlier counts keep
_PER_TOKEN = 0.998  # what counts keep with every token of output: the text changes
_STRENGTH = 3.0  # observations that a prior is worth
_FIRST_GUESS = 0.72  # of a drafter that nothing is known of


@dataclass(slots=True)
class _Counts:
    accepted: float = 0.0
    tried: float = 0.0
    now: int = 0

    def add(self, accepted: float, now: int) -> None:
        keep = _PER_OBSERVATION * _PER_TOKEN ** max(0, now - self.now)
        self.accepted = keep * self.accepted + accepted
        self.tried = keep * self.tried + 1
        self.now = now

    def estimate(self, prior: float, now: int) -> float:
        keep = _PER_TOKEN ** max(0, now - self.now)
        return (keep * self.accepted + _STRENGTH * prior) / (keep * self.tried + _STRENGTH)


_NONE = _Counts()


def position_class(position: int) -> int:
    """Positions in a draft that share their counts."""
    return _POSITIONS[position] if position < len(_POSITIONS) else _LAST_CLASS


def prior(confidence: float) -> float:
    """First guess from a confidence: a probability, or a match length where it is above 1."""
    return 0.2 + 0.75 * max(0.0, confidence) if confidence <= 1 else confidence / (confidence + 3)


class Acceptance:
    """Probability that a draft token is accepted, given that all before it were.

    Estimates shrink towards those of wider groups: position and confidence, confidence, the prior. Before
    there is a draft (so no confidence), those of the position towards those of the drafter.
    """

    def __init__(self) -> None:
        self._by_confidence: dict[tuple[str, int, int], _Counts] = {}  # (drafter, bin, position class or -1)
        self._by_position: dict[tuple[str, int], _Counts] = {}  # (drafter, position class or -1)
        self.now = 0  # tokens of output so far: the clock of forgetting

    def of_draft(self, drafter: str, confidences: Sequence[float]) -> list[float]:
        """Per token of a draft, from its confidences."""
        known: dict[tuple[int, int], float] = {}
        result = []
        for position, confidence in enumerate(confidences):
            key = bisect_right(_BINS, confidence), position_class(position)
            if key not in known:
                wide = self._by_confidence.get((drafter, key[0], -1), _NONE)
                narrow = self._by_confidence.get((drafter, *key), _NONE)
                known[key] = narrow.estimate(wide.estimate(prior(confidence), self.now), self.now)
            result.append(known[key])
        return result

    def expected(self, drafter: str, length: int) -> list[float]:
        """Per token of a draft of `length` that does not exist yet."""
        overall = self._by_position.get((drafter, -1), _NONE).estimate(_FIRST_GUESS, self.now)
        classes = [
            self._by_position.get((drafter, c), _NONE).estimate(overall, self.now)
            for c in range(_LAST_CLASS + 1)
        ]
        return [classes[position_class(position)] for position in range(length)]

    def num_tried(self, drafter: str) -> float:
        """Draft tokens of this drafter that were judged, the old ones discounted."""
        return self._by_position.get((drafter, -1), _NONE).tried

    def record(self, drafter: str, confidences: Sequence[float], num_accepted: int) -> None:
        """Count a verified draft: tokens after the first rejected one say nothing."""
        for position, confidence in enumerate(confidences[: num_accepted + 1]):
            accepted = float(position < num_accepted)
            slot, group = bisect_right(_BINS, confidence), position_class(position)
            for key in ((drafter, slot, group), (drafter, slot, -1)):
                self._by_confidence.setdefault(key, _Counts()).add(accepted, self.now)
            self._add(drafter, group, accepted)

    def record_unverified(self, drafter: str, confidences: Sequence[float]) -> None:
        """Count what its confidences say of the first token of a draft that was not worth verifying."""
        if confidences:
            self._add(drafter, 0, self.of_draft(drafter, confidences[:1])[0])

    def doubt(self, drafter: str, keep: float) -> None:
        """Discount all that is known of a drafter, so that a new look can change the verdict."""
        for confidence_key, counts in self._by_confidence.items():
            if confidence_key[0] == drafter:
                counts.accepted *= keep
                counts.tried *= keep
        for position_key, counts in self._by_position.items():
            if position_key[0] == drafter:
                counts.accepted *= keep
                counts.tried *= keep

    def _add(self, drafter: str, group: int, accepted: float) -> None:
        for key in ((drafter, group), (drafter, -1)):
            self._by_position.setdefault(key, _Counts()).add(accepted, self.now)
