"""The cost of a target pass by its number of rows, t(M), with plain decoding and prefill beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from specdec_cli.errors import UsageError
from specdec_cli.protocols import LanguageModel, chain_rows

PREFIX = 64  # tokens before those that are measured, besides the depth
_CHUNK = 512  # rows of a pass that only fills the cache


@dataclass(frozen=True, slots=True)
class CurveOptions:
    """What to measure. The defaults are those of comparisons with other engines."""

    rows: tuple[int, ...] = tuple(range(1, 17))
    depths: tuple[int, ...] = (0,)
    repetitions: int = 9
    prefills: tuple[int, ...] = (128, 512)
    decode_tokens: int = 48


@dataclass(frozen=True, slots=True)
class DepthCurve:
    """Figures after PREFIX + `depth` tokens of context."""

    depth: int
    t_ms: dict[int, float]  # rows of a pass, logits on all of them -> median time
    decode_tps: float

    @property
    def t_ratio(self) -> dict[int, float]:
        """t(M) over t of the smallest number of rows measured."""
        first = self.t_ms[min(self.t_ms)]
        return {rows: time / first for rows, time in self.t_ms.items()}


@dataclass(frozen=True, slots=True)
class Curve:
    """All figures of one model."""

    depths: tuple[DepthCurve, ...]
    prefill_tps: dict[int, float | None]  # prompt length -> tokens/s; None: longer than the context


def measure_curve(
    model: LanguageModel, options: CurveOptions, on_step: Callable[[str], None] = lambda _: None
) -> Curve:
    """Measure a model. Numbers of rows take turns, so that drifts of the machine meet all of them alike.

    Raises UsageError when a depth does not fit into the context.
    """
    for depth in options.depths:
        _check_depth(model, options, depth)
    tokens = _tokens(model.n_vocab, model.n_ctx)
    prefill = {}
    for length in options.prefills:
        on_step(f"prefill of {length} tokens")
        prefill[length] = _prefill_tps(model, tokens[:length]) if length <= model.n_ctx else None
    curves = []
    for depth in options.depths:
        on_step(f"passes of {min(options.rows)} to {max(options.rows)} rows at depth {depth}")
        curves.append(_at_depth(model, options, depth, tokens))
    return Curve(tuple(curves), prefill)


def needed_context(options: CurveOptions) -> int:
    """Tokens of context that the measurements take."""
    extent = PREFIX + max(options.depths) + max(*options.rows, options.decode_tokens)
    return max(extent, *options.prefills) if options.prefills else extent


def _check_depth(model: LanguageModel, options: CurveOptions, depth: int) -> None:
    if depth < 0:
        raise UsageError(f"--depth {depth}: expected a number of tokens")
    needed = PREFIX + depth + max(*options.rows, options.decode_tokens)
    if needed > model.n_ctx:
        raise UsageError(
            f"--depth {depth} needs a context of {needed} tokens, the model is loaded with {model.n_ctx}"
        )


def _tokens(n_vocab: int, count: int) -> list[int]:
    """Ids all over the vocabulary but for its end, where control tokens are in most."""
    return [(7919 * i + 13) % max(1, n_vocab - 300 if n_vocab > 600 else n_vocab) for i in range(count)]


def _at_depth(model: LanguageModel, options: CurveOptions, depth: int, tokens: Sequence[int]) -> DepthCurve:
    prefix = PREFIX + depth
    sequence = model.create_sequence()
    try:
        _fill(model, sequence, tokens[:prefix])
        times: dict[int, list[float]] = {rows: [] for rows in options.rows}
        for repetition in range(options.repetitions + 1):
            for rows, measured in times.items():
                elapsed = _timed_pass(model, sequence, prefix, tokens[prefix : prefix + rows], rows)
                if repetition:  # the first round warms up
                    measured.append(elapsed)
        started = perf_counter()
        for position in range(prefix, prefix + options.decode_tokens):
            model.forward(chain_rows(sequence, position, tokens[position : position + 1], 1))
            model.commit(sequence, [0])
        decode_s = perf_counter() - started
    finally:
        model.free_sequence(sequence)
    t_ms = {rows: 1000 * median(measured) for rows, measured in times.items()}
    return DepthCurve(depth, t_ms, options.decode_tokens / decode_s)


def _fill(model: LanguageModel, sequence: int, tokens: Sequence[int]) -> None:
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        model.forward(chain_rows(sequence, start, chunk, 0))
        model.commit(sequence, range(len(chunk)))


def _timed_pass(
    model: LanguageModel, sequence: int, start: int, tokens: Sequence[int], num_outputs: int
) -> float:
    """Seconds of a pass that is not committed, so that the next one starts at the same place."""
    rows = chain_rows(sequence, start, tokens, num_outputs)
    started = perf_counter()
    model.forward(rows)
    return perf_counter() - started


def _prefill_tps(model: LanguageModel, tokens: Sequence[int], *, repetitions: int = 3) -> float:
    """Median tokens/s of a prompt in one pass with logits of its last row, after a warm-up."""
    times = []
    for repetition in range(repetitions + 1):
        sequence = model.create_sequence()
        try:
            elapsed = _timed_pass(model, sequence, 0, tokens, 1)
        finally:
            model.free_sequence(sequence)
        if repetition:
            times.append(elapsed)
    return len(tokens) / median(times)
