"""From option values to a session: models found (or fetched), loaded and paired, and an engine over them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specdec_cli.cli.console import Reporter
from specdec_cli.cli.options import ModelOptions, SpecOptions
from specdec_cli.cli.session import Session
from specdec_cli.cli.settings import Settings
from specdec_cli.errors import SpecdecError, UsageError

if TYPE_CHECKING:
    from specdec_cli.decoding.drafters.base import Drafter
    from specdec_cli.diet import DietOptions
    from specdec_cli.loader import LoadedModel
    from specdec_cli.registry import Catalog, ResolvedModel


def unused_options(spec: SpecOptions, settings: Settings) -> list[str]:
    """One line for each drafter option that the choice of drafters leaves without effect."""
    if settings.drafters is None:  # auto takes what there is
        return []
    chosen = f"--spec {','.join(settings.drafters)}" if settings.drafters else "plain decoding"
    given = [
        ("--draft-model", "draft", spec.draft_model is not None),
        ("--predict-file", "predict", spec.predict_file is not None),
    ]
    return [
        f"{option} is not used: {chosen}"
        for option, drafter, used in given
        if used and drafter not in settings.drafters
    ]


def open_session(
    model: ModelOptions,
    spec: SpecOptions,
    settings: Settings,
    reporter: Reporter,
    *,
    models: "LoadedModels | None" = None,
) -> Session:
    """Find, fetch, load and pair models as the options say.

    A draft model that the user named must fit; the target's usual pair is left out with a notice when it does
    not. Sessions that share `models` load each file once.
    """
    from specdec_cli.cli.encoder import TemplateEncoder
    from specdec_cli.engine import Engine
    from specdec_cli.registry import load_catalog

    if models is None:  # a comparison of strategies names options that only some of them use
        for line in unused_options(spec, settings):
            reporter.notice(line)
    catalog = load_catalog()
    found = _resolve(model.model or catalog.default, catalog)
    draft_found, named = _find_draft(spec, settings, found, catalog)
    loading = LoadedModels(model, reporter) if models is None else models
    target = loading.load(found.path, n_ctx=context_of(model, found.path))
    encoder = TemplateEncoder.of(target.metadata, target.tokenizer, settings.template)
    policy = settings.new_policy()
    drafters, draft = _make_drafters(settings, target, draft_found, loading, named=named)
    engine = Engine(
        target.model,
        token_bytes=target.tokenizer.token_bytes,
        drafters=drafters,
        policy=policy,
        on_notice=reporter.notice,
    )
    described = {
        "model": str(found.path),
        "model_alias": found.alias,
        "model_fingerprint": target.fingerprint,
        "draft_model": None if draft is None else str(draft.path),
        "draft_model_fingerprint": None if draft is None else draft.fingerprint,
        "executor": target.executor,
        "threads": getattr(target.model, "threads", model.threads),
    }
    return Session(
        engine=engine,
        encoder=encoder,
        settings=settings,
        n_ctx=target.model.n_ctx,
        drafters=tuple(drafter.name for drafter in drafters),
        models=described,
        why_plain=getattr(policy, "explain", _no_reason) if drafters else _no_reason,
    )


def _no_reason() -> str | None:
    """Of a policy that drafts, whether it pays or not."""
    return None


def _resolve(name: str, catalog: "Catalog") -> "ResolvedModel":
    from specdec_cli.registry import progress_for, resolve_model

    return resolve_model(name, pull=True, progress=progress_for(sys.stderr), catalog=catalog)


def _find_draft(
    spec: SpecOptions, settings: Settings, target: "ResolvedModel", catalog: "Catalog"
) -> tuple[Path | None, bool]:
    """The draft model's file, if there is one to use, and whether the user named it."""
    from specdec_cli.registry import find_local

    names = settings.drafters
    if names is not None and "draft" not in names:
        return None, False
    if spec.draft_model is not None:
        return _resolve(spec.draft_model, catalog).path, True
    entry = catalog.draft_for(target.alias)
    path = None if entry is None else find_local(entry)
    if path is None and names is not None:  # asked for
        if entry is None:
            raise UsageError(
                "--spec draft: this model has no pair in models.toml; name a draft model with -md"
            )
        return _resolve(entry.alias, catalog).path, True
    return path, False


