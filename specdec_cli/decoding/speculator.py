"""Asks drafters for drafts as the policy plans, and trusts neither: whatever they do, the target's output
stands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from time import perf_counter

from ..errors import StoppedError, UsageError
from .drafters.base import ROOT, Draft, Drafter, DraftRequest
from .policy import Attempt, DraftPolicy, SequenceState


@dataclass(slots=True)
class Proposal:
    """What came out for one sequence: a draft that is safe to verify, and who drafted it."""

    draft: Draft = field(default_factory=Draft)
    drafter: str | None = None
    draft_ms: dict[str, float] = field(default_factory=dict)  # per drafter that was asked


@dataclass(slots=True)
class _Pending:
    state: SequenceState
    request: DraftRequest
    attempts: list[Attempt]
    proposal: Proposal


class Speculator:
    """Drafters in the order of the policy's plan, batched over sequences, contained.

    Ids that do not exist and surplus tokens are cut off, together with what follows them. A drafter that
    raises is switched off for good, with one notice.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        policy: DraftPolicy,
        *,
        n_vocab: int,
        on_notice: Callable[[str], None],
    ) -> None:
        self._everyone = tuple(drafters)
        self._drafters = {drafter.name: drafter for drafter in drafters}
        if len(self._drafters) < len(drafters):
            raise UsageError("two drafters have the same name")
        self._policy = policy
        self._n_vocab = n_vocab
        self._on_notice = on_notice
        self._told: set[str] = set()

    @property
    def drafters(self) -> list[Drafter]:
        """Those that are still in use."""
        return list(self._drafters.values())

    def propose(self, wishes: Sequence[tuple[SequenceState, DraftRequest]]) -> list[Proposal]:
        """One proposal per sequence; each request's `max_tokens` is the most that limits allow."""
        pending = [_Pending(state, request, self._plan(state), Proposal()) for state, request in wishes]
        proposals = [item.proposal for item in pending]
        while pending := [item for item in pending if item.attempts]:
            name = pending[0].attempts[0].drafter
            asked = [item for item in pending if item.attempts[0].drafter == name]
            self._ask(name, asked)
            pending = [item for item in pending if item.proposal.drafter is None]
        return proposals

    def release(self, sequence: int) -> None:
        """Let all drafters forget a sequence, those that are switched off too."""
        for drafter in self._everyone:
            try:
                drafter.release(sequence)
            except Exception as error:
                self._switch_off(drafter.name, error)

    def _plan(self, state: SequenceState) -> list[Attempt]:
        attempts = self._policy.plan(state, self.drafters) if self._drafters and state.max_draft > 0 else ()
        return [a for a in attempts if a.drafter in self._drafters and a.max_tokens > 0]

    def _ask(self, name: str, asked: Sequence[_Pending]) -> None:
        """Take the first attempt of each, which is for this drafter, and keep what is usable."""
        attempts = [item.attempts.pop(0) for item in asked]
        if name not in self._drafters:
            return
        requests = [_limited(item, attempt) for item, attempt in zip(asked, attempts, strict=True)]
        started = perf_counter()
        drafts = self._call(self._drafters[name], requests)
        elapsed = 1000 * (perf_counter() - started)
        for item, attempt, request, draft in zip(asked, attempts, requests, drafts, strict=True):
            item.proposal.draft_ms[name] = item.proposal.draft_ms.get(name, 0.0) + elapsed / len(asked)
            if draft.notice:
                self._tell(f"{name}: {draft.notice}")
            draft.cut(self._usable_length(draft, request))
            draft.cut(max(0, self._policy.keep(item.state, name, draft)))
            if len(draft.token_ids) >= max(1, attempt.min_tokens):
                item.proposal.draft, item.proposal.drafter = draft, name

    def _call(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Let a drafter propose; if it fails it is switched off and has proposed nothing.

        StoppedError passes: then nobody waits for a draft.
        """
        marks = [request.sampler.num_accepted for request in requests]
        try:
            drafts = [_checked(draft) for draft in drafter.propose(requests)]
            if len(drafts) != len(requests):
                raise ValueError(f"{len(drafts)} drafts for {len(requests)} requests")
        except StoppedError:
            raise
        except Exception as error:
            self._switch_off(drafter.name, error)
            drafts = [Draft() for _ in requests]
        for request, mark in zip(requests, marks, strict=True):
            _restore(request, mark)
        return drafts

    def _usable_length(self, draft: Draft, request: DraftRequest) -> int:
        """Tokens up to the first that is no token of the target, that is surplus, or that follows an end."""
        length = 0
        for node, token_id in enumerate(draft.token_ids):
            well_formed = 0 <= token_id < self._n_vocab and ROOT <= draft.parent(node) < node
            if not well_formed or node >= request.max_tokens:
                break
            length += 1
            if draft.parents is None and token_id in request.eog_ids:
                break
        return length

    def _switch_off(self, name: str, error: Exception) -> None:
        if self._drafters.pop(name, None) is not None:
            self._tell(f"{name}: drafter switched off, it failed: {type(error).__name__}: {error}")

    def _tell(self, notice: str) -> None:
        if notice not in self._told:
            self._told.add(notice)
            self._on_notice(notice)


def _limited(item: _Pending, attempt: Attempt) -> DraftRequest:
    max_tokens = min(attempt.max_tokens, item.state.max_draft)
    return replace(item.request, max_tokens=max_tokens, draft_p_min=attempt.p_min, go_on=attempt.go_on)


def _checked(draft: Draft) -> Draft:
    """A copy with plain integers and one confidence per token; raises when it is no draft at all."""
    token_ids = [index(token_id) for token_id in draft.token_ids]
    confidences = [float(c) for c in draft.confidences[: len(token_ids)]]
    confidences += [0.0] * (len(token_ids) - len(confidences))
    parents = None if draft.parents is None else [index(parent) for parent in draft.parents]
    if parents is not None and len(parents) != len(token_ids):
        raise ValueError(f"{len(parents)} parents for {len(token_ids)} tokens")
    return Draft(token_ids, confidences, parents, draft.notice)


def _restore(request: DraftRequest, mark: int) -> None:
    """Bring the sampler back to `mark` accepted tokens if a drafter left it elsewhere."""
    surplus = request.sampler.num_accepted - mark
    if surplus > 0:
        request.sampler.rollback(surplus)
    for token_id in request.context[len(request.context) + surplus :] if surplus < 0 else ():
        request.sampler.accept(token_id)
