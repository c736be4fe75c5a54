"""Settings are checked when they are made; each complaint names the setting."""

import dataclasses
import math

import pytest

from specdec_cli.errors import UsageError
from specdec_cli.sampling.params import DEFAULT_ORDER, SamplingParams, parse_samplers


def test_defaults_are_those_of_the_documentation():
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert ";".join(params.samplers) == ("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-300),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", -1.0),
        ("repeat_penalty", math.inf),
        ("repeat_last_n", -2),
        ("presence_penalty", math.nan),
        ("frequency_penalty", 1e9),
        ("seed", -1),
        ("seed", 2**64),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, math.inf),)),
        ("logit_bias", ((1, math.nan),)),
    ],
)
def test_senseless_values_are_refused_by_name(setting, value):
    with pytest.raises(UsageError, match=setting):
        SamplingParams(**{setting: value})


@pytest.mark.parametrize("bias", [-math.inf, -100.0, 5.0])
def test_finite_biases_and_bans_are_accepted(bias):
    assert SamplingParams(logit_bias=((3, bias),)).logit_bias == ((3, bias),)


def test_order_is_parsed_and_checked():
    assert parse_samplers(" top_k ; temperature") == ("top_k", "temperature")
    assert SamplingParams(samplers=parse_samplers("temperature;top_k")).samplers == ("temperature", "top_k")
    with pytest.raises(UsageError, match="empty name"):
        parse_samplers("top_k;;min_p")
    with pytest.raises(UsageError, match="unknown sampler 'top_q'"):
        SamplingParams(samplers=("top_q",))
    with pytest.raises(UsageError, match="listed twice"):
        SamplingParams(samplers=("top_k", "top_k"))


@pytest.mark.parametrize(
    ("sampler", "setting", "value"),
    [
        ("penalties", "repeat_penalty", 1.1),
        ("penalties", "presence_penalty", 0.5),
        ("top_k", "top_k", 5),
        ("top_p", "top_p", 0.5),
        ("min_p", "min_p", 0.2),
        ("temperature", "temperature", 0.5),
    ],
)
def test_a_setting_whose_sampler_does_not_run_is_refused(sampler, setting, value):
    order = tuple(name for name in DEFAULT_ORDER if name != sampler)
    with pytest.raises(UsageError, match=f"{setting} is set but sampler '{sampler}'"):
        SamplingParams(samplers=order, **{setting: value})
    assert SamplingParams(samplers=order).samplers == order


def test_temperature_zero_needs_no_sampler():
    assert SamplingParams(temperature=0, samplers=("top_k",)).temperature == 0


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = 3  # type: ignore[misc]
