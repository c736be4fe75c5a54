"""`specdec score`, and the windows that it cuts."""

import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specdec_cli.errors import SpecdecError
from specdec_cli.protocols import FloatArray, Rows
from specdec_cli.scoring import log_probability, score_tokens, windows

N_VOCAB = 50


class Memory:
    """A model whose logits tell which tokens a row could see: a hash of the whole context."""

    n_vocab = N_VOCAB

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.held: dict[int, list[int]] = {}
        self.pending: list[int] = []
        self.most_outputs = 0

    @staticmethod
    def logits(context: Sequence[int]) -> FloatArray:
        return np.random.default_rng(list(context)).standard_normal(N_VOCAB).astype(np.float32)

    def create_sequence(self) -> int:
        self.held[len(self.held)] = []
        return len(self.held) - 1

    def free_sequence(self, sequence: int) -> None:
        self.held[sequence] = []

    def forward(self, rows: Rows) -> FloatArray:
        sequence = int(rows.sequences[0])
        self.pending = [int(i) for i in rows.token_ids]
        assert len(self.held[sequence]) + len(self.pending) <= self.n_ctx
        assert int(rows.positions[0]) == len(self.held[sequence])
        self.most_outputs = max(self.most_outputs, len(rows.outputs))
        contexts = [self.held[sequence] + self.pending[: int(i) + 1] for i in rows.outputs]
        return np.array([self.logits(c) for c in contexts], np.float32).reshape(-1, N_VOCAB)

    def commit(self, sequence: int, rows: Sequence[int]) -> None:
        self.held[sequence] += [self.pending[i] for i in rows]


def expected(ids: Sequence[int]) -> tuple[list[float], list[int]]:
    rows = [Memory.logits(ids[: i + 1]).astype(np.float64) for i in range(len(ids))]
    logprobs = [
        float(row[token] - np.log(np.exp(row).sum())) for row, token in zip(rows, ids[1:], strict=False)
    ]
    return logprobs, [int(row.argmax()) for row in rows]


def test_a_text_within_the_context() -> None:
    ids = np.random.default_rng(0).integers(0, N_VOCAB, 200).tolist()
    model = Memory(512)
    scores = score_tokens(model, ids)  # type: ignore[arg-type]
    logprobs, argmax = expected(ids)
    assert scores.token_ids == tuple(ids)
    assert scores.token_logprobs == pytest.approx(logprobs, abs=1e-9)
    assert list(scores.argmax) == argmax
    assert scores.mean_logprob == pytest.approx(sum(logprobs) / 199)
    assert scores.perplexity == pytest.approx(math.exp(-sum(logprobs) / 199))
    assert model.most_outputs <= 64  # logits of the whole text would not fit into memory
    assert not any(model.held.values())  # sequences are freed


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("n", [9, 10, 11, 25, 100, 101])
def test_windows_score_each_token_once_with_half_a_context(n: int, bos: bool) -> None:
    scored: list[int] = []
    for window in windows(n, 10, bos=bos):
        assert window.end - window.start + window.with_bos <= 10
        scored += range(window.new, window.end)
        if window.start:
            assert window.new - window.start >= 4
            assert window.with_bos is bos
    assert scored == list(range(n))


@pytest.mark.parametrize("bos", [False, True])
def test_a_text_longer_than_the_context(bos: bool) -> None:
    ids = [1, *np.random.default_rng(1).integers(2, N_VOCAB, 40).tolist()]
    scores = score_tokens(Memory(16), ids, bos_id=1 if bos else None)  # type: ignore[arg-type]
    assert len(scores.argmax) == 41
    assert len(scores.token_logprobs) == 40
    start, prefix = (16 - 7, [1]) if bos else (16 - 8, [])
    context = prefix + ids[start:17]  # what the first row of the second window sees
    assert scores.argmax[16] == int(Memory.logits(context).argmax())
    assert scores.token_logprobs[16] == pytest.approx(log_probability(Memory.logits(context), ids[17]))


def test_too_little_text_or_context() -> None:
    with pytest.raises(SpecdecError, match="nothing to score: the text has 1 tokens"):
        score_tokens(Memory(16), [3])  # type: ignore[arg-type]
    with pytest.raises(SpecdecError, match="a context of 3 tokens is too small"):
        score_tokens(Memory(3), [3, 4])  # type: ignore[arg-type]


