# ruff: noqa: D102 - the methods of an Ops are documented there
"""The Ops of one forward pass in eager torch, float32: the oracle that the native engine is tested against.

Every value is [padded rows, width]; the padding rows are computed along and never looked at. An op either
rounds each element by itself (IEEE additions and products) or runs in the row tiles that were probed for
its shape.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor

from quant.tensor import QuantTensor
from specdec_cli.protocols import Rows

from .batch import RowPath
from .kv_cache import PAGE_TOKENS
from .ops import Activation, AttentionSpec, Rope
from .torch_attention import attend
from .torch_kv import TorchKvStore
from .torch_probe import ACTIVATIONS, Tilings, mean_square
from .torch_tiles import ONE_BY_ONE, ROW_PADDING, apply_tiled, tile_rows, tiles
from .torch_weights import TorchWeights


class RopeTables:
    """Cosines and sines by position, made one page of positions at a time so that a value never varies."""

    def __init__(self) -> None:
        self._tables: dict[Rope, tuple[list[Tensor], list[Tensor]]] = {}

    def at(self, rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [rows, 1, len(inv_freq)] for positions [rows]."""
        cosines, sines = self._tables.setdefault(rope, ([], []))
        needed = int(positions.max()) // PAGE_TOKENS + 1
        while len(cosines) < needed:
            first = len(cosines) * PAGE_TOKENS
            angles = np.arange(first, first + PAGE_TOKENS)[:, None] * np.asarray(rope.inv_freq, np.float64)
            cosines.append(torch.from_numpy((np.cos(angles) * rope.attn_factor).astype(np.float32)))
            sines.append(torch.from_numpy((np.sin(angles) * rope.attn_factor).astype(np.float32)))
        low = int(positions.min()) // PAGE_TOKENS
        local = positions - low * PAGE_TOKENS
        return (
            torch.cat(cosines[low:needed])[local][:, None],
            torch.cat(sines[low:needed])[local][:, None],
        )


