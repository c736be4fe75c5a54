"""Drafts by a small model that has the target's vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import UsageError
from ...protocols import FloatArray, LanguageModel, Rows, Stoppable
from .base import Draft, DraftRequest, common_prefix
from .head import OutputHead, WholeHead


@dataclass(slots=True)
class _Held:
    """A sequence in the draft model and the tokens that its KV holds."""

    kv: int
    tokens: list[int] = field(default_factory=list)
    source: Sequence[int] = ()  # the context seen last and how much of it is known to agree with `tokens`
    agreed: int = 0


@dataclass(slots=True)
class _Work:
    """One request while it is drafted."""

    request: DraftRequest
    held: _Held
    todo: list[int]  # tokens to compute in the next forward
    limit: int
    draft: Draft


class DraftModelDrafter:
    """Proposes what a smaller model would say, chosen with the request's own sampler and noise.

    Its KV follows the context by itself: whatever the two have in common is kept, the rest rolled back and
    computed, at most `catch_up_rows` tokens a round, so that a long prompt does not hold up the target;
    until it has caught up it proposes nothing. It never proposes an id that the target does not share.
    """

    name = "draft"
    needs_prefill = True

    def __init__(
        self,
        model: LanguageModel,
        *,
        n_shared_vocab: int | None = None,
        blocked_ids: Sequence[int] = (),
        catch_up_rows: int = 512,
        relative_cost: float = 0.3,
        head: OutputHead | None = None,
    ) -> None:
        """Draft with ids below `n_shared_vocab` (default: all of the model's) except `blocked_ids`.

        `head` is that of a model whose head was cut; by default the model has a logit for each id.

        `relative_cost` is a guess of the time of a step over that of a target pass, until it is measured.
        """
        self._model = model
        self._head: OutputHead = head if head is not None else WholeHead(model.n_vocab)
        n_vocab = self._head.n_vocab
        allowed = np.ones(n_vocab if n_shared_vocab is None else min(n_shared_vocab, n_vocab), np.bool_)
        allowed[np.array([i for i in blocked_ids if i < len(allowed)], np.intp)] = False
        if not len(allowed):
            raise UsageError("the draft model shares no token with the target")
        self._head.restrict(allowed)
        self._catch_up_rows = catch_up_rows
        self.relative_cost = relative_cost
        self._held: dict[int, _Held] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, all requests batched."""
        drafts = [Draft() for _ in requests]
        marks = [request.sampler.num_accepted for request in requests]
        try:
            prepared = [
                self._prepare(request, draft) for request, draft in zip(requests, drafts, strict=True)
            ]
            ready, behind = self._share_out([work for work in prepared if work is not None])
            if ready or behind:
                logits = self._forward([*ready, *behind], num_outputs=len(ready))
                ready = self._choose(ready, logits)
            while ready:
                ready = self._choose(ready, self._forward(ready, num_outputs=len(ready)))
        finally:
            for request, mark in zip(requests, marks, strict=True):
                request.sampler.rollback(request.sampler.num_accepted - mark)
        return drafts

    def num_held(self, sequence: int) -> int:
        """Tokens of a sequence that are computed already, rejected ones of the last draft included."""
        held = self._held.get(sequence)
        return 0 if held is None else len(held.tokens)

    def stop_when(self, condition: Callable[[], bool]) -> None:
        """Let the model end its passes with StoppedError once `condition` holds, where it can."""
        if isinstance(self._model, Stoppable):
            self._model.stop_when(condition)

    def release(self, sequence: int) -> None:
        """Free a sequence's KV."""
        held = self._held.pop(sequence, None)
        if held is not None:
            self._model.free_sequence(held.kv)

    def _prepare(self, request: DraftRequest, draft: Draft) -> _Work | None:
        """Roll the draft's KV back to what it has in common with the context; None where it cannot draft."""
        context, n_ctx = request.context, self._model.n_ctx
        if len(context) > n_ctx:
            draft.notice = f"drafting stopped: the draft model's context of {n_ctx} tokens is full"
            self.release(request.sequence)
            return None
        if request.max_tokens < 1:
            return None
        held = self._held.get(request.sequence)
        if held is None:
            held = self._held[request.sequence] = _Held(self._model.create_sequence())
        known = held.agreed if context is held.source else 0
        # The last token is always computed anew: its logits are needed.
        common = min(common_prefix(held.tokens, context, known), len(context) - 1)
        held.source, held.agreed = context, common
        if common < len(held.tokens):
            self._model.truncate(held.kv, common)
            del held.tokens[common:]
        todo = list(context[common:])
        if max(todo) >= self._head.n_vocab:
            draft.notice = "drafting stopped: the text contains a token that the draft model does not know"
            return None
        self._head.admit(todo)
        # The last drafted token is not computed, so the context may hold one less than is drafted.
        return _Work(request, held, todo, min(request.max_tokens, n_ctx - len(context) + 1), draft)

    def _share_out(self, work: Sequence[_Work]) -> tuple[list[_Work], list[_Work]]:
        """Divide the rows of a catch-up: those that reach their context in this pass, and one that gets a
        part.
        """
        ready: list[_Work] = []
        budget = self._catch_up_rows
        for item in work:
            if len(item.todo) > budget:
                del item.todo[budget:]
                return ready, [item] if item.todo else []
            ready.append(item)
            budget -= len(item.todo)
        return ready, []

    def _forward(self, work: Sequence[_Work], num_outputs: int) -> FloatArray:
        """Compute and commit what is to do; logits [num_outputs, n_vocab] after the last token of the first
        ones.
        """
        sizes = [len(item.todo) for item in work]
        ends = np.cumsum(sizes)
        starts = ends - sizes
        rows = Rows(
            token_ids=np.concatenate([item.todo for item in work]).astype(np.int32),
            positions=np.concatenate(
                [np.arange(len(item.held.tokens), len(item.held.tokens) + len(item.todo)) for item in work]
            ).astype(np.int32),
            sequences=np.repeat([item.held.kv for item in work], sizes).astype(np.int32),
            parents=np.concatenate(
                [[-1, *range(start, end - 1)] for start, end in zip(starts, ends, strict=True)]
            ).astype(np.int32),
            outputs=(ends[:num_outputs] - 1).astype(np.int32),
        )
        logits = self._model.forward(rows)
        for item, start, end in zip(work, starts.tolist(), ends.tolist(), strict=True):
            self._model.commit(item.held.kv, range(start, end))
            item.held.tokens += item.todo
            item.held.agreed = min(len(item.held.tokens), len(item.request.context))
        return logits

    def _choose(self, work: Sequence[_Work], logits: FloatArray) -> list[_Work]:
        """Draft the next token of each; those are returned that go on."""
        return [item for item, row in zip(work, logits, strict=True) if self._choose_one(item, row)]

    def _choose_one(self, item: _Work, logits: FloatArray) -> bool:
        request, draft = item.request, item.draft
        usable, ids = self._head.usable(logits)
        choice = request.sampler.choose(usable, len(request.context) + len(draft.token_ids), ids=ids)
        confidence = choice.confidence
        if confidence < request.draft_p_min:
            return False
        request.sampler.accept(choice.token_id)
        draft.token_ids.append(choice.token_id)
        draft.confidences.append(confidence)
        item.todo = [choice.token_id]
        if len(draft.token_ids) >= item.limit or choice.token_id in request.eog_ids:
            return False
        return request.go_on is None or request.go_on(draft.confidences)
