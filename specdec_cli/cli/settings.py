"""Option values checked, combined and turned into what the engine takes: the one place for run and chat."""

import json
import math
import re
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from specdec_cli.cli.options import GenerationOptions, SpecOptions, TemplateOptions
from specdec_cli.cli.prompt_input import check_text, read_text_file
from specdec_cli.decoding.controller import Controller
from specdec_cli.decoding.drafters.ngram import NgramDrafter
from specdec_cli.decoding.drafters.suffix import SuffixDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.diet import DietOptions
from specdec_cli.errors import UsageError
from specdec_cli.sampling.params import SamplingParams, parse_samplers

DRAFTERS = ("draft", "ngram", "suffix", "predict")
Message = dict[str, Any]
_FIXED_LENGTH = 4  # tokens per draft where drafters are named and their length is not
_BIAS = re.compile(r"(\d+)([+-].+)")


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """Which template, and what it is given."""

    name_or_source: str | None  # None: the model file's own
    variables: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Bounds of a draft's length."""

    max_tokens: int | None  # None: the policy's own
    min_tokens: int
    p_min: float


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about a generation but the prompt and the models."""

    sampling: SamplingParams
    max_tokens: int | None  # None: until the context is full
    stop: tuple[str, ...]
    drafters: tuple[str, ...] | None  # in order of preference; None: what is there
    draft_limits: DraftLimits
    prediction: str | None  # text that the answer may resemble
    ngram_match: tuple[int, int | None]  # shortest and longest
    diet: DietOptions  # of the draft model
    allow_mismatch: bool
    system: str | None
    template: TemplateChoice | None  # None: raw text, no template
    allow_special: bool

    @classmethod
    def of(
        cls,
        generation: GenerationOptions,
        spec: SpecOptions,
        template: TemplateOptions,
        *,
        raw: bool = False,
        prediction: str | None = None,
    ) -> "Settings":
        """Check and combine options; `prediction` stands in for --predict-file where that is not given.

        Raises UsageError for what is wrong or contradictory.
        """
        if raw:
            refuse_template_options(template)
        if "" in generation.stop:
            raise UsageError("--stop: a stop text is empty")
        made = cls(
            sampling=sampling_params(generation),
            max_tokens=max_tokens(generation),
            stop=tuple(check_text(text, "--stop") for text in generation.stop),
            drafters=drafter_names(spec),
            draft_limits=DraftLimits(spec.draft_max, spec.draft_min, spec.draft_p_min),
            prediction=prediction if spec.predict_file is None else read_text_file(spec.predict_file),
            ngram_match=(spec.ngram_min, spec.ngram_max),
            diet=DietOptions.parse(spec.draft_quant, spec.draft_vocab),
            allow_mismatch=spec.allow_mismatch,
            system=system_message(template),
            template=None if raw else template_choice(template),
            allow_special=template.allow_special,
        )
        made.ngram_drafter()  # complains about its sizes
        made.new_policy()  # likewise
        if "predict" in (made.drafters or ()) and made.prediction is None:
            raise UsageError(f"--spec {spec.spec}: predict needs a text; name it with --predict-file")
        return made

    def new_policy(self) -> Controller | FixedDraftLength:
        """Return a policy for one engine: a fixed length for drafters that were named, else the controller.

        Raises UsageError for lengths that make no sense.
        """
        limits = self.draft_limits
        if self.drafters is None:
            return Controller(max_tokens=limits.max_tokens, min_tokens=limits.min_tokens, p_min=limits.p_min)
        length = _FIXED_LENGTH if limits.max_tokens is None else limits.max_tokens
        return FixedDraftLength(length, limits.min_tokens, limits.p_min)

    def ngram_drafter(self) -> NgramDrafter:
        """Return a new n-gram drafter. Raises UsageError when its sizes do not fit together."""
        shortest, longest = self.ngram_match
        return NgramDrafter(min_match=shortest, max_match=longest)

    def suffix_drafter(self) -> SuffixDrafter:
        """Return a new suffix drafter."""
        return SuffixDrafter(min_match=self.ngram_match[0])

    def as_dict(self) -> dict[str, Any]:
        """The part of JSON output's `settings` that is known here."""
        sampling = asdict(self.sampling)
        sampling["logit_bias"] = {str(token_id): _finite(bias) for token_id, bias in self.sampling.logit_bias}
        del sampling["seed"]  # has a place of its own in the document
        return {
            "n_predict": self.max_tokens,
            "stop": list(self.stop),
            "sampling": sampling,
            "draft_max": self._effective_draft_max,
            "draft_min": self.draft_limits.min_tokens,
            "draft_p_min": self.draft_limits.p_min,
            "draft_quant": self.diet.quant if isinstance(self.diet.quant, str) else self.diet.quant.name,
            "draft_vocab": self.diet.vocab,
        }

    @property
    def _effective_draft_max(self) -> int | None:
        """None where the controller chooses freely."""
        if self.draft_limits.max_tokens is None and self.drafters is not None:
            return _FIXED_LENGTH
        return self.draft_limits.max_tokens


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no infinity


