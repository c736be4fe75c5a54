"""Strategies to compare: each is what `run` would do with its --spec, on models that are loaded once."""

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specdec_cli.bench.harness import PLAIN, Strategy, Task
from specdec_cli.bench.prompts import BenchPrompt, PromptSet
from specdec_cli.cli.console import Reporter
from specdec_cli.cli.opening import LoadedModels, open_session
from specdec_cli.cli.options import GenerationOptions, ModelOptions, SpecOptions, TemplateOptions
from specdec_cli.cli.session import Message, Session
from specdec_cli.cli.settings import DRAFTERS, Settings
from specdec_cli.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.loader import LoadedModel

AUTO = "auto"
_DRAFT = "draft"
_PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class Plan:
    """A strategy by name, before anything is loaded. `draft_max` None: what the options say."""

    name: str
    draft_max: int | None = None

    @property
    def drafters(self) -> list[str]:
        """Names of the drafters that work together."""
        return self.name.split("+")

    def spec(self, options: SpecOptions) -> SpecOptions:
        """The options with which `run` would do this."""
        spec = replace(options, spec=self.name.replace("+", ","))
        return spec if self.draft_max is None else replace(spec, draft_max=self.draft_max)


class Workshop:
    """Opens strategies. A context manager: leaving it frees what their engines hold."""

    def __init__(
        self,
        model: ModelOptions,
        generation: GenerationOptions,
        spec: SpecOptions,
        template: TemplateOptions,
        *,
        prompts: Sequence[BenchPrompt],
        reporter: Reporter,
    ) -> None:
        """Raises UsageError for options that are wrong. A seed that is not given is drawn once, for all."""
        if spec.no_spec:
            raise UsageError("--no-spec: plain decoding is always a part of the comparison; see --spec")
        if generation.seed is None or generation.seed == -1:
            generation = replace(generation, seed=secrets.randbelow(2**32))
        self.generation = generation
        self._model = model
        self._spec = spec
        self._template = template
        self._prompts = prompts
        self._raw = all(prompt.messages is None for prompt in prompts)
        self._reporter = reporter
        self._models = LoadedModels(model, reporter)
        self._stack = ExitStack()
        self.sessions: dict[Plan, Session] = {}
        self.settings(Plan(PLAIN))  # complains about what is wrong before anything is loaded

    def __enter__(self) -> "Workshop":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def settings(self, plan: Plan, prediction: str | None = None) -> Settings:
        """Checked settings of a strategy. Raises UsageError, also for names that do not exist."""
        spec = plan.spec(self._spec)
        return Settings.of(self.generation, spec, self._template, raw=self._raw, prediction=prediction)

    def open(self, plan: Plan) -> Session:
        """The session of a strategy; its models are loaded if they are not yet."""
        if plan not in self.sessions:
            self.sessions[plan] = self._open(plan, self.settings(plan, self._any_prediction(plan)))
        return self.sessions[plan]

    def strategy(self, plan: Plan) -> Strategy:
        """The strategy, ready to run. Where it predicts, each prompt with a prediction has its own engine."""
        engines = {}
        if self._any_prediction(plan) is not None:
            for prompt in self._prompts:
                if prompt.prediction is not None:
                    settings = replace(self.settings(plan, prompt.prediction), template=None)
                    engines[prompt.id] = self._open(plan, settings).engine
        return Strategy(plan.name, self.open(plan).engine, plan.draft_max, engines)

    def _open(self, plan: Plan, settings: Settings) -> Session:
        spec = plan.spec(self._spec)
        return self._stack.enter_context(
            open_session(self._model, spec, settings, self._reporter, models=self._models)
        )

    def _any_prediction(self, plan: Plan) -> str | None:
        """For strategies that predict, from prompts that say what: a prediction of nothing to begin with."""
        from_prompts = self._spec.predict_file is None and any(
            p.prediction is not None for p in self._prompts
        )
        return "" if _PREDICT in plan.drafters and from_prompts else None

    @property
    def target(self) -> "LoadedModel":
        """The target, once a session is open: it is what was loaded first."""
        return self._models.first

    def plans(self, lengths: Sequence[int] = ()) -> list[Plan]:
        """Plain decoding first, then what --spec lists, at each of `lengths` where drafts can have a fixed
        one. Without --spec: each drafter that these models have, and auto.
        """
        names = [name.strip() for name in self._spec.spec.split(",")] if self._spec.spec else []
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"--spec {self._spec.spec}: {name} is given twice")
        names = [PLAIN, *(name for name in names or self._available() if name != PLAIN)]
        plans = []
        for name in names:
            fixed = name not in (PLAIN, AUTO)
            plans += [Plan(name, n) for n in lengths] if lengths and fixed else [Plan(name)]
        for plan in plans:
            self.settings(plan, self._any_prediction(plan))
        return plans

    def tasks(self) -> list[Task]:
        """The prompts as requests, the same for every strategy. UsageError for one that does not fit."""
        return [self._task(prompt) for prompt in self._prompts]

    def _task(self, prompt: BenchPrompt) -> Task:
        session = self.open(Plan(PLAIN))
        prompt_ids = session.encode(self._messages(prompt) if prompt.text is None else prompt.text)
        if self._template.show_prompt:
            self._reporter.line(f"{prompt.id}: {session.prompt_text(prompt_ids)}")
        if len(prompt_ids) >= session.n_ctx:
            raise UsageError(
                f"prompt {prompt.id} has {len(prompt_ids)} tokens, the context holds {session.n_ctx}"
            )
        return Task(prompt.id, prompt.category, session.request(prompt_ids))

    def describe(self, prompts: PromptSet) -> dict[str, Any]:
        """What is compared, for JSON: models, sampling, limits, prompts."""
        described = self.open(Plan(PLAIN)).describe()
        for session in self.sessions.values():
            if session.models.get("draft_model") is not None:
                keys = ("draft_model", "draft_model_fingerprint")
                described |= {key: session.models[key] for key in keys}
        del described["drafters"]
        prompt_set = {"name": prompts.name, "sha256": prompts.sha256, "count": len(prompts.prompts)}
        return described | {"seed": self.generation.seed, "prompts": prompt_set}

    def token_text(self, token_id: int) -> str:
        """What a token stands for, control tokens written out."""
        return self.open(Plan(PLAIN)).prompt_text([token_id])

    def _available(self) -> list[str]:
        """Every drafter that needs nothing which is not here, the draft model last, and auto."""
        lookups = [name for name in DRAFTERS if name not in (_DRAFT, _PREDICT)]
        lookups += [_PREDICT] if self._spec.predict_file is not None else []
        has_draft = _DRAFT in self.open(Plan(AUTO)).drafters
        return [*lookups, *([_DRAFT] if has_draft else []), AUTO]

    def _messages(self, prompt: BenchPrompt) -> list[Message]:
        messages = list(prompt.messages or ())
        system = self.settings(Plan(PLAIN)).system
        if system is None or messages[0]["role"] == "system":
            return messages
        return [{"role": "system", "content": system}, *messages]
