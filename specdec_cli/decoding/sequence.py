"""One sequence while it is generated: what it has said, what its KV holds, what it cost."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from ..protocols import FloatArray
from ..sampling.logprobs import log_probabilities
from ..sampling.sampler import Sampler
from .drafters.base import DraftRequest
from .emitter import Emitter, TextDecoder
from .policy import Outcome, SequenceState
from .round import Turn
from .speculator import Proposal
from .stats import SpecStats
from .types import (
    Event,
    FinishEvent,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Timings,
    TokenEvent,
    TokenLogprob,
)

Progress = Callable[[int, int], None]


class ActiveSequence:
    """A request on its way to a result. The engine moves it, rounds let it speak."""

    def __init__(
        self,
        number: int,
        request: GenerationRequest,
        *,
        n_ctx: int,
        n_vocab: int,
        decoder: TextDecoder,
        progress: Progress | None,
    ) -> None:
        self.number = number
        self.request = request
        self.kv: int | None = None  # handle in the model; None while it waits
        self.committed = 0  # tokens that the KV holds
        self.tokens = list(request.prompt_ids)  # prompt and output; grows only
        self.cancelled = False
        self.stats = SpecStats()
        room = n_ctx - len(request.prompt_ids)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        self._emitter = Emitter(decoder, limit=limit, eog_ids=request.eog_ids, stop=request.stop)
        self._sampler = _make_sampler(request, n_vocab)
        self._progress = progress
        self._events: list[Event] = []
        self._logprobs: list[TokenLogprob] = []
        self._timings = Timings()
        self._submitted = self._started = self._first = self._last = perf_counter()

    @property
    def finished(self) -> bool:
        """Whether it has said its last token."""
        return self._emitter.num_left <= 0

    @property
    def num_pending(self) -> int:
        """Tokens of the context that the KV does not hold yet."""
        return len(self.tokens) - self.committed

    @property
    def num_emitted(self) -> int:
        """Tokens of the output so far."""
        return len(self._emitter.token_ids)

    def start(self, kv: int, reused: int) -> None:
        """Begin with a KV that holds the first `reused` tokens of the prompt."""
        self.kv = kv
        self.committed = self._timings.prompt_reused_n = reused
        self._timings.prompt_n = len(self.request.prompt_ids) - reused
        self._started = perf_counter()
        self._report_progress()

    def advance(self, count: int) -> None:
        """The KV holds `count` tokens more."""
        in_prompt = self.committed < len(self.request.prompt_ids)
        self.committed += count
        if in_prompt:
            self._report_progress()

    def _report_progress(self) -> None:
        if self._progress is not None:
            total = len(self.request.prompt_ids)
            self._progress(min(self.committed, total), total)

    def state(self) -> SequenceState:
        """What a policy may know."""
        num_left = self._emitter.num_left
        return SequenceState(
            sequence=self.number,
            context_length=len(self.tokens),
            num_emitted=self.num_emitted,
            num_left=num_left,
            # The target adds a token of its own; no limit may be passed by more than it.
            max_draft=num_left - 1,
            prompt_rows=self.num_pending - 1,
            first_pass=not self._emitter.token_ids,
            kv=-1 if self.kv is None else self.kv,
        )

    def draft_request(self) -> DraftRequest:
        """What drafters get to see."""
        assert self.kv is not None
        return DraftRequest(
            sequence=self.kv,
            context=self.tokens,
            max_tokens=self._emitter.num_left - 1,
            sampler=self._sampler,
            eog_ids=self.request.eog_ids,
            num_prompt=len(self.request.prompt_ids),
        )

    def turn(self, proposal: Proposal | None, count: int) -> Turn:
        """The next `count` pending tokens as a part of a pass; without a proposal nothing is said."""
        assert self.kv is not None
        token_ids = self.tokens[self.committed : self.committed + count]
        if proposal is None:
            return Turn(self.kv, self.committed, token_ids)
        return Turn(self.kv, self.committed, token_ids, speaker=self, draft=proposal.draft)

    def choose(self, logits: FloatArray) -> int:
        """The next token, from the target's logits [n_vocab] of the row before it."""
        token_id = self._sampler.choose(logits, len(self.tokens)).token_id
        self._sampler.accept(token_id)
        if self.request.logprobs is not None:
            logprob, top = log_probabilities(logits, token_id, self.request.logprobs)
            self._logprobs.append(TokenLogprob(token_id, logprob, top))
        return token_id

    def emit(self, token_id: int, *, from_draft: bool) -> bool:
        """Say the token; whether the sequence goes on."""
        self._last = perf_counter()
        if not self._emitter.token_ids:
            self._first = self._last
        self.tokens.append(token_id)
        emission = self._emitter.push(token_id)
        logprob = self._logprobs[-1] if self.request.logprobs is not None else None
        self._events.append(TokenEvent(self.number, token_id, emission.text, from_draft, logprob))
        return emission.finish_reason is None

    def count(self, proposal: Proposal, turn: Turn, forward_ms: float) -> Outcome:
        """Count a round in which it spoke; `forward_ms` is its share of the pass."""
        num_emitted = len(self._events)
        first_pass = num_emitted == self.num_emitted
        if proposal.drafter is not None or not first_pass:
            self.stats.num_rounds += 1
            self.stats.num_round_tokens += num_emitted
            self.stats.target_ms += forward_ms
        for name, milliseconds in proposal.draft_ms.items():
            self.stats.drafter(name).draft_ms += milliseconds
        if proposal.drafter is not None:
            self.stats.drafter(proposal.drafter).record(proposal.draft.depths(), len(turn.accepted))
        return Outcome(
            sequence=self.number,
            drafter=proposal.drafter,
            confidences=proposal.draft.confidences,
            num_verified=len(proposal.draft.token_ids),
            num_accepted=len(turn.accepted),
            num_emitted=num_emitted,
            draft_ms=proposal.draft_ms,
        )

    def take_events(self) -> list[Event]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def finish(self, reason: FinishReason) -> FinishEvent:
        """End it, for `reason` unless it has ended by itself, and sum up."""
        rest = self._emitter.finish(reason)
        final = self._emitter.finish_reason or reason
        timings = self._timings
        timings.predicted_n = self.num_emitted
        if timings.predicted_n:
            timings.prompt_ms = 1000 * (self._first - self._started)
            timings.ttft_ms = 1000 * (self._first - self._submitted)
            timings.predicted_ms = 1000 * (self._last - self._first)
        result = GenerationResult(
            token_ids=tuple(self._emitter.token_ids),
            text=self._emitter.text,
            finish_reason=final,
            seed=self.request.sampling.seed,
            prompt_token_ids=self.request.prompt_ids,
            timings=timings,
            stats=self.stats,
            logprobs=tuple(self._logprobs) if self.request.logprobs is not None else None,
        )
        return FinishEvent(self.number, final, rest, result)


def _make_sampler(request: GenerationRequest, n_vocab: int) -> Sampler:
    params = request.sampling
    if request.ignore_eos:
        banned = tuple((token_id, -np.inf) for token_id in sorted(request.eog_ids) if token_id < n_vocab)
        params = replace(params, logit_bias=params.logit_bias + banned)
    return Sampler(params, request.prompt_ids, n_vocab=n_vocab)
