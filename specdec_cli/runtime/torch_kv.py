"""Keys and values in float32 pages, one pool per layer: the tensors behind a PageTable."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .kv_cache import PAGE_TOKENS
from .ops import AttentionSpec


class TorchKvStore:
    """Pools [pages, n_head_kv, PAGE_TOKENS, head_dim] for keys and values of every layer. Keys are
    rotated."""

    def __init__(self, specs: Sequence[AttentionSpec], num_pages: int) -> None:
        self._capacity = max(1, num_pages)
        shapes = {spec.layer: (spec.n_head_kv, PAGE_TOKENS, spec.head_dim) for spec in specs}
        # Memory is touched, and so taken, only as pages are written.
        self._pools = {
            layer: (torch.empty(self._capacity, *shape), torch.empty(self._capacity, *shape))
            for layer, shape in shapes.items()
        }

    @property
    def capacity(self) -> int:
        """Pages that there is room for."""
        return self._capacity

    def reserve(self, num_pages: int) -> None:
        """Make room for pages 0 .. num_pages - 1; grows by doubling."""
        if num_pages <= self._capacity:
            return
        old, self._capacity = self._capacity, max(num_pages, 2 * self._capacity)
        for layer, pools in self._pools.items():
            grown = tuple(pool.new_empty(self._capacity, *pool.shape[1:]) for pool in pools)
            for new, pool in zip(grown, pools, strict=True):
                new[:old] = pool
            self._pools[layer] = (grown[0], grown[1])

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in every layer."""
        for keys, values in self._pools.values():
            keys[target] = keys[source]
            values[target] = values[source]

    def write(self, layer: int, slots: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> None:
        """Store rows k, v [n, n_head_kv, head_dim] at (page [n], offset in page [n])."""
        keys, values = self._pools[layer]
        keys[slots[0], :, slots[1]] = k
        values[slots[0], :, slots[1]] = v

    def chunks(self, layer: int, pages: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Whole pages in the given order, [len(pages), n_head_kv, PAGE_TOKENS, head_dim] each."""
        keys, values = self._pools[layer]
        first, count = pages[0], len(pages)
        if list(pages) == list(range(first, first + count)):
            return keys[first : first + count], values[first : first + count]
        index = torch.tensor(pages)
        return keys[index], values[index]
