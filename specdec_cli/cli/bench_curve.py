"""`specdec bench --curve`: t(M), plain decoding, prefill, loading and memory of a model and its draft."""

import csv
import gc
import io
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specdec_cli.cli.bench_options import (
    BenchOutputOptions,
    CurveModeOptions,
    Format,
    MeasureOptions,
    parse_lengths,
)
from specdec_cli.cli.console import Reporter
from specdec_cli.cli.fetching import fetch_model
from specdec_cli.cli.options import Executor, ModelOptions
from specdec_cli.cli.plain import print_json, print_text

if TYPE_CHECKING:
    from specdec_cli.bench.curve import Curve, CurveOptions
    from specdec_cli.loader import LoadedModel


@dataclass(frozen=True, slots=True)
class Measured:
    """One model's figures."""

    path: Path
    fingerprint: str
    threads: int
    isa: str
    executor: str
    load_s: float
    peak_rss_mb: float | None
    file_bytes: int
    weight_bytes: int  # of the file's tensors that a pass reads
    curve: "Curve"


def run_curve(
    model: ModelOptions,
    draft: str | None,
    measure: MeasureOptions,
    mode: CurveModeOptions,
    destination: BenchOutputOptions,
    reporter: Reporter,
) -> None:
    """Measure and print. Each model is alone in memory while it is measured."""
    from specdec_cli.bench.bandwidth import read_bandwidth
    from specdec_cli.bench.curve import CurveOptions
    from specdec_cli.cli.bench import load_average

    options = CurveOptions(
        depths=parse_lengths(mode.depth or "0", "--depth", minimum=0),
        repetitions=measure.repetitions or CurveOptions().repetitions,
    )
    load = load_average(reporter)
    measured = [_measure(name, model, options, reporter) for name in (model.model, draft)[: 1 + bool(draft)]]
    reporter.status("read bandwidth")
    bandwidth = read_bandwidth(measured[0].threads)
    reporter.clear_status()
    if destination.plot is not None:
        from specdec_cli.bench.plot import plot

        plot((), {m.path.name: m.curve.depths[0].t_ms for m in measured}, destination.plot)
    documents = [_document(m, bandwidth) | {"load_average": load} for m in measured]
    _print(documents, destination.output)


def _measure(name: str | None, model: ModelOptions, options: "CurveOptions", reporter: Reporter) -> Measured:
    from specdec_cli.bench.curve import measure_curve
    from specdec_cli.bench.machine import peak_rss_mb, reset_peak_rss
    from specdec_cli.runtime.device import usable_cores

    path = fetch_model(name).path
    file_bytes, weight_bytes = _sizes(path)
    _import_everything(model.executor)
    gc.collect()  # the model before this one
    known_peak = reset_peak_rss()
    started = perf_counter()
    loaded = _load(path, model, options, reporter)
    load_s = perf_counter() - started
    curve = measure_curve(loaded.model, options, on_step=reporter.status)
    reporter.clear_status()
    return Measured(
        path=path,
        fingerprint=loaded.fingerprint,
        threads=getattr(loaded.model, "threads", model.threads or usable_cores()),
        isa=getattr(loaded.model, "isa", loaded.executor),
        executor=loaded.executor,
        load_s=load_s,
        peak_rss_mb=peak_rss_mb() if known_peak else None,
        file_bytes=file_bytes,
        weight_bytes=weight_bytes,
        curve=curve,
    )


def _load(path: Path, model: ModelOptions, options: "CurveOptions", reporter: Reporter) -> "LoadedModel":
    """Load with room for all measurements."""
    from specdec_cli.bench.curve import needed_context
    from specdec_cli.cli.opening import LoadedModels, context_of
    from specdec_cli.loader import DEFAULT_CONTEXT

    n_ctx = context_of(model, path)
    if n_ctx is None and needed_context(options) > DEFAULT_CONTEXT:
        n_ctx = needed_context(options)
    return LoadedModels(model, reporter).load(path, n_ctx=n_ctx)


def _import_everything(executor: Executor) -> None:
    """Import what loading needs: the time of that is the program's, not the model's."""
    import specdec_cli.loader
    import specdec_cli.text.tokenizer

    if executor is Executor.TORCH:
        import specdec_cli.runtime.torch_model
    else:
        with suppress(ImportError):  # the loader explains
            import specdec_cli.runtime.native_ops  # noqa: F401


