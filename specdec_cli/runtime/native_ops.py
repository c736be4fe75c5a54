"""A LanguageModel that runs a recorded plan on the native engine."""

import sys
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from quant.reference import dequantize
from quant.tensor import QuantTensor
from quant.types import F16
from specdec_cli.errors import ContextError, ModelError, SpecdecError, StoppedError, UsageError
from specdec_cli.protocols import FloatArray, IntArray, Rows

try:
    from quant import _native
except ImportError as error:
    message = f"the native engine (quant._native) is not built for this Python or platform: {error}"
    raise ImportError(message.splitlines()[0]) from None

from .device import available_memory, usable_cores
from .native_lowering import lower
from .native_memory import MemoryPlan, release_pages
from .native_program import ProgramBuilder
from .ops import AttentionSpec
from .plan import Plan
from .plan_edit import head_weight

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)
KV_TYPES = ("f16", "q8_0", "f32")


class NativeModel:
    """Quantized weights repacked for this CPU, paged KV, one native call per forward pass.

    A row's logits are the same bits for any number of rows, place in the batch, prefill chunking, other
    sequences and number of threads. One caller at a time; others wait.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        n_ctx: int,
        threads: int | None = None,
        kv_type: str | tuple[str, str] = "f16",
        isa: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Repack the plan's weights.

        `threads`: at most the physical cores allowed (the default), else a notice. `kv_type`: f16, q8_0 or
        f32, or one for keys and one for values. `isa`: one of `quant._native.available_isas()`; default
        SPECDEC_FORCE_ISA or the best. Raises UsageError for options that cannot be met, ModelError when the
        model cannot be run or does not fit into memory, and what a signal handler raises.
        """
        self._notices: list[str] = []
        self._stop: Callable[[], bool] | None = None
        self._threads = self._allowed_threads(threads)
        k_type, v_type = _kv_types(kv_type)
        if n_ctx < 1:
            raise UsageError(f"the context size is {n_ctx}; it must be at least 1")
        builder = ProgramBuilder(self._packed_type)
        self._n_vocab = plan.widths[plan.result]
        try:
            builder.build(lower(plan, padded_head_dim=_native.padded_head_dim(1)), self._n_vocab)
            self._memory = _memory_plan(builder, plan, n_ctx, (k_type, v_type))
            self._memory.require()
            self._executor = _native.Executor(
                builder.program,
                k_type=k_type,
                v_type=v_type,
                n_ctx=n_ctx,
                threads=self._threads,
                isa=_isa(isa),
            )
        except (ValueError, MemoryError) as error:
            raise ModelError(str(error) or "out of memory") from error
        self._n_ctx = n_ctx
        self._logits: list[FloatArray] = []
        self._latest: FloatArray = np.empty((0, self._n_vocab), np.float32)
        self._head = _head_matrix(plan, builder.matrices)
        self._load(builder.matrices, progress)

    @property
    def n_vocab(self) -> int:
        """Width of a logits row."""
        return self._n_vocab

    @property
    def n_ctx(self) -> int:
        """Most tokens that one sequence can hold."""
        return self._n_ctx

    @property
    def threads(self) -> int:
        """Threads in use."""
        return self._threads

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._executor.isa

    @property
    def notices(self) -> tuple[str, ...]:
        """What happened otherwise than asked for, or is worth knowing; single lines."""
        return tuple(self._notices)

    @property
    def memory(self) -> MemoryPlan:
        """What was planned before the model was loaded."""
        return self._memory

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV pages that sequences hold now; shared pages count once."""
        return self._executor.kv_bytes

    def create_sequence(self) -> int:
        """Start an empty sequence and return its handle."""
        return self._executor.create()

    def fork_sequence(self, sequence: int, length: int) -> int:
        """Start a sequence that shares the first `length` committed tokens of another."""
        return self._executor.fork(sequence, length)

    def free_sequence(self, sequence: int) -> None:
        """Release a sequence and its KV pages."""
        self._executor.release(sequence)

    def length(self, sequence: int) -> int:
        """Committed tokens of a sequence."""
        return self._executor.length(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        """Roll a sequence back to its first `length` committed tokens."""
        self._executor.truncate(sequence, length)

    def forward(self, rows: Rows) -> FloatArray:
        """Compute `rows` and return logits [num_outputs, n_vocab].

        The array stays as it is for as long as somebody holds it. Raises ContextError when a row exceeds
        `n_ctx`, ValueError for rows that contradict each other, SpecdecError when a logit is not finite,
        StoppedError when the condition of `stop_when` held, and what a signal handler raises (Ctrl-C:
        KeyboardInterrupt); after each, nothing is pending.
        """
        logits = self._logits_array(len(rows.outputs))
        try:
            self._executor.forward(
                _int32(rows.token_ids),
                _int32(rows.positions),
                _int32(rows.sequences),
                _int32(rows.parents),
                _int32(rows.outputs),
                logits,
                self._stop,
            )
        except _native.ContextFullError as error:
            raise ContextError(str(error)) from None
        except _native.CancelledError as error:
            raise StoppedError(str(error)) from None
        self._latest = logits
        if -1 in self._executor.argmax():
            self._latest = np.empty((0, self._n_vocab), np.float32)
            raise SpecdecError("the model computed a logit that is not finite: its weights are broken")
        return logits

    def stop_when(self, condition: Callable[[], bool]) -> None:
        """End a forward pass with StoppedError once `condition` holds; it is asked about every 20 ms."""
        self._stop = condition

    def commit(self, sequence: int, rows: Sequence[int]) -> None:
        """Append `rows` (indices into the latest forward, in path order from its root) to the sequence.

        May be called again to append rows that follow the ones committed before.
        """
        self._executor.commit(sequence, list(rows))

    def argmax(self, row: int) -> int:
        """The id with the largest logit in output row `row` of the latest forward, the lowest on ties."""
        ids = self._executor.argmax()
        if not 0 <= row < len(ids):
            raise ValueError(f"the latest forward has {len(ids)} output rows, not {row + 1}")
        return ids[row]

    def top_k(self, row: int, k: int) -> tuple[IntArray, FloatArray]:
        """Ids and logits of the k largest of output row `row`, largest first, ties by lowest id."""
        if not 0 <= row < len(self._latest):
            raise ValueError(f"the latest forward has {len(self._latest)} output rows, not {row + 1}")
        return _native.top_k(self._latest[row], k)

    def write_head_rows(self, first: int, packed: npt.NDArray[np.uint8]) -> None:
        """Overwrite rows `first`, ... of the layer that makes the logits, given packed in the matrix's type.

        Whole panels of 16 rows, between two forward passes. A table that also serves as embedding changes
        there too. Raises ValueError for rows that are not there or no whole panels.
        """
        if self._head is None:
            raise ValueError("the logits of this model do not come from a matrix")
        self._executor.pack_rows(self._head, first, packed)

    def request_cancel(self) -> None:
        """Stop the forward pass in progress, if any; its caller gets `quant._native.CancelledError`."""
        _native.request_cancel()

    def _allowed_threads(self, wanted: int | None) -> int:
        cores = usable_cores()
        if wanted is None:
            return cores
        if wanted < 1:
            raise UsageError(f"the number of threads is {wanted}; it must be at least 1")
        if wanted > cores:
            self._notices.append(
                f"{wanted} threads were asked for; using {cores}, the physical cores this process may use"
            )
        return min(wanted, cores)

    def _packed_type(self, tensor: QuantTensor) -> str:
        return tensor.qtype.name if tensor.qtype.name in _native.weight_types() else F16.name

    def _load(self, matrices: Sequence[QuantTensor], progress: Progress | None) -> None:
        total = sum(tensor.num_bytes for tensor in matrices)
        done = 0
        for index, tensor in enumerate(matrices):
            self._executor.pack(index, self._packable(tensor))
            release_pages(tensor)
            done += tensor.num_bytes
            if progress is not None:
                progress(done, total)

    def _packable(self, tensor: QuantTensor) -> np.ndarray:
        if self._packed_type(tensor) == tensor.qtype.name:
            return tensor.data
        notice = f"{tensor.qtype.name} tensors are converted to {F16.name}"
        if notice not in self._notices:
            self._notices.append(notice)
        return dequantize(tensor).astype(np.float16).view(np.uint8).reshape(-1)

    def _logits_array(self, rows: int) -> FloatArray:
        """An array that nobody holds any more, or a new one: fresh pages cost more than reading them."""
        self._latest = np.empty((0, self._n_vocab), np.float32)
        for array in self._logits:
            if array.shape[0] >= rows and sys.getrefcount(array) <= _UNHELD:
                return array[:rows]
        array = np.empty((max(rows, 1), self._n_vocab), np.float32)
        self._logits = [a for a in self._logits if sys.getrefcount(a) > _UNHELD or a.shape[0] > rows][-3:]
        self._logits.append(array)
        return array[:rows]


def _head_matrix(plan: Plan, matrices: Sequence[QuantTensor]) -> int | None:
    try:
        return matrices.index(head_weight(plan))
    except ValueError:
        return None


_UNHELD = 3  # references of an array that only the list above holds: list, loop variable, argument


def _int32(array: IntArray) -> IntArray:
    return np.ascontiguousarray(array, np.int32)


def _kv_types(kv_type: str | tuple[str, str]) -> tuple[str, str]:
    types = (kv_type, kv_type) if isinstance(kv_type, str) else kv_type
    for name in types:
        if name not in KV_TYPES:
            raise UsageError(f"unknown KV type {name}; available are {', '.join(KV_TYPES)}")
    return types


def _isa(name: str | None) -> str:
    try:
        return name if name is not None else _native.active_isa()
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None


def _memory_plan(builder: ProgramBuilder, plan: Plan, n_ctx: int, kv_types: tuple[str, str]) -> MemoryPlan:
    specs = [op.params["spec"] for op in plan.ops if op.kind == "attention"]
    layers = [(spec.n_head_kv, spec.head_dim) for spec in specs if isinstance(spec, AttentionSpec)]
    pages = -(-n_ctx // _native.PAGE_TOKENS)
    rows = min(n_ctx, _native.MAX_BATCH_ROWS)
    return MemoryPlan(
        weights=builder.program.weight_bytes,
        kv=pages * _native.kv_page_bytes(layers, *kv_types),
        work=builder.program.work_bytes(rows, 16),
        loading=max((tensor.num_bytes for tensor in builder.matrices), default=0),
        available=available_memory(),
    )
