"""Keeps text inside chat messages from turning into control tokens.

Where a message contains the text of a control token, a placeholder takes its place before the template is
rendered. The rendered text is then split at control tokens, which only the template can have written, and
only after that the original text comes back. So everything else is tokenized across the boundaries of the
content exactly as without all this.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specdec_cli.text.partition import Fragment, SpecialSplitter
from specdec_cli.text.vocabulary import Vocabulary

_DIGITS = 20

# User-defined tokens that open or close a turn in some models are as dangerous as control tokens. Others,
# such as <think> or HTML tags, are what templates look for inside the content.
_TURN_MARK = re.compile(r"<\|.*\|>|<｜.*｜>|</?(start|end)_of_turn>|<turn\|>|\[/?[A-Z_]+\]")


class ContentGuard:
    """Knows the tokens of a vocabulary that message content must not produce."""

    def __init__(self, vocabulary: Vocabulary, template_source: str) -> None:
        def is_guarded(token_id: int) -> bool:
            text = vocabulary.texts[token_id]
            if vocabulary.kinds[token_id] != "user_defined":
                return True
            return _TURN_MARK.fullmatch(text) is not None and text in template_source

        special = vocabulary.special_ids
        guarded = frozenset(i for i in special if is_guarded(i))
        self._splitter = SpecialSplitter((vocabulary.texts[i], i) for i in guarded)
        self._rest = SpecialSplitter(
            ((vocabulary.texts[i], i) for i in special if i not in guarded), vocabulary.strip_after
        )

    def protect(self, values: Any, *, also_unlike: Iterable[str]) -> tuple[Any, "Placeholders"]:
        """Copy nested lists, dicts and strings, with placeholders for the texts of guarded tokens.

        Placeholders differ from everything in `values` and in the strings of `also_unlike`.
        """
        strings = [*_strings_of(values), *also_unlike]
        found = {text for string in strings for text in self._splitter.occurrences(string)}
        originals: dict[str, str] = {}
        for text in sorted(found, key=lambda text: (-len(text.encode("utf-8", "replace")), text)):
            originals[_new_placeholder(strings)] = text
        placeholders = Placeholders(originals, self._rest)
        return _map_strings(values, placeholders.hide), placeholders


class Placeholders:
    """The placeholders of one prompt."""

    def __init__(self, originals: Mapping[str, str], rest: SpecialSplitter) -> None:
        self._originals = originals  # placeholder -> text, the longest text first
        self._rest = rest

    def hide(self, text: str) -> str:
        """Put placeholders for the texts of guarded tokens."""
        for placeholder, original in self._originals.items():
            text = text.replace(original, placeholder)
        return text

    def restore(self, fragments: Iterable[Fragment]) -> list[Fragment]:
        """Put the original texts back into ordinary text; tokens that are always split off are, there too."""
        result: list[Fragment] = []
        for fragment in fragments:
            if isinstance(fragment, str):
                restored = self.restore_text(fragment)
                result += [fragment] if restored == fragment else self._rest.split(restored)
            else:
                result.append(fragment)
        return result

    def restore_text(self, text: str) -> str:
        """Put the original texts back."""
        for placeholder, original in self._originals.items():
            text = text.replace(placeholder, original)
        return text


def _new_placeholder(strings: Iterable[str]) -> str:
    """Digits only, so that no filter of a template changes them: trim, upper, title, escaping, tojson.

    The single 9 at the beginning makes it impossible that two placeholders overlap.
    """
    while True:
        candidate = "9" + "".join(secrets.choice("012345678") for _ in range(_DIGITS))
        if not any(candidate in string for string in strings):
            return candidate


def _strings_of(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings_of(key)
            yield from _strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings_of(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
