"""Sampling settings: one frozen record, checked when it is made."""

import math
from dataclasses import dataclass, field, fields

from ..errors import UsageError

DEFAULT_ORDER = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)

# Settings that only act through the sampler of that name.
_SETTINGS_OF = {
    "penalties": ("repeat_penalty", "presence_penalty", "frequency_penalty"),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "temperature": ("temperature",),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's logits. Raises UsageError for a value that makes no
    sense.

    `temperature` 0 takes the most likely token. `top_k` 0, `top_p` 1 and `min_p` 0 are off. Penalties look
    at the last `repeat_last_n` tokens, prompt included (0: off, -1: all). A `logit_bias` of minus infinity
    bans a token. `samplers` is the order in which they run; a name that is left out does not run. Logit
    bias always comes first.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    samplers: tuple[str, ...] = field(default=DEFAULT_ORDER)

    def __post_init__(self) -> None:
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repeat_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            _require(math.isfinite(getattr(self, name)), f"{name} is not a finite number")
        _require(
            self.temperature == 0 or 1e-6 <= self.temperature <= 1e6,
            f"temperature is {self.temperature:g}, it must be 0 (most likely token) or between 1e-6 and 1e6",
        )
        _require(self.top_k >= 0, f"top_k is {self.top_k}, it must be 0 (off) or more")
        _require(0 < self.top_p <= 1, f"top_p is {self.top_p:g}, it must be above 0 and at most 1 (off)")
        _require(0 <= self.min_p <= 1, f"min_p is {self.min_p:g}, it must lie between 0 (off) and 1")
        _require(
            1e-3 <= self.repeat_penalty <= 1e3,
            f"repeat_penalty is {self.repeat_penalty:g}, it must lie between 0.001 and 1000",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(abs(value) <= 1e3, f"{name} is {value:g}, it must lie between -1000 and 1000")
        _require(
            self.repeat_last_n >= -1,
            f"repeat_last_n is {self.repeat_last_n}, it must be -1 (all), 0 (off) or more",
        )
        _require(0 <= self.seed < 2**64, f"seed is {self.seed}, it must lie between 0 and 2^64 - 1")
        for token_id, bias in self.logit_bias:
            _require(token_id >= 0, f"logit_bias names token {token_id}, ids start at 0")
            _require(
                bias == -math.inf or abs(bias) <= 1e6,
                f"logit_bias of token {token_id} is {bias:g}, it must be -inf or between -1e6 and 1e6",
            )
        self._check_order()

    def _check_order(self) -> None:
        defaults = {f.name: f.default for f in fields(self)}
        for name in self.samplers:
            _require(name in DEFAULT_ORDER, f"unknown sampler '{name}'; known: {', '.join(DEFAULT_ORDER)}")
            _require(self.samplers.count(name) == 1, f"sampler '{name}' is listed twice")
        for sampler, settings in _SETTINGS_OF.items():
            for setting in settings:
                value = getattr(self, setting)
                idle = value == defaults[setting] or (setting == "temperature" and value == 0)
                _require(
                    idle or sampler in self.samplers,
                    f"{setting} is set but sampler '{sampler}' is not in the order of samplers",
                )


def parse_samplers(text: str) -> tuple[str, ...]:
    """Order of samplers from `"top_k;temperature"`; raises UsageError for an empty entry.

    Unknown and repeated names are refused by SamplingParams.
    """
    names = tuple(part.strip() for part in text.split(";"))
    _require(all(names), f"empty name in the order of samplers '{text}'")
    return names


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise UsageError(message)
