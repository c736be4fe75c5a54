"""What a diet alters: rules for types and head, on recorded plans; and that the plan still runs."""

from typing import Any

import numpy as np
import pytest

from quant.errors import QuantError
from quant.gguf_file import GgufFile
from quant.requantize import quantize
from quant.tensor import QuantTensor
from quant.types import BY_NAME, F32
from specdec_cli import diet as module
from specdec_cli.diet import DietOptions, put_on_diet
from specdec_cli.errors import UsageError
from specdec_cli.loader import LoadOptions, build_plan, load_model
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime.ops import AttentionSpec
from specdec_cli.runtime.plan import Plan, RecordingOps
from specdec_cli.runtime.plan_edit import head_weight, key_value_weights, linear_weights

WIDTH, N_VOCAB = 256, 8192
KEEP = DietOptions("keep", "all")


@pytest.fixture(autouse=True)
def _small_models_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_STEP", 0)


def matrix(name: str, rows: int, qtype: str, width: int = WIDTH) -> QuantTensor:
    values = np.random.default_rng(list(name.encode())).standard_normal((rows, width)).astype(np.float32)
    return quantize(values, BY_NAME[qtype], name=name)


def plan_of(
    *,
    qtype: str = "Q8_0",
    head: str | None = "Q8_0",
    n_vocab: int = N_VOCAB,
    n_head_kv: int = 1,
    bias: bool = False,
    softcap: bool = False,
) -> Plan:
    """A layer of attention of eight heads, a feed-forward matrix, and a head (None: the table itself)."""
    ops = RecordingOps()
    table = matrix("token_embd.weight", n_vocab, "Q5_0")
    x = ops.embed(table)
    spec = AttentionSpec(layer=0, n_head=8, n_head_kv=n_head_kv, head_dim=32, scale=1.0, rope=None)
    q, k, v = (
        ops.linear(x, matrix(name, 32 * heads, qtype))
        for name, heads in (("q", 8), ("k", n_head_kv), ("v", n_head_kv))
    )
    k = ops.rms_norm(k, quantize(np.ones(32, np.float32), F32, name="k_norm"), 1e-6)
    x = ops.linear(ops.attention(q, k, v, spec), matrix("o", WIDTH, qtype))
    x = ops.output_rows(ops.linear(x, matrix("up", WIDTH, "Q4_K")))
    weight = table if head is None else matrix("output.weight", n_vocab, head)
    offsets = quantize(np.ones(n_vocab, np.float32), F32, name="output.bias") if bias else None
    logits = ops.linear(x, weight, offsets)
    return ops.finish(ops.softcap(logits, 30.0) if softcap else logits)


def types_of(plan: Plan) -> dict[str, str]:
    return {weight.name: weight.qtype.name for weight in linear_weights(plan)}


def test_nothing_is_altered_by_keep_and_all() -> None:
    plan = plan_of()
    found = put_on_diet(plan, KEEP)
    assert found.plan == plan
    assert found.head is None
    assert found.report.describe() == "draft model used as it is: 2 MB per step"


def test_auto_converts_large_types_and_leaves_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUTO_VOCAB", 1024)
    found = put_on_diet(plan_of(), DietOptions())
    assert types_of(found.plan) == {
        "q": "Q4_0",
        "k": "Q8_0",
        "v": "Q8_0",
        "o": "Q4_0",
        "up": "Q4_K",
        "output.weight (cut)": "Q4_0",
    }
    report = found.report
    assert report.bytes_after == sum(weight.num_bytes for weight in linear_weights(found.plan))
    assert report.bytes_after < 0.3 * report.bytes_before
    assert report.num_ids == 1024
    assert "a head of 1024 tokens and those that occur" in report.describe()


def test_keys_and_values_that_are_many_are_converted_too() -> None:
    plan = plan_of(n_head_kv=8, n_vocab=256)
    assert types_of(put_on_diet(plan, DietOptions("auto", "all")).plan)["k"] == "Q4_0"


@pytest.mark.parametrize("qtype", ["Q4_0", "Q4_K", "Q4_1"])
def test_small_types_are_left_alone(qtype: str) -> None:
    plan = plan_of(qtype=qtype, head=qtype)
    assert put_on_diet(plan, DietOptions("auto", "all")).plan == plan


def test_auto_leaves_what_saves_less_than_a_tenth() -> None:
    plan = plan_of(qtype="Q4_K", head="Q5_0", n_vocab=64)  # a few per cent of the bytes
    assert put_on_diet(plan, DietOptions()).plan == plan


def test_auto_leaves_small_models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    monkeypatch.setattr(module, "SMALL_STEP", 16_000_000)
    assert put_on_diet(plan, DietOptions()).plan == plan


def test_a_type_that_is_named_goes_everywhere() -> None:
    found = put_on_diet(plan_of(qtype="Q4_0"), DietOptions.parse("q6_k", "all"))
    assert set(types_of(found.plan).values()) == {"Q6_K"}


def test_a_type_that_does_not_fit_the_rows_is_replaced_by_the_next() -> None:
    ops = RecordingOps()
    x = ops.output_rows(ops.embed(matrix("table", 64, "Q8_0", width=96)))
    plan = ops.finish(ops.linear(x, matrix("head", 64, "Q8_0", width=96)))
    assert types_of(put_on_diet(plan, DietOptions(BY_NAME["Q4_K"], "all")).plan) == {"head": "Q5_0"}