def test_a_model_that_gives_nan() -> None:
    class Broken(Memory):
        @staticmethod
        def logits(context: Sequence[int]) -> FloatArray:
            return np.full(N_VOCAB, np.nan, np.float32)

    with pytest.raises(SpecdecError, match="no finite logits after token 0"):
        score_tokens(Broken(16), [3, 4])  # type: ignore[arg-type]


def test_log_probability_is_exact_for_large_logits() -> None:
    logits = np.array([1000.0, 999.0, -1000.0], np.float32)
    assert log_probability(logits, 0) == pytest.approx(-math.log1p(math.exp(-1)))
    assert log_probability(logits, 2) == pytest.approx(-2000 - math.log1p(math.exp(-1)))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the thin man in the inn\n")
    return path


@pytest.mark.torch
def test_json_has_ids_logprobs_and_argmax(specdec, tiny_gguf, text: Path) -> None:
    model = str(tiny_gguf("llama"))
    done = specdec("score", "-m", model, "-f", str(text), "--json", "--executor", "torch", "-t", "1")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    n = len(document["token_ids"])
    assert document["token_ids"] == json.loads(specdec("tokenize", "-m", model, text.read_text()).out)["ids"]
    assert (len(document["token_logprobs"]), len(document["argmax"])) == (n - 1, n)
    mean = math.fsum(document["token_logprobs"]) / (n - 1)
    assert document["perplexity"] == pytest.approx(math.exp(-mean))
    assert document["settings"]["executor"] == "torch"


@pytest.mark.torch
def test_summary_names_windows(specdec, tiny_gguf, text: Path) -> None:
    arguments = ("-m", str(tiny_gguf("llama")), "-f", str(text), "--executor", "torch", "-t", "1")
    whole, cut = specdec("score", *arguments), specdec("score", *arguments, "-c", "8")
    assert whole.out.startswith("perplexity ")
    assert "windows" not in whole.out
    assert "in windows of 8 tokens" in cut.out


@pytest.mark.torch
def test_the_bos_is_part_of_the_text_where_the_model_wants_one(
    specdec, tiny_gguf, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(tiny_gguf("llama", metadata={"tokenizer.ggml.add_bos_token": True}))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"in the"), encoding="utf-8"))
    done = specdec("score", "-m", model, "-f", "-", "--json", "--executor", "torch", "-t", "1")
    assert json.loads(done.out)["token_ids"] == [0, 261, 35, 260]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ((), 2, "no text: give a file with -f FILE"),
        (("-f", "/nowhere/t.txt"), 1, "/nowhere/t.txt: No such file or directory"),
        (("-f", "TEXT", "-c", "-1"), 2, "-c -1: expected a number of tokens"),
        (("-f", "LATIN"), 1, "not UTF-8 text (at byte 1)"),
        (("-f", "TEXT", "-m", "missing.gguf"), 1, "no such file: missing.gguf"),
    ],
)
def test_wrong_usage(
    specdec, text: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"a\xe4")
    names = {"TEXT": str(text), "LATIN": str(latin)}
    done = specdec("score", *(names.get(a, a) for a in arguments))
    assert (done.code, done.out) == (code, "")
    assert complaint in done.err
    assert done.err.count("\n") == 1


@pytest.mark.real
@pytest.mark.torch
@pytest.mark.parametrize("passage", ["story", "code"])
def test_scores_equal_the_reference(specdec, model_path, tmp_path: Path, passage: str) -> None:
    reference = Path(__file__).parents[3] / "shared" / "reference" / "fp32-smollm2-135m.json"
    if not reference.exists():
        pytest.skip("the reference values are not here")
    wanted = json.loads(reference.read_text())[passage]
    text = tmp_path / "text.txt"
    text.write_text(_decode(model_path("smollm2-135m"), wanted["ids"]))
    done = specdec(
        "score",
        "-m",
        str(model_path("smollm2-135m")),
        "-f",
        str(text),
        "--json",
        "--executor",
        "torch",
        "-t",
        "2",
    )
    document = json.loads(done.out)
    assert document["token_ids"] == wanted["ids"]
    difference = np.abs(np.subtract(document["token_logprobs"], wanted["token_logprobs"]))
    assert float(difference.mean()) < 0.002
    assert np.mean(np.equal(document["argmax"], wanted["argmax"])) > 0.995


def _decode(path: Path, ids: Sequence[int]) -> str:
    from quant.gguf_file import GgufFile
    from specdec_cli.text.tokenizer import Tokenizer

    with GgufFile.open(path) as file:
        return Tokenizer.from_gguf(file.metadata).decode(ids)
