"""Drafts from a text that the answer is expected to resemble."""

from collections.abc import Sequence
from dataclasses import dataclass

from .base import Draft, DraftRequest, common_prefix

_ANCHORS = (4, 3, 2)  # tokens of output that are looked up in the prediction after a mismatch, longest first
_AT_START = 4.0  # confidence that the answer begins as predicted, as a match length
_NEAR = 4  # tokens that may have been left out or replaced, for a single token to serve as an anchor
_GOOD_RUN = 4  # tokens that must have agreed before the mismatch for that


class PredictionDrafter:
    """Follows a predicted answer: from its start, after a mismatch from where the last tokens occur.

    Of several such places the first one after the place of the mismatch counts, else the nearest before it.
    Confidence is the number of tokens that have agreed since the anchor.
    """

    name = "predict"
    needs_prefill = False

    def __init__(self, token_ids: Sequence[int]) -> None:
        """`token_ids` is the prediction; an empty one proposes nothing."""
        self._prediction = list(token_ids)
        self._places: dict[tuple[int, ...], list[int]] = {}  # n-gram to the positions after it
        for length in _ANCHORS:
            for end in range(length, len(self._prediction)):
                self._places.setdefault(tuple(self._prediction[end - length : end]), []).append(end)
        self._followed: dict[int, _Place] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request."""
        return [self._propose(request) for request in requests]

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._followed.pop(sequence, None)

    def _propose(self, request: DraftRequest) -> Draft:
        place = self._followed.get(request.sequence)
        if place is None or not place.belongs_to(request):
            place = self._followed[request.sequence] = _Place(request.context, request.num_prompt)
        place.seen = max(place.seen, request.num_prompt)
        for position in range(place.seen, len(request.context)):
            self._follow(place, request.context, position)
        place.seen = len(request.context)
        if place.run <= 0:
            return Draft()
        token_ids = self._prediction[place.index : place.index + max(0, request.max_tokens)]
        eog = next((i + 1 for i, token in enumerate(token_ids) if token in request.eog_ids), len(token_ids))
        return Draft(token_ids[:eog], [place.run + i for i in range(eog)])

    def _follow(self, place: "_Place", context: Sequence[int], position: int) -> None:
        """Take note of the output token at `position`."""
        token_id, prediction = context[position], self._prediction
        if place.run > 0 and place.index < len(prediction) and prediction[place.index] == token_id:
            place.index += 1
            place.run += 1
            return
        near = place.run >= _GOOD_RUN
        place.run = 0.0
        for length in _ANCHORS:
            if position + 1 - place.num_prompt < length:
                continue
            places = self._places.get(tuple(context[position + 1 - length : position + 1]))
            if places:
                place.index = min(places, key=lambda end: (end < place.index, abs(end - place.index)))
                place.run = float(length)
                return
        if near and token_id in prediction[place.index : place.index + _NEAR]:
            place.index = prediction.index(token_id, place.index) + 1
            place.run = 1.0


@dataclass(slots=True)
class _Place:
    """Where in the prediction a sequence is."""

    context: Sequence[int]
    num_prompt: int
    index: int = 0  # of the prediction's next token
    run: float = _AT_START  # tokens that have agreed; 0 where it is lost
    seen: int = 0  # tokens of the context that are taken into account

    def belongs_to(self, request: DraftRequest) -> bool:
        """Whether the request goes on with the answer that is followed here."""
        same = request.context is self.context or (
            common_prefix(self.context, request.context, 0) >= min(self.seen, len(self.context))
        )
        return same and request.num_prompt == self.num_prompt and len(request.context) >= self.seen
