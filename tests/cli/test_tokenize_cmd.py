"""`specdec tokenize`."""

import io
import json
import sys
from pathlib import Path

import pytest


class _Stdin(io.TextIOWrapper):
    pass


def stdin_of(data: bytes) -> io.TextIOWrapper:
    return _Stdin(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def model(tiny_gguf) -> str:
    return str(tiny_gguf("llama"))


def ids(out: str) -> list[list[int]]:
    return [json.loads(line)["ids"] for line in out.splitlines()]


def test_a_text(specdec, model: str) -> None:
    done = specdec("tokenize", "-m", model, "in the")
    assert (done.code, done.err) == (0, "")
    assert done.out == '{"ids": [261, 35, 260]}\n'


def test_control_tokens_are_text_unless_asked_for(specdec, model: str) -> None:
    plain = ids(specdec("tokenize", "-m", model, "<|im_end|>").out)[0]
    assert 2 not in plain
    assert bytes(i - 3 for i in plain) == b"<|im_end|>"
    assert ids(specdec("tokenize", "-m", model, "--special", "<|im_end|>").out) == [[2]]


def test_bos_only_where_the_model_wants_one(specdec, model: str, tiny_gguf) -> None:
    wanting = str(tiny_gguf("llama", metadata={"tokenizer.ggml.add_bos_token": True}))
    assert ids(specdec("tokenize", "-m", wanting, "in").out) == [[261]]
    assert ids(specdec("tokenize", "-m", wanting, "--bos", "in").out) == [[0, 261]]
    assert ids(specdec("tokenize", "-m", model, "--bos", "in").out) == [[261]]


def test_jsonl(specdec, model: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "in"}\n\n{"id": 7, "text": ""}\n{"text": "\\ud83d\\ude00\\n"}\n')
    done = specdec("tokenize", "-m", model, "--jsonl", str(file))
    first, empty, emoji = ids(done.out)
    assert (first, empty) == ([261], [])
    assert bytes(i - 3 for i in emoji).decode() == "😀\n"


def test_stdin(specdec, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(b"in"))
    assert ids(specdec("tokenize", "-m", model, "-").out) == [[261]]
    monkeypatch.setattr(sys, "stdin", stdin_of(b'{"text": "in"}\n'))
    assert ids(specdec("tokenize", "-m", model, "--jsonl", "-").out) == [[261]]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", ":2: not valid JSON"),
        ("[" * 100000, ":2: not valid JSON"),
        ('{"prompt": "x"}', ':2: no "text" that is a string'),
        ('{"text": 3}', ':2: no "text" that is a string'),
        ('["text"]', ':2: no "text" that is a string'),
        ('"text"', ':2: no "text" that is a string'),
    ],
)
def test_a_bad_line_is_named(specdec, model: str, tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "in"}\n' + line + "\n")
    done = specdec("tokenize", "-m", model, "--jsonl", str(file))
    assert done.code == 1
    assert done.err.startswith(f"error: {file}{complaint}")
    assert done.err.count("\n") == 1


def test_lines_that_are_no_utf8(specdec, model: str, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_bytes(b'{"text": "\xff"}\n')
    done = specdec("tokenize", "-m", model, "--jsonl", str(file))
    assert done.code == 1
    assert f"{file}:1: not valid JSON" in done.err


@pytest.mark.parametrize("arguments", [(), ("text", "--jsonl", "f")])
def test_a_text_or_a_file(specdec, arguments: tuple[str, ...]) -> None:
    done = specdec("tokenize", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "--jsonl" in done.err


def test_a_missing_file_is_said_before_a_model_is_fetched(specdec) -> None:
    done = specdec("tokenize", "-m", "missing.gguf", "--jsonl", "/nowhere/x.jsonl")
    assert (done.code, done.err) == (1, "error: /nowhere/x.jsonl: No such file or directory\n")


@pytest.mark.real
@pytest.mark.parametrize("column", ["ids", "ids_special"])
def test_ids_equal_the_reference(specdec, model_path, column: str) -> None:
    reference = Path(__file__).parents[3] / "shared" / "reference" / "tokens-smollm2-135m.jsonl"
    if not reference.exists():
        pytest.skip("the reference values are not here")
    special = ["--special"] if column == "ids_special" else []
    done = specdec("tokenize", "-m", str(model_path("smollm2-135m")), "--jsonl", str(reference), *special)
    expected = [json.loads(line)[column] for line in reference.read_text().splitlines()]
    assert ids(done.out) == expected
