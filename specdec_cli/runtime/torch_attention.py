"""Attention over fixed chunks of positions, row-invariant.

The keys of a sequence are cut at absolute multiples of CHUNK. Each chunk gives, per row and head, the
largest score, the sum of exp(score - largest) and the weighted values; the chunks are merged in position
order. A chunk that a row does not see adds exactly zero. Queries run in tiles of rows like every other op
(see torch_tiles).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .kv_cache import PAGE_TOKENS
from .ops import AttentionSpec
from .torch_tiles import Tiling

CHUNK = PAGE_TOKENS
QUERY_TILES = (16, 4)  # rows, descending; the first is the reference
MASKED = -1e30  # finite: a fully masked chunk must not give NaN


class Partials(NamedTuple):
    """What chunks contribute; C chunks, H key-value heads, Q = rows x query heads per key-value head."""

    largest: Tensor  # [C, H, Q]
    total: Tensor  # [C, H, Q]
    values: Tensor  # [C, H, Q, D]


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Row tiles for queries; `chunks_together`: the chunks of a tile may be computed in one call."""

    rows: Tiling
    chunks_together: bool


SLOW_ATTENTION = AttentionTiling(Tiling((1,)), chunks_together=False)


def attend(
    q: Tensor, parts: list[tuple[Tensor, Tensor, Tensor]], spec: AttentionSpec, *, chunks_together: bool
) -> Tensor:
    """Attend with one tile of rows.

    q is [R, n_head * D], already scaled; each part is (k [C, H, CHUNK, D], v likewise, mask [C, R, CHUNK])
    and the parts follow each other in position order. Returns [R, n_head * D].
    """
    num_rows, heads, width = q.shape[0], spec.n_head_kv, spec.head_dim
    group = spec.n_head // heads
    queries = q.view(num_rows, heads, group, width).transpose(0, 1).reshape(heads, num_rows * group, width)
    partials = []
    for k, v, mask in parts:
        step = k.shape[0] if chunks_together else 1
        for c in range(0, k.shape[0], step):
            stop = c + step
            partials.append(chunk_partials(queries, k[c:stop], v[c:stop], mask[c:stop], spec.softcap))
    merged = merge(partials)
    return merged.view(heads, num_rows, group, width).transpose(0, 1).reshape(num_rows, spec.n_head * width)


def chunk_partials(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, softcap: float | None) -> Partials:
    """Scores and weighted values of C chunks for queries [H, R * G, D]; mask [C, R, CHUNK] tells what is
    seen."""
    chunks, heads, _, width = k.shape
    num_queries, num_rows = q.shape[1], mask.shape[1]
    group = num_queries // num_rows
    batch = q.expand(chunks, heads, num_queries, width).reshape(chunks * heads, num_queries, width)
    scores = torch.bmm(batch, k.reshape(chunks * heads, CHUNK, width).transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(chunks, heads, num_rows, group, CHUNK)
    seen = mask[:, None, :, None, :]
    scores = scores.masked_fill(~seen, MASKED)
    largest = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - largest).masked_fill(~seen, 0.0)
    values = torch.bmm(
        weights.view(chunks * heads, num_queries, CHUNK), v.reshape(chunks * heads, CHUNK, width)
    )
    shape = (chunks, heads, num_queries)
    return Partials(largest.view(shape), weights.sum(-1).view(shape), values.view(*shape, width))


def merge(partials: list[Partials]) -> Tensor:
    """Combine chunks in position order; returns [H, Q, D]. Adding up one by one keeps the order of
    additions."""
    largest = torch.cat([p.largest for p in partials]).amax(0)
    rescale = [torch.exp(p.largest - largest) for p in partials]
    totals = torch.cat([p.total * scale for p, scale in zip(partials, rescale, strict=True)])
    values = torch.cat([p.values * scale[..., None] for p, scale in zip(partials, rescale, strict=True)])
    total, value = totals[0], values[0]
    for c in range(1, totals.shape[0]):
        total = total + totals[c]
        value = value + values[c]
    return value / total[..., None]


def probe_attention(spec: AttentionSpec, *, threads: int) -> tuple[AttentionTiling, bool]:
    """Find out in which tiles attention of this geometry is invariant here, and whether threads matter.

    Leaves torch's number of threads at `threads`.
    """
    torch.set_num_threads(threads)
    probe = _Probe(spec)
    n = QUERY_TILES[0]
    reference = torch.cat([probe.run(i, n) for i in range(0, _Probe.ROWS, n)])
    thread_safe = True
    if threads > 1:
        torch.set_num_threads(1)
        thread_safe = torch.equal(probe.run(0, n), reference[:n])
        torch.set_num_threads(threads)

    def agrees(size: int) -> bool:
        starts = range(_Probe.ROWS - size + 1)
        return all(torch.equal(probe.run(s, size), reference[s : s + size]) for s in starts)

    chunks_agree = all(
        torch.equal(probe.run(0, n, cuts), reference[:n]) for cuts in ((1,), (2,), (1, 2, 3), (4,))
    )
    if not (chunks_agree and agrees(n)):
        return SLOW_ATTENTION, thread_safe
    sizes = tuple(size for size in QUERY_TILES if size == n or agrees(size))
    return AttentionTiling(Tiling(sizes), chunks_together=True), thread_safe


class _Probe:
    """Random queries over five chunks, to be computed in any tile and with the chunks split anywhere."""

    ROWS = 2 * QUERY_TILES[0]
    CHUNKS = 5

    def __init__(self, spec: AttentionSpec) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (self.CHUNKS, spec.n_head_kv, CHUNK, spec.head_dim)
        self.spec = spec
        self.q = torch.randn(self.ROWS, spec.n_head * spec.head_dim, generator=generator)
        self.k = torch.randn(shape, generator=generator)
        self.v = torch.randn(shape, generator=generator)
        positions = torch.arange(self.ROWS) + CHUNK * (self.CHUNKS - 1) - self.ROWS // 2
        keys = torch.arange(self.CHUNKS * CHUNK).view(self.CHUNKS, 1, CHUNK)
        self.mask = (keys <= positions[:, None]) & (keys > positions[:, None] - 3 * CHUNK)

    def run(self, start: int, size: int, cuts: tuple[int, ...] = ()) -> Tensor:
        edges = (0, *cuts, self.CHUNKS)
        mask = self.mask[:, start : start + size]
        parts = [(self.k[a:b], self.v[a:b], mask[a:b]) for a, b in pairwise(edges)]
        return attend(self.q[start : start + size].clone(), parts, self.spec, chunks_together=True)
