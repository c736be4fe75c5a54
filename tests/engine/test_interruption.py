"""Consumers that stop early, cancels from elsewhere, several consumers at once."""

import threading

import pytest

from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.engine import Engine, EngineOptions, FinishEvent, GenerationRequest, TokenEvent
from specdec_cli.errors import StoppedError
from specdec_cli.sampling.params import SamplingParams

N_VOCAB = 16
GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def parts(toy):
    target, draft = toy.Model(toy.table(1, N_VOCAB), N_VOCAB), toy.Model(toy.table(1, N_VOCAB), N_VOCAB)
    options = EngineOptions(prefill_chunk=4)
    engine = Engine(target, token_bytes=toy.letters, drafters=[DraftModelDrafter(draft)], options=options)
    return engine, target, draft


def test_breaking_out_after_three_tokens_frees_everything(toy, parts):
    engine, target, draft = parts
    tokens = []
    for event in engine.generate(GenerationRequest((1, 2, 3), GREEDY, 100)):
        tokens.append(event.token_id)
        if len(tokens) == 3:
            break
    assert not engine.busy
    assert (target.sequences, draft.sequences) == ({}, {})
    again = toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 100))
    assert list(again.token_ids[:3]) == tokens
    assert (
        again.token_ids
        == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, GenerationRequest((1, 2, 3), GREEDY, 100)).token_ids
    )


def test_an_iterator_that_is_never_started_holds_nothing(parts):
    engine, target, _ = parts
    engine.generate(GenerationRequest((1, 2, 3), GREEDY, 100)).close()
    assert not engine.busy
    assert target.sequences == {}


def test_an_exception_in_the_consumer_frees_everything(parts):
    engine, target, draft = parts

    def consume():
        for number, _ in enumerate(engine.generate(GenerationRequest((1, 2, 3), GREEDY, 100))):
            if number == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert (target.sequences, draft.sequences) == ({}, {})


def test_an_interrupt_inside_the_model_leaves_a_clean_engine(toy, parts):
    engine, target, draft = parts

    def interrupt():
        if len(target.forwards) == 3:
            raise KeyboardInterrupt

    target.before_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(engine.generate(GenerationRequest((1, 2, 3), GREEDY, 100)))
    assert (target.sequences, draft.sequences, engine.busy) == ({}, {}, False)
    target.before_forward = lambda: None
    assert len(toy.run(engine, GenerationRequest((1, 2, 3), GREEDY, 10)).token_ids) == 10


def test_cancel_between_rounds(parts):
    engine, target, _ = parts
    stream = engine.generate(GenerationRequest((1, 2, 3), GREEDY, 100, stop=("zzz",)))
    events = [next(stream) for _ in range(4)]
    engine.cancel()
    events += list(stream)
    last = events[-1]
    assert isinstance(last, FinishEvent)
    assert last.finish_reason == "cancelled"
    assert last.result.token_ids == tuple(event.token_id for event in events[:-1])
    assert "".join(event.text for event in events) == last.result.text
    assert len(events) < 10
    assert target.sequences == {}


def test_cancel_between_pieces_of_a_prompt(parts):
    engine, target, _ = parts
    pieces = []

    def progress(done, total):
        pieces.append(done)
        if done == 8:
            engine.cancel()

    events = list(engine.generate(GenerationRequest((1,) * 100, GREEDY, 10), progress))
    assert pieces == [0, 4, 8]
    (finish,) = events
    assert (finish.finish_reason, finish.result.token_ids) == ("cancelled", ())
    assert finish.result.timings.ttft_ms is None
    assert target.sequences == {}


def stoppable(toy, stops):
    """A toy model that is stopped in the middle of its passes, as executors are."""

    class StoppableModel(toy.Model):
        wanted = staticmethod(lambda: False)

        def stop_when(self, condition):
            self.wanted = condition

        def forward(self, rows):
            logits = super().forward(rows)
            if self.wanted():
                stops.append(len(rows.token_ids))
                self._pending.clear()
                raise StoppedError("the computation was cancelled")
            return logits

    return StoppableModel(toy.table(1, N_VOCAB), N_VOCAB)


