"""Builds a native program: matrices, vectors and steps, in the numbering that `quant._native` wants."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from quant import _native
from quant.reference import dequantize
from quant.tensor import QuantTensor

from .native_steps import AttentionStep, LinearStep, Lowered, RowOp, RowStep
from .ops import Rope

Convert = Callable[[QuantTensor], QuantTensor]


@dataclass(slots=True)
class ProgramBuilder:
    """Adds lowered steps to a program. `matrices` are the tensors to pack, by matrix number.

    `type_of` names the type that a matrix is packed as.
    """

    type_of: Callable[[QuantTensor], str]
    program: _native.Program = field(default_factory=_native.Program)
    matrices: list[QuantTensor] = field(default_factory=list)
    _matrix_of: dict[QuantTensor, int] = field(default_factory=dict)
    _vector_of: dict[QuantTensor, int] = field(default_factory=dict)
    _rope_of: dict[Rope, int] = field(default_factory=dict)
    _buffers: dict[int, int] = field(default_factory=dict)

    def build(self, lowered: Lowered, n_vocab: int) -> None:
        """Add everything and finish the program."""
        for width, outputs in lowered.buffers:
            self.program.add_buffer(width, outputs)
        self._buffers = lowered.buffer_of
        for step in lowered.steps:
            if isinstance(step, RowStep):
                self.program.add_row_step(step.outputs, [self._row_op(op) for op in step.ops])
            elif isinstance(step, LinearStep):
                self._add_linear(step)
            else:
                self._add_attention(step)
        self.program.finish(lowered.result, n_vocab)

    def _buffer(self, value: int | None) -> int:
        return -1 if value is None else self._buffers[value]

    def _matrix(self, tensor: QuantTensor) -> int:
        if tensor not in self._matrix_of:
            n, k = tensor.shape
            self._matrix_of[tensor] = self.program.add_matrix(self.type_of(tensor), n, k)
            self.matrices.append(tensor)
        return self._matrix_of[tensor]

    def _vector(self, tensor: QuantTensor | None) -> int:
        if tensor is None:
            return -1
        if tensor not in self._vector_of:
            values = np.ascontiguousarray(dequantize(tensor), np.float32).reshape(-1)
            self._vector_of[tensor] = self.program.add_vector(values)
        return self._vector_of[tensor]

    def _rope(self, rope: Rope | None) -> int:
        if rope is None:
            return -1
        if rope not in self._rope_of:
            frequencies = np.asarray(rope.inv_freq, np.float64)
            self._rope_of[rope] = self.program.add_rope(frequencies, rope.attn_factor)
        return self._rope_of[rope]

    def _row_op(self, op: RowOp) -> tuple[str, int, int, int, int, int, float, str]:
        a, b = (*op.inputs, None, None)[:2]
        weight = -1
        if op.weight is not None:
            weight = self._matrix(op.weight) if op.kind == "embed" else self._vector(op.weight)
        return (
            op.kind,
            self._buffer(op.out),
            self._buffer(a),
            self._buffer(b),
            weight,
            op.width,
            op.param,
            op.activation or "",
        )

    def _add_linear(self, step: LinearStep) -> None:
        parts = [(self._matrix(p.weight), self._vector(p.bias), self._buffer(p.out)) for p in step.parts]
        self.program.add_linear_step(
            step.outputs, self._buffer(step.input), parts, self._buffer(step.gated_out), step.activation or ""
        )

    def _add_attention(self, step: AttentionStep) -> None:
        spec = step.spec
        self.program.add_attention_step(
            q=self._buffer(step.q),
            k=self._buffer(step.k),
            v=self._buffer(step.v),
            rotated=self._buffer(step.rotated),
            out=self._buffer(step.out),
            layer=spec.layer,
            n_head=spec.n_head,
            n_head_kv=spec.n_head_kv,
            head_dim=spec.head_dim,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
            window=spec.window or 0,
            rope=self._rope(spec.rope),
            q_norm=self._vector(step.q_norm.weight if step.q_norm else None),
            q_norm_eps=step.q_norm.eps if step.q_norm else 0.0,
            k_norm=self._vector(step.k_norm.weight if step.k_norm else None),
            k_norm_eps=step.k_norm.eps if step.k_norm else 0.0,
        )
