"""The engine: sequences in, token events out; the one generation loop."""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from .decoding.drafters.base import Drafter, common_prefix
from .decoding.policy import DraftPolicy, FixedDraftLength, RoundReport
from .decoding.round import run_round
from .decoding.sequence import ActiveSequence, Progress
from .decoding.speculator import Speculator
from .decoding.types import (
    Event,
    FinishEvent,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Timings,
    TokenEvent,
    TokenLogprob,
)
from .errors import SpecdecError, StoppedError, UsageError
from .protocols import LanguageModel, Stoppable
from .text.detokenizer import Detokenizer

__all__ = [
    "Engine",
    "EngineOptions",
    "Event",
    "FinishEvent",
    "FinishReason",
    "GenerationRequest",
    "GenerationResult",
    "Progress",
    "Timings",
    "TokenEvent",
    "TokenLogprob",
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Limits of the loop; none of them changes the output."""

    max_sequences: int = 8  # decoded together; further requests wait
    prefill_chunk: int = 512  # prompt rows per pass: bounds memory, and the time of others' passes
    max_kept_sequences: int = 1  # finished sequences whose KV is kept for the next request of their session


@dataclass(frozen=True, slots=True)
class _Kept:
    """A KV that outlives its request, and the tokens that it holds."""

    kv: int
    tokens: list[int]


class Engine:
    """Generates for any number of sequences with one target model and any drafters.

    Not thread-safe, but for `cancel`. After an exception out of `step` all sequences are gone and the
    engine is ready for new ones.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        token_bytes: Callable[[int], bytes],
        drafters: Sequence[Drafter] = (),
        policy: DraftPolicy | None = None,
        options: EngineOptions | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        """`token_bytes(token_id)` is what a token writes; `on_notice(line)` gets what the user should know
        once.
        """
        self._model = model
        self._token_bytes = token_bytes
        self._policy = policy or FixedDraftLength()
        self._options = options or EngineOptions()
        self._speculator = Speculator(
            drafters, self._policy, n_vocab=model.n_vocab, on_notice=on_notice or (lambda _: None)
        )
        self._stoppable = [part for part in (model, *drafters) if isinstance(part, Stoppable)]
        self._numbers = count()
        self._waiting: deque[ActiveSequence] = deque()
        self._active: list[ActiveSequence] = []
        self._kept: dict[Hashable, _Kept] = {}  # by session, the oldest first
        self._mailboxes: dict[int, deque[Event]] = {}  # events of the sequences that `generate` drives
        self._unclaimed: list[Event] = []
        self.observers: list[Callable[[RoundReport], None]] = []  # told of every finished pass

    @property
    def busy(self) -> bool:
        """Whether any sequence is active or waiting."""
        return bool(self._active or self._waiting)

    def submit(self, request: GenerationRequest, progress: Progress | None = None) -> int:
        """Queue a request and return its number; `progress(done, total)` counts prompt tokens, reused ones
        too.

        Raises UsageError when the prompt does not fit or contains ids that the model does not have.
        """
        self._check(request)
        sequence = ActiveSequence(
            next(self._numbers),
            request,
            n_ctx=self._model.n_ctx,
            n_vocab=self._model.n_vocab,
            decoder=Detokenizer(self._token_bytes),
            progress=progress,
        )
        self._waiting.append(sequence)
        return sequence.number

    def step(self) -> list[Event]:
        """Run one target pass over all active sequences and return what happened, in order."""
        events, self._unclaimed = self._unclaimed, []
        try:
            fresh = self._advance()
        except BaseException:
            # Between forward and commit a sequence is in no state to go on.
            self._drop_all()
            raise
        for event in fresh:
            self._mailboxes.get(event.sequence, events).append(event)
        return events

    def cancel(self, sequence: int | None = None) -> None:
        """End a sequence (None: all) with "cancelled"; safe from a signal handler or thread.

        It acts before the next pass. A pass whose sequences are all cancelled ends at once where the executor
        can do that.
        """
        for item in [*self._active, *self._waiting]:
            if sequence is None or item.number == sequence:
                item.cancelled = True

    def discard(self, sequence: int) -> None:
        """Drop a sequence at once, without events; unknown or finished ones are ignored."""
        for item in [*self._active, *self._waiting]:
            if item.number == sequence:
                self._retire(item)

    def generate(
        self, request: GenerationRequest, progress: Progress | None = None
    ) -> Generator[Event, None, None]:
        """Events of one request, a FinishEvent last. Closing the iterator early frees everything it held."""
        self._check(request)
        return self._generate(request, progress)

    def forget(self, session: Hashable = None) -> None:
        """Free what is kept for a session (None: for all)."""
        for key in [key for key in self._kept if session is None or key == session]:
            self._free(self._kept.pop(key).kv)

    def close(self) -> None:
        """Free all sequences; drafters forget them too."""
        self._drop_all()
        self.forget()

    def _generate(
        self, request: GenerationRequest, progress: Progress | None
    ) -> Generator[Event, None, None]:
        number = self.submit(request, progress)
        mailbox = self._mailboxes[number] = deque()
        try:
            while True:
                while mailbox:
                    event = mailbox.popleft()
                    yield event
                    if isinstance(event, FinishEvent):
                        return
                self._unclaimed = self.step()
        finally:
            del self._mailboxes[number]
            self.discard(number)

    def _check(self, request: GenerationRequest) -> None:
        n_prompt, n_ctx, n_vocab = len(request.prompt_ids), self._model.n_ctx, self._model.n_vocab
        if n_prompt >= n_ctx:
            raise UsageError(
                f"the prompt has {n_prompt} tokens, the context holds {n_ctx}: no room for an answer"
            )
        for token_id in (min(request.prompt_ids), max(request.prompt_ids)):
            if not 0 <= token_id < n_vocab:
                raise UsageError(f"the prompt contains token id {token_id}, the vocabulary has {n_vocab}")

    def _advance(self) -> list[Event]:
        """Cancel, admit, run one pass, finish."""
        cancelled = [s for s in [*self._active, *self._waiting] if s.cancelled]
        events: list[Event] = [self._finish(sequence, "cancelled") for sequence in cancelled]
        self._admit()
        idle = [s for s in self._active if s.finished]  # asked for no token at all
        events += [self._finish(sequence, "length") for sequence in idle]
        if not self._active:
            return events
        try:
            self._run_pass()
        except StoppedError:  # all were cancelled; nothing of the pass counts
            return events + [self._finish(sequence, "cancelled") for sequence in list(self._active)]
        for sequence in list(self._active):
            events += sequence.take_events()
            if sequence.finished:
                events.append(self._finish(sequence, "length"))
        return events

    def _run_pass(self) -> None:
        """One round: every sequence decodes with its draft, or computes a piece of its prompt."""
        started = perf_counter()
        for part in self._stoppable:  # each time: engines may share a model
            part.stop_when(self._abandoned)
        shares = self._share_rows()
        speaking = [sequence for sequence, rows in shares if rows == sequence.num_pending]
        wishes = [(sequence.state(), sequence.draft_request()) for sequence in speaking]
        proposals = dict(zip((s.number for s in speaking), self._speculator.propose(wishes), strict=True))
        turns = [sequence.turn(proposals.get(sequence.number), rows) for sequence, rows in shares]
        prompt_rows = sum(rows for sequence, rows in shares if not sequence.num_emitted)
        forward_ms = run_round(self._model, turns)
        outcomes = []
        for (sequence, rows), turn in zip(shares, turns, strict=True):
            sequence.advance(rows + len(turn.accepted))
            proposal = proposals.get(sequence.number)
            if proposal is not None:
                outcomes.append(sequence.count(proposal, turn, forward_ms / len(speaking)))
        total_ms = 1000 * (perf_counter() - started)
        num_rows = sum(turn.num_rows for turn in turns)
        report = RoundReport(num_rows, prompt_rows, forward_ms, total_ms, outcomes)
        self._policy.observe(report)
        for observer in self.observers:
            observer(report)

    def _abandoned(self) -> bool:
        """Whether nobody waits for the pass in progress any more."""
        return bool(self._active) and all(sequence.cancelled for sequence in self._active)

    def _share_rows(self) -> list[tuple[ActiveSequence, int]]:
        """How many pending tokens each sequence computes in this pass: all, or a piece of a long prompt."""
        chunk = budget = self._options.prefill_chunk
        shares = []
        for sequence in self._active:
            rows = sequence.num_pending
            if rows > 1:
                # Pieces end at multiples of the chunk, wherever the prompt was taken up.
                rows = min(rows, budget, chunk - sequence.committed % chunk)
                budget -= rows
            if rows:
                shares.append((sequence, rows))
        return shares

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._options.max_sequences:
            sequence = self._waiting.popleft()
            self._active.append(sequence)
            kv, reused = self._acquire(sequence.request)
            sequence.start(kv, reused)

    def _acquire(self, request: GenerationRequest) -> tuple[int, int]:
        """A KV for a request and how many of its prompt tokens it holds, from its session where there is
        one.
        """
        kept = self._kept.pop(request.session, None)
        if kept is not None:
            # The last prompt token is always computed: its logits are needed.
            common = min(common_prefix(kept.tokens, request.prompt_ids), len(request.prompt_ids) - 1)
            try:
                self._model.truncate(kept.kv, common)
            except SpecdecError:  # a cache that cannot go back this far; starting afresh always works
                self._free(kept.kv)
            else:
                return kept.kv, common
        return self._model.create_sequence(), 0

    def _finish(self, sequence: ActiveSequence, reason: FinishReason) -> FinishEvent:
        self._retire(sequence)
        return sequence.finish(reason)

    def _retire(self, sequence: ActiveSequence) -> None:
        """Take a sequence out; keep its KV for its session or free it."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            return
        self._active.remove(sequence)
        kv, sequence.kv = sequence.kv, None
        if kv is None:
            return
        session = sequence.request.session
        if session is None or self._options.max_kept_sequences < 1:
            self._free(kv)
            return
        if session in self._kept:
            self.forget(session)
        self._kept[session] = _Kept(kv, sequence.tokens[: sequence.committed])
        while len(self._kept) > self._options.max_kept_sequences:
            self.forget(next(iter(self._kept)))

    def _drop_all(self) -> None:
        """Free everything that is under way, keeping nothing of it."""
        dropped, self._active = self._active, []
        self._waiting.clear()
        for sequence in dropped:
            if sequence.kv is not None:
                self._free(sequence.kv)

    def _free(self, kv: int) -> None:
        self._model.free_sequence(kv)
        self._speculator.release(kv)
