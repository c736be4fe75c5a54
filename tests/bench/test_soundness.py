"""Warnings about prompts and answers that say little."""

import numpy as np

from specdec_cli.bench.soundness import is_random, machine_warnings, prompt_warnings, run_warnings

N_VOCAB = 500


def counting(toy):
    """A model that expects each token to be one more than the last, with probability near 1."""

    def logits(prefix):
        row = np.zeros(N_VOCAB, np.float32)
        row[(prefix[-1] + 1) % N_VOCAB] = 12.0
        return row

    return toy.Model(logits, N_VOCAB)


def test_what_the_target_expects_is_not_random(toy):
    model = counting(toy)
    assert not is_random(model, range(40))
    assert is_random(model, np.random.default_rng(0).integers(N_VOCAB, size=40).tolist())
    assert not is_random(model, [5, 1, 9])  # too short to tell


def test_only_the_beginning_is_scored(toy):
    model = counting(toy)
    is_random(model, list(range(400)))
    assert sum(len(rows.token_ids) for rows in model.forwards) == 96
    assert model.sequences == {}


def test_warnings_about_prompts(toy):
    good = {str(i): list(range(i, i + 20)) for i in range(4)}
    assert prompt_warnings(good, counting(toy)) == []
    noise = np.random.default_rng(0).integers(N_VOCAB, size=40).tolist()
    few, tiny, random = prompt_warnings({"good": good["0"], "t": [1, 2], "r": noise}, counting(toy))
    assert few.startswith("3 prompts are few")
    assert tiny.endswith(": t")
    assert "read like random tokens" in random
    assert random.endswith(": r")


def test_long_lists_are_cut(toy):
    (tiny,) = prompt_warnings({str(i): [1] for i in range(8)}, counting(toy))
    assert tiny.endswith("0, 1, 2, 3, 4 and 3 more")


def test_a_busy_machine():
    assert machine_warnings(1.0, 2) == []
    (warning,) = machine_warnings(1.5, 2)
    assert "load average 1.5 on 2 cores" in warning


def test_short_answers(toy):
    assert run_warnings([toy.run(ids=tuple(range(16)))]) == []
    (warning,) = run_warnings([toy.run(ids=(1, 2)), toy.run(ids=(1, 2, 3, 4))])
    assert "median 3 tokens" in warning
