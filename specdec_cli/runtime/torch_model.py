"""A LanguageModel that replays a plan through TorchOps on the CPU, in float32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_cli.errors import StoppedError, UsageError
from specdec_cli.protocols import FloatArray, Rows

from .batch import split_paths
from .device import available_memory, check_device, usable_cores
from .kv_cache import PAGE_TOKENS, PageTable
from .ops import AttentionSpec
from .plan import Plan, replay
from .plan_edit import head_weight
from .torch_kv import TorchKvStore
from .torch_ops import Pass, RopeTables, TorchOps
from .torch_probe import Tilings, probe_plan
from .torch_weights import Progress, TorchWeights

MEMORY_SHARE = 0.8  # of the available memory that dequantized weights may take by default


@dataclass(slots=True)
class _Pending:
    """The latest forward pass, as far as it can still be committed."""

    rows: Rows
    layers: dict[int, tuple[Tensor, Tensor]]
    last: dict[int, int] = field(default_factory=dict)  # by sequence: its last committed row of this pass
    dropped: set[int] = field(default_factory=set)  # sequences that were truncated or freed since


class TorchModel:
    """The float32 oracle: weights dequantized, KV cache in float32 pages, row-invariant.

    A row's logits are the same bits for any number of rows, place, prefill chunking, other sequences and
    memory budget; so are they for any number of threads where the self-check of torch's kernels allows (it
    does for MKL), else the model runs on one thread. Torch's number of threads is a setting of the process
    and is set on every forward pass. One model serves one caller at a time.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        n_ctx: int,
        threads: int | None = None,
        memory_budget: int | None = None,
        device: str = "cpu",
        progress: Progress | None = None,
        tilings: Tilings | None = None,
    ) -> None:
        """Dequantize the plan's weights.

        `memory_budget`: bytes of float32 weights to keep (default: most of the available memory); what does
        not fit is dequantized on every use. `tilings` replaces the self-check; `Tilings()` computes row by
        row.
        """
        check_device(device)
        if n_ctx < 1:
            raise UsageError(f"the context size is {n_ctx}; it must be at least 1")
        self._plan = plan
        self._threads = threads if threads is not None else usable_cores()
        if self._threads < 1:
            raise UsageError(f"the number of threads is {threads}; it must be at least 1")
        self._tilings = tilings if tilings is not None else probe_plan(plan, threads=self._threads)
        if not self._tilings.thread_safe:
            self._threads = 1
            self._tilings = probe_plan(plan, threads=1)
        budget = memory_budget if memory_budget is not None else _default_budget()
        self._weights = TorchWeights(plan, budget=budget, threads=self._threads, progress=progress)
        self._table = PageTable(n_ctx)
        self._store = TorchKvStore(_attention_specs(plan), -(-n_ctx // PAGE_TOKENS))
        self._ropes = RopeTables()
        self._pending: _Pending | None = None
        self._stop: Callable[[], bool] | None = None
        # A head may have fewer rows than there are tokens to read.
        tables = [op.weights[0] for op in plan.ops if op.kind == "embed"]
        self._num_ids = min([table.shape[0] for table in tables if table is not None], default=self.n_vocab)

    @property
    def n_vocab(self) -> int:
        """Width of a logits row."""
        return self._plan.widths[self._plan.result]

    @property
    def n_ctx(self) -> int:
        """Most tokens that one sequence can hold."""
        return self._table.n_ctx

    @property
    def threads(self) -> int:
        """Threads that torch uses."""
        return self._threads

    @property
    def kept_bytes(self) -> int:
        """Bytes of dequantized weights that are in memory."""
        return self._weights.kept_bytes

    def create_sequence(self) -> int:
        """Start an empty sequence and return its handle."""
        return self._table.create()

    def fork_sequence(self, sequence: int, length: int) -> int:
        """Start a sequence that shares the first `length` committed tokens of another."""
        return self._table.fork(sequence, length)

    def free_sequence(self, sequence: int) -> None:
        """Release a sequence and its KV pages."""
        self._table.free(sequence)
        self._drop(sequence)

    def length(self, sequence: int) -> int:
        """Committed tokens of a sequence."""
        return self._table.length(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        """Roll a sequence back to its first `length` committed tokens."""
        self._table.truncate(sequence, length)
        self._drop(sequence)

    def forward(self, rows: Rows) -> FloatArray:
        """Compute `rows` and return logits [num_outputs, n_vocab]; ContextError when a row exceeds
        `n_ctx`."""
        return self.execute(rows, lambda ops: replay(self._plan, ops, self._check_wanted))

    def stop_when(self, condition: Callable[[], bool]) -> None:
        """End a forward pass with StoppedError once `condition` holds; it is asked about before each op."""
        self._stop = condition

    def _check_wanted(self) -> None:
        if self._stop is not None and self._stop():
            raise StoppedError("the computation was cancelled")

    def execute(self, rows: Rows, program: Callable[[TorchOps], Tensor]) -> FloatArray:
        """Forward with another program over the same ops, e.g. a definition that was not recorded."""
        self._pending = None
        paths = split_paths(rows, self._table.length)
        for path in paths:
            self._table.require_room(path.sequence, len(path.rows))
        if rows.token_ids.min() < 0 or rows.token_ids.max() >= self._num_ids:
            raise ValueError(f"token ids must be between 0 and {self._num_ids - 1}")
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        work = Pass(rows, paths, {path.sequence: self._table.pages(path.sequence) for path in paths})
        with torch.inference_mode():
            ops = TorchOps(self._weights, self._tilings, self._store, self._ropes, work)
            logits: FloatArray = program(ops)[: len(rows.outputs)].numpy()
        self._pending = _Pending(rows, work.pending)
        return logits

    def commit(self, sequence: int, rows: Sequence[int]) -> None:
        """Append `rows` (indices into the latest forward, in path order from its root) to the sequence.

        May be called again to append rows that follow the ones committed before.
        """
        pending = self._pending
        if pending is None or sequence in pending.dropped:
            raise ValueError(f"sequence {sequence} has no pending rows")
        parent = pending.last.get(sequence, -1)
        for row in rows:
            if not 0 <= row < len(pending.rows.parents) or int(pending.rows.sequences[row]) != sequence:
                raise ValueError(f"row {row} is not a pending row of sequence {sequence}")
            if int(pending.rows.parents[row]) != parent:
                raise ValueError(f"row {row} does not follow row {parent} on a path")
            parent = row
        if len(rows) == 0:
            return
        self._append(sequence, rows, pending.layers)
        pending.last[sequence] = parent

    def write_head_rows(self, first: int, packed: npt.NDArray[np.uint8]) -> None:
        """Overwrite rows `first`, ... of the layer that makes the logits, given packed in the matrix's type.

        Raises ValueError for rows that are not there, and for a matrix in a file, which is read-only.
        """
        self._weights.replace_rows(head_weight(self._plan), first, packed)

    def _append(self, sequence: int, rows: Sequence[int], layers: dict[int, tuple[Tensor, Tensor]]) -> None:
        start = self._table.length(sequence)
        copies = self._table.extend(sequence, len(rows))
        self._store.reserve(self._table.num_pages)
        positions = torch.arange(start, start + len(rows))
        pages = torch.tensor(self._table.pages(sequence))[positions // PAGE_TOKENS]
        index = torch.tensor(rows)
        with torch.inference_mode():
            for source, target in copies:
                self._store.copy_page(source, target)
            for layer, (keys, values) in layers.items():
                self._store.write(layer, (pages, positions % PAGE_TOKENS), keys[index], values[index])

    def _drop(self, sequence: int) -> None:
        if self._pending is not None:
            self._pending.dropped.add(sequence)


def _attention_specs(plan: Plan) -> list[AttentionSpec]:
    specs = [op.params["spec"] for op in plan.ops if op.kind == "attention"]
    return [spec for spec in specs if isinstance(spec, AttentionSpec)]


def _default_budget() -> int | None:
    available = available_memory()
    return None if available is None else int(MEMORY_SHARE * available)
