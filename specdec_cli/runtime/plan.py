# ruff: noqa: D102 - the methods of an Ops are documented there
"""A model definition recorded once: a list of ops over numbered buffers, and its replay through any Ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quant.tensor import QuantTensor

from .ops import Activation, AttentionSpec, Ops

V = TypeVar("V")
Param = float | Activation | AttentionSpec


@dataclass(frozen=True, slots=True)
class PlanOp:
    """One recorded call. `out` and `inputs` number values; every value is written once."""

    kind: str  # name of the Ops method
    out: int
    inputs: tuple[int, ...] = ()
    weights: tuple[QuantTensor | None, ...] = ()
    params: Mapping[str, Param] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Ops in execution order; `widths[i]` is the width of value i and `result` the value that holds the
    logits."""

    ops: tuple[PlanOp, ...]
    widths: tuple[int, ...]
    result: int


class RecordingOps:
    """Ops over value numbers: captures a definition as a Plan and checks every width on the way."""

    def __init__(self) -> None:
        self._ops: list[PlanOp] = []
        self._widths: list[int] = []

    def finish(self, result: int) -> Plan:
        """Return the plan whose logits are value `result`."""
        return Plan(tuple(self._ops), tuple(self._widths), result)

    def _record(
        self,
        kind: str,
        width: int,
        inputs: tuple[int, ...] = (),
        weights: tuple[QuantTensor | None, ...] = (),
        **params: Param,
    ) -> int:
        out = len(self._widths)
        self._widths.append(width)
        self._ops.append(PlanOp(kind, out, inputs, weights, params))
        return out

    def _require(self, ok: bool, message: str) -> None:
        if not ok:
            raise ValueError(message)

    def embed(self, table: QuantTensor) -> int:
        return self._record("embed", table.shape[1], (), (table,))

    def linear(self, x: int, weight: QuantTensor, bias: QuantTensor | None = None) -> int:
        n, k = weight.shape
        self._require(self._widths[x] == k, f"{weight.name}: input width {self._widths[x]}, weight has {k}")
        self._require(bias is None or bias.shape == (n,), f"{weight.name}: bias does not have {n} elements")
        return self._record("linear", n, (x,), (weight, bias))

    def rms_norm(self, x: int, weight: QuantTensor, eps: float) -> int:
        width = self._widths[x]
        self._require(width % weight.shape[0] == 0, f"{weight.name}: does not divide the width {width}")
        return self._record("rms_norm", width, (x,), (weight,), eps=eps)

    def attention(self, q: int, k: int, v: int, spec: AttentionSpec) -> int:
        q_width, kv_width = spec.n_head * spec.head_dim, spec.n_head_kv * spec.head_dim
        widths = (self._widths[q], self._widths[k], self._widths[v])
        expected = (q_width, kv_width, kv_width)
        self._require(widths == expected, f"layer {spec.layer}: q, k, v widths {widths}, expected {expected}")
        return self._record("attention", q_width, (q, k, v), spec=spec)

    def add(self, a: int, b: int) -> int:
        self._require(self._widths[a] == self._widths[b], "add: widths differ")
        return self._record("add", self._widths[a], (a, b))

    def gated(self, gate: int, up: int, activation: Activation) -> int:
        self._require(self._widths[gate] == self._widths[up], "gated: widths differ")
        return self._record("gated", self._widths[gate], (gate, up), activation=activation)

    def scale(self, x: int, factor: float) -> int:
        return self._record("scale", self._widths[x], (x,), factor=factor)

    def softcap(self, x: int, cap: float) -> int:
        return self._record("softcap", self._widths[x], (x,), cap=cap)

    def output_rows(self, x: int) -> int:
        return self._record("output_rows", self._widths[x], (x,))


def replay(plan: Plan, ops: Ops[V], before_op: Callable[[], None] = lambda: None) -> V:
    """Run a recorded plan through `ops` and return the value that holds the logits.

    `before_op` is called before each op; what it raises ends the replay.
    """
    last_use = {value: index for index, op in enumerate(plan.ops) for value in op.inputs}
    values: dict[int, Any] = {}
    for index, op in enumerate(plan.ops):
        before_op()
        arguments = [values[i] for i in op.inputs]
        values[op.out] = getattr(ops, op.kind)(*arguments, *op.weights, **op.params)
        for value in op.inputs:
            if last_use[value] == index:
                values.pop(value, None)
    result: V = values[plan.result]
    return result
