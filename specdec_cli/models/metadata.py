"""Typed access to one architecture's metadata: every read states type, default and complaint in one line."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from specdec_cli.errors import ModelError

REQUIRED: Final[Any] = object()


class MetadataReader:
    """Reads `ARCHITECTURE.key` entries and raises ModelError that names the key and what is wrong with it."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture

    def name(self, key: str) -> str:
        """The full metadata key."""
        return f"{self._prefix}.{key}"

    def raw(self, key: str) -> Any:
        """The value, or None when the key is absent."""
        return self._metadata.get(self.name(key))

    def integer(
        self, key: str, default: Any = REQUIRED, *, minimum: int = 1, maximum: int = 2**31 - 1
    ) -> int:
        """An integer within bounds; a list of equal integers (one per layer) counts as that integer."""
        value = self._value(key, default)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0:
            if any(item != value[0] for item in value):
                raise ModelError(f"{self.name(key)} differs between layers; this is not supported")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.name(key)} is {value!r}; an integer is needed")
        if not minimum <= value <= maximum:
            raise ModelError(f"{self.name(key)} is {value}; it must be between {minimum} and {maximum}")
        return value

    def real(self, key: str, default: Any = REQUIRED, *, positive: bool = True) -> float:
        """A finite number, by default above zero."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.name(key)} is {value!r}; a number is needed")
        if not isfinite(value) or (positive and value <= 0):
            raise ModelError(f"{self.name(key)} is {value}; a finite number above zero is needed")
        return float(value)

    def optional_real(self, key: str) -> float | None:
        """A number above zero, or None when the key is absent or zero (which means "off")."""
        return None if self.raw(key) in (None, 0) else self.real(key)

    def text(self, key: str, default: Any = REQUIRED) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise ModelError(f"{self.name(key)} is {value!r}; a string is needed")
        return value

    def refuse_unless(self, key: str, neutral: Sequence[Any], feature: str) -> None:
        """Complain when `key` asks for a feature that no definition has; absent and neutral values pass."""
        value = self.raw(key)
        if value is not None and value not in neutral:
            raise ModelError(f"{feature} ({self.name(key)} = {value}) is not supported")

    def _value(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise ModelError(f"metadata key {self.name(key)} is missing")
        return default
