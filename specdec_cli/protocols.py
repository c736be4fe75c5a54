"""The shapes that engine, decoding and executors share. Imports nothing else of the project."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one forward pass, flattened over sequences and never padded.

    A row sees its sequence's committed tokens and its ancestors among these rows (following `parents`),
    itself included. A chain has `parents[i] == i - 1` within a sequence; siblings share a parent. The
    position of a row is its parent's plus one, or the sequence's committed length where the parent is -1.
    """

    token_ids: IntArray  # [num_rows]
    positions: IntArray  # [num_rows] absolute position of the token in its sequence
    sequences: IntArray  # [num_rows] handle from LanguageModel.create_sequence
    parents: IntArray  # [num_rows] row index in this batch, or -1 for the last committed token
    outputs: IntArray  # [num_outputs] ascending row indices whose logits are wanted


class LanguageModel(Protocol):
    """A loaded model on some executor, with its KV cache.

    Row-invariant: the logits of a row depend on the tokens that it sees and on nothing else, bit for bit.
    """

    @property
    def n_vocab(self) -> int:
        """Width of a logits row."""
        ...

    @property
    def n_ctx(self) -> int:
        """Most tokens that one sequence can hold."""
        ...

    def create_sequence(self) -> int:
        """Start an empty sequence and return its handle."""
        ...

    def fork_sequence(self, sequence: int, length: int) -> int:
        """Start a sequence that shares the first `length` committed tokens of another."""
        ...

    def free_sequence(self, sequence: int) -> None:
        """Release a sequence and its KV pages."""
        ...

    def length(self, sequence: int) -> int:
        """Committed tokens of a sequence."""
        ...

    def truncate(self, sequence: int, length: int) -> None:
        """Roll a sequence back to its first `length` committed tokens."""
        ...

    def forward(self, rows: Rows) -> FloatArray:
        """Compute `rows` and return logits [num_outputs, n_vocab].

        The rows' keys and values stay pending until `commit`; the next forward or truncate of a sequence
        drops what was not committed. Raises SpecdecError when a sequence would exceed `n_ctx`.
        """
        ...

    def commit(self, sequence: int, rows: Sequence[int]) -> None:
        """Append `rows` (indices into the latest forward, in path order from its root) to the sequence."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """A model, or a drafter with one, whose forward pass can end before it is complete."""

    def stop_when(self, condition: Callable[[], bool]) -> None:
        """Ask `condition` now and then during each forward pass; once it holds, raise StoppedError.

        Nothing is pending then. The condition replaces the one set before.
        """
        ...


def chain_rows(sequence: int, start: int, token_ids: Sequence[int], num_outputs: int) -> Rows:
    """Rows of one sequence that continue it from position `start`; logits for the last `num_outputs`."""
    n = len(token_ids)
    return Rows(
        token_ids=np.asarray(token_ids, np.int32),
        positions=np.arange(start, start + n, dtype=np.int32),
        sequences=np.full(n, sequence, np.int32),
        parents=np.arange(-1, n - 1, dtype=np.int32),
        outputs=np.arange(n - num_outputs, n, dtype=np.int32),
    )
