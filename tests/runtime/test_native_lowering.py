"""What a plan becomes on the native executor: fused steps and shared buffers."""

import numpy as np
import pytest

from quant.tensor import QuantTensor
from quant.types import BY_NAME, F32
from specdec_cli.runtime.native_lowering import lower
from specdec_cli.runtime.native_steps import AttentionStep, LinearStep, RowStep
from specdec_cli.runtime.ops import Activation, AttentionSpec
from specdec_cli.runtime.plan import RecordingOps


def tensor(name: str, *shape: int, qtype: str = "Q8_0") -> QuantTensor:
    kind = BY_NAME[qtype] if len(shape) > 1 else F32
    size = int(np.prod(shape)) // kind.block_size * kind.block_bytes
    return QuantTensor(name, kind, shape, np.zeros(size, np.uint8))


def names(step) -> list[str]:
    if isinstance(step, RowStep):
        return [op.kind for op in step.ops]
    if isinstance(step, LinearStep):
        return [part.weight.name for part in step.parts]
    return ["attention"]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_layer_takes_five_parallel_steps(tiny_plan, architecture):
    lowered = lower(tiny_plan(architecture, file_type="F32"))
    layers = sum(isinstance(step, AttentionStep) for step in lowered.steps)
    linears = [step for step in lowered.steps if isinstance(step, LinearStep)]
    assert len(linears) == 4 * layers + 1
    assert [len(step.parts) for step in linears] == [3, 1, 2, 1] * layers + [1]
    assert [step.gated_out is not None for step in linears] == [False, False, True, False] * layers + [False]


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3"])
def test_head_norms_move_into_attention(tiny_plan, architecture):
    lowered = lower(tiny_plan(architecture))
    for step in lowered.steps:
        if isinstance(step, AttentionStep):
            assert step.q_norm is not None
            assert step.k_norm is not None


def test_inputs_are_quantized_once_and_not_for_float_weights():
    ops = RecordingOps()
    x = ops.embed(tensor("embd", 64, 32))
    h = ops.rms_norm(x, tensor("norm", 32), 1e-6)
    a = ops.linear(h, tensor("a", 32, 32))
    b = ops.linear(h, tensor("b", 32, 32, qtype="F16"))
    c = ops.linear(ops.add(a, b), tensor("c", 32, 32, qtype="F32"))
    plan = ops.finish(ops.linear(ops.output_rows(c), tensor("head", 64, 32)))
    steps = [names(step) for step in lower(plan).steps]
    assert steps == [
        ["embed", "rms_norm", "quantize"],
        ["a", "b"],
        ["add"],
        ["c"],
        ["gather", "quantize"],
        ["head"],
    ]


def test_a_gate_that_others_use_too_is_not_fused():
    ops = RecordingOps()
    x = ops.embed(tensor("embd", 64, 32))
    gate, up = ops.linear(x, tensor("gate", 32, 32)), ops.linear(x, tensor("up", 32, 32))
    h = ops.add(ops.gated(gate, up, Activation.SILU), gate)
    lowered = lower(ops.finish(ops.linear(ops.output_rows(h), tensor("head", 64, 32))))
    assert [names(step) for step in lowered.steps][1:3] == [["gate", "up"], ["gated", "add"]]


def test_a_gate_of_another_input_is_not_fused():
    ops = RecordingOps()
    x = ops.embed(tensor("embd", 64, 32))
    gate = ops.linear(x, tensor("gate", 32, 32))
    up = ops.linear(gate, tensor("up", 32, 32))
    h = ops.gated(ops.scale(gate, 2.0), up, Activation.SILU)
    lowered = lower(ops.finish(ops.linear(ops.output_rows(h), tensor("head", 64, 32))))
    assert all(step.gated_out is None for step in lowered.steps if isinstance(step, LinearStep))


def test_a_plan_without_output_rows_gets_them_at_the_end():
    ops = RecordingOps()
    x = ops.embed(tensor("embd", 64, 32))
    lowered = lower(ops.finish(ops.linear(x, tensor("head", 64, 32))))
    assert names(lowered.steps[-1]) == ["gather"]
    assert lowered.buffers[lowered.result] == (64, True)


def test_mixing_all_rows_with_output_rows_is_an_error():
    ops = RecordingOps()
    x = ops.embed(tensor("embd", 64, 32))
    plan = ops.finish(ops.add(x, ops.output_rows(x)))
    with pytest.raises(ValueError, match="add mixes all rows with output rows"):
        lower(plan)


def test_attention_of_output_rows_is_an_error():
    ops = RecordingOps()
    x = ops.output_rows(ops.embed(tensor("embd", 64, 32)))
    spec = AttentionSpec(layer=0, n_head=1, n_head_kv=1, head_dim=32, scale=1.0, rope=None)
    with pytest.raises(ValueError, match="attention needs all rows"):
        lower(ops.finish(ops.attention(x, x, x, spec)))


def test_buffers_of_all_layers_are_shared(tiny_plan):
    few = lower(tiny_plan("llama", n_layer=2))
    many = lower(tiny_plan("llama", n_layer=6))
    assert len(few.buffers) == len(many.buffers) < 14


def accesses(step) -> list[tuple[list[int], list[int]]]:
    """(values read, values written) in the order in which a step touches memory."""
    if isinstance(step, RowStep):
        return [(list(op.inputs), [] if op.out is None else [op.out]) for op in step.ops]
    if isinstance(step, AttentionStep):
        qkv = [step.q, step.k, step.v]
        return [(qkv, [step.rotated]), ([step.k, step.v, step.rotated], [step.out]), ([step.rotated], [])]
    outs = [part.out for part in step.parts]
    linear = [([step.input], [out]) for out in outs]
    gated = [] if step.gated_out is None else [([step.input, *outs], [step.gated_out])]
    return [*linear, ([step.input], []), *gated]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_no_live_value_loses_its_buffer(tiny_plan, architecture):
    """Replays the steps' memory: every read finds the value that was written there last."""
    lowered = lower(tiny_plan(architecture))
    holds: dict[int, int] = {}
    for step in lowered.steps:
        for read, written in accesses(step):
            for value in read:
                assert holds[lowered.buffer_of[value]] == value
            for value in written:
                holds[lowered.buffer_of[value]] = value
