"""`specdec score`: perplexity and log-probabilities of a text."""

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specdec_cli.cli.console import Reporter
from specdec_cli.cli.fetching import fetch_model
from specdec_cli.cli.options import (
    DebugOption,
    Executor,
    ExecutorOption,
    JsonOption,
    ModelOption,
    ThreadsOption,
    option,
)
from specdec_cli.cli.plain import print_json, print_text
from specdec_cli.errors import SpecdecError, UsageError

if TYPE_CHECKING:
    from specdec_cli.loader import LoadedModel
    from specdec_cli.scoring import Scores

_MAX_BYTES = 64 << 20  # a mistaken model file must not be tokenized


def score(
    file: Annotated[
        Path | None, option("-f", "--file", metavar="FILE", help="UTF-8 text; - is stdin.")
    ] = None,
    model: ModelOption = None,
    ctx_size: Annotated[
        int | None,
        option(
            "-c",
            "--ctx-size",
            metavar="N",
            help="Tokens of context; a longer text is scored in windows, each of which begins with half a "
            "context scored before; 0: as many as the model was trained for; default: 4096 or that.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    executor: ExecutorOption = Executor.NATIVE,
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Score a text: how probable the model finds each token given those before it.

    The text is taken as it is, without a template; it begins with the BOS token if the model wants one.
    JSON holds token_ids, token_logprobs (of all tokens but the first) and argmax (the likeliest after each).
    """
    if file is None:
        raise UsageError("no text: give a file with -f FILE (- reads stdin)")
    if ctx_size is not None and ctx_size < 0:
        raise UsageError(f"-c {ctx_size}: expected a number of tokens, or 0 for what the model allows")
    text = _read(file)
    reporter = Reporter()
    found = fetch_model(model)
    loaded = _load(found.path, ctx_size, threads, executor, reporter)
    started = time.perf_counter()
    scores = _score(loaded, text, reporter)
    seconds = time.perf_counter() - started
    if json_output:
        print_json(_document(scores, loaded, found.alias, seconds))
    else:
        print_text(_summary(scores, loaded, seconds))


def _read(path: Path) -> str:
    """Return the text byte for byte: a final newline is part of it."""
    name = "stdin" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SpecdecError(f"{name}: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise SpecdecError(f"{name}: larger than {_MAX_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SpecdecError(f"{name}: not UTF-8 text (at byte {error.start})") from error


def _load(
    path: Path, ctx_size: int | None, threads: int | None, executor: Executor, reporter: Reporter
) -> "LoadedModel":
    from specdec_cli.cli.opening import trained_context
    from specdec_cli.loader import LoadOptions, load_model

    n_ctx = trained_context(path) if ctx_size == 0 else ctx_size
    reporter.status(f"loading {path.name}")
    try:
        options = LoadOptions(executor=executor.value, n_ctx=n_ctx, threads=threads)
        return load_model(path, options, on_notice=reporter.notice)
    finally:
        reporter.clear_status()


def _score(loaded: "LoadedModel", text: str, reporter: Reporter) -> "Scores":
    from specdec_cli.scoring import score_tokens

    tokenizer = loaded.tokenizer
    token_ids = tokenizer.encode(text, add_bos=True)
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    try:
        return score_tokens(
            loaded.model,
            token_ids,
            bos_id=bos_id,
            progress=lambda done, total: reporter.status(f"scored {done}/{total} tokens"),
        )
    finally:
        reporter.clear_status()


def _document(scores: "Scores", loaded: "LoadedModel", alias: str | None, seconds: float) -> dict[str, Any]:
    perplexity = scores.perplexity
    return {
        "perplexity": perplexity if math.isfinite(perplexity) else None,
        "mean_logprob": scores.mean_logprob,
        "num_tokens": len(scores.token_ids),
        "num_scored": len(scores.token_logprobs),
        "token_ids": list(scores.token_ids),
        "token_logprobs": list(scores.token_logprobs),
        "argmax": list(scores.argmax),
        "settings": {
            "model": str(loaded.path),
            "model_alias": alias,
            "model_fingerprint": loaded.fingerprint,
            "executor": loaded.executor,
            "n_ctx": loaded.model.n_ctx,
        },
        "timings": {"score_ms": 1000 * seconds},
    }


def _summary(scores: "Scores", loaded: "LoadedModel", seconds: float) -> str:
    scored = len(scores.token_logprobs)
    hits = sum(guess == token for guess, token in zip(scores.argmax, scores.token_ids[1:], strict=False))
    n_ctx = loaded.model.n_ctx
    speed = len(scores.token_ids) / seconds
    windows = f", in windows of {n_ctx} tokens" if len(scores.token_ids) > n_ctx else ""
    return (
        f"perplexity           {scores.perplexity:.4f}\n"
        f"mean log-probability {scores.mean_logprob:.4f}\n"
        f"most likely token    {hits}/{scored} times ({100 * hits / scored:.1f} %)\n"
        f"tokens scored        {scored}{windows}\n"
        f"time                 {seconds:.2f} s, {speed:.1f} tokens/s, {loaded.executor}"
    )
