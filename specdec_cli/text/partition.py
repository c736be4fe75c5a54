"""Splitting special tokens off a text before it is tokenized, in llama.cpp's order: longest first."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

_PREFIX = 3
_ASCII_SPACE = " \t\n\v\f\r"

Fragment = str | int  # ordinary text, or the id of a special token


class SpecialSplitter:
    """Splits a text at the occurrences of a set of tokens.

    Each token, the longest first, is cut out of whatever text the longer ones left over; it need not be the
    leftmost one. `strip_after` are tokens that swallow the white space behind them.
    """

    def __init__(self, tokens: Iterable[tuple[str, int]], strip_after: frozenset[int] = frozenset()) -> None:
        ordered = sorted(tokens, key=lambda token: (-len(token[0].encode("utf-8", "replace")), token[1]))
        self._strip_after = strip_after
        # Thousands of tokens share few beginnings; one look for the beginning passes over all of them.
        self._groups: defaultdict[str, list[tuple[int, str, int]]] = defaultdict(list)
        for order, (text, token_id) in enumerate(ordered):
            self._groups[text[:_PREFIX]].append((order, text, token_id))

    def split(self, text: str) -> list[Fragment]:
        """Ordinary text and token ids in order; no empty text."""
        fragments: list[Fragment] = [text] if text else []
        for _, token_text, token_id in sorted(self._candidates(text)):
            fragments = self._split_at(fragments, token_text, token_id)
        return fragments

    def occurrences(self, text: str) -> list[str]:
        """Texts of the tokens that occur in a text, the longest first."""
        return [token_text for _, token_text, _ in sorted(self._candidates(text))]

    def _candidates(self, text: str) -> list[tuple[int, str, int]]:
        return [
            token
            for prefix, group in self._groups.items()
            if prefix in text
            for token in group
            if token[1] in text
        ]

    def _split_at(self, fragments: Sequence[Fragment], token_text: str, token_id: int) -> list[Fragment]:
        result: list[Fragment] = []
        strips = token_id in self._strip_after
        for fragment in fragments:
            if isinstance(fragment, int) or token_text not in fragment:
                result.append(fragment)
                continue
            rest = fragment
            while rest:
                before, found, rest = rest.partition(token_text)
                if before:
                    result.append(before)
                if found:
                    result.append(token_id)
                if strips:
                    rest = rest.lstrip(_ASCII_SPACE)
        return result
