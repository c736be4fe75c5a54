"""Which of a draft model's logits may be proposed, and the ids that they stand for."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...protocols import FloatArray

IdArray = npt.NDArray[np.int64]


class OutputHead(Protocol):
    """Between the rows of a draft model's head and the ids of the vocabulary."""

    @property
    def n_vocab(self) -> int:
        """Ids that the model reads: those below this."""
        ...

    def restrict(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Never propose an id beyond `allowed` [n], or one where it is False."""
        ...

    def admit(self, token_ids: Sequence[int]) -> None:
        """Take note of ids that occur in the text; a head that was cut makes room for them."""
        ...

    def usable(self, logits: FloatArray) -> tuple[FloatArray, IdArray | None]:
        """Of logits [rows of the head], those to choose from, and their ascending ids (None: 0, 1, ...)."""
        ...


class WholeHead:
    """A row for each id."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = self._num_shared = n_vocab
        self._blocked = np.empty(0, np.intp)

    @property
    def n_vocab(self) -> int:
        """Ids that the model reads."""
        return self._n_vocab

    def restrict(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Never propose an id beyond `allowed` [n], or one where it is False."""
        self._num_shared = min(len(allowed), self._n_vocab)
        self._blocked = np.flatnonzero(~allowed[: self._num_shared])

    def admit(self, token_ids: Sequence[int]) -> None:
        """All ids are here already."""

    def usable(self, logits: FloatArray) -> tuple[FloatArray, IdArray | None]:
        """Logits below the last allowed id, minus infinity where not allowed."""
        shared = logits[: self._num_shared]
        if len(self._blocked):
            shared = shared.copy()
            shared[self._blocked] = -np.inf
        return shared, None
