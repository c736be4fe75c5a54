"""Estimates of acceptance."""

import pytest

from specdec_cli.decoding.acceptance import Acceptance, prior


def test_without_evidence_confidence_speaks():
    acceptance = Acceptance()
    low, high = acceptance.of_draft("draft", [0.1, 0.95])
    assert low < 0.35
    assert 0.85 < high < 1
    short, long = acceptance.of_draft("ngram", [3.0, 20.0])
    assert short == pytest.approx(0.5)
    assert long > 0.8
    assert prior(0.0) > 0


def test_counts_outweigh_the_prior_and_are_kept_apart():
    acceptance = Acceptance()
    for _ in range(30):
        acceptance.record("draft", [0.95, 0.3], 1)
    sure, unsure = acceptance.of_draft("draft", [0.95, 0.3])
    assert sure > 0.97
    assert unsure < 0.1
    assert acceptance.of_draft("other", [0.3]) == Acceptance().of_draft("other", [0.3])
    assert acceptance.expected("draft", 2)[0] > 0.9
    assert acceptance.expected("draft", 2)[1] < 0.2


def test_tokens_after_the_first_rejected_one_say_nothing():
    acceptance = Acceptance()
    acceptance.record("draft", [0.9, 0.5, 0.5], 0)
    assert acceptance.num_tried("draft") == 1
    assert acceptance.of_draft("draft", [0.9, 0.5])[1] == Acceptance().of_draft("draft", [0.9, 0.5])[1]


def test_a_change_is_followed():
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.record("draft", [0.9], 1)
    for _ in range(25):
        acceptance.record("draft", [0.9], 0)
    assert acceptance.of_draft("draft", [0.9])[0] < 0.35


def test_time_and_doubt_lead_back_to_the_prior():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.record("ngram", [6.0], 0)
    before = acceptance.of_draft("ngram", [6.0])[0]
    acceptance.now += 1000
    later = acceptance.of_draft("ngram", [6.0])[0]
    acceptance.doubt("ngram", 0.1)
    doubted = acceptance.of_draft("ngram", [6.0])[0]
    assert before < later < doubted < prior(6.0)


def test_a_draft_that_is_not_verified_counts_with_its_confidence():
    acceptance = Acceptance()
    for _ in range(20):
        acceptance.record_unverified("draft", [0.05, 0.9])
    assert acceptance.expected("draft", 1)[0] < 0.4
