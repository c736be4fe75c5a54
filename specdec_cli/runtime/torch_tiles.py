"""Row tiles: how an op on many rows gives each row the bits that it would have alone.

Torch's kernels may take another path, and round differently, for another number of rows. Every op whose
result could depend on it therefore runs on tiles of a few fixed sizes. That those sizes agree with each
other, and that a row's slot and neighbours do not matter, is not documented anywhere: it is probed for
every shape when a model is loaded. A shape that fails runs one row at a time, which is invariant because
every call is the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor

REFERENCE_TILE = 16
TILES = (128, 16, 8)  # descending
ROW_PADDING = TILES[-1]  # forward passes are padded to a multiple of this
PROBE_ROWS = 2 * TILES[0]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Row counts in which an op may run, descending; `thread_safe`: one thread and several give the same
    bits."""

    sizes: tuple[int, ...] = TILES
    thread_safe: bool = True


ONE_BY_ONE = Tiling((1,))


def tiles(num_rows: int, tiling: Tiling) -> Iterator[tuple[int, int, int]]:
    """Cover `num_rows` rows: yield (start, stop, size), where the last tile may reach past its rows (pad
    it)."""
    start = 0
    while start < num_rows:
        left = num_rows - start
        size = next((size for size in tiling.sizes if size <= left), tiling.sizes[-1])
        yield start, min(start + size, num_rows), size
        start += size


def tile_rows(x: Tensor, start: int, stop: int, size: int) -> Tensor:
    """Rows `start:stop` of x, with zero rows up to `size`."""
    part = x[start:stop]
    return part if stop - start == size else F.pad(part, (0, 0, 0, size - (stop - start)))


def apply_tiled(function: Callable[[Tensor], Tensor], x: Tensor, tiling: Tiling) -> Tensor:
    """`function(x)`, a row-wise function of [rows, width], computed tile by tile."""
    parts = [function(tile_rows(x, *tile))[: tile[1] - tile[0]] for tile in tiles(x.shape[0], tiling)]
    if not parts:
        return function(x)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def probe(function: Callable[[Tensor], Tensor], width: int, *, threads: int) -> Tiling:
    """Find out in which tiles a row-wise `function` of [rows, width] is invariant on this machine.

    Leaves torch's number of threads at `threads`.
    """
    x = torch.randn(PROBE_ROWS, width, generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(threads)
    n = REFERENCE_TILE
    reference = torch.cat([function(x[i : i + n]) for i in range(0, PROBE_ROWS, n)])
    thread_safe = True
    if threads > 1:
        torch.set_num_threads(1)
        thread_safe = torch.equal(function(x[:n]), reference[:n])
        torch.set_num_threads(threads)
    slots_agree = all(torch.equal(function(x[s : s + n].clone()), reference[s : s + n]) for s in range(1, n))
    padded = F.pad(x[:1], (0, 0, n - 1, 0))
    if not slots_agree or not torch.equal(function(padded)[-1], reference[0]):
        return Tiling((1,), thread_safe)
    sizes = [size for size in TILES if size == n or _agrees(function, x, reference, size)]
    return Tiling(tuple(sizes), thread_safe)


def _agrees(function: Callable[[Tensor], Tensor], x: Tensor, reference: Tensor, size: int) -> bool:
    """Whether tiles of `size` rows, at even and odd offsets, give the reference's bits."""
    starts = [*range(0, PROBE_ROWS - size + 1, size), *range(1, size, max(1, size // 4))]
    return all(torch.equal(function(x[s : s + size].clone()), reference[s : s + size]) for s in starts)
