"""Token by token: text, stop strings, limits. The only place that decides where a generation ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .types import FinishReason


class TextDecoder(Protocol):
    """Turns tokens into complete characters."""

    def push(self, token_id: int) -> str:
        """Characters that the token completes."""
        ...

    def flush(self) -> str:
        """What is left of an unfinished character."""
        ...


@dataclass(frozen=True, slots=True)
class Emission:
    """What one token did: text that may be shown now, and whether and why it was the last one."""

    text: str
    finish_reason: FinishReason | None


class Emitter:
    """Follows the tokens of one sequence, accepted, recovered, bonus or plain, and ends it at the right one.

    In this order: a token that ends generation, a stop string, the limit. The token that ended a sequence
    is part of it; its text is cut before the stop string. Text that may be the beginning of a stop string
    is held back.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        *,
        limit: int,
        eog_ids: frozenset[int] = frozenset(),
        stop: Sequence[str] = (),
    ) -> None:
        """Emit at most `limit` tokens, until one of `eog_ids` or until the text contains one of `stop`."""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._decoder = decoder
        self._limit = limit
        self._eog_ids = eog_ids
        self._stop = tuple(dict.fromkeys(stop))
        self._shown: list[str] = []
        self._held = ""  # decoded, not shown
        self._cut = False  # a stop string was found

    @property
    def num_left(self) -> int:
        """Tokens that may still come; 0 when finished."""
        return 0 if self.finish_reason else self._limit - len(self.token_ids)

    @property
    def text(self) -> str:
        """All text shown so far."""
        return "".join(self._shown)

    def push(self, token_id: int) -> Emission:
        """Take the next token of the sequence."""
        self.token_ids.append(token_id)
        if token_id in self._eog_ids:
            self.finish_reason = "stop"
            return Emission("", "stop")
        text = self._take(self._decoder.push(token_id))
        if self.finish_reason is None and len(self.token_ids) >= self._limit:
            self.finish_reason = "length"
        return Emission(text, self.finish_reason)

    def finish(self, reason: FinishReason) -> str:
        """End the sequence, for `reason` unless it has ended already; return the text that was held back."""
        if self._cut:
            return ""
        rest = self._take(self._decoder.flush())
        self.finish_reason = self.finish_reason or reason
        return rest + self._show(len(self._held))

    def _take(self, text: str) -> str:
        """Append decoded text; return what may be shown, which never contains a part of a stop string."""
        if not text:
            return ""
        self._held += text
        found = [(self._held.find(stop), len(stop)) for stop in self._stop]
        matches = [(start + length, start) for start, length in found if start >= 0]
        if matches:
            _, start = min(matches)  # the first to be complete; the longest of those that end together
            shown = self._show(start)
            self._held, self._cut, self.finish_reason = "", True, "stop"
            return shown
        return self._show(len(self._held) - self._possible_start())

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        longest = min(len(self._held), max(map(len, self._stop), default=1) - 1)
        for length in range(longest, 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0

    def _show(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            self._shown.append(text)
        return text
