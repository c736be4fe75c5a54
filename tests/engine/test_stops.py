"""Where generations end, and that text, tokens and log-probabilities are cut at the same place (groups B
and K).
"""

import pytest

from specdec_cli.decoding.drafters.ngram import NgramDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, GenerationRequest, TokenEvent
from specdec_cli.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0)


def spell(pieces):
    """Token bytes from a list: token i writes pieces[i]."""
    encoded = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    return lambda token_id: encoded[token_id]


def block_engine(toy, pieces, wanted, *, prompt_length=1, k=16):
    """A target that wants `wanted` and a drafter that is always right: everything comes in blocks of k."""
    return Engine(
        toy.Model(toy.script(prompt_length, wanted, len(pieces)), len(pieces)),
        token_bytes=spell(pieces),
        drafters=[toy.Scripted(toy.oracle(prompt_length, wanted))],
        policy=FixedDraftLength(k),
    )


def both_ways(toy, pieces, wanted, request, k=16):
    """Result in blocks and result token by token; they must be equal."""
    blocks = toy.run(block_engine(toy, pieces, wanted, k=k), request)
    single = toy.run(block_engine(toy, pieces, wanted, k=0), request)
    assert blocks.stats.num_accepted_tokens > 0
    assert (blocks.token_ids, blocks.text, blocks.finish_reason, blocks.logprobs) == (
        single.token_ids,
        single.text,
        single.finish_reason,
        single.logprobs,
    )
    return blocks


def test_b1_stop_in_the_first_accepted_block(toy):
    pieces = ["", "a", "b", "STOP", "x", "y", "z"]
    request = GenerationRequest((0,), GREEDY, 5, stop=("STOP",))
    result = both_ways(toy, pieces, [1, 2, 3, 4, 5, 6], request)
    assert (result.token_ids, result.text, result.finish_reason) == ((1, 2, 3), "ab", "stop")


def test_b2_end_token_beyond_the_limit(toy):
    request = GenerationRequest((0,), GREEDY, 3, eog_ids=frozenset({5}))
    result = both_ways(toy, list("-abcde"), [1, 2, 3, 5, 4], request)
    assert (len(result.token_ids), result.finish_reason) == (3, "length")


def test_b3_earliest_stop_wins(toy):
    request = GenerationRequest((0,), GREEDY, 20, stop=("a", "is", ","))
    result = both_ways(toy, ["", " user", " is", " a", "!"], [1, 2, 3, 4], request)
    assert result.text == " user "


def test_b4_stop_early_in_a_block_of_sixteen(toy):
    pieces = ["", "S", "T", "OP", *"abcdefghijklm"]
    request = GenerationRequest((0,), GREEDY, 40, stop=("STOP",))
    result = both_ways(toy, pieces, [4, 1, 2, 3, *range(4, 16)], request)
    assert (result.text, len(result.token_ids)) == ("a", 4)


def test_b5_nothing_of_a_stop_is_streamed(toy):
    pieces = ["ABC", *"DEFGHIJK"]
    engine = block_engine(toy, pieces, [1, 2, 3, 4, 5, 6, 7, 8])
    events = list(engine.generate(GenerationRequest((0,), GREEDY, 20, stop=("DEFGHIJ",))))
    assert [event.text for event in events] == [""] * 8
    assert events[-1].result.token_ids == (1, 2, 3, 4, 5, 6, 7)


def test_b6_tokens_logprobs_and_text_are_cut_together(toy):
    request = GenerationRequest((0,), GREEDY, 20, stop=("cd",), logprobs=2)
    result = both_ways(toy, list("-abcdef"), [1, 2, 3, 4, 5, 6], request)
    assert (result.token_ids, result.text) == ((1, 2, 3, 4), "ab")
    assert [entry.token_id for entry in result.logprobs] == [1, 2, 3, 4]