def _sizes(path: Path) -> tuple[int, int]:
    """Bytes of the file, and of those of its tensors that every pass reads.

    An embedding table of its own is not among them: a pass takes a few rows of it.
    """
    from quant.gguf_file import GgufFile

    with GgufFile.open(path) as file:
        sizes = {name: tensor.num_bytes for name, tensor in file.tensors.items()}
        if "output.weight" in sizes:
            sizes.pop("token_embd.weight", None)
        return file.file_size, sum(sizes.values())


def _document(measured: Measured, bandwidth: float) -> dict[str, Any]:
    """The keys of comparable tools, and ours."""
    from specdec_cli.bench.machine import machine

    curve = measured.curve
    first = curve.depths[0]
    gbps = measured.weight_bytes * first.decode_tps / 1e9
    return {
        "model": measured.path.name,
        "model_fingerprint": measured.fingerprint,
        "executor": measured.executor,
        "threads": measured.threads,
        "isa": measured.isa,
        "load_s": round(measured.load_s, 3),
        "peak_rss_mb": None if measured.peak_rss_mb is None else round(measured.peak_rss_mb, 1),
        "file_mb": round(measured.file_bytes / (1 << 20), 1),
        "decode_tps": round(first.decode_tps, 2),
        "prefill_tps": _rounded(curve.prefill_tps.get(128)),
        "prefill_tps_by_length": {n: _rounded(tps) for n, tps in curve.prefill_tps.items()},
        "weight_mb": round(measured.weight_bytes / (1 << 20), 1),
        "decode_gb_per_s": round(gbps, 2),
        "read_gb_per_s": round(bandwidth, 2),
        "t_ms": {m: round(t, 3) for m, t in first.t_ms.items()},
        "t_ratio": {m: round(r, 3) for m, r in first.t_ratio.items()},
        "depths": [
            {
                "depth": at.depth,
                "decode_tps": round(at.decode_tps, 2),
                "t_ms": {m: round(t, 3) for m, t in at.t_ms.items()},
                "t_ratio": {m: round(r, 3) for m, r in at.t_ratio.items()},
            }
            for at in curve.depths
        ],
        "machine": machine(),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _print(documents: list[dict[str, Any]], output: Format) -> None:
    """The target's document; the draft model's is in it under `draft_model`."""
    if output is Format.JSON:
        target, *drafts = documents
        print_json(target | ({"draft_model": drafts[0]} if drafts else {}))
    elif output is Format.CSV:
        print_text(_csv(documents))
    else:
        print_text("\n\n".join(_text(document) for document in documents))


def _csv(documents: list[dict[str, Any]]) -> str:
    """One line per model, depth and number of rows."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["model", "depth", "rows", "t_ms", "t_ratio"])
    for document in documents:
        for at in document["depths"]:
            for rows, milliseconds in at["t_ms"].items():
                writer.writerow([document["model"], at["depth"], rows, milliseconds, at["t_ratio"][rows]])
    return stream.getvalue().rstrip("\n")


def _text(document: dict[str, Any]) -> str:
    from specdec_cli.bench.tables import markdown_table, number

    share = document["decode_gb_per_s"] / document["read_gb_per_s"]
    prefills = ", ".join(
        f"{number(tps, 0, ' tok/s')} ({n} tokens)" for n, tps in document["prefill_tps_by_length"].items()
    )
    lines = [
        f"{document['model']} ({document['model_fingerprint'][:12]}), {document['threads']} threads, "
        f"{document['isa']}, {document['machine']['cpu']}",
        f"load {document['load_s']:.2f} s, peak memory {number(document['peak_rss_mb'], 0)} MiB "
        f"(file {document['file_mb']:.0f} MiB)",
        f"prefill {prefills}",
        f"decode {document['decode_tps']:.1f} tok/s = {document['decode_gb_per_s']:.1f} GB/s of weights, "
        f"{100 * share:.0f} % of the {document['read_gb_per_s']:.1f} GB/s that this machine reads",
    ]
    depths = document["depths"]
    table = [["rows"] + [f"{name} at {at['depth']}" for at in depths for name in ("t(M) ms", "t(M)/t(1)")]]
    for rows in document["t_ms"]:
        cells = [f"{value:.2f}" for at in depths for value in (at["t_ms"][rows], at["t_ratio"][rows])]
        table.append([str(rows), *cells])
    decode = [f"{number(at['decode_tps'], 1)} tok/s at {at['depth']}" for at in depths]
    if len(depths) > 1:
        lines.append(f"decode by depth: {', '.join(decode)}")
    return "\n".join(lines) + "\n\n" + markdown_table(table, text_columns=0)