def test_the_embedding_stays_when_a_tied_head_is_altered() -> None:
    plan = plan_of(head=None)
    found = put_on_diet(plan, DietOptions(BY_NAME["Q4_0"], 1000))
    (table,) = (op.weights[0] for op in found.plan.ops if op.kind == "embed")
    assert table is head_weight(plan)
    assert head_weight(found.plan).shape == (1008 + module.SPARE_ROWS, WIDTH)


def test_the_logits_are_as_wide_as_the_cut_head() -> None:
    found = put_on_diet(plan_of(softcap=True), DietOptions("keep", 1000), always_ids=[5, 8000, 9999, -1])
    assert found.head is not None
    assert found.head.num_ids == 1001
    rows = 1008 + module.SPARE_ROWS
    assert found.plan.widths[found.plan.result] == rows
    assert found.plan.ops[-2].kind == "linear"
    assert found.plan.widths[found.plan.ops[-2].out] == rows
    assert found.plan.widths[: found.plan.ops[-2].out] == plan_of().widths[: found.plan.ops[-2].out]


@pytest.mark.parametrize("size", [N_VOCAB, N_VOCAB - module.SPARE_ROWS, 10**9])
def test_a_cut_that_saves_nothing_is_not_made(size: int) -> None:
    plan = plan_of()
    assert put_on_diet(plan, DietOptions("keep", size)).plan == plan


def test_a_head_with_a_bias_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUTO_VOCAB", 1024)
    assert put_on_diet(plan_of(bias=True), DietOptions("keep", "auto")).head is None
    with pytest.raises(UsageError, match=r"^--draft-vocab: the output head of this draft model has a bias"):
        put_on_diet(plan_of(bias=True), DietOptions("keep", 1000))


def test_weights_that_are_not_finite_are_named() -> None:
    ops = RecordingOps()
    broken = quantize(np.full((64, WIDTH), np.nan, np.float32), F32, name="blk.0.broken")
    x = ops.output_rows(ops.linear(ops.embed(matrix("table", 64, "Q8_0")), broken))
    plan = ops.finish(ops.linear(x, matrix("head", 64, "Q8_0", width=64)))
    with pytest.raises(QuantError, match=r"'blk\.0\.broken' holds values that are not finite"):
        put_on_diet(plan, DietOptions(BY_NAME["Q4_0"], "all"))


def test_progress_ends_with_all_values() -> None:
    calls: list[tuple[int, int]] = []
    put_on_diet(
        plan_of(), DietOptions("auto", "all"), progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1][0] == calls[-1][1] == 2 * WIDTH * WIDTH + N_VOCAB * WIDTH


def test_key_value_weights_are_found_behind_norms() -> None:
    assert [weight.name for weight in key_value_weights(plan_of())] == ["k", "v"]


@pytest.mark.parametrize(
    ("quant", "vocab", "expected"),
    [
        ("auto", "auto", DietOptions("auto", "auto")),
        ("keep", "all", DietOptions("keep", "all")),
        ("q8_0", "100", DietOptions(BY_NAME["Q8_0"], 100)),
    ],
)
def test_options_are_parsed(quant: str, vocab: str, expected: DietOptions) -> None:
    assert DietOptions.parse(quant, vocab) == expected


@pytest.mark.parametrize(
    ("quant", "vocab", "message"),
    [
        ("Q4_K_M", "auto", r"^--draft-quant Q4_K_M: expected auto, keep or a type: Q4_0, "),
        ("", "auto", "^--draft-quant : expected"),
        ("auto", "0", "^--draft-vocab 0: expected auto, all or a number of tokens$"),
        ("auto", "-1", "^--draft-vocab -1: expected"),
        ("auto", "many", "^--draft-vocab many: expected"),
        ("auto", "²", "^--draft-vocab ²: expected"),
    ],
)
def test_wrong_options_are_named(quant: str, vocab: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DietOptions.parse(quant, vocab)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_architecture_runs_on_a_diet(tiny_gguf: Any, architecture: str, tied: bool) -> None:
    path = tiny_gguf(architecture, tied=tied, extra_tokens=4000)
    options = LoadOptions(executor="torch", diet=DietOptions(BY_NAME["Q8_0"], 270))
    whole, slim = load_model(path, LoadOptions(executor="torch")), load_model(path, options)
    assert slim.cut_head is not None
    assert slim.diet is not None
    assert slim.diet.bytes_after < slim.diet.bytes_before
    ids = [*whole.tokenizer.encode("the thing"), 4200]  # ids without a row can be read
    rows = chain_rows(whole.model.create_sequence(), 0, ids, len(ids))
    expected = whole.model.forward(rows)
    slim.model.create_sequence()
    for row, logits in zip(expected, slim.model.forward(rows), strict=True):
        found, kept = slim.cut_head.usable(logits)
        assert kept.tolist() == list(range(270))
        assert np.abs(found - row[kept]).max() < 0.05 * np.abs(row).max()


def test_a_diet_reads_the_plan_of_a_file_as_the_loader_does(tiny_gguf: Any) -> None:
    with GgufFile.open(tiny_gguf("qwen3")) as file:
        _, plan = build_plan(file.metadata, file.tensors)
    found = put_on_diet(plan, DietOptions(BY_NAME["Q4_0"], "all"))
    assert len(found.plan.ops) == len(plan.ops)
    assert set(types_of(found.plan).values()) == {"Q4_0"}
