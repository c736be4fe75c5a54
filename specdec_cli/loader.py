"""From a model file to something that can generate: file, configuration, plan, executor, tokenizer."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quant.errors import QuantError
from quant.tensor import QuantTensor

from .errors import ModelError, UsageError
from .models.catalog import bind
from .models.config import ModelConfig
from .protocols import LanguageModel
from .runtime.device import usable_cores
from .runtime.plan import Plan, RecordingOps

if TYPE_CHECKING:
    from .diet import Diet, DietOptions, DietReport
    from .draft_head import CutHead
    from .text.tokenizer import Tokenizer

ExecutorName = Literal["native", "torch"]
Progress = Callable[[int, int], None] | None  # (done, total) in bytes of weights
DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model. None leaves a choice to the loader."""

    executor: ExecutorName = "native"
    n_ctx: int | None = None  # default: 4096 or the model's, whichever is smaller
    threads: int | None = None  # default: the physical cores allowed
    kv_type: str | tuple[str, str] | None = None  # (keys, values) may differ; native: f16, torch: f32 only
    isa: str | None = None  # native: kernels to use, default the best that this CPU has
    memory_budget: int | None = None  # torch: bytes of dequantized weights to keep in memory
    diet: "DietOptions | None" = None  # for a draft model: what may be altered to make it faster


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run, with everything that its file says about text."""

    model: LanguageModel
    tokenizer: "Tokenizer"
    config: ModelConfig
    metadata: Mapping[str, Any]
    chat_template: str | None  # source
    path: Path
    fingerprint: str
    executor: ExecutorName  # the one in use
    diet: "DietReport | None" = None  # what was altered
    cut_head: "CutHead | None" = None  # between the rows of a head that was cut and token ids


def load_model(
    path: Path,
    options: LoadOptions | None = None,
    *,
    progress: Progress = None,
    on_notice: Callable[[str], None] | None = None,
) -> LoadedModel:
    """Load a GGUF model. `progress` receives (done, total) in bytes of weights; `on_notice` single lines.

    Raises ModelError for a file that is broken or not supported, UsageError for options that cannot be met.
    """
    from quant.gguf_checks import validate_tokenizer_metadata
    from quant.gguf_file import GgufFile

    from .text.tokenizer import Tokenizer

    options = options or LoadOptions()
    notice = on_notice or (lambda _: None)
    executor = choose_executor(options.executor, notice)
    try:
        file = GgufFile.open(path)
        config, plan = build_plan(file.metadata, file.tensors)
        validate_tokenizer_metadata(file.metadata)
        tokenizer = Tokenizer.from_gguf(file.metadata)
        fingerprint = file.fingerprint()
        if tokenizer.n_vocab > config.n_vocab:
            raise ModelError(f"the tokenizer has {tokenizer.n_vocab} entries, the model {config.n_vocab}")
        n_ctx = _context_size(options.n_ctx, config, notice)
        threads = _threads(options.threads, notice)
        make = _native_executor if executor == "native" else _torch_executor
        diet = _diet(plan, options, tokenizer.eog_ids, threads, progress)
        model = make(plan if diet is None else diet.plan, options, n_ctx, threads, progress)
        for line in getattr(model, "notices", ()):
            notice(line)
    except (QuantError, ModelError) as error:
        message = str(error)
        raise ModelError(message if message.startswith(str(path)) else f"{path}: {message}") from error
    template = file.metadata.get("tokenizer.chat_template")
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        config=config,
        metadata=file.metadata,
        chat_template=template if isinstance(template, str) else None,
        path=Path(path),
        fingerprint=fingerprint,
        executor=executor,
        diet=None if diet is None else diet.report,
        cut_head=None if diet is None else diet.attached_head(model),
    )


def build_plan(metadata: Mapping[str, Any], tensors: Mapping[str, QuantTensor]) -> tuple[ModelConfig, Plan]:
    """Read the configuration, arrange the tensors and record the architecture's definition once."""
    config = ModelConfig.from_metadata(metadata, tensors)
    recorder = RecordingOps()
    return config, recorder.finish(bind(config, tensors)(recorder))


def _diet(
    plan: Plan, options: LoadOptions, eog_ids: frozenset[int], threads: int, progress: Progress
) -> "Diet | None":
    """Put a draft model on its diet, if it is to have one."""
    if options.diet is None:
        return None
    from .diet import put_on_diet

    return put_on_diet(plan, options.diet, always_ids=eog_ids, threads=threads, progress=progress)


def choose_executor(wanted: ExecutorName, notice: Callable[[str], None]) -> ExecutorName:
    """Return the executor to use: `wanted`, or torch with a notice when the native one cannot be loaded."""
    has_torch = importlib.util.find_spec("torch") is not None
    if wanted == "torch":
        if not has_torch:
            raise UsageError("the torch executor needs PyTorch: pip install 'specdec-cli[torch]'")
        return "torch"
    problem = _native_problem()
    if problem is None:
        return "native"
    if not has_torch:
        raise UsageError(f"the native executor is not available ({problem}) and PyTorch is not installed")
    notice(f"the native executor is not available ({problem}); using torch")
    return "torch"


def _native_problem() -> str | None:
    """Why the native executor cannot be used, or None."""
    try:
        importlib.import_module(".runtime.native_ops", __package__)
    except ImportError as error:
        return str(error).splitlines()[0]
    return None


def _context_size(wanted: int | None, config: ModelConfig, notice: Callable[[str], None]) -> int:
    if wanted is None:
        return min(DEFAULT_CONTEXT, config.n_ctx_train)
    if wanted < 1:
        raise UsageError(f"the context size is {wanted}; it must be at least 1")
    if wanted > config.n_ctx_train:
        notice(
            f"the context of {wanted} tokens is longer than the {config.n_ctx_train} the model was made for"
        )
    return wanted


def _threads(wanted: int | None, notice: Callable[[str], None]) -> int:
    cores = usable_cores()
    if wanted is None:
        return cores
    if wanted < 1:
        raise UsageError(f"the number of threads is {wanted}; it must be at least 1")
    if wanted > cores:
        notice(
            f"{wanted} threads were asked for; using {cores}, the physical cores that this process may use"
        )
    return min(wanted, cores)


def _torch_executor(
    plan: Plan, options: LoadOptions, n_ctx: int, threads: int, progress: Progress
) -> LanguageModel:
    # Waiting OpenMP threads spin by default: on a busy machine a forward pass then takes ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from .runtime.torch_model import TorchModel

    if options.isa is not None:
        raise UsageError(f"ISA {options.isa}: choosing kernels is an option of the native executor")
    if options.kv_type not in (None, "f32", ("f32", "f32")):
        raise UsageError(f"KV type {options.kv_type} is not available on the torch executor; it has f32")
    return TorchModel(
        plan,
        n_ctx=n_ctx,
        threads=threads,
        memory_budget=options.memory_budget,
        progress=progress,
    )


def _native_executor(
    plan: Plan, options: LoadOptions, n_ctx: int, threads: int, progress: Progress
) -> LanguageModel:
    from .runtime.native_ops import NativeModel

    if options.memory_budget is not None:
        raise UsageError("a memory budget for weights is an option of the torch executor")
    return NativeModel(
        plan,
        n_ctx=n_ctx,
        threads=threads,
        kv_type=options.kv_type or "f16",
        isa=options.isa,
        progress=progress,
    )
