"""The line of figures and the JSON document, against hand computation."""

import json

from specdec_cli.cli.summary import document, summary_line
from specdec_cli.decoding.stats import SpecStats
from specdec_cli.decoding.types import GenerationResult, Timings


def result(timings: Timings, stats: SpecStats) -> GenerationResult:
    return GenerationResult(
        token_ids=(5, 6, 7),
        text="abc",
        finish_reason="length",
        seed=7,
        prompt_token_ids=(1, 2),
        timings=timings,
        stats=stats,
    )


def speculative() -> SpecStats:
    """Three rounds of three draft tokens, of which 3, 1 and 0 were accepted: 4 + 2 + 1 tokens."""
    stats = SpecStats(num_rounds=3, num_round_tokens=7)
    for accepted in (3, 1, 0):
        stats.drafter("draft").record(range(3), accepted)
    return stats


TIMINGS = Timings(
    prompt_n=20, prompt_reused_n=0, prompt_ms=100.0, predicted_n=11, predicted_ms=500.0, ttft_ms=120.4
)


def test_the_summary_line() -> None:
    assert summary_line(result(TIMINGS, speculative()), speculative=True) == (
        "prompt 20 tokens at 200.0 tok/s, decoded 11 tokens at 20.0 tok/s, ttft 120 ms | "
        "draft 4/9 accepted (44.4 %), mean acceptance length 2.33 | seed 7"
    )


def test_undefined_is_not_a_number() -> None:
    line = summary_line(result(Timings(), SpecStats()), speculative=True)
    assert line == (
        "prompt 0 tokens at n/a, decoded 0 tokens at n/a, ttft n/a | "
        "draft 0/0 accepted (n/a), mean acceptance length n/a | seed 7"
    )


def test_plain_decoding_says_so() -> None:
    line = summary_line(result(TIMINGS, SpecStats(num_rounds=10, num_round_tokens=10)), speculative=False)
    assert line.endswith("ttft 120 ms | no speculation | seed 7")


def test_why_drafting_ended_is_told() -> None:
    why = "plain: draft rests, 4/9 accepted do not pay"
    line = summary_line(result(TIMINGS, speculative()), speculative=True, why_plain=why)
    assert line.endswith(f"mean acceptance length 2.33 | {why} | seed 7")


def test_reused_prompt_tokens_are_told() -> None:
    timings = Timings(prompt_n=1, prompt_reused_n=39, prompt_ms=10.0, predicted_n=1, ttft_ms=12.0)
    line = summary_line(result(timings, SpecStats()), speculative=False)
    assert line.startswith("prompt 40 tokens (39 reused) at 100.0 tok/s, decoded 1 token at n/a")


def test_the_document_has_the_agreed_keys() -> None:
    made = document(result(TIMINGS, speculative()), {"model": "m"})
    assert list(made) == [
        "text", "token_ids", "prompt_token_ids", "finish_reason", "seed", "timings",
        "speculative_decoding", "settings",
    ]  # fmt: skip
    assert {
        "prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second",
        "draft_n", "draft_n_accepted",
    } <= set(made["timings"])  # fmt: skip
    assert (made["timings"]["draft_n"], made["timings"]["draft_n_accepted"]) == (9, 4)
    assert made["timings"]["predicted_per_second"] == 20.0
    assert {
        "mean_acceptance_length", "draft_acceptance_rate", "acceptance_per_position", "num_rounds",
        "num_draft_tokens", "num_accepted_tokens", "drafters",
    } <= set(made["speculative_decoding"])  # fmt: skip
    assert made["speculative_decoding"]["acceptance_per_position"] == [2 / 3, 1 / 3, 1 / 3]
    assert json.loads(json.dumps(made, allow_nan=False))["settings"] == {"model": "m"}