@pytest.mark.parametrize("max_tokens", range(8, 33))
def test_b7_exactly_as_many_tokens_as_asked(toy, max_tokens):
    request = GenerationRequest((0,), GREEDY, max_tokens)
    engine = block_engine(toy, list("-abc"), [1, 2, 3] * 20)
    events = list(engine.generate(request))
    assert sum(isinstance(event, TokenEvent) for event in events) == max_tokens
    result = events[-1].result
    assert len(result.token_ids) == len(result.text) == result.timings.predicted_n == max_tokens
    assert result.finish_reason == "length"


def test_b9_a_prompt_that_contains_an_end_token(toy):
    """The lookup finds `1 2 EOG 3 4` and would draft beyond the end."""
    eog = 9
    prompt = (1, 2, 3, eog, 4, 5, 6, 0, 1, 2)
    model = toy.Model(toy.script(len(prompt), [3, eog, 4, 5, 6], 10), 10)
    engine = Engine(
        model, token_bytes=toy.letters, drafters=[NgramDrafter(min_match=2)], policy=FixedDraftLength(8)
    )
    result = toy.run(engine, GenerationRequest(prompt, GREEDY, 50, eog_ids=frozenset({eog})))
    assert (result.token_ids, result.finish_reason) == ((3, eog), "stop")
    assert result.stats.num_draft_tokens == 2


def test_all_end_tokens_count(toy):
    """B10: both the end of a text and the end of a turn."""
    for eog in (7, 8):
        request = GenerationRequest((0,), GREEDY, 20, eog_ids=frozenset({7, 8}))
        result = both_ways(toy, list("-abcdefgh"), [1, 2, eog, 3], request)
        assert result.token_ids == (1, 2, eog)


def test_ignore_eos_never_emits_an_end_token(toy):
    request = GenerationRequest((0,), GREEDY, 6, eog_ids=frozenset({5}), ignore_eos=True)
    result = toy.run(block_engine(toy, list("-abcde"), [1, 2, 5, 3]), request)
    assert 5 not in result.token_ids
    assert (len(result.token_ids), result.finish_reason) == (6, "length")


EMOJI = "😀".encode()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 16])
@pytest.mark.parametrize(
    "pieces",
    [[EMOJI[:2], EMOJI[2:]], [EMOJI[i : i + 1] for i in range(4)], [b"a" + EMOJI[:3], EMOJI[3:] + b"b"]],
    ids=["2+2", "1+1+1+1", "with-text"],
)
def test_k1_characters_across_the_edges_of_accepted_blocks(toy, pieces, k):
    vocabulary = [b"", b"x", *pieces]
    emoji = list(range(2, len(vocabulary)))
    wanted = [1, *emoji, *emoji, 1, *emoji]
    engine = block_engine(toy, vocabulary, wanted, k=k)
    events = list(engine.generate(GenerationRequest((0,), GREEDY, len(wanted))))
    expected = b"".join(vocabulary[i] for i in wanted).decode()
    assert "".join(event.text for event in events) == events[-1].result.text == expected
    assert all("\ufffd" not in event.text for event in events)


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_k2_ending_inside_a_character_gives_one_replacement(toy, max_tokens):
    vocabulary = [b"", EMOJI[:1], EMOJI[1:2], EMOJI[2:3], EMOJI[3:]]
    result = toy.run(block_engine(toy, vocabulary, [1, 2, 3, 4]), GenerationRequest((0,), GREEDY, max_tokens))
    assert result.text == "\ufffd"


def test_asking_for_no_token_ends_at_once(toy):
    model = toy.Model(toy.constant([0.5, 0.5]), 2)
    result = toy.run(Engine(model, token_bytes=toy.letters), GenerationRequest((0,), GREEDY, 0))
    assert (result.token_ids, result.text, result.finish_reason) == ((), "", "length")
    assert result.timings.ttft_ms is None
    assert model.sequences == {}
    assert model.forwards == []
