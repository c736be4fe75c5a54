"""Option values checked and combined."""

import math
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.cli.opening import unused_options
from specdec_cli.cli.options import GenerationOptions, SpecOptions, TemplateOptions
from specdec_cli.cli.settings import Settings, drafter_names, parse_logit_bias
from specdec_cli.decoding.controller import Controller
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.errors import SpecdecError, UsageError


def settings(*, raw: bool = False, template: dict[str, Any] | None = None, **values: Any) -> Settings:
    spec = {name: values.pop(name) for name in list(values) if name in SpecOptions.__slots__}
    return Settings.of(
        GenerationOptions(**values), SpecOptions(**spec), TemplateOptions(**(template or {})), raw=raw
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temp": math.nan}, "temperature is not a finite number"),
        ({"temp": math.inf}, "temperature is not a finite number"),
        ({"temp": -0.1}, "temperature is -0.1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.5}, "min_p is -0.5"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0"),
        ({"repeat_last_n": -2}, "repeat_last_n is -2"),
        ({"n_predict": -2}, "-n -2"),
        ({"seed": -2}, "seed is -2"),
        ({"seed": 2**64}, "seed is"),
        ({"stop": [""]}, "--stop"),
        ({"samplers": "top_k;frobnicate"}, "frobnicate"),
        ({"samplers": "top_k;;temperature"}, "empty name"),
        ({"logit_bias": ["abc"]}, "--logit-bias abc"),
        ({"draft_max": -1}, "draft length is -1"),
        ({"draft_min": 9, "draft_max": 4}, "minimum draft length is 9"),
        ({"draft_min": 5, "spec": "ngram"}, "minimum draft length is 5"),
        ({"spec": "predict"}, "predict needs a text; name it with --predict-file"),
        ({"draft_p_min": 1.5}, "draft_p_min is 1.5"),
        ({"draft_p_min": math.nan}, "draft_p_min is nan"),
        ({"ngram_min": 0}, "n-gram match is 0"),
        ({"ngram_min": 4, "ngram_max": 3}, "n-gram match is 3"),
        ({"spec": "eagle"}, "unknown drafter 'eagle'"),
        ({"spec": "draft,draft"}, "draft is given twice"),
        ({"spec": "auto,ngram"}, "auto and none stand alone"),
        ({"spec": ""}, "unknown drafter ''"),
        ({"spec": "draft", "no_spec": True}, "--no-spec contradicts --spec draft"),
        ({"template": {"system_prompt": "a", "system_file": Path("b")}}, "contradict each other"),
        ({"template": {"chat_template": "a", "chat_template_file": Path("b")}}, "contradict each other"),
        ({"template": {"chat_template": " "}}, "the chat template is empty"),
        ({"template": {"chat_template_kwargs": "{"}}, "--chat-template-kwargs: not JSON"),
        ({"template": {"chat_template_kwargs": '{"a": NaN}'}}, "NaN is not a JSON value"),
        ({"template": {"chat_template_kwargs": "[1]"}}, "expected a JSON object"),
        ({"raw": True, "template": {"system_prompt": "a"}}, "--system-prompt contradicts --raw"),
        ({"raw": True, "template": {"chat_template": "a"}}, "--chat-template contradicts --raw"),
        (
            {"raw": True, "template": {"chat_template_kwargs": "{}"}},
            "--chat-template-kwargs contradicts --raw",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        settings(**values)
    assert message in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no.txt"
    for name in ("system_file", "chat_template_file"):
        with pytest.raises(SpecdecError, match=r"no\.txt: No such file"):
            settings(template={name: missing})


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "sys.txt").write_text("be brief\n")
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    made = settings(
        template={"system_file": tmp_path / "sys.txt", "chat_template_file": tmp_path / "t.jinja"}
    )
    assert made.system == "be brief"
    assert made.template is not None
    assert made.template.name_or_source == "{{ messages }}"


def test_sampling_values_arrive() -> None:
    made = settings(
        temp=0.0, top_k=7, seed=5, stop=["a", "b"], logit_bias=["3-inf", "4+1.5"],
        samplers="top_k;temperature",
        n_predict=-1, template={"chat_template_kwargs": '{"enable_thinking": false}'},
    )  # fmt: skip
    assert (made.sampling.temperature, made.sampling.top_k, made.sampling.seed) == (0.0, 7, 5)
    assert made.sampling.logit_bias == ((3, -math.inf), (4, 1.5))
    assert made.sampling.samplers == ("top_k", "temperature")
    assert (made.max_tokens, made.stop) == (None, ("a", "b"))
    assert made.template is not None
    assert made.template.variables == {"enable_thinking": False}
    assert made.as_dict()["sampling"]["logit_bias"] == {"3": "-inf", "4": 1.5}


def test_the_seed_is_random_unless_given() -> None:
    drawn = {settings().sampling.seed for _ in range(8)} | {settings(seed=-1).sampling.seed}
    assert len(drawn) > 1
    assert all(0 <= seed < 2**32 for seed in drawn)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15+1", (15, 1.0)), ("15-2.5", (15, -2.5)), ("0-inf", (0, -math.inf)), ("7+1e2", (7, 100.0))],
)
def test_logit_bias_is_parsed(text: str, expected: tuple[int, float]) -> None:
    assert parse_logit_bias(text) == expected


