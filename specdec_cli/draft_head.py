"""An output head cut to the tokens that occur.

A token that is missing from the head of a draft model only costs an acceptance, so a quarter of a large
vocabulary does if tokens that turn up in the text join while it runs. The head has rows for a fixed set
of ids and spare ones, which are overwritten in place, the oldest first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from quant.requantize import requantize
from quant.tensor import QuantTensor
from quant.types import QuantType

from .errors import UsageError
from .protocols import FloatArray

IdArray = npt.NDArray[np.int64]
_PANEL = 16  # rows that the native kernels keep together
_NO_ROW = -1


@runtime_checkable
class HeadWriter(Protocol):
    """A model whose head can be overwritten in part, between forward passes."""

    def write_head_rows(self, first: int, packed: npt.NDArray[np.uint8]) -> None:
        """Overwrite rows from `first` on with packed rows of the head's type; whole panels of 16."""
        ...


@dataclass(slots=True)
class CutHead:
    """Rows of a cut head and the ids that they stand for.

    `source` is the whole head [n_vocab, K]. `weight` is what the model loads: rows of the fixed ids, zeros
    up to a multiple of 16, then `capacity` spare rows. Until `attach`, ids can only be admitted, not used.
    """

    source: QuantTensor
    weight: QuantTensor
    num_fixed: int
    capacity: int
    fixed_ids: IdArray = field(repr=False)
    _row_of: npt.NDArray[np.int32] = field(init=False, repr=False)  # [n_vocab] row, or _NO_ROW
    _spare_ids: IdArray = field(init=False, repr=False)  # [capacity] id of a spare row, or -1
    _next: int = 0  # the spare row to write next
    _allowed: npt.NDArray[np.bool_] = field(init=False, repr=False)  # [n_vocab]
    _arranged: tuple[IdArray, IdArray] | None = None  # ids in ascending order and their rows
    _model: HeadWriter | None = None

    @classmethod
    def cut(cls, source: QuantTensor, ids: Iterable[int], qtype: QuantType, *, capacity: int) -> "CutHead":
        """Cut a head to `ids`, as type `qtype`, with room for at least `capacity` more.

        Raises QuantError when rows cannot be packed as that type.
        """
        fixed = np.unique(np.fromiter(ids, np.int64))
        capacity = -(-capacity // _PANEL) * _PANEL
        start = -(-len(fixed) // _PANEL) * _PANEL
        rows = requantize(source.select_rows(fixed), qtype)
        data = np.zeros((start + capacity) * rows.row_bytes, np.uint8)
        data[: rows.num_bytes] = rows.data
        weight = QuantTensor(f"{source.name} (cut)", qtype, (start + capacity, source.shape[1]), data)
        return cls(source, weight, len(fixed), capacity, fixed)

    def __post_init__(self) -> None:
        n_vocab = self.source.shape[0]
        self._row_of = np.full(n_vocab, _NO_ROW, np.int32)
        self._row_of[self.fixed_ids] = np.arange(self.num_fixed)
        self._spare_ids = np.full(self.capacity, -1, np.int64)
        self._allowed = np.ones(n_vocab, np.bool_)

    @property
    def n_vocab(self) -> int:
        """Ids that the model reads: those of the whole vocabulary."""
        return self.source.shape[0]

    @property
    def num_ids(self) -> int:
        """Ids that the head has now."""
        return int((self._row_of != _NO_ROW).sum())

    def attach(self, model: object) -> None:
        """Write to `model` from now on, which was loaded with `weight`.

        Raises UsageError when its executor cannot overwrite a part of its head.
        """
        if not isinstance(model, HeadWriter):
            raise UsageError("this executor cannot change a part of an output head: use --draft-vocab all")
        self._model = model

    def restrict(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Never propose ids beyond `allowed` [n] or where it is False."""
        self._allowed[:] = False
        n = min(len(allowed), self.n_vocab)
        self._allowed[:n] = allowed[:n]
        self._arranged = None

    def admit(self, token_ids: Sequence[int]) -> None:
        """Make sure that ids have rows; of too many the last ones get them. Ids that may not be proposed or
        are beyond the vocabulary are ignored.
        """
        wanted = np.asarray(token_ids, np.int64)
        wanted = wanted[(wanted >= 0) & (wanted < self.n_vocab)]
        missing = wanted[(self._row_of[wanted] == _NO_ROW) & self._allowed[wanted]]
        if not len(missing) or self._model is None:
            return
        latest, at = np.unique(missing[::-1], return_index=True)
        missing = latest[np.argsort(at)][: self.capacity]
        slots = (self._next + np.arange(len(missing))) % self.capacity
        self._next = int(slots[-1] + 1) % self.capacity
        replaced = self._spare_ids[slots]
        self._row_of[replaced[replaced >= 0]] = _NO_ROW
        self._spare_ids[slots] = missing
        first = self.weight.shape[0] - self.capacity
        self._row_of[missing] = first + slots
        self._write(first + slots, missing)
        self._arranged = None

    def usable(self, logits: FloatArray) -> tuple[FloatArray, IdArray]:
        """Of logits [rows of the head], those that may be proposed, and their ids, which ascend."""
        if self._arranged is None:
            ids = np.flatnonzero((self._row_of != _NO_ROW) & self._allowed)
            self._arranged = ids, self._row_of[ids].astype(np.int64)
        ids, rows = self._arranged
        return logits[rows], ids

    def _write(self, rows: IdArray, ids: IdArray) -> None:
        """Pack the head's rows `ids` and overwrite the panels that they fall into."""
        packed = requantize(self.source.select_rows(ids), self.weight.qtype).data.reshape(len(ids), -1)
        table = self.weight.data.reshape(self.weight.shape[0], -1)
        table[rows] = packed
        assert self._model is not None
        for panel in np.unique(rows // _PANEL).tolist():
            part = table[_PANEL * panel : _PANEL * (panel + 1)]
            self._model.write_head_rows(_PANEL * panel, part.reshape(-1))
