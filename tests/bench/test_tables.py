"""Text forms of a report."""

import csv
import io
import json

import pytest

from specdec_cli.bench.chart import bar, print_chart
from specdec_cli.bench.passes import PassTotals
from specdec_cli.bench.report import as_document, make_report
from specdec_cli.bench.tables import comma_separated, markdown
from specdec_cli.decoding.stats import SpecStats

SETTINGS = {
    "model": "target.gguf",
    "model_fingerprint": "0123456789abcdef",
    "draft_model": "draft.gguf",
    "draft_model_fingerprint": "fedcba9876543210",
    "threads": 2,
    "executor": "native",
    "n_predict": 64,
    "sampling": {"temperature": 0.0},
    "seed": 7,
    "repetitions": 3,
    "warm_up": 1,
    "prompts": {"name": "built-in", "sha256": "00", "count": 1},
}
MACHINE = {"cpu": "A CPU", "isa": "avx2", "specdec": "1.0"}


@pytest.fixture
def report(toy):
    stats = SpecStats(num_rounds=2, num_round_tokens=3)
    stats.drafter("draft").record([0, 1], 1)
    passes = PassTotals(num_passes=1, forward_ms=30, draft_ms=10, num_tried=2, num_accepted=1)
    runs = [
        toy.run(),
        *(
            toy.run(strategy="draft", draft_max=k, predicted_ms=50, stats=stats, passes=passes)
            for k in (2, 4)
        ),
    ]
    t_ms = {1: 10.0, 2: 11.0}
    return make_report(
        runs, [], t_ms=t_ms, settings=SETTINGS, machine=MACHINE, contest=lambda _: pytest.fail("no fork")
    )


def test_markdown_has_every_row_and_what_belongs_to_a_claim(report):
    lines = markdown(report, str).splitlines()
    assert lines[0] == "- model target.gguf (0123456789ab)"
    assert lines[1] == "- draft model draft.gguf (fedcba987654)"
    assert lines[2] == "- A CPU, avx2, 2 threads, executor native, specdec 1.0"
    assert "1 prompts of built-in, 64 tokens each at most, temperature 0, seed 7" in lines[3]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert [row[:2] for row in cells[2:]] == [
        [category, label] for category in ("chat", "all") for label in ("none", "draft@2", "draft@4")
    ]
    assert cells[3][2:] == [
        "1", "40.0", "2.00", "1.50", "50.0 %", "1.50", "0.667", "20.0 %", "20.0 %", "1.36", "yes",
    ]  # fmt: skip
    assert cells[2][6] == "n/a"
    assert "- acceptance rate at positions 1 to 2, draft@2: 1.00 0.00" in lines
    assert "- t(1) 10.00 ms; t(M)/t(1) of the target for M = 2: 1.10" in lines
    assert "- ceiling with all drafts accepted and free: 1.82 x plain" in lines
    assert "- best draft length of draft: 2 (2.00 x plain)" in lines
    assert lines[-1] == report.advice


def test_comma_separated_values_have_the_keys_of_json(report):
    rows = list(csv.DictReader(io.StringIO(comma_separated(report))))
    assert len(rows) == 6
    assert list(rows[0]) == list(as_document(report, str)["rows"][0])
    assert rows[1]["strategy"] == "draft"
    assert rows[1]["draft_max"] == "2"
    assert rows[1]["acceptance_per_position"] == "1 0"
    assert rows[0]["draft_acceptance_rate"] == ""
    assert rows[0]["equal"] == "true"


def test_the_document_holds_rows_settings_and_raw_records(report):
    document = json.loads(json.dumps(as_document(report, str), allow_nan=False))
    assert set(document["rows"][0]) >= {
        "strategy", "category", "prompts", "decode_tps", "speedup", "draft_acceptance_rate",
        "mean_acceptance_length", "equal",
    }  # fmt: skip
    assert document["settings"] == SETTINGS
    assert document["machine"] == MACHINE
    assert document["t_ratio"] == {"1": 1.0, "2": 1.1}
    assert document["ceiling"] == 1.818
    assert document["best_draft_length"] == {"draft": 2}
    assert len(document["runs"]) == 3
    run = document["runs"][1]
    assert (run["prompt"], run["predicted_n"], run["predicted_ms"], run["target_ms"]) == ("p", 3, 50, 30)
    assert run["speculative_decoding"]["num_draft_tokens"] == 2
    assert len({run["token_ids_sha256"] for run in document["runs"]}) == 1


@pytest.mark.parametrize(
    ("share", "drawn"), [(0, ""), (1, "████"), (0.5, "██"), (0.28, "█▏"), (7, "████"), (-1, "")]
)
def test_bars(share, drawn):
    assert bar(share, 4) == drawn


def test_the_chart_shows_every_strategy_but_plain(report):
    stream = io.StringIO()
    print_chart(report.rows, stream)
    drawn = stream.getvalue()
    assert drawn.count("draft@2") == drawn.count("draft@4") == 2
    assert drawn.count("2.00  " + "█" * 40) == 4
    assert "none" not in drawn


def test_no_chart_without_speculation(report):
    stream = io.StringIO()
    print_chart([row for row in report.rows if row.label == "none"], stream)
    assert stream.getvalue() == ""
