"""A strict toy model with scripted logits, and small helpers around the engine.

`toy` gives them all: `toy.Model`, logits functions (`toy.table`, `toy.script`, ...), `toy.Scripted` (a
drafter), `toy.run` and `toy.plain`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_cli.decoding.drafters.base import Draft, DraftRequest
from specdec_cli.engine import Engine, FinishEvent, GenerationRequest, GenerationResult, TokenEvent
from specdec_cli.errors import SpecdecError
from specdec_cli.protocols import Rows

Logits = Callable[[tuple[int, ...]], np.ndarray]  # prefix -> logits [n_vocab]


class MisuseError(AssertionError):
    """The engine broke the contract of LanguageModel."""


class ToyModel:
    """A LanguageModel whose logits are a function of the tokens that a row sees. Raises on every misuse."""

    def __init__(self, logits: Logits, n_vocab: int, n_ctx: int = 4096, *, truncates: bool = True) -> None:
        self._logits = logits
        self._n_vocab = n_vocab
        self._n_ctx = n_ctx
        self._truncates = truncates
        self._next = 0
        self._pending: dict[int, dict[int, tuple[int, ...]]] = {}  # sequence -> row -> what the row sees
        self.sequences: dict[int, tuple[int, ...]] = {}  # committed tokens
        self.forwards: list[Rows] = []
        self.before_forward: Callable[[], None] = lambda: None

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    def create_sequence(self) -> int:
        self._next += 1
        self.sequences[self._next] = ()
        return self._next

    def fork_sequence(self, sequence: int, length: int) -> int:
        if length > len(self.sequences[sequence]):
            raise MisuseError("fork beyond the committed length")
        copy = self.create_sequence()
        self.sequences[copy] = self.sequences[sequence][:length]
        return copy

    def free_sequence(self, sequence: int) -> None:
        del self.sequences[sequence]
        self._pending.pop(sequence, None)

    def length(self, sequence: int) -> int:
        return len(self.sequences[sequence])

    def truncate(self, sequence: int, length: int) -> None:
        if not 0 <= length <= len(self.sequences[sequence]):
            raise MisuseError(f"truncate to {length} of {len(self.sequences[sequence])}")
        if not self._truncates and length < len(self.sequences[sequence]):
            raise SpecdecError("layer 3 cannot roll back")
        self.sequences[sequence] = self.sequences[sequence][:length]
        self._pending.pop(sequence, None)

    def forward(self, rows: Rows) -> np.ndarray:
        self.before_forward()
        self.forwards.append(rows)
        for array in (rows.token_ids, rows.positions, rows.sequences, rows.parents, rows.outputs):
            if array.dtype != np.int32 or array.ndim != 1:
                raise MisuseError(f"rows must be flat int32, not {array.dtype} {array.shape}")
        num_rows = len(rows.token_ids)
        if not num_rows == len(rows.positions) == len(rows.sequences) == len(rows.parents):
            raise MisuseError("rows differ in length")
        outputs = rows.outputs.tolist()
        if outputs != sorted(set(outputs)) or not all(0 <= i < num_rows for i in outputs):
            raise MisuseError(f"outputs {outputs} are not ascending row indices")
        for sequence in set(rows.sequences.tolist()):
            self._pending[sequence] = {}
        seen = [self._row(rows, i) for i in range(num_rows)]
        return np.stack(
            [self._call(seen[i]) for i in outputs] or [np.zeros((0, self._n_vocab), np.float32)][:1]
        ).reshape(len(outputs), self._n_vocab)

    def _row(self, rows: Rows, i: int) -> tuple[int, ...]:
        token, position = int(rows.token_ids[i]), int(rows.positions[i])
        sequence, parent = int(rows.sequences[i]), int(rows.parents[i])
        if not 0 <= token < self._n_vocab:
            raise MisuseError(f"token id {token}")
        if parent == -1:
            before = self.sequences[sequence]
        elif not 0 <= parent < i or rows.sequences[parent] != sequence:
            raise MisuseError(f"row {i} has parent {parent}")
        else:
            before = self._pending[sequence][parent]
        if position != len(before):
            raise MisuseError(f"row {i} has position {position} after {len(before)} tokens")
        if position >= self._n_ctx:
            raise SpecdecError(f"position {position} exceeds the context of {self._n_ctx}")
        self._pending[sequence][i] = (*before, token)
        return (*before, token)

    def _call(self, prefix: tuple[int, ...]) -> np.ndarray:
        row = np.asarray(self._logits(prefix), np.float32)
        if row.shape != (self._n_vocab,):
            raise MisuseError(f"the test's logits have shape {row.shape}")
        return row

    def commit(self, sequence: int, rows: Sequence[int]) -> None:
        if sequence not in self._pending:
            raise MisuseError(f"commit of sequence {sequence} without a forward")
        pending = self._pending.pop(sequence)
        for row in rows:
            path = pending.get(row)
            if path is None or path[:-1] != self.sequences[sequence]:
                raise MisuseError(f"row {row} does not continue what is committed")
            self.sequences[sequence] = path


def table(seed: int, n_vocab: int, *, order: int = 2, scale: float = 3.0) -> Logits:
    """Random logits that depend on the last `order` tokens: text that repeats itself now and then."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        tail = prefix[-order:] if order else ()
        if tail not in known:
            rng = np.random.default_rng([seed, len(tail), *tail])
            known[tail] = (rng.normal(size=n_vocab) * scale).astype(np.float32)
        return known[tail]

    return logits


