"""Prompt files and the built-in set."""

import json
from pathlib import Path

import pytest

from specdec_cli.bench.prompts import load_prompts, parse_prompts
from specdec_cli.errors import SpecdecError, UsageError

GOOD = {"id": "x", "category": "c", "prompt": "text"}
MESSAGES = [{"role": "user", "content": "hello"}]


def line(**changes):
    entry = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return json.dumps(entry).encode()


def test_the_builtin_set_has_eight_categories_of_three():
    prompts = load_prompts()
    assert prompts.categories == ["chat", "code", "edit", "extract", "math", "rag", "story", "summarize"]
    assert len(prompts.prompts) == 24
    assert all(prompt.messages for prompt in prompts.prompts)
    edits = [prompt for prompt in prompts.prompts if prompt.category == "edit"]
    assert all(prompt.prediction and prompt.prediction.strip() in prompt.content for prompt in edits)


def test_the_prompts_of_the_development_set_load():
    path = Path(__file__).resolve().parents[3] / "shared" / "prompts" / "bench.jsonl"
    if not path.exists():
        pytest.skip(f"{path} not found")
    assert len(load_prompts(path).prompts) == 11


def test_messages_and_raw_prompts():
    data = line() + b"\n\n" + line(id="y", prompt=None, messages=MESSAGES, prediction="hi") + b"\n"
    raw, chat = parse_prompts(data, "f").prompts
    assert (raw.text, raw.messages, raw.content) == ("text", None, "text")
    assert (chat.text, chat.messages, chat.content, chat.prediction) == (None, tuple(MESSAGES), "hello", "hi")


def test_a_limit_keeps_the_first_of_each_category():
    prompts = load_prompts().limited(2)
    assert len(prompts.prompts) == 16
    assert prompts.prompts[:2] == load_prompts().prompts[:2]
    assert load_prompts().limited(None).prompts == load_prompts().prompts
    with pytest.raises(UsageError, match="--limit 0"):
        load_prompts().limited(0)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no prompts"),
        (b"\xff\xfe", "not UTF-8 text .at byte 0"),
        (b"{", "f, line 1: not JSON"),
        (b"[" * 100_000, "f, line 1: not JSON"),
        (b"[1]", "expected a JSON object, not list"),
        (line(id=None), '"id" must be a text'),
        (line(id=3), '"id" must be a text'),
        (line(category=""), '"category" must be a text'),
        (line(category="all"), "the name of the sum"),
        (line(extra=1), "unknown key 'extra'"),
        (line(messages=MESSAGES), 'either "messages" or "prompt"'),
        (line(prompt=None), 'either "messages" or "prompt"'),
        (line(prompt=None, messages=[]), '"messages" must be a list'),
        (line(prompt=None, messages=["hi"]), 'needs a "role"'),
        (line(prompt=None, messages=[{"role": "user"}]), 'needs a "content"'),
        (line(prediction=1), '"prediction" must be a text'),
        (line() + b"\n" + line(), "the id 'x' occurs twice"),
        (line() + b"\n" + b"nonsense", "f, line 2: not JSON"),
    ],
)
def test_what_is_wrong_is_named(data, complaint):
    with pytest.raises(SpecdecError, match=complaint):
        parse_prompts(data, "f")