@dataclass(slots=True)
class LoadedModels:
    """Loads models, each once, and tells how it goes."""

    options: ModelOptions
    reporter: Reporter
    _loaded: dict[tuple[Path, int | None, "DietOptions | None"], "LoadedModel"] = field(default_factory=dict)

    @property
    def first(self) -> "LoadedModel":
        """What was loaded first: the target."""
        return next(iter(self._loaded.values()))

    def load(self, path: Path, *, n_ctx: int | None, diet: "DietOptions | None" = None) -> "LoadedModel":
        """Load a model with room for `n_ctx` tokens, unless that was done before; a draft with its diet."""
        key = path, n_ctx, diet
        if key not in self._loaded:
            self._loaded[key] = self._load(*key)
        return self._loaded[key]

    def _load(self, path: Path, n_ctx: int | None, diet: "DietOptions | None") -> "LoadedModel":
        from specdec_cli.loader import LoadOptions, load_model

        started = perf_counter()
        self.reporter.status(f"loading {path.name}")
        loaded = load_model(
            path,
            LoadOptions(
                executor=self.options.executor.value, n_ctx=n_ctx, threads=self.options.threads, diet=diet
            ),
            progress=self._progress(path.name),
            on_notice=self.reporter.notice,
        )
        self.reporter.clear_status()
        self.reporter.detail(
            f"loaded {path} in {perf_counter() - started:.2f} s: {loaded.config.architecture}, "
            f"{loaded.model.n_ctx} tokens of context, executor {loaded.executor}"
        )
        if loaded.diet is not None:
            self.reporter.detail(loaded.diet.describe())
        return loaded

    def _progress(self, name: str) -> Callable[[int, int], None]:
        def show(done: int, total: int) -> None:
            self.reporter.status(f"loading {name} ({100 * done // max(1, total)} %)")

        return show


def _make_drafters(
    settings: Settings, target: "LoadedModel", draft_path: Path | None, loading: LoadedModels, *, named: bool
) -> tuple[list["Drafter"], "LoadedModel | None"]:
    """Drafters in order of preference, and the draft model that one of them uses."""
    from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
    from specdec_cli.registry import check_pairing

    drafters: list[Drafter] = []
    draft = None
    for name in settings.drafters if settings.drafters is not None else ("predict", "suffix", "draft"):
        if name != "draft":
            lookup = _make_lookup(name, settings, target)
            drafters += [] if lookup is None else [lookup]
            continue
        if draft_path is None:
            continue
        try:
            n_ctx = min(target.model.n_ctx, trained_context(draft_path))
            draft = loading.load(draft_path, n_ctx=n_ctx, diet=settings.diet)
            report = check_pairing(target.tokenizer, draft.tokenizer, allow_mismatch=settings.allow_mismatch)
            report.require()
        except SpecdecError as error:
            if named:
                raise
            loading.reporter.notice(f"decoding without the draft model {draft_path.name}: {error}")
            draft = None
            continue
        for note in report.notes:
            loading.reporter.detail(f"draft model: {note}")
        drafters.append(
            DraftModelDrafter(
                draft.model,
                n_shared_vocab=report.n_shared,
                blocked_ids=report.blocked,
                relative_cost=_relative_cost(target, draft),
                head=draft.cut_head,
            )
        )
    return drafters, draft


def _make_lookup(name: str, settings: Settings, target: "LoadedModel") -> "Drafter | None":
    """A drafter without a model; None where there is no text for it."""
    from specdec_cli.decoding.drafters.prediction import PredictionDrafter

    if name == "ngram":
        return settings.ngram_drafter()
    if name == "suffix":
        return settings.suffix_drafter()
    if settings.prediction is None:
        return None
    return PredictionDrafter(target.tokenizer.encode(settings.prediction))


def _relative_cost(target: "LoadedModel", draft: "LoadedModel") -> float:
    """A guess of what a draft step costs in target passes: both read their weights once."""
    if any("-of-" in model.path.name for model in (target, draft)):  # the size of one shard says nothing
        return 0.3
    share = 1.0 if draft.diet is None else draft.diet.bytes_after / max(1, draft.diet.bytes_before)
    return min(1.0, share * draft.path.stat().st_size / max(1, target.path.stat().st_size))


def context_of(model: ModelOptions, path: Path) -> int | None:
    """The context to load with; None leaves it to the loader. 0 stands for what the model was trained for."""
    if model.ctx_size is not None and model.ctx_size < 0:
        raise UsageError(f"-c {model.ctx_size}: expected a number of tokens, or 0 for what the model allows")
    return trained_context(path) if model.ctx_size == 0 else model.ctx_size


def trained_context(path: Path) -> int:
    """Tokens of context that a model was trained for."""
    from quant.gguf_file import GgufFile

    with GgufFile.open(path) as file:
        value: Any = file.metadata.get(f"{file.architecture}.context_length")
    if not isinstance(value, int) or value < 1:
        raise SpecdecError(f"{path}: {file.architecture}.context_length is missing or wrong")
    return value
