"""`specdec quantize`: a GGUF file of another type, perhaps with a smaller vocabulary."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli.console import Reporter, is_terminal
from specdec_cli.cli.fetching import fetch_model
from specdec_cli.cli.options import DebugOption, ThreadsOption, option
from specdec_cli.errors import ModelError, SpecdecError, UsageError
from specdec_cli.registry.progress import BarProgress, format_bytes

if TYPE_CHECKING:
    from quant.gguf_file import GgufFile
    from quant.gguf_writer import Progress, TensorEntry, TypedValue
    from quant.recipe import Recipe
    from quant.types import QuantType

_TYPES = "Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K, F16, BF16, F32"


def quantize(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="GGUF file, directory, alias or hf:OWNER/REPO[:FILE]; best in F16."
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    *,
    qtype: Annotated[str, option("--type", metavar="TYPE", help=f"Type of the matrices: {_TYPES}.")],
    head_type: Annotated[
        str | None,
        option(
            "--head-type",
            metavar="TYPE",
            help="Type of the output head, and of the embedding table where it serves as the head; "
            "default: TYPE, but at least Q6_K.",
        ),
    ] = None,
    vocab: Annotated[
        str,
        option(
            "--vocab",
            metavar="N|all",
            help="Keep N tokens: special ones and the most frequent. The file is a model of its own with "
            "other ids, not a draft model for the full vocabulary (see --draft-vocab of run).",
        ),
    ] = "all",
    force: Annotated[bool, option("--force", help="Replace OUT if it exists.")] = False,
    threads: ThreadsOption = None,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Convert a model to another quantization type and write it as a GGUF file.

    Matrices whose rows do not fit the blocks of TYPE get the next larger type that does. Norms and biases
    stay as they are. OUT appears when it is complete.
    """
    from quant.recipe import Recipe, default_head, write_quantized

    kind = _type_of(qtype, "--type")
    head = default_head(kind) if head_type is None else _type_of(head_type, "--head-type")
    size = _vocabulary_size(vocab)
    if output.exists() and not force:
        raise SpecdecError(f"{output} exists already; --force replaces it")
    reporter = Reporter()
    workers = _threads(threads, reporter)
    with _open(fetch_model(source).path) as file:
        metadata, recipe = _prepared(file, Recipe(kind, head), size)
        _warn_of_losses(file, kind, reporter)
        with _progress(output.name) as progress:
            written = write_quantized(
                output, metadata, file.tensors, recipe, threads=workers, overwrite=force, progress=progress
            )
        reporter.line(_summary(output, file, written))


def _type_of(name: str, flag: str) -> "QuantType":
    from quant.requantize import QUANTIZABLE

    for qtype in QUANTIZABLE:
        if qtype.name == name.upper():
            return qtype
    raise UsageError(
        f"{flag} {name}: no such type; there are {', '.join(known.name for known in QUANTIZABLE)}"
    )


def _vocabulary_size(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--vocab {text}: expected a number of tokens, or all")
    return int(text)


def _threads(wanted: int | None, reporter: Reporter) -> int:
    from specdec_cli.runtime.device import usable_cores

    cores = usable_cores()
    if wanted is None:
        return cores
    if wanted < 1:
        raise UsageError(f"the number of threads is {wanted}; it must be at least 1")
    if wanted > cores:
        reporter.notice(
            f"{wanted} threads were asked for; using {cores}, the cores that this process may use"
        )
    return min(wanted, cores)


@contextmanager
def _open(path: Path) -> Iterator["GgufFile"]:
    """Open a model and check that it is complete: what is written can be loaded."""
    from quant.gguf_file import GgufFile
    from specdec_cli.loader import build_plan

    with GgufFile.open(path) as file:
        try:
            build_plan(file.metadata, file.tensors)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        yield file


def _prepared(
    file: "GgufFile", recipe: "Recipe", size: int | None
) -> tuple[dict[str, "TypedValue"], "Recipe"]:
    """Metadata to write, and the recipe with the rows that stay."""
    from dataclasses import replace

    from quant.gguf_checks import TOKENS, validate_tokenizer_metadata
    from quant.gguf_writer import typed_metadata
    from quant.recipe import EMBEDDING
    from quant.vocabulary import cut_vocabulary

    metadata = typed_metadata(file.metadata)
    if size is None:
        return metadata, recipe
    validate_tokenizer_metadata(file.metadata)
    num_tokens, num_rows = len(metadata[TOKENS].value), file.tensors[EMBEDDING].shape[0]
    if num_tokens > num_rows:
        raise ModelError(f"{file.path}: the tokenizer has {num_tokens} entries, the model {num_rows}")
    cut = cut_vocabulary(metadata, size)
    return cut.metadata, replace(recipe, rows=cut.ids)


def _warn_of_losses(file: "GgufFile", qtype: "QuantType", reporter: Reporter) -> None:
    """Say when the source has lost already what the new type could keep."""
    counts: Counter[str] = Counter()
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            counts[tensor.qtype.name] += tensor.num_elements
    main = counts.most_common(1)[0][0]
    if main not in ("F32", "F16", "BF16") and main != qtype.name:
        reporter.notice(
            f"{file.path.name} is quantized already (mostly {main}); an F16 or BF16 file keeps more"
        )


@contextmanager
def _progress(label: str) -> Iterator["Progress | None"]:
    """A bar on a terminal, nothing elsewhere."""
    if not is_terminal(sys.stderr):
        yield None
        return
    bar = BarProgress(sys.stderr)
    started = False

    def show(done: int, total: int) -> None:
        nonlocal started
        if not started:
            bar.start(label, total)
            started = True
        bar.update(done)

    try:
        yield show
    finally:
        bar.finish()


def _summary(output: Path, file: "GgufFile", written: "list[TensorEntry]") -> str:
    sizes: Counter[str] = Counter()
    for entry in written:
        sizes[entry.qtype.name] += entry.num_bytes
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.most_common())
    return f"{output}: {format_bytes(output.stat().st_size)} from {format_bytes(file.file_size)}; {parts}"
