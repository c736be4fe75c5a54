"""The steps of a native program over values, and the buffers that the values get."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quant.tensor import QuantTensor

from .ops import Activation, AttentionSpec


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """An rms_norm over single heads."""

    weight: QuantTensor
    eps: float


@dataclass(frozen=True, slots=True)
class RowOp:
    """An operation on single rows. `kind`: an Ops method, "gather" (output rows) or "quantize"."""

    kind: str
    out: int | None  # value
    inputs: tuple[int, ...]
    width: int
    weight: QuantTensor | None = None
    param: float = 0.0
    activation: Activation | None = None


@dataclass(frozen=True, slots=True)
class RowStep:
    """Row operations in order, all on the same rows."""

    outputs: bool
    ops: tuple[RowOp, ...]


@dataclass(frozen=True, slots=True)
class LinearPart:
    """One matrix of a linear step."""

    weight: QuantTensor
    bias: QuantTensor | None
    out: int


@dataclass(frozen=True, slots=True)
class LinearStep:
    """`input` times each matrix; with `gated_out`, also activation(part 0) * part 1."""

    outputs: bool
    input: int
    parts: tuple[LinearPart, ...]
    gated_out: int | None = None
    activation: Activation | None = None


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Attention with everything that happens to its heads before. `rotated` is a value of its own."""

    q: int
    k: int
    v: int
    rotated: int
    out: int
    spec: AttentionSpec
    q_norm: HeadNorm | None
    k_norm: HeadNorm | None


Step = RowStep | LinearStep | AttentionStep


@dataclass(frozen=True, slots=True)
class Lowered:
    """Steps over values, and the buffer of every value. `buffers[i]` is (width, whether of output rows)."""

    steps: tuple[Step, ...]
    buffer_of: dict[int, int]
    buffers: tuple[tuple[int, bool], ...]
    result: int  # buffer


class _Event(NamedTuple):
    """A moment of a pass: what is read, what is written, and which of `read` may lie where is written."""

    read: tuple[int, ...]
    written: tuple[int, ...]
    in_place: tuple[int, ...] = ()


def _events(steps: Sequence[Step]) -> Iterator[_Event]:
    for step in steps:
        if isinstance(step, RowStep):
            for op in step.ops:
                written = () if op.out is None else (op.out,)
                yield _Event(op.inputs, written, op.inputs if op.kind != "gather" else ())
        elif isinstance(step, LinearStep):
            # Threads finish at different times: the input stays until the end of the step.
            outs = tuple(part.out for part in step.parts)
            yield _Event((step.input,), outs)
            if step.gated_out is not None:
                yield _Event((step.input, *outs), (step.gated_out,), outs)
        else:
            yield _Event((step.q, step.k, step.v), (step.rotated,), (step.q,))
            yield _Event((step.k, step.v, step.rotated), (step.out,))


def assign_buffers(
    steps: Sequence[Step], widths: Sequence[int], outputs: dict[int, bool], result: int
) -> Lowered:
    """Give every value a buffer; a buffer serves the next value of its width once its last one is dead.

    `widths` and `outputs` (whether a value has only the output rows) are by value. `result` gets a buffer of
    its own: the caller's array of logits.
    """
    events = list(_events(steps))
    last_use = {value: index for index, event in enumerate(events) for value in event.read}
    buffers: list[tuple[int, bool]] = []
    buffer_of: dict[int, int] = {}
    free: dict[tuple[int, bool], list[int]] = defaultdict(list)

    def release(values: Sequence[int]) -> None:
        for value in dict.fromkeys(values):
            if value != result:
                free[buffers[buffer_of[value]]].append(buffer_of[value])

    for index, event in enumerate(events):
        dying = [value for value in event.read if last_use[value] == index]
        release([value for value in dying if value in event.in_place])
        for value in event.written:
            kind = (widths[value], outputs[value])
            if value != result and free[kind]:
                buffer_of[value] = free[kind].pop()
            else:
                buffer_of[value] = len(buffers)
                buffers.append(kind)
        release([value for value in dying if value not in event.in_place])
    return Lowered(tuple(steps), buffer_of, tuple(buffers), buffer_of[result])
