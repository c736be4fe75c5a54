"""Verification: the target chooses its own token row by row, the draft must match."""

from collections.abc import Callable

from .drafters.base import ROOT, Draft


def verify(draft: Draft, choose: Callable[[int], int], emit: Callable[[int, bool], bool]) -> list[int]:
    """Walk down the draft along the target's own choices and return the draft tokens that equal them, in
    path order.

    `choose(node)` is the target's token after draft token `node` (ROOT: after the context), from that row's
    logits. `emit(token_id, from_draft)` takes it and returns whether the sequence goes on. Every token that
    is emitted is the target's, so the output does not depend on the draft, which only decides how many rows
    count.
    """
    path: list[int] = []
    node: int | None = ROOT
    while node is not None:
        token_id = choose(node)
        node = draft.child(node, token_id)
        if node is not None:
            path.append(node)
        if not emit(token_id, node is not None):
            break
    return path
