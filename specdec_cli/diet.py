"""A draft model's diet: matrices in a fast 4-bit type, the output head cut to the tokens that occur.

A draft may be altered freely, since the target decides what is said. What counts is the time of a drafting
step, which reads every matrix once, against the tokens on which the target no longer agrees.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from quant.recipe import fitting
from quant.requantize import QUANTIZABLE, requantize_all
from quant.tensor import QuantTensor
from quant.types import BY_NAME, QuantType

from .draft_head import CutHead
from .errors import UsageError
from .runtime.plan import Plan
from .runtime.plan_edit import head, head_weight, key_value_weights, linear_weights, with_linear_weights

Progress = Callable[[int, int], None]

FAST_TYPE = BY_NAME["Q4_0"]
AUTO_VOCAB = 49152  # ids: rows of a head that cost little and miss little
SPARE_ROWS = 1024  # for ids that join while it runs

SMALL_BITS = 5.0  # types of at most so many bits per weight are small enough as they are
KEY_VALUE_SHARE = 0.05  # keys and values stay where they are so few of all weights: they matter the most
WORTHWHILE = 0.1  # of a step's bytes that a measure must save to be taken unasked
SMALL_STEP = 16_000_000  # bytes: a step that reads fewer takes its time for other things


@dataclass(frozen=True, slots=True)
class DietOptions:
    """What to alter: the type of the matrices, and how many of the lowest ids the head keeps."""

    quant: QuantType | Literal["auto", "keep"] = "auto"
    vocab: int | Literal["auto", "all"] = "auto"

    @classmethod
    def parse(cls, quant: str, vocab: str) -> "DietOptions":
        """Read `--draft-quant auto|keep|TYPE` and `--draft-vocab auto|all|N`. Raises UsageError."""
        return cls(_parse_quant(quant), _parse_vocab(vocab))


def _parse_quant(text: str) -> QuantType | Literal["auto", "keep"]:
    if text in ("auto", "keep"):
        return text  # type: ignore[return-value]
    for qtype in QUANTIZABLE:
        if qtype.name == text.upper():
            return qtype
    known = ", ".join(qtype.name for qtype in QUANTIZABLE)
    raise UsageError(f"--draft-quant {text}: expected auto, keep or a type: {known}")


def _parse_vocab(text: str) -> int | Literal["auto", "all"]:
    if text in ("auto", "all"):
        return text  # type: ignore[return-value]
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--draft-vocab {text}: expected auto, all or a number of tokens")
    return int(text)


@dataclass(frozen=True, slots=True)
class DietReport:
    """What was altered: bytes that a drafting step reads, and ids of a head that was cut."""

    bytes_before: int
    bytes_after: int
    num_ids: int | None  # None: the head is whole

    def describe(self) -> str:
        """One line."""
        before, after = self.bytes_before / 1e6, self.bytes_after / 1e6
        if self.bytes_before == self.bytes_after:
            return f"draft model used as it is: {before:.0f} MB per step"
        head = f", a head of {self.num_ids} tokens and those that occur" if self.num_ids else ""
        return f"draft model on a diet: {after:.0f} MB per step instead of {before:.0f} MB{head}"


@dataclass(frozen=True, slots=True)
class Diet:
    """A plan with altered weights. `head` is set when the head was cut."""

    plan: Plan
    head: CutHead | None
    report: DietReport

    def attached_head(self, model: object) -> CutHead | None:
        """The head, writing to the `model` that was loaded from the plan from now on."""
        if self.head is not None:
            self.head.attach(model)
        return self.head


def put_on_diet(
    plan: Plan,
    options: DietOptions,
    *,
    always_ids: Iterable[int] = (),
    threads: int = 1,
    progress: Progress | None = None,
) -> Diet:
    """Alter a draft model's plan as the options say; what they leave open, as the bytes of a step tell.

    `always_ids` stay in a head that is cut, besides the lowest: those that end a text. `progress` receives
    values done and values in all. Raises UsageError for a head that cannot be cut and was to be, QuantError
    for weights that cannot be quantized.
    """
    weights = linear_weights(plan)
    types = _new_types(plan, weights, options)
    whole_head = head_weight(plan)
    num_rows = _head_rows(plan, _step_bytes(weights, types), _size(whole_head, types), options)
    replacements: dict[QuantTensor, QuantTensor] = {}
    cut = None
    if num_rows is not None:
        ids = {i for i in always_ids if 0 <= i < whole_head.shape[0]} | set(range(num_rows))
        head_type = types.pop(whole_head, whole_head.qtype)
        cut = CutHead.cut(whole_head, ids, head_type, capacity=SPARE_ROWS)
        replacements[whole_head] = cut.weight
    converted = requantize_all(list(types.items()), threads=threads, progress=progress)
    replacements.update(zip(types, converted, strict=True))
    altered = with_linear_weights(plan, replacements)
    before, after = (_step_bytes(linear_weights(either), {}) for either in (plan, altered))
    return Diet(altered, cut, DietReport(before, after, None if cut is None else cut.num_fixed))


def _size(weight: QuantTensor, types: dict[QuantTensor, QuantType]) -> int:
    """Bytes of a matrix as its new type."""
    qtype = types.get(weight, weight.qtype)
    return weight.num_elements // qtype.block_size * qtype.block_bytes


def _step_bytes(weights: Iterable[QuantTensor], types: dict[QuantTensor, QuantType]) -> int:
    """Bytes that a drafting step reads."""
    return sum(_size(weight, types) for weight in weights)


def _new_types(plan: Plan, weights: list[QuantTensor], options: DietOptions) -> dict[QuantTensor, QuantType]:
    """The matrices to convert, and to what."""
    if options.quant == "keep":
        return {}
    if isinstance(options.quant, QuantType):
        types = {weight: fitting(options.quant, weight.shape[1]) for weight in weights}
        return {weight: qtype for weight, qtype in types.items() if qtype != weight.qtype}
    kept = set(_few_key_values(plan, weights))
    types = {
        weight: FAST_TYPE
        for weight in weights
        if weight not in kept
        and weight.qtype.bits_per_weight > SMALL_BITS
        and weight.shape[1] % FAST_TYPE.block_size == 0
    }
    before = _step_bytes(weights, {})
    return types if _pays(before - _step_bytes(weights, types), before) else {}


def _pays(saved: float, step_bytes: int) -> bool:
    return step_bytes >= SMALL_STEP and saved >= WORTHWHILE * step_bytes


def _few_key_values(plan: Plan, weights: list[QuantTensor]) -> list[QuantTensor]:
    found = key_value_weights(plan)
    total = sum(weight.num_elements for weight in weights)
    few = sum(weight.num_elements for weight in found) <= KEY_VALUE_SHARE * total
    return found if few else []


def _head_rows(plan: Plan, step_bytes: int, head_bytes: int, options: DietOptions) -> int | None:
    """How many of the lowest ids a cut head keeps; None to leave it whole."""
    n_vocab, bias = head_weight(plan).shape[0], head(plan).weights[1]
    wanted = AUTO_VOCAB if options.vocab == "auto" else options.vocab
    if wanted == "all" or wanted + SPARE_ROWS >= n_vocab:
        return None
    saved = head_bytes * (n_vocab - wanted - SPARE_ROWS) / n_vocab
    if options.vocab == "auto" and (bias is not None or not _pays(saved, step_bytes)):
        return None
    if bias is not None:
        raise UsageError("--draft-vocab: the output head of this draft model has a bias and cannot be cut")
    return wanted
