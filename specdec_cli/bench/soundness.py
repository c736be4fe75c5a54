"""Signs that a measurement says little about real use: random text, tiny prompts, short answers."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from specdec_cli.bench.harness import Run
from specdec_cli.protocols import LanguageModel
from specdec_cli.scoring import score_tokens

FEW_TOKENS = 8  # of a prompt's own text
_SCORED = 96  # first tokens of a text are enough to tell
_RANDOM = 0.6  # of the surprise of a uniform choice; real text stays below half of it
_FEW_PROMPTS = 4
_SHORT_ANSWER = 16
_BUSY = 0.5  # runnable tasks per core


def is_random(model: LanguageModel, token_ids: Sequence[int], bos_id: int | None = None) -> bool:
    """Whether the target finds a text about as surprising as tokens drawn by lot.

    Texts of fewer than FEW_TOKENS tokens are never called random.
    """
    if len(token_ids) < FEW_TOKENS:
        return False
    scores = score_tokens(model, list(token_ids[:_SCORED]), bos_id=bos_id)
    return -scores.mean_logprob > _RANDOM * math.log(model.n_vocab)


def prompt_warnings(
    texts: Mapping[str, Sequence[int]], model: LanguageModel, *, bos_id: int | None = None
) -> list[str]:
    """Warnings about a set of prompts: id -> tokens of what a person wrote (BOS included, if any)."""
    warnings = []
    if len(texts) < _FEW_PROMPTS:
        warnings.append(f"{len(texts)} prompts are few: figures will hardly carry over to others")
    tiny = [prompt for prompt, ids in texts.items() if len(ids) < FEW_TOKENS]
    if tiny:
        warnings.append(f"tiny prompts (under {FEW_TOKENS} tokens) are not what people ask: {_listed(tiny)}")
    random = [prompt for prompt, ids in texts.items() if is_random(model, ids, bos_id)]
    if random:
        warnings.append(
            "prompts that read like random tokens to the target say nothing about acceptance on real text: "
            + _listed(random)
        )
    return warnings


def machine_warnings(load_average: float, cores: int) -> list[str]:
    """Warnings about what else the machine does; `load_average` is that of the last minute."""
    if load_average <= _BUSY * cores:
        return []
    return [
        f"the machine is busy (load average {load_average:.1f} on {cores} cores): times will be uncertain"
    ]


def run_warnings(runs: Sequence[Run]) -> list[str]:
    """Warnings about what came out."""
    length = median(run.result.timings.predicted_n for run in runs)
    if length >= _SHORT_ANSWER:
        return []
    return [f"the answers are short (median {length:g} tokens): decode speeds are uncertain"]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
