"""A definition recorded once: few op kinds, and a replay that gives the bits of eager execution."""

import numpy as np
import pytest

from quant.gguf_file import GgufFile
from quant.tensor import QuantTensor
from quant.types import BY_NAME
from specdec_cli.loader import build_plan
from specdec_cli.models.catalog import ARCHITECTURES, bind
from specdec_cli.models.config import ModelConfig
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime.ops import Activation, AttentionSpec
from specdec_cli.runtime.plan import Plan, RecordingOps, replay

LLAMA_KINDS = {"embed", "linear", "rms_norm", "attention", "add", "gated", "output_rows"}


def weight(*shape):
    return QuantTensor("w", BY_NAME["F32"], shape, np.zeros(4 * np.prod(shape), np.uint8))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("architecture", "softcap"),
    [("llama", None), ("qwen2", None), ("qwen3", None), ("gemma3", None), ("gemma3", 3.0)],
)
def test_replay_gives_the_bits_of_eager_execution(tiny_gguf, architecture, softcap):
    from specdec_cli.runtime.torch_model import TorchModel

    capped = {"metadata": {"gemma3.final_logit_softcapping": softcap}} if softcap else {}
    with GgufFile.open(tiny_gguf(architecture, n_layer=7, **capped)) as file:
        definition = bind(ModelConfig.from_metadata(file.metadata, file.tensors), file.tensors)
    recorder = RecordingOps()
    model = TorchModel(recorder.finish(definition(recorder)), n_ctx=128, threads=1)
    ids = np.random.default_rng(2).integers(0, 200, 90).tolist()
    replayed = model.forward(chain_rows(model.create_sequence(), 0, ids, 90))
    eager = model.execute(chain_rows(model.create_sequence(), 0, ids, 90), definition)
    assert np.array_equal(replayed, eager)
    if softcap is not None:
        assert np.abs(replayed).max() < softcap


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_an_architecture_takes_few_op_kinds(tiny_plan, architecture):
    kinds = {op.kind for op in tiny_plan(architecture).ops}
    assert kinds >= LLAMA_KINDS
    assert kinds <= LLAMA_KINDS | {"scale", "softcap"}


def test_all_op_kinds_together_are_at_most_fifteen():
    kinds = [name for name in vars(RecordingOps) if not name.startswith("_") and name != "finish"]
    assert 7 <= len(kinds) <= 15


def test_a_plan_writes_every_value_once_and_before_it_is_read(tiny_plan):
    plan: Plan = tiny_plan("gemma3")
    assert [op.out for op in plan.ops] == list(range(len(plan.widths)))
    assert all(value < op.out for op in plan.ops for value in op.inputs)
    assert plan.result == len(plan.widths) - 1
    assert plan.widths[plan.result] == 265


def test_replaying_into_a_recorder_gives_the_same_plan(tiny_plan):
    plan = tiny_plan("qwen3")
    recorder = RecordingOps()
    assert recorder.finish(replay(plan, recorder)) == plan


def test_a_single_layer_feeds_its_config_to_every_op(tiny_gguf):
    with GgufFile.open(tiny_gguf("gemma3", n_layer=1, window=9)) as file:
        config = ModelConfig.from_metadata(file.metadata, file.tensors)
        _, plan = build_plan(file.metadata, file.tensors)
    (attention,) = [op for op in plan.ops if op.kind == "attention"]
    assert attention.params["spec"] == config.attention[0]
    (scale,) = [op for op in plan.ops if op.kind == "scale"]
    assert scale.params["factor"] == config.embedding_scale
    assert {op.params["eps"] for op in plan.ops if op.kind == "rms_norm"} == {config.rms_eps}


SPEC = AttentionSpec(layer=3, n_head=2, n_head_kv=1, head_dim=4, scale=1.0, rope=None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x: ops.linear(x, weight(3, 7)), "w: input width 8, weight has 7"),
        (lambda ops, x: ops.linear(x, weight(3, 8), weight(4)), "w: bias does not have 3 elements"),
        (lambda ops, x: ops.rms_norm(x, weight(3), 1e-5), "w: does not divide the width 8"),
        (lambda ops, x: ops.attention(x, x, x, SPEC), "layer 3: q, k, v widths"),
        (lambda ops, x: ops.add(x, ops.linear(x, weight(3, 8))), "add: widths differ"),
        (
            lambda ops, x: ops.gated(x, ops.linear(x, weight(3, 8)), Activation.SILU),
            "gated: widths differ",
        ),
    ],
)
def test_recording_checks_widths(call, message):
    ops = RecordingOps()
    x = ops.embed(weight(5, 8))
    with pytest.raises(ValueError, match=message):
        call(ops, x)
