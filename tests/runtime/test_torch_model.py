"""TorchModel as a LanguageModel: sequences, pending rows, limits."""

import numpy as np
import pytest
import torch

from specdec_cli.errors import ContextError, StoppedError, UsageError
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime import torch_model
from specdec_cli.runtime.torch_probe import Tilings

pytestmark = pytest.mark.torch


@pytest.fixture
def model(tiny_model):
    return tiny_model("llama", n_ctx=64)


def test_uncommitted_rows_leave_no_trace(model, lm):
    sequence = model.create_sequence()
    model.forward(chain_rows(sequence, 0, lm.ids[:5], 1))
    assert model.length(sequence) == 0
    model.forward(chain_rows(sequence, 0, lm.ids[:3], 1))
    model.commit(sequence, [0, 1])
    assert model.length(sequence) == 2


def test_rows_may_be_committed_in_steps(model, lm):
    sequence = model.create_sequence()
    model.forward(chain_rows(sequence, 0, lm.ids[:5], 1))
    model.commit(sequence, [0, 1])
    model.commit(sequence, [])
    model.commit(sequence, [2])
    assert model.length(sequence) == 3
    expected = lm.logits(model, lm.ids[:4], 4)[3:]
    assert np.array_equal(model.forward(chain_rows(sequence, 3, lm.ids[3:4], 1)), expected)


@pytest.mark.parametrize("rows", [[1], [0, 2], [0, 0], [5], [-1]])
def test_only_paths_from_the_root_can_be_committed(model, lm, rows):
    sequence = model.create_sequence()
    model.forward(chain_rows(sequence, 0, lm.ids[:5], 1))
    with pytest.raises(ValueError, match=r"row -?\d"):
        model.commit(sequence, rows)
    assert model.length(sequence) == 0


def test_rows_of_another_sequence_cannot_be_committed(model, lm):
    first, second = model.create_sequence(), model.create_sequence()
    model.forward(lm.join(chain_rows(first, 0, lm.ids[:2], 1), chain_rows(second, 0, lm.ids[:2], 1)))
    with pytest.raises(ValueError, match="row 2 is not a pending row"):
        model.commit(first, [2])
    model.commit(second, [2, 3])
    model.commit(first, [0])
    assert (model.length(first), model.length(second)) == (1, 2)


def test_pending_rows_are_dropped_by_truncate_free_and_forward(model, lm):
    first, second = model.create_sequence(), model.create_sequence()
    model.forward(lm.join(chain_rows(first, 0, lm.ids[:2], 1), chain_rows(second, 0, lm.ids[:2], 1)))
    model.truncate(first, 0)
    with pytest.raises(ValueError, match="no pending rows"):
        model.commit(first, [0])
    model.commit(second, [2])
    model.forward(chain_rows(first, 0, lm.ids[:2], 1))
    with pytest.raises(ValueError, match="row 2 is not a pending row"):
        model.commit(second, [2])


def test_d1_the_context_limit(model, lm):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:60], 60)
    assert model.forward(chain_rows(sequence, 60, lm.ids[60:64], 1)).shape == (1, model.n_vocab)
    with pytest.raises(ContextError, match="the context is full: 65 tokens do not fit into 64"):
        model.forward(chain_rows(sequence, 60, lm.ids[60:65], 1))
    lm.feed(model, sequence, lm.ids[60:64], 4)
    with pytest.raises(ContextError):
        model.forward(chain_rows(sequence, 64, lm.ids[64:65], 1))
    model.truncate(sequence, 10)
    assert model.forward(chain_rows(sequence, 10, lm.ids[10:20], 1)).shape == (1, model.n_vocab)


def test_a_tree_may_be_wider_than_the_room_that_its_paths_need(model, lm):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:63], 63)
    logits = model.forward(lm.tree(sequence, 63, [(5, -1), (6, -1), (7, -1)]))
    assert logits.shape == (3, model.n_vocab)


def test_many_sequences_grow_the_page_pool(tiny_model, lm):
    model = tiny_model("llama", n_ctx=64)
    plain = lm.logits(model, lm.ids[:40], 40)
    sequences = [model.create_sequence() for _ in range(9)]
    for sequence in sequences:
        lm.feed(model, sequence, lm.ids[:39], 39)
    for sequence in sequences:
        assert np.array_equal(model.forward(chain_rows(sequence, 39, lm.ids[39:40], 1)), plain[39:])


@pytest.mark.parametrize("token", [-1, 265])
def test_token_ids_outside_of_the_vocabulary_are_refused(model, token):
    sequence = model.create_sequence()
    with pytest.raises(ValueError, match="between 0 and 264"):
        model.forward(chain_rows(sequence, 0, [token], 1))


def test_an_unknown_sequence_is_refused(model):
    with pytest.raises(ValueError, match="no sequence has the handle 99"):
        model.forward(chain_rows(99, 0, [1], 1))


def test_a_condition_stops_a_forward(model, lm):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:20], 20)
    expected = lm.logits(model, lm.ids[:25], 25)[20:]
    asked = []
    model.stop_when(lambda: asked.append(1) or len(asked) > 3)
    with pytest.raises(StoppedError, match="cancelled"):
        model.forward(chain_rows(sequence, 20, lm.ids[20:25], 5))
    model.stop_when(lambda: False)
    assert (len(asked), model.length(sequence)) == (4, 20)
    assert np.array_equal(model.forward(chain_rows(sequence, 20, lm.ids[20:25], 5)), expected)


def test_an_interrupted_forward_leaves_the_model_usable(model, lm, monkeypatch):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:20], 20)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch_model, "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.forward(chain_rows(sequence, 20, lm.ids[20:25], 5))
    with pytest.raises(ValueError, match="no pending rows"):
        model.commit(sequence, [0])
    assert model.length(sequence) == 20
    expected = lm.logits(model, lm.ids[:25], 25)[20:]
    assert np.array_equal(model.forward(chain_rows(sequence, 20, lm.ids[20:25], 5)), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, 'device "cuda" is not available; available are cpu'),
        ({"n_ctx": 0}, "context size is 0"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_options_that_cannot_be_met_are_refused(tiny_model, options, message):
    with pytest.raises(UsageError, match=message):
        tiny_model("llama", **options)


def test_threads_that_change_bits_are_not_used(tiny_plan, monkeypatch):
    asked = []

    def probe_plan(plan, *, threads):
        asked.append(threads)
        return Tilings(thread_safe=threads == 1)

    monkeypatch.setattr(torch_model, "probe_plan", probe_plan)
    model = torch_model.TorchModel(tiny_plan("llama"), n_ctx=64, threads=2)
    assert model.threads == 1
    assert asked == [2, 1]
    model.forward(chain_rows(model.create_sequence(), 0, [5], 1))
    assert torch.get_num_threads() == 1


def test_loading_can_be_interrupted(tiny_plan):
    def interrupted(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torch_model.TorchModel(tiny_plan("llama"), n_ctx=64, threads=1, progress=interrupted)