@pytest.mark.parametrize("who", ["target", "draft"])
def test_a_cancel_stops_the_pass_in_progress_and_keeps_the_session(toy, who):
    stops, notices = [], []
    models = {"target": stoppable(toy, stops), "draft": stoppable(toy, stops)}
    drafter = DraftModelDrafter(models["draft"])
    engine = Engine(
        models["target"], token_bytes=toy.letters, drafters=[drafter], on_notice=notices.append,
        options=EngineOptions(prefill_chunk=64),
    )  # fmt: skip
    first = GenerationRequest((1, 2, 3), GREEDY, 5, session="chat")
    answer = toy.run(engine, first).token_ids
    prompt = (*first.prompt_ids, *answer, *range(1, 15), *range(1, 15))
    second = GenerationRequest(prompt, GREEDY, 20, session="chat")
    forwards = len(models[who].forwards)
    models[who].before_forward = lambda: engine.cancel() if len(models[who].forwards) == forwards else None
    *tokens, finish = engine.generate(second)
    assert finish.finish_reason == "cancelled"
    assert len(tokens) == (0 if who == "target" else 1)  # nothing is drafted beside a prompt
    assert len(stops) == 1
    assert notices == []  # a drafter that was stopped has not failed
    models[who].before_forward = lambda: None
    again = toy.run(engine, second)
    assert again.token_ids == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, second).token_ids
    assert again.timings.prompt_reused_n >= 7  # what was committed before the cancel is still there
    engine.close()
    assert (models["target"].sequences, models["draft"].sequences) == ({}, {})


def test_a_cancel_of_one_does_not_stop_the_pass_of_others(toy):
    stops = []
    model = stoppable(toy, stops)
    engine = Engine(model, token_bytes=toy.letters)
    request = GenerationRequest((1, 2, 3), GREEDY, 10)
    numbers = [engine.submit(request) for _ in range(2)]
    model.before_forward = lambda: engine.cancel(numbers[0])
    events = []
    while engine.busy:
        events += engine.step()
    finished = {e.sequence: e.finish_reason for e in events if isinstance(e, FinishEvent)}
    assert finished == {numbers[0]: "cancelled", numbers[1]: "length"}
    assert stops == []


def test_cancel_from_another_thread(parts):
    engine, target, _ = parts

    def cancel_once():
        if len(target.forwards) == 20:
            thread = threading.Thread(target=engine.cancel)
            thread.start()
            thread.join()

    target.before_forward = cancel_once
    *tokens, finish = engine.generate(GenerationRequest((1, 2, 3), GREEDY, 3000))
    assert finish.finish_reason == "cancelled"
    assert 20 <= len(tokens) < 200


def test_cancel_of_one_leaves_the_others(toy, parts):
    engine, target, _ = parts
    request = GenerationRequest((1, 2, 3), GREEDY, 30)
    numbers = [engine.submit(request) for _ in range(3)]
    events = engine.step()
    engine.cancel(numbers[1])
    while engine.busy:
        events += engine.step()
    finished = {e.sequence: e for e in events if isinstance(e, FinishEvent)}
    assert [finished[n].finish_reason for n in numbers] == ["length", "cancelled", "length"]
    assert (
        finished[numbers[0]].result.token_ids == toy.plain(toy.table(1, N_VOCAB), N_VOCAB, request).token_ids
    )
    assert target.sequences == {}


def test_cancel_of_a_waiting_request(toy):
    model = toy.Model(toy.table(1, N_VOCAB), N_VOCAB)
    engine = Engine(model, token_bytes=toy.letters, options=EngineOptions(max_sequences=1))
    first, second = (engine.submit(GenerationRequest((1, 2), GREEDY, 3)) for _ in range(2))
    engine.cancel(second)
    events = []
    while engine.busy:
        events += engine.step()
    finished = {e.sequence: e.finish_reason for e in events if isinstance(e, FinishEvent)}
    assert finished == {first: "length", second: "cancelled"}
    assert model._next == 1  # the second never got a KV


def test_cancel_of_strangers_is_ignored(parts):
    engine, _, _ = parts
    engine.cancel(77)
    engine.cancel()
    engine.discard(77)
    assert not engine.busy


def test_two_streams_side_by_side(toy, parts):
    engine, target, _ = parts
    requests = [GenerationRequest((1, 2, 3), GREEDY, 20), GenerationRequest((4, 5), GREEDY, 9)]
    streams = [engine.generate(request) for request in requests]
    heard = [[], []]
    while any(streams):
        for i, stream in enumerate(streams):
            event = next(stream, None) if stream else None
            if event is None:
                streams[i] = None
            else:
                heard[i].append(event)
    for events, request in zip(heard, requests, strict=True):
        expected = toy.plain(toy.table(1, N_VOCAB), N_VOCAB, request).token_ids
        assert tuple(e.token_id for e in events if isinstance(e, TokenEvent)) == expected
        assert events[-1].result.token_ids == expected
    assert target.sequences == {}


def test_a_stream_beside_submitted_requests(toy, parts):
    engine, _, _ = parts
    submitted = engine.submit(GenerationRequest((4, 5), GREEDY, 5))
    streamed = list(engine.generate(GenerationRequest((1, 2, 3), GREEDY, 20)))
    others = engine.step()
    assert {e.sequence for e in others} == {submitted}
    assert isinstance(others[-1], FinishEvent)
    assert len(streamed) == 21