def sampling_params(options: GenerationOptions) -> SamplingParams:
    """Sampling settings; a seed that is not given (or is -1) is drawn here. Raises UsageError."""
    seed = options.seed
    if seed is None or seed == -1:
        seed = secrets.randbelow(2**32)
    return SamplingParams(
        temperature=options.temp,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repeat_penalty=options.repeat_penalty,
        repeat_last_n=options.repeat_last_n,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=tuple(parse_logit_bias(text) for text in options.logit_bias),
        seed=seed,
        samplers=parse_samplers(options.samplers),
    )


def parse_logit_bias(text: str) -> tuple[int, float]:
    """`ID+BIAS`, `ID-BIAS` or `ID-inf` as (token id, bias). Raises UsageError."""
    match = _BIAS.fullmatch(text.strip())
    try:
        bias = float(match[2]) if match else math.nan
    except ValueError:
        bias = math.nan
    if match is None or math.isnan(bias) or bias == math.inf:
        raise UsageError(f"--logit-bias {text}: expected ID+BIAS, ID-BIAS or ID-inf, such as 15043-1.5")
    return int(match[1]), bias


def max_tokens(options: GenerationOptions) -> int | None:
    """Tokens to generate; None: until the context is full. Raises UsageError."""
    if options.n_predict < -1:
        raise UsageError(f"-n {options.n_predict}: expected a number of tokens, or -1 for as many as fit")
    return None if options.n_predict == -1 else options.n_predict


def drafter_names(options: SpecOptions) -> tuple[str, ...] | None:
    """Drafters asked for, in order; () for none, None for auto. Raises UsageError that names a wrong one."""
    names = tuple(name.strip() for name in options.spec.split(","))
    for name in names:
        if name not in (*DRAFTERS, "auto", "none"):
            known = ", ".join(("auto", "none", *DRAFTERS))
            raise UsageError(f"--spec {options.spec}: unknown drafter {name!r}; known: {known}")
        if names.count(name) > 1:
            raise UsageError(f"--spec {options.spec}: {name} is given twice")
    if len(names) > 1 and ("auto" in names or "none" in names):
        raise UsageError(f"--spec {options.spec}: auto and none stand alone")
    if options.no_spec:
        if names not in (("auto",), ("none",)):
            raise UsageError(f"--no-spec contradicts --spec {options.spec}")
        return ()
    if names == ("none",):
        return ()
    return None if names == ("auto",) else names


def system_message(options: TemplateOptions) -> str | None:
    """The system message, if any. Raises UsageError when it is given twice."""
    if options.system_prompt is not None and options.system_file is not None:
        raise UsageError("--system-prompt and --system-file contradict each other")
    if options.system_file is not None:
        return read_text_file(options.system_file)
    if options.system_prompt is None:
        return None
    return check_text(options.system_prompt, "the system prompt")


def template_choice(options: TemplateOptions) -> TemplateChoice:
    """The template that was asked for. Raises UsageError when two were."""
    source = options.chat_template
    if options.chat_template_file is not None:
        if source is not None:
            raise UsageError("--chat-template and --chat-template-file contradict each other")
        source = read_text_file(options.chat_template_file)
    if source is not None and not source.strip():
        raise UsageError("the chat template is empty")
    return TemplateChoice(source, template_variables(options))


def template_variables(options: TemplateOptions) -> dict[str, Any]:
    """Variables of --chat-template-kwargs. Raises UsageError when it is not a JSON object."""
    text = options.chat_template_kwargs
    if text is None:
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--chat-template-kwargs: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--chat-template-kwargs: expected a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def refuse_template_options(options: TemplateOptions) -> None:
    """Raise UsageError for an option that has no meaning with --raw."""
    given = {
        "--system-prompt": options.system_prompt,
        "--system-file": options.system_file,
        "--chat-template": options.chat_template,
        "--chat-template-file": options.chat_template_file,
        "--chat-template-kwargs": options.chat_template_kwargs,
    }
    for flag, value in given.items():
        if value is not None:
            raise UsageError(f"{flag} contradicts --raw, which uses no template")
