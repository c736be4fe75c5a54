"""From a recorded plan to the steps that the native executor runs.

Linear layers that share an input become one step, which reads it quantized once; a gate and an up projection
compute their gated product as they go; norms of single heads move into the attention step; what works row by
row collects between those. Values get buffers by liveness.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from quant.types import BF16, F16, F32

from .native_steps import (
    AttentionStep,
    HeadNorm,
    LinearPart,
    LinearStep,
    Lowered,
    RowOp,
    RowStep,
    Step,
    assign_buffers,
)
from .ops import Activation, AttentionSpec
from .plan import Plan, PlanOp

FLOAT_TYPES = frozenset({F32, F16, BF16})  # their kernels read float32 activations
ROWS, OUTPUTS = False, True  # which rows a value has: all of the pass, or those whose logits are wanted


def lower(plan: Plan, *, padded_head_dim: int = 32) -> Lowered:
    """Turn a plan into steps. Heads in the KV cache take multiples of `padded_head_dim` elements.

    Raises ValueError for a plan that mixes all rows and output rows.
    """
    lowering = _Lowering(plan, padded_head_dim)
    steps = lowering.run()
    return assign_buffers(steps, lowering.widths, lowering.outputs, lowering.result)


@dataclass(slots=True)
class _Lowering:
    plan: Plan
    pad: int
    widths: list[int] = field(init=False)
    outputs: dict[int, bool] = field(default_factory=dict)  # by value
    result: int = field(init=False)
    _steps: list[Step] = field(default_factory=list)
    _row_ops: list[RowOp] = field(default_factory=list)
    _row_outputs: bool = ROWS
    _quantized: int | None = None  # the value that is quantized now
    _done: set[int] = field(default_factory=set)  # ops (by output) that an earlier step took over
    _users: dict[int, list[PlanOp]] = field(init=False)
    _producer: dict[int, PlanOp] = field(init=False)

    def run(self) -> list[Step]:
        self.widths = list(self.plan.widths)
        self.result = self.plan.result
        self._users = defaultdict(list)
        for op in self.plan.ops:
            for value in op.inputs:
                self._users[value].append(op)
        self._producer = {op.out: op for op in self.plan.ops}
        self._absorb_head_norms()
        for op in self.plan.ops:
            if op.out not in self._done:
                self._lower(op)
        if not self.outputs[self.result]:
            self.result = self._gather(self.result)
        self._flush()
        return self._steps

    def _absorb_head_norms(self) -> None:
        for op in self.plan.ops:
            if op.kind == "attention":
                self._done.update(value for value in op.inputs[:2] if self._head_norm(value, op))

    def _head_norm(self, value: int, attention: PlanOp) -> HeadNorm | None:
        """The norm that makes `value`, if it is one over single heads and for this attention only."""
        op = self._producer[value]
        spec = attention.params["spec"]
        assert isinstance(spec, AttentionSpec)
        if op.kind != "rms_norm" or len(self._users[value]) != 1 or value == self.result:
            return None
        weight = op.weights[0]
        if weight is None or weight.shape[0] != spec.head_dim:
            return None
        eps = op.params["eps"]
        assert isinstance(eps, float)
        return HeadNorm(weight, eps)

    def _lower(self, op: PlanOp) -> None:
        if op.kind == "linear":
            self._linear(op)
        elif op.kind == "attention":
            self._attention(op)
        elif op.kind == "output_rows":
            self._gather(op.inputs[0], op.out)
        else:
            self._row_op(op)

    def _domain(self, op: PlanOp) -> bool:
        domains = {self.outputs[value] for value in op.inputs}
        if len(domains) > 1:
            raise ValueError(f"{op.kind} mixes all rows with output rows")
        return domains.pop() if domains else ROWS

    def _row_op(self, op: PlanOp) -> None:
        domain = self._domain(op)
        activation = op.params.get("activation")
        params = [value for value in op.params.values() if isinstance(value, (int, float))]
        self._append(
            RowOp(
                op.kind,
                op.out,
                op.inputs,
                self.widths[op.out],
                weight=op.weights[0] if op.weights else None,
                param=float(params[0]) if params else 0.0,
                activation=activation if isinstance(activation, Activation) else None,
            ),
            domain,
        )
        self.outputs[op.out] = domain

    def _gather(self, value: int, out: int | None = None) -> int:
        if self.outputs[value]:
            raise ValueError("output_rows of output rows")
        if out is None:
            out = self._new_value(self.widths[value])
        self._flush()  # rows are read across: all of them must be there
        self.outputs[out] = OUTPUTS
        self._append(RowOp("gather", out, (value,), self.widths[value]), OUTPUTS)
        return out

    def _new_value(self, width: int) -> int:
        self.widths.append(width)
        return len(self.widths) - 1

    def _append(self, op: RowOp, outputs: bool) -> None:
        if outputs != self._row_outputs:
            self._flush()
        self._row_outputs = outputs
        self._row_ops.append(op)

    def _flush(self) -> None:
        if self._row_ops:
            self._steps.append(RowStep(self._row_outputs, tuple(self._row_ops)))
        self._row_ops = []

    def _linear(self, op: PlanOp) -> None:
        """Emit the linear layers of one input: `op` and those of the later ones that fit into its step."""
        value = op.inputs[0]
        domain = self._domain(op)
        gated = self._gated_user(op)
        pair = [self._producer[v] for v in gated.inputs] if gated else []
        members = pair or [
            other
            for other in self._users[value]
            if other.kind == "linear" and other.out not in self._done and self._gated_user(other) is None
        ]
        parts = []
        for member in members:
            weight, bias = member.weights
            assert weight is not None
            parts.append(LinearPart(weight, bias, member.out))
            self._done.add(member.out)
            self.outputs[member.out] = domain
        if self._quantized != value and any(part.weight.qtype not in FLOAT_TYPES for part in parts):
            self._append(RowOp("quantize", None, (value,), self.widths[value]), domain)
            self._quantized = value
        self._flush()
        step = LinearStep(domain, value, tuple(parts))
        if gated:
            activation = gated.params["activation"]
            assert isinstance(activation, Activation)
            step = replace(step, gated_out=gated.out, activation=activation)
            self._done.add(gated.out)
            self.outputs[gated.out] = domain
        self._steps.append(step)

    def _gated_user(self, op: PlanOp) -> PlanOp | None:
        """The gated op that alone uses `op` and another linear layer of the same input."""
        users = self._users[op.out]
        if len(users) != 1 or users[0].kind != "gated" or self.result in users[0].inputs:
            return None
        gated = users[0]
        producers = [self._producer[value] for value in gated.inputs]
        fits = gated.inputs[0] != gated.inputs[1] and all(
            producer.kind == "linear" and producer.inputs == op.inputs and len(self._users[producer.out]) == 1
            for producer in producers
        )
        return gated if fits else None

    def _attention(self, op: PlanOp) -> None:
        self._flush()
        spec = op.params["spec"]
        assert isinstance(spec, AttentionSpec)
        norms = [self._head_norm(value, op) for value in op.inputs[:2]]
        q, k = (
            self._producer[value].inputs[0] if norm else value
            for value, norm in zip(op.inputs[:2], norms, strict=True)
        )
        padded = -(-spec.head_dim // self.pad) * self.pad
        rotated = self._new_value(spec.n_head * padded)
        if any(self.outputs[value] for value in (q, k, op.inputs[2])):
            raise ValueError("attention needs all rows")
        self.outputs[rotated] = self.outputs[op.out] = ROWS
        self._steps.append(AttentionStep(q, k, op.inputs[2], rotated, op.out, spec, *norms))
