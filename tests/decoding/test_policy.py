"""The fixed draft length, and the notices and containment of the speculator."""

from types import SimpleNamespace

import pytest

from specdec_cli.decoding.policy import Attempt, FixedDraftLength, SequenceState
from specdec_cli.errors import UsageError

FREE = SimpleNamespace(name="ngram", needs_prefill=False)
DEAR = SimpleNamespace(name="draft", needs_prefill=True)


def state(*, first_pass=False):
    return SequenceState(0, 10, 0 if first_pass else 3, 20, 19, 0, first_pass)


def test_asks_all_drafters_in_order_with_the_same_length():
    plan = FixedDraftLength(5, min_tokens=2, p_min=0.5).plan(state(), [FREE, DEAR])
    assert plan == [Attempt("ngram", 5, 2, 0.5), Attempt("draft", 5, 2, 0.5)]


def test_does_not_hold_up_the_first_token():
    assert FixedDraftLength(5).plan(state(first_pass=True), [DEAR, FREE]) == [Attempt("ngram", 5)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_draft_tokens": -1}, "draft length"),
        ({"num_draft_tokens": 3, "min_tokens": 4}, "minimum draft length"),
        ({"p_min": 1.5}, "draft_p_min"),
    ],
)
def test_senseless_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        FixedDraftLength(**settings)
