"""The controller in the engine: whatever it chooses, the text is that of plain decoding."""

import pytest

from specdec_cli.decoding.controller import Controller
from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.drafters.prediction import PredictionDrafter
from specdec_cli.decoding.drafters.suffix import SuffixDrafter
from specdec_cli.engine import Engine, FinishEvent, GenerationRequest
from specdec_cli.sampling.params import SamplingParams

N_VOCAB = 24
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


def request(*, temperature=0.0, max_tokens=300, prompt=PROMPT):
    return GenerationRequest(
        prompt, SamplingParams(temperature=temperature, seed=11), max_tokens=max_tokens, eog_ids=frozenset()
    )


@pytest.fixture
def world(toy):
    """Logits, and all drafters over a blurred copy of them."""
    logits = toy.table(5, N_VOCAB)

    def drafters():
        draft = DraftModelDrafter(toy.Model(toy.blurred(logits, 1, 1.0), N_VOCAB))
        return [PredictionDrafter([1, 2, 3, 4] * 10), SuffixDrafter(), draft]

    return logits, drafters


class Chaos(Controller):
    """A controller whose clock runs wild: its choices are as good as random."""

    def observe(self, report):
        factor = 0.2 + (7 * self.acceptance.now) % 11
        report = type(report)(
            report.num_rows,
            report.num_prompt_rows,
            report.forward_ms * factor,
            report.total_ms * factor,
            report.outcomes,
        )
        super().observe(report)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", [Controller, Chaos])
def test_output_does_not_depend_on_its_choices(toy, world, policy, temperature):
    logits, drafters = world
    expected = toy.plain(logits, N_VOCAB, request(temperature=temperature))
    engine = Engine(toy.Model(logits, N_VOCAB), token_bytes=toy.letters, drafters=drafters(), policy=policy())
    for _ in range(2):  # the second time it knows the costs
        assert toy.run(engine, request(temperature=temperature)).token_ids == expected.token_ids


def test_several_sequences_share_a_controller(toy, world):
    logits, drafters = world
    prompts = [PROMPT[i:] for i in range(4)]
    expected = [toy.plain(logits, N_VOCAB, request(prompt=p, max_tokens=80)).token_ids for p in prompts]
    policy = Controller()
    engine = Engine(toy.Model(logits, N_VOCAB), token_bytes=toy.letters, drafters=drafters(), policy=policy)
    numbers = [engine.submit(request(prompt=p, max_tokens=80)) for p in prompts]
    results = {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, FinishEvent):
                results[event.sequence] = event.result.token_ids
    assert [results[number] for number in numbers] == expected
    assert len(policy._rounds) <= len(prompts)  # nothing is kept of finished sequences but the last decision


def test_it_says_why_a_short_answer_was_plain(toy, world):
    logits, drafters = world
    policy = Controller()
    engine = Engine(toy.Model(logits, N_VOCAB), token_bytes=toy.letters, drafters=drafters(), policy=policy)
    toy.run(engine, request(max_tokens=2))
    assert policy.explain() == "plain: too short to learn what drafts would cost"
