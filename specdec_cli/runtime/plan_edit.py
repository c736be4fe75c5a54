"""Other weights for a recorded plan: what a draft model's diet exchanges."""

from collections.abc import Mapping
from dataclasses import replace

from quant.tensor import QuantTensor

from .plan import Plan, PlanOp


def linear_weights(plan: Plan) -> list[QuantTensor]:
    """Matrices of the linear layers in order of use, each once: what a decoding step reads."""
    found = dict.fromkeys(_weight(op) for op in plan.ops if op.kind == "linear")
    return list(found)


def key_value_weights(plan: Plan) -> list[QuantTensor]:
    """Matrices that make keys and values, each once."""
    producer = {op.out: op for op in plan.ops}
    found: dict[QuantTensor, None] = {}
    for op in plan.ops:
        if op.kind == "attention":
            for value in op.inputs[1:]:
                found.update(dict.fromkeys(_weight(source) for source in _linear_behind(producer, value)))
    return list(found)


def head(plan: Plan) -> PlanOp:
    """The linear layer whose outputs are the logits. Raises ValueError when there is none."""
    for op in _linear_behind({op.out: op for op in plan.ops}, plan.result):
        return op
    raise ValueError("the logits do not come from a linear layer")


def head_weight(plan: Plan) -> QuantTensor:
    """The matrix of the head. Raises ValueError when there is none."""
    return _weight(head(plan))


def with_linear_weights(plan: Plan, replacements: Mapping[QuantTensor, QuantTensor]) -> Plan:
    """Return the plan with other matrices in its linear layers; embedding tables stay.

    The number of rows may change where the results go through elementwise ops of one input only (the head).
    """
    widths = list(plan.widths)
    ops = []
    for op in plan.ops:
        if op.kind == "linear" and _weight(op) in replacements:
            new = replacements[_weight(op)]
            op = replace(op, weights=(new, *op.weights[1:]))  # noqa: PLW2901
            widths[op.out] = new.shape[0]
        elif op.kind in ("scale", "softcap"):
            widths[op.out] = widths[op.inputs[0]]
        ops.append(op)
    return Plan(tuple(ops), tuple(widths), plan.result)


def _weight(op: PlanOp) -> QuantTensor:
    weight = op.weights[0]
    assert weight is not None
    return weight


def _linear_behind(producer: Mapping[int, PlanOp], value: int) -> list[PlanOp]:
    """The linear layer that a value comes from through ops of one input, if it comes from one."""
    op = producer[value]
    while op.kind in ("scale", "softcap", "rms_norm"):
        op = producer[op.inputs[0]]
    return [op] if op.kind == "linear" else []
