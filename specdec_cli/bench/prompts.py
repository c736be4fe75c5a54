"""Prompts for measurements: one JSON object per line, or the set that comes with the program."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from specdec_cli.errors import SpecdecError, UsageError

ALL = "all"  # the sum over all categories
_BUILTIN = "prompts.jsonl"
_MAX_BYTES = 64 << 20  # a mistaken model file must not be parsed
_KEYS = ("id", "category", "messages", "prompt", "prediction")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt: `messages` for a chat template, or a raw text; exactly one of the two."""

    id: str
    category: str
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    prediction: str | None = None  # what the answer may look like, for drafters that use such a text

    @property
    def content(self) -> str:
        """What a person wrote, without any template."""
        if self.messages is None:
            return self.text or ""
        return "\n".join(m["content"] for m in self.messages if isinstance(m.get("content"), str))


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts in the order of their file."""

    name: str  # the file's path, or "built-in"
    sha256: str  # of the file
    prompts: tuple[BenchPrompt, ...]

    @property
    def categories(self) -> list[str]:
        """Categories in order of appearance."""
        return list(dict.fromkeys(prompt.category for prompt in self.prompts))

    def limited(self, per_category: int | None) -> "PromptSet":
        """The first `per_category` prompts of each category; None keeps all."""
        if per_category is None:
            return self
        if per_category < 1:
            raise UsageError(f"--limit {per_category}: expected at least 1 prompt per category")
        seen: dict[str, int] = {}
        kept = []
        for prompt in self.prompts:
            seen[prompt.category] = seen.get(prompt.category, 0) + 1
            if seen[prompt.category] <= per_category:
                kept.append(prompt)
        return PromptSet(self.name, self.sha256, tuple(kept))


def load_prompts(path: Path | None = None) -> PromptSet:
    """Read a file of prompts; None is the built-in set of eight categories.

    Raises SpecdecError that names the line and the key that is wrong.
    """
    if path is None:
        return parse_prompts(files(__package__).joinpath(_BUILTIN).read_bytes(), "built-in")
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SpecdecError(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
    return parse_prompts(data, str(path))


def parse_prompts(data: bytes, name: str) -> PromptSet:
    """Parse the bytes of a file called `name`; empty lines are skipped. Raises SpecdecError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecdecError(f"{name}: not UTF-8 text (at byte {error.start})") from None
    prompts = [
        _parse_line(line, f"{name}, line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not prompts:
        raise SpecdecError(f"{name}: there are no prompts in it")
    _require_distinct([prompt.id for prompt in prompts], name)
    return PromptSet(name, hashlib.sha256(data).hexdigest(), tuple(prompts))


def _require_distinct(ids: Sequence[str], name: str) -> None:
    seen: set[str] = set()
    for prompt_id in ids:
        if prompt_id in seen:
            raise SpecdecError(f"{name}: the id {prompt_id!r} occurs twice")
        seen.add(prompt_id)


def _parse_line(line: str, where: str) -> BenchPrompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SpecdecError(f"{where}: not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise SpecdecError(f"{where}: expected a JSON object, not {type(entry).__name__}")
    for key in entry:
        if key not in _KEYS:
            raise SpecdecError(f"{where}: unknown key {key!r}; known are {', '.join(_KEYS)}")
    if ("messages" in entry) == ("prompt" in entry):
        raise SpecdecError(f'{where}: expected either "messages" or "prompt"')
    category = _text(entry, "category", where)
    if category == ALL:
        raise SpecdecError(f"{where}: the category {ALL!r} is the name of the sum over all categories")
    return BenchPrompt(
        id=_text(entry, "id", where),
        category=category,
        messages=_messages(entry["messages"], where) if "messages" in entry else None,
        text=_text(entry, "prompt", where) if "prompt" in entry else None,
        prediction=_text(entry, "prediction", where) if "prediction" in entry else None,
    )


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise SpecdecError(f'{where}: "{key}" must be a text that is not empty')
    return value


def _messages(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise SpecdecError(f'{where}: "messages" must be a list that is not empty')
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise SpecdecError(f'{where}: every message needs a "role"')
        if not isinstance(message.get("content"), str):
            raise SpecdecError(f'{where}: every message needs a "content" that is a text')
    return tuple(value)
