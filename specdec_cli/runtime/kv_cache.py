"""Which pages hold the keys and values of which sequence. No tensors here: an executor's store follows the
plan.

A page is PAGE_TOKENS consecutive positions of one sequence and is also the attention chunk, so chunk c of a
sequence lies in its c-th page. Pages are shared between forked sequences; whoever writes into a shared page
copies it first. Sliding-window layers keep all pages, so any rollback is possible.
"""

import heapq
from dataclasses import dataclass, field

from specdec_cli.errors import ContextError

PAGE_TOKENS = 64


@dataclass(slots=True)
class _Sequence:
    length: int = 0
    pages: list[int] = field(default_factory=list)


class PageTable:
    """Committed lengths and page lists of all sequences; page numbers are reused, lowest first."""

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self._sequences: dict[int, _Sequence] = {}
        self._next_handle = 0
        self._users: list[int] = []  # by page: number of sequences that hold it
        self._free: list[int] = []  # heap

    @property
    def num_pages(self) -> int:
        """Pages that a store must have room for."""
        return len(self._users)

    @property
    def pages_in_use(self) -> int:
        """Pages held by at least one sequence."""
        return len(self._users) - len(self._free)

    def create(self) -> int:
        """Start an empty sequence and return its handle."""
        handle = self._next_handle
        self._next_handle += 1
        self._sequences[handle] = _Sequence()
        return handle

    def fork(self, sequence: int, length: int) -> int:
        """Start a sequence that shares the pages of the first `length` tokens of another."""
        source = self._get(sequence)
        if not 0 <= length <= source.length:
            raise ValueError(f"cannot fork {length} tokens of a sequence that holds {source.length}")
        pages = source.pages[: _pages_for(length)]
        for page in pages:
            self._users[page] += 1
        handle = self.create()
        self._sequences[handle] = _Sequence(length, pages)
        return handle

    def free(self, sequence: int) -> None:
        """Forget a sequence and release its pages."""
        self.truncate(sequence, 0)
        del self._sequences[sequence]

    def length(self, sequence: int) -> int:
        """Committed tokens."""
        return self._get(sequence).length

    def pages(self, sequence: int) -> list[int]:
        """Pages of the committed tokens, in position order."""
        return self._get(sequence).pages

    def truncate(self, sequence: int, length: int) -> None:
        """Roll back to the first `length` tokens."""
        entry = self._get(sequence)
        if not 0 <= length <= entry.length:
            raise ValueError(f"cannot truncate a sequence of {entry.length} tokens to {length}")
        keep = _pages_for(length)
        for page in entry.pages[keep:]:
            self._release(page)
        del entry.pages[keep:]
        entry.length = length

    def require_room(self, sequence: int, count: int) -> None:
        """Raise ContextError when `count` more tokens would exceed the context."""
        wanted = self._get(sequence).length + count
        if wanted > self.n_ctx:
            raise ContextError(
                f"the context is full: {wanted} tokens do not fit into {self.n_ctx} (--ctx-size)"
            )

    def extend(self, sequence: int, count: int) -> list[tuple[int, int]]:
        """Commit `count` more tokens; return page copies (source, target) to make before they are written."""
        self.require_room(sequence, count)
        entry = self._get(sequence)
        copies = []
        if count > 0 and entry.length % PAGE_TOKENS and self._users[entry.pages[-1]] > 1:
            shared = entry.pages[-1]
            entry.pages[-1] = self._allocate()
            self._release(shared)
            copies.append((shared, entry.pages[-1]))
        entry.length += count
        while len(entry.pages) < _pages_for(entry.length):
            entry.pages.append(self._allocate())
        return copies

    def _get(self, sequence: int) -> _Sequence:
        entry = self._sequences.get(sequence)
        if entry is None:
            raise ValueError(f"no sequence has the handle {sequence}")
        return entry

    def _allocate(self) -> int:
        if self._free:
            page = heapq.heappop(self._free)
            self._users[page] = 1
            return page
        self._users.append(1)
        return len(self._users) - 1

    def _release(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page] == 0:
            heapq.heappush(self._free, page)


def _pages_for(length: int) -> int:
    return -(-length // PAGE_TOKENS)