@dataclass(slots=True)
class Pass:
    """What one forward pass works on. `pending` collects every layer's keys and values of its rows."""

    rows: Rows
    paths: list[RowPath]
    pages: dict[int, list[int]]  # by sequence
    pending: dict[int, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # by layer, [rows, n_head_kv, head_dim]
    masks: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)
    rotations: dict[Rope, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows without padding."""
        return len(self.rows.token_ids)


class TorchOps:
    """Ops over torch tensors for one forward pass."""

    def __init__(
        self, weights: TorchWeights, tilings: Tilings, store: TorchKvStore, ropes: RopeTables, work: Pass
    ) -> None:
        self._weights = weights
        self._tilings = tilings
        self._store = store
        self._ropes = ropes
        self._work = work

    def embed(self, table: QuantTensor) -> Tensor:
        rows = self._weights.rows(table, self._work.rows.token_ids.astype(np.intp))
        return _pad_rows(rows)

    def linear(self, x: Tensor, weight: QuantTensor, bias: QuantTensor | None = None) -> Tensor:
        out = x.new_empty(x.shape[0], weight.shape[0])
        for block in self._weights.blocks(weight):
            transposed = block.values.T
            for tile in tiles(x.shape[0], self._tilings.linear_tiling(*block.values.shape)):
                start, stop, _ = tile
                out[start:stop, block.start : block.stop] = (tile_rows(x, *tile) @ transposed)[: stop - start]
        return out if bias is None else out + self._weights.vector(bias)

    def rms_norm(self, x: Tensor, weight: QuantTensor, eps: float) -> Tensor:
        width = weight.shape[0]
        groups = x.view(-1, width)
        tiling = self._tilings.mean_square.get(width, ONE_BY_ONE)
        # Square root and quotient are correctly rounded, unlike torch.rsqrt.
        root = torch.sqrt(apply_tiled(mean_square, groups, tiling) + eps)
        return ((groups / root) * self._weights.vector(weight)).view_as(x)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        tiling = self._tilings.activation.get((activation, gate.shape[1]), ONE_BY_ONE)
        return apply_tiled(ACTIVATIONS[activation], gate, tiling) * up

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        tiling = self._tilings.tanh.get(x.shape[1], ONE_BY_ONE)
        return apply_tiled(torch.tanh, x / cap, tiling) * cap

    def output_rows(self, x: Tensor) -> Tensor:
        return _pad_rows(x[torch.from_numpy(self._work.rows.outputs.astype(np.int64))])

    def attention(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        n = self._work.num_rows
        queries = self._rotate(q[:n].view(n, spec.n_head, spec.head_dim), spec.rope) * spec.scale
        keys = self._rotate(k[:n].view(n, spec.n_head_kv, spec.head_dim), spec.rope)
        values = v[:n].view(n, spec.n_head_kv, spec.head_dim)
        self._work.pending[spec.layer] = (keys, values)
        out = torch.zeros_like(q)
        for index, path in enumerate(self._work.paths):
            self._attend_path(index, path, queries.view(n, -1), spec, out)
        return out

    def _rotate(self, x: Tensor, rope: Rope | None) -> Tensor:
        """Rotate x [rows, heads, head_dim] to the positions of the pass."""
        if rope is None:
            return x
        if rope not in self._work.rotations:
            positions = torch.from_numpy(self._work.rows.positions.astype(np.int64))
            self._work.rotations[rope] = self._ropes.at(rope, positions)
        cosine, sine = self._work.rotations[rope]
        half = len(rope.inv_freq)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine, rest), -1)

    def _attend_path(
        self, index: int, path: RowPath, queries: Tensor, spec: AttentionSpec, out: Tensor
    ) -> None:
        """Attention of the rows that `path` answers for, into their rows of `out`."""
        rows = torch.tensor(path.rows)
        pages = self._work.pages[path.sequence][: path.start // PAGE_TOKENS]
        tail = self._tail_chunks(path, rows, spec.layer)
        tiling = self._tilings.attention_tiling(spec)
        for first, stop, size in tiles(len(path.rows) - path.first, tiling.rows):
            first, stop = first + path.first, stop + path.first  # noqa: PLW2901
            low = 0 if spec.window is None else max(0, path.start + first - spec.window + 1) // PAGE_TOKENS
            high = (path.start + stop - 1) // PAGE_TOKENS + 1
            mask = self._mask((index, first, spec.window), path.start + first, stop - first, size, low, high)
            parts = []
            if low < len(pages):
                whole = pages[low:high]
                parts.append((*self._store.chunks(spec.layer, whole), mask[: len(whole)]))
            if high > len(pages):
                skip = max(0, low - len(pages))
                taken = slice(skip, high - len(pages))
                parts.append((tail[0][taken], tail[1][taken], mask[len(pages) + skip - low :]))
            tile = tile_rows(queries[rows[first:stop]], 0, stop - first, size)
            result = attend(tile, parts, spec, chunks_together=tiling.chunks_together)
            out[rows[first:stop]] = result[: stop - first]

    def _tail_chunks(self, path: RowPath, rows: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """The chunks from the one that holds the path's first pending row: committed part, then the path's
        rows."""
        offset = path.start % PAGE_TOKENS
        chunks = -(-(offset + len(path.rows)) // PAGE_TOKENS)
        page = self._work.pages[path.sequence][path.start // PAGE_TOKENS] if offset else None
        result = []
        for which, pending in enumerate(self._work.pending[layer]):
            tail = pending.new_zeros(chunks * PAGE_TOKENS, *pending.shape[1:])
            if page is not None:
                tail[:offset] = self._store.chunks(layer, [page])[which][0, :, :offset].transpose(0, 1)
            tail[offset : offset + len(path.rows)] = pending[rows]
            chunked = tail.view(chunks, PAGE_TOKENS, *pending.shape[1:])
            result.append(chunked.transpose(1, 2).contiguous())
        return result[0], result[1]

    def _mask(
        self, key: tuple[int, int, int | None], position: int, count: int, size: int, low: int, high: int
    ) -> Tensor:
        """What a tile's rows see of chunks low .. high - 1: bool [chunks, size, PAGE_TOKENS].

        The rows have positions `position` .. `position + count - 1`; padding rows see what the last one sees.
        """
        found = self._work.masks.get(key)
        if found is None:
            window = key[2]
            positions = position + torch.arange(size).clamp(max=count - 1)[:, None]
            seen = torch.arange(low * PAGE_TOKENS, high * PAGE_TOKENS).view(-1, 1, PAGE_TOKENS)
            found = seen <= positions
            if window is not None:
                found &= seen > positions - window
            self._work.masks[key] = found
        return found


def _pad_rows(x: Tensor) -> Tensor:
    """Zero rows up to a multiple of ROW_PADDING."""
    return F.pad(x, (0, 0, 0, -x.shape[0] % ROW_PADDING))
