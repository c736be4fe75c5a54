"""Containment: whatever drafters do, what is verified is safe, and a failing one is switched off with one
notice.
"""

import numpy as np
import pytest

from specdec_cli.decoding.drafters.base import ROOT, Draft, DraftRequest
from specdec_cli.decoding.policy import Attempt, FixedDraftLength, SequenceState
from specdec_cli.decoding.speculator import Speculator
from specdec_cli.errors import UsageError
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

N_VOCAB = 10


class Fake:
    """Returns, or raises, what it is told to."""

    def __init__(self, answer, name="fake", *, act=lambda requests: None):
        self.name = name
        self.needs_prefill = False
        self.answer = answer
        self.act = act
        self.calls = 0

    def propose(self, requests):
        self.calls += 1
        self.act(requests)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return [self.answer for _ in requests] if isinstance(self.answer, Draft) else self.answer

    def release(self, sequence):
        if isinstance(self.answer, BaseException):
            raise self.answer


class Plan(FixedDraftLength):
    """Attempts and lengths to keep, given by the test."""

    def __init__(self, attempts, keep=100):
        super().__init__()
        object.__setattr__(self, "attempts", attempts)
        object.__setattr__(self, "kept", keep)

    def plan(self, state, drafters):
        return self.attempts

    def keep(self, state, drafter, draft):
        return self.kept


def wish(max_draft=4, sequence=0, eog_ids=()):
    sampler = Sampler(SamplingParams(presence_penalty=1.0), [1, 2, 3], n_vocab=N_VOCAB)
    request = DraftRequest(sequence, [1, 2, 3], max_draft, sampler, frozenset(eog_ids))
    return SequenceState(sequence, 3, 1, max_draft + 1, max_draft, 0, False), request


def ask(drafters, wishes, policy=None):
    notices = []
    policy = policy or FixedDraftLength(8)
    speculator = Speculator(drafters, policy, n_vocab=N_VOCAB, on_notice=notices.append)
    proposals = speculator.propose(wishes)
    return speculator, notices, proposals


@pytest.mark.parametrize(
    ("proposed", "used"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 10, 3], [1]),
        ([1, -1, 3], [1]),
        ([10], []),
        ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4]),
        ([1, 9, 2], [1, 9]),
        ([np.int32(1), np.int64(2)], [1, 2]),
        ([], []),
    ],
    ids=["good", "too-large", "negative", "only-bad", "too-many", "after-the-end", "numpy", "none"],
)
def test_bad_ids_and_surplus_are_cut(proposed, used):
    _, notices, (proposal,) = ask([Fake(Draft(proposed, [0.5] * len(proposed)))], [wish(eog_ids={9})])
    assert proposal.draft.token_ids == used
    assert proposal.draft.confidences == [0.5] * len(used)
    assert proposal.drafter == ("fake" if used else None)
    assert all(type(token) is int for token in proposal.draft.token_ids)
    assert notices == []


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("boom"),
        [],
        None,
        [Draft(), Draft()],
        Draft([1.5]),
        Draft(["a"]),
        Draft([1, 2], parents=[ROOT]),
        ["no draft"],
    ],
    ids=["raises", "too-few", "none", "too-many", "float", "text", "parents", "type"],
)
def test_a_failing_drafter_is_switched_off_with_one_notice(answer):
    drafter = Fake(answer)
    speculator, notices, (proposal,) = ask([drafter], [wish()])
    assert (proposal.draft.token_ids, proposal.drafter) == ([], None)
    assert len(notices) == 1
    assert notices[0].startswith("fake: drafter switched off, it failed: ")
    assert speculator.drafters == []
    speculator.propose([wish()])
    speculator.release(0)
    assert drafter.calls == 1
    assert len(notices) == 1


def test_missing_confidences_are_filled_up():
    _, _, (proposal,) = ask([Fake(Draft([1, 2, 3], [0.5]))], [wish()])
    assert proposal.draft.confidences == [0.5, 0.0, 0.0]


def test_malformed_trees_are_cut_at_the_first_bad_parent():
    tree = Draft([1, 2, 3, 4], parents=[ROOT, 0, 3, 0])
    _, _, (proposal,) = ask([Fake(tree)], [wish()])
    assert (proposal.draft.token_ids, proposal.draft.parents) == ([1, 2], [ROOT, 0])


def test_interrupts_are_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        ask([Fake(KeyboardInterrupt())], [wish()])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", [2, -2])
def test_a_sampler_left_elsewhere_is_brought_back(change, fails):
    """A drafter that forgets its rollback, or overdoes it, must not change what the target samples."""
    state, request = wish()
    for token in (4, 5, 6):
        request.sampler.accept(token)
        request.context.append(token)

    def meddle(requests):
        for sampler in [r.sampler for r in requests]:
            if change > 0:
                sampler.accept(7)
                sampler.accept(8)
            else:
                sampler.rollback(2)

    answer = RuntimeError("late") if fails else Draft([1])
    ask([Fake(answer, act=meddle)], [(state, request)])
    fresh = Sampler(SamplingParams(presence_penalty=1.0), [1, 2, 3, 4, 5, 6], n_vocab=N_VOCAB)
    logits = np.linspace(0, 1, N_VOCAB).astype(np.float32)
    assert request.sampler.num_accepted == 3
    for position in range(30):
        assert request.sampler.choose(logits, position).token_id == fresh.choose(logits, position).token_id


def test_the_next_drafter_is_asked_where_one_has_too_little():
    first, second = Fake(Draft([1]), "first"), Fake(Draft([4, 5, 6]), "second")
    plan = Plan([Attempt("first", 4, min_tokens=2), Attempt("second", 2)])
    _, _, (proposal,) = ask([first, second], [wish()], plan)
    assert (proposal.drafter, proposal.draft.token_ids) == ("second", [4, 5])
    assert set(proposal.draft_ms) == {"first", "second"}


def test_the_policy_decides_what_is_verified():
    _, _, (proposal,) = ask([Fake(Draft([4, 5, 6]))], [wish()], Plan([Attempt("fake", 4)], keep=2))
    assert proposal.draft.token_ids == [4, 5]
    _, _, (proposal,) = ask([Fake(Draft([4, 5, 6]))], [wish()], Plan([Attempt("fake", 4)], keep=0))
    assert (proposal.draft.token_ids, proposal.drafter) == ([], None)


def test_nobody_is_asked_when_there_is_no_room():
    drafter = Fake(Draft([1]))
    ask([drafter], [wish(max_draft=0)])
    ask([drafter], [wish()], FixedDraftLength(0))
    ask([drafter], [wish()], Plan([Attempt("stranger", 4)]))
    assert drafter.calls == 0


def test_one_drafter_is_asked_once_for_all_sequences():
    seen = []
    drafter = Fake(
        Draft([1, 2]), act=lambda requests: seen.append([(r.sequence, r.max_tokens) for r in requests])
    )
    _, _, proposals = ask([drafter], [wish(4, 0), wish(1, 1), wish(0, 2)])
    assert seen == [[(0, 4), (1, 1)]]
    assert [p.draft.token_ids for p in proposals] == [[1, 2], [1], []]


def test_a_notice_of_a_drafter_is_passed_on_once():
    drafter = Fake(Draft(notice="its context is full"))
    speculator, notices, _ = ask([drafter], [wish()])
    speculator.propose([wish()])
    assert notices == ["fake: its context is full"]


def test_names_must_differ():
    with pytest.raises(UsageError, match="same name"):
        ask([Fake(Draft()), Fake(Draft())], [])