@pytest.mark.parametrize("text", ["", "15", "15+", "+1", "-5+1", "15+inf", "15+nan", "15=1", "15+1x", "x+1"])
def test_broken_logit_bias_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--logit-bias"):
        parse_logit_bias(text)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (SpecOptions(), None),
        (SpecOptions(spec="none"), ()),
        (SpecOptions(no_spec=True), ()),
        (SpecOptions(no_spec=True, draft_model="d", draft_max=7), ()),
        (SpecOptions(spec="ngram"), ("ngram",)),
        (SpecOptions(spec="ngram,draft"), ("ngram", "draft")),
        (SpecOptions(spec="draft, ngram"), ("draft", "ngram")),
    ],
)
def test_drafters_are_chosen(options: SpecOptions, names: tuple[str, ...] | None) -> None:
    assert drafter_names(options) == names


def test_named_drafters_fix_the_length_and_auto_leaves_it_to_the_controller() -> None:
    named = settings(spec="suffix,draft", draft_max=6, draft_min=2, draft_p_min=0.5)
    assert named.new_policy() == FixedDraftLength(6, 2, 0.5)
    assert named.as_dict()["draft_max"] == 6
    assert settings(spec="suffix").as_dict()["draft_max"] == 4
    auto = settings()
    assert isinstance(auto.new_policy(), Controller)
    assert auto.new_policy() is not auto.new_policy()  # it learns: one for each engine
    assert auto.as_dict()["draft_max"] is None
    assert settings(draft_max=3).as_dict()["draft_max"] == 3


def test_the_shortest_match_is_that_of_suffix_too() -> None:
    assert settings(ngram_min=5).suffix_drafter().min_match == 5


def test_the_prediction_is_read(tmp_path: Path) -> None:
    path = tmp_path / "expected.txt"
    path.write_text("an answer", encoding="utf-8")
    assert settings(predict_file=path).prediction == "an answer"
    with pytest.raises(SpecdecError, match=r"missing\.txt"):
        settings(predict_file=tmp_path / "missing.txt")


@pytest.mark.parametrize(
    ("spec", "notices"),
    [
        (SpecOptions(draft_model="d.gguf", spec="ngram"), ["--draft-model is not used: --spec ngram"]),
        (SpecOptions(draft_model="d.gguf", no_spec=True), ["--draft-model is not used: plain decoding"]),
        (SpecOptions(draft_model="d.gguf", spec="ngram,draft"), []),
        (SpecOptions(draft_model="d.gguf"), []),
    ],
)
def test_options_without_effect_are_named(spec, notices):
    assert unused_options(spec, Settings.of(GenerationOptions(), spec, TemplateOptions())) == notices
