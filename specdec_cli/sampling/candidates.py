"""The tokens that are still in the running for one position, narrowed step by step by the processors."""

import numpy as np
import numpy.typing as npt

from ..errors import SpecdecError
from .elementary import Float64Array

IdArray = npt.NDArray[np.int64]


class LogitsError(SpecdecError):
    """The logits allow no choice: NaN, plus infinity, or every token excluded."""


def check_best(best: float, position: int) -> None:
    """Raise LogitsError unless the largest logit at `position` is finite."""
    if np.isfinite(best):
        return
    if best == -np.inf:
        raise LogitsError(f"no token is left to choose from at position {position}")
    raise LogitsError(f"the logits of the model at position {position} contain {best}")


class Candidates:
    """Token ids with their logits, float64 from the first change on.

    Either in ascending order of ids, or `ordered`: by descending logit, ties by lowest id. The logits that
    came from the model are never written to.
    """

    __slots__ = ("_ids", "_logits", "_owned", "ordered", "position")

    def __init__(self, logits: npt.NDArray[np.floating], position: int, ids: IdArray | None = None) -> None:
        """Start with all of `logits` [n]; `ids` [n], ascending, are their token ids, by default 0..n-1.

        `position` is the absolute position of the token that is being chosen.
        """
        self._logits = logits
        self._ids = ids
        self._owned = False
        self.ordered = False
        self.position = position

    def __len__(self) -> int:
        return len(self._logits)

    @property
    def dense(self) -> bool:
        """Whether entry i is token i."""
        return self._ids is None

    @property
    def ids(self) -> IdArray:
        """Token ids [n]."""
        return np.arange(len(self._logits)) if self._ids is None else self._ids

    @property
    def logits(self) -> npt.NDArray[np.floating]:
        """Logits [n] to look at."""
        return self._logits

    def best(self) -> float:
        """The largest logit; raises LogitsError when that leaves nothing to choose from."""
        best = float(self._logits[0] if self.ordered else self._logits.max())
        check_best(best, self.position)
        return best

    def writable(self) -> Float64Array:
        """Logits [n] as a float64 array of our own; hand it to `set_logits` when the order may have
        changed.
        """
        if not self._owned:
            self._logits = self._logits.astype(np.float64)
            self._owned = True
        return self._logits  # type: ignore[return-value]

    def set_logits(self, logits: Float64Array, *, ordered: bool) -> None:
        """Replace the logits [n]; `ordered` says whether the present order is still one by descending
        logit.
        """
        if self.ordered and not ordered:
            by_id = np.argsort(self.ids)
            logits, self._ids = logits[by_id], self.ids[by_id]
        self._logits, self._owned, self.ordered = logits, True, self.ordered and ordered

    def select(self, indices: npt.NDArray[np.intp]) -> None:
        """Keep the entries at `indices`, which must respect the present order."""
        self._ids = indices if self._ids is None else self._ids[indices]
        self._logits = self._logits[indices].astype(np.float64)
        self._owned = True

    def keep_first(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count < len(self._logits):
            self.select(np.arange(count))

    def keep_top(self, count: int) -> None:
        """Keep the `count` largest logits, lowest ids first among equals, and put them in order.

        Tokens at minus infinity are dropped where there is a choice: they can never be chosen.
        """
        if self.ordered:
            self.keep_first(count)
        else:
            self.keep_ordered(top_indices(self._logits, count))

    def keep_ordered(self, indices: npt.NDArray[np.intp]) -> None:
        """Keep the entries at `indices`, which put the logits in descending order, ties by lowest id."""
        self.select(indices)
        self.ordered = True

    def locate(self, token_ids: IdArray) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Find tokens: indices of those that are here, and the indices into `token_ids` they belong to."""
        if self._ids is None:
            found = np.flatnonzero(token_ids < len(self._logits))
            return token_ids[found], found
        sorter = np.argsort(self._ids) if self.ordered else None
        where = np.searchsorted(self._ids, token_ids, sorter=sorter)
        where = np.minimum(where, len(self._ids) - 1)
        where = where if sorter is None else sorter[where]
        found = np.flatnonzero(self._ids[where] == token_ids)
        return where[found], found


def top_indices(values: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` largest values, descending, ties by lowest index; fewer when some are minus
    infinity.

    A lower bound of the count-th value comes from the maxima of interleaved blocks, a tenth of the cost of
    a partial sort of everything.
    """
    n = len(values)
    if count >= n:
        floor = -np.inf
    else:
        stride = min(512, n // (4 * count))
        if stride >= 8:
            width = n // stride
            heads = values[: width * stride].reshape(stride, width).max(axis=0)
        else:
            heads = values
        floor = float(np.partition(heads, len(heads) - count)[len(heads) - count])
    above = np.flatnonzero(values > floor if floor == -np.inf else values >= floor)
    order = np.argsort(-values[above], kind="stable")
    return above[order[:count]]
