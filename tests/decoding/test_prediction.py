"""The prediction drafter follows a text, gets lost and finds its way back."""

import pytest

from specdec_cli.decoding.drafters.base import DraftRequest
from specdec_cli.decoding.drafters.prediction import PredictionDrafter
from specdec_cli.sampling.params import SamplingParams
from specdec_cli.sampling.sampler import Sampler

SAMPLER = Sampler(SamplingParams(), [], n_vocab=1000)
PROMPT = [900, 901, 902]
PREDICTION = list(range(100, 160))


def ask(drafter, output, max_tokens=4, *, sequence=0, prompt=PROMPT, eog_ids=()):
    context = [*prompt, *output]
    request = DraftRequest(sequence, context, max_tokens, SAMPLER, frozenset(eog_ids), num_prompt=len(prompt))
    return drafter.propose([request])[0]


def test_f7_it_is_anchored_at_the_start():
    drafter = PredictionDrafter(PREDICTION)
    assert ask(drafter, []).token_ids == PREDICTION[:4]
    assert ask(drafter, PREDICTION[:3]).token_ids == PREDICTION[3:7]
    assert ask(PredictionDrafter(PREDICTION), PREDICTION[:10]).token_ids == PREDICTION[10:14]


def test_confidence_grows_with_agreement():
    drafter = PredictionDrafter(PREDICTION)
    first, later = ask(drafter, []), ask(drafter, PREDICTION[:20])
    assert first.confidences[0] < later.confidences[0]
    assert later.confidences == sorted(later.confidences)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([*PREDICTION[:10], 7, *PREDICTION[11:13]], 113),  # replaced
        ([*PREDICTION[:10], 7, 8, *PREDICTION[10:12]], 112),  # inserted
        ([*PREDICTION[:10], *PREDICTION[20:22]], 122),  # left out
        ([*PREDICTION[:10], PREDICTION[11]], 112),  # one left out: a near token is enough
        ([*PREDICTION[30:40], *PREDICTION[5:7]], 107),  # earlier again
    ],
)
def test_f7_it_finds_its_place_again(output, expected):
    drafter = PredictionDrafter(PREDICTION)
    ask(drafter, [])
    for length in range(1, len(output)):
        ask(drafter, output[:length])
    assert ask(drafter, output).token_ids[0] == expected


def test_of_several_places_the_next_one_counts():
    drafter = PredictionDrafter([1, 2, 10, 3, 4, 1, 2, 20, 5, 6, 1, 2, 30])
    ask(drafter, [])
    assert ask(drafter, [1, 2, 10, 99, 1, 2], 1).token_ids == [20]


def test_f7_an_unrelated_text_proposes_nothing_once_it_is_lost():
    drafter = PredictionDrafter(PREDICTION)
    assert ask(drafter, []).token_ids
    assert ask(drafter, [5, 6, 7, 8]).token_ids == []
    assert ask(drafter, [5, 6, 7, 8, 9, 5]).token_ids == []


def test_it_ends_where_the_prediction_ends():
    drafter = PredictionDrafter(PREDICTION)
    assert ask(drafter, PREDICTION[:58], 8).token_ids == PREDICTION[58:]
    assert ask(drafter, PREDICTION).token_ids == []
    assert ask(drafter, [*PREDICTION, 3]).token_ids == []
    assert ask(PredictionDrafter([]), []).token_ids == []


def test_an_end_token_ends_the_draft():
    assert ask(PredictionDrafter([1, 2, 3]), [], eog_ids=[2]).token_ids == [1, 2]


def test_another_answer_begins_at_the_start_again():
    drafter = PredictionDrafter(PREDICTION)
    ask(drafter, PREDICTION[:10])
    assert ask(drafter, [], prompt=[*PROMPT, *PREDICTION[:10], 903]).token_ids == PREDICTION[:4]
    assert ask(drafter, PREDICTION[:2], prompt=[800]).token_ids == PREDICTION[2:6]
    assert ask(drafter, PREDICTION[:1], prompt=[800]).token_ids == PREDICTION[1:5]  # shorter: taken back
    assert ask(drafter, [], sequence=1).token_ids == PREDICTION[:4]
    drafter.release(0)
    assert ask(drafter, []).token_ids == PREDICTION[:4]
