"""What is reported about a generation: the line for people and the document for programs."""

from typing import Any

from specdec_cli.decoding.types import GenerationResult, Timings


def summary_line(result: GenerationResult, *, speculative: bool, why_plain: str | None = None) -> str:
    """One line with speeds, time to the first token, acceptance and seed; undefined figures are n/a.

    `speculative` tells whether any drafter took part, `why_plain` why drafting ended, if it did.
    """
    timings = result.timings
    reused = f" ({timings.prompt_reused_n} reused)" if timings.prompt_reused_n else ""
    ttft = "n/a" if timings.ttft_ms is None else f"{timings.ttft_ms:.0f} ms"
    prompt_n = timings.prompt_n + timings.prompt_reused_n
    speeds = (
        f"prompt {_tokens(prompt_n)}{reused} at {_rate(timings.prompt_per_second)}, "
        f"decoded {_tokens(timings.predicted_n)} at {_rate(timings.predicted_per_second)}, ttft {ttft}"
    )
    drafting = _draft_part(result, speculative) + (f" | {why_plain}" if why_plain else "")
    return f"{speeds} | {drafting} | seed {result.seed}"


def _draft_part(result: GenerationResult, speculative: bool) -> str:
    if not speculative:
        return "no speculation"
    stats = result.stats
    rate, length = stats.draft_acceptance_rate, stats.mean_acceptance_length
    share = "n/a" if rate is None else f"{100 * rate:.1f} %"
    mean = "n/a" if length is None else f"{length:.2f}"
    drafted = f"draft {stats.num_accepted_tokens}/{stats.num_draft_tokens} accepted ({share})"
    return f"{drafted}, mean acceptance length {mean}"


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _rate(per_second: float | None) -> str:
    return "n/a" if per_second is None else f"{per_second:.1f} tok/s"


def document(result: GenerationResult, settings: dict[str, Any]) -> dict[str, Any]:
    """The JSON of `run`; undefined figures are null."""
    stats = result.stats
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "prompt_token_ids": list(result.prompt_token_ids),
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "timings": _timings(result.timings)
        | {"draft_n": stats.num_draft_tokens, "draft_n_accepted": stats.num_accepted_tokens},
        "speculative_decoding": stats.as_dict(),
        "settings": settings,
    }


def _timings(timings: Timings) -> dict[str, Any]:
    """llama-server's names, plus what it lacks; milliseconds and tokens per second."""
    return {
        "prompt_n": timings.prompt_n,
        "prompt_reused_n": timings.prompt_reused_n,
        "prompt_ms": _rounded(timings.prompt_ms),
        "prompt_per_second": _rounded(timings.prompt_per_second),
        "predicted_n": timings.predicted_n,
        "predicted_ms": _rounded(timings.predicted_ms),
        "predicted_per_second": _rounded(timings.predicted_per_second),
        "ttft_ms": _rounded(timings.ttft_ms),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