def blurred(logits: Logits, seed: int, amount: float) -> Logits:
    """The same logits with other noise on top: a draft model that is right now and then."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def perturbed(prefix: tuple[int, ...]) -> np.ndarray:
        row = logits(prefix)
        tail = prefix[-2:]
        if tail not in known:
            rng = np.random.default_rng([seed, 1, *tail])
            known[tail] = (rng.normal(size=len(row)) * amount).astype(np.float32)
        return row + known[tail]

    return perturbed


def constant(probabilities: Sequence[float]) -> Logits:
    """The same distribution everywhere."""
    row = np.log(np.asarray(probabilities)).astype(np.float32)
    return lambda _: row


def script(prompt_length: int, token_ids: Sequence[int], n_vocab: int, then: int = 0) -> Logits:
    """Wants `token_ids` in this order after the prompt, then `then` for ever; certain of each."""

    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        index = len(prefix) - prompt_length
        row = np.zeros(n_vocab, np.float32)
        row[token_ids[index] if 0 <= index < len(token_ids) else then] = 20.0
        return row

    return logits


@dataclass
class Scripted:
    """A drafter that proposes what a function of (context, max_tokens) says."""

    propose_ids: Callable[[Sequence[int], int], Iterable[int]]
    name: str = "scripted"
    needs_prefill: bool = False
    asked: list[int] = field(default_factory=list)  # max_tokens of each request
    released: list[int] = field(default_factory=list)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += [request.max_tokens for request in requests]
        return [Draft(list(self.propose_ids(request.context, request.max_tokens))) for request in requests]

    def release(self, sequence: int) -> None:
        self.released.append(sequence)


def oracle(prompt_length: int, token_ids: Sequence[int]) -> Callable[[Sequence[int], int], list[int]]:
    """Proposes exactly the script: every draft is right."""

    def propose(context: Sequence[int], max_tokens: int) -> list[int]:
        start = len(context) - prompt_length
        return list(token_ids[start : start + max_tokens])

    return propose


def letters(token_id: int) -> bytes:
    """Token bytes: a, b, c, ..."""
    return bytes([97 + token_id % 26])


def run(engine: Engine, request: GenerationRequest) -> GenerationResult:
    """Generate to the end; what was streamed must equal the result."""
    events = list(engine.generate(request))
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    last = events[-1]
    assert isinstance(last, FinishEvent)
    assert len(tokens) == len(events) - 1
    assert tuple(event.token_id for event in tokens) == last.result.token_ids
    assert "".join(event.text for event in events) == last.result.text
    assert last.result.finish_reason == last.finish_reason
    assert last.result.timings.predicted_n == len(tokens)
    if request.logprobs is not None:
        assert tuple(event.logprob for event in tokens) == last.result.logprobs
    return last.result


def plain(
    logits: Logits,
    n_vocab: int,
    request: GenerationRequest,
    *,
    n_ctx: int = 4096,
    token_bytes: Callable[[int], bytes] = letters,
) -> GenerationResult:
    """The same request on a fresh model without drafters."""
    return run(Engine(ToyModel(logits, n_vocab, n_ctx), token_bytes=token_bytes), request)


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    return SimpleNamespace(
        Model=ToyModel,
        MisuseError=MisuseError,
        Scripted=Scripted,
        table=table,
        blurred=blurred,
        constant=constant,
        script=script,
        oracle=oracle,
        letters=letters,
        run=run,
        plain=plain,
    )
