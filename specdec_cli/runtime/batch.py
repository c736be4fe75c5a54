"""Rows of a forward pass taken apart into paths: what each row sees, whatever the shape of the draft tree."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specdec_cli.protocols import Rows


@dataclass(frozen=True, slots=True)
class RowPath:
    """A root-to-leaf path of pending rows that continues a sequence of `start` committed tokens.

    Row `rows[d]` has position `start + d` and sees the committed tokens and `rows[:d + 1]`. The path
    answers for `rows[first:]`; the ones before are answered by another path that shares them.
    """

    sequence: int
    start: int
    rows: tuple[int, ...]
    first: int


def split_paths(rows: Rows, committed_length: Callable[[int], int]) -> list[RowPath]:
    """Decompose a batch into paths, one per leaf. Raises ValueError for rows that contradict each other."""
    parents, sequences = rows.parents.tolist(), rows.sequences.tolist()
    _check(rows, parents, sequences, committed_length)
    inner = set(parents)
    answered = [False] * len(parents)
    paths = []
    for leaf in range(len(parents)):
        if leaf in inner:
            continue
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        path.reverse()
        first = next(depth for depth, row in enumerate(path) if not answered[row])
        for row in path[first:]:
            answered[row] = True
        paths.append(RowPath(sequences[leaf], committed_length(sequences[leaf]), tuple(path), first))
    return paths


def _check(
    rows: Rows, parents: list[int], sequences: list[int], committed_length: Callable[[int], int]
) -> None:
    n = len(parents)
    if n == 0 or not (len(rows.token_ids) == len(rows.positions) == len(sequences) == n):
        raise ValueError("a forward pass needs rows, and as many positions, sequences and parents as tokens")
    positions = rows.positions.tolist()
    for row, (parent, sequence) in enumerate(zip(parents, sequences, strict=True)):
        if not -1 <= parent < row or (parent >= 0 and sequences[parent] != sequence):
            raise ValueError(f"row {row}: its parent {parent} is not an earlier row of the same sequence")
        expected = committed_length(sequence) if parent < 0 else positions[parent] + 1
        if positions[row] != expected:
            raise ValueError(f"row {row} has position {positions[row]}; {expected} is next on its path")
    outputs = np.asarray(rows.outputs)
    if len(outputs) and (outputs[0] < 0 or outputs[-1] >= n or (np.diff(outputs) <= 0).any()):
        raise ValueError("output rows are not ascending indices of this batch")
