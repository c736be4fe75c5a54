"""One sentence for each situation."""

import pytest

from specdec_cli.bench.advice import advise, best_lengths
from specdec_cli.bench.rows import Row


def row(strategy, speedup, category="all", *, draft_max=None, equal=True):
    return Row(
        strategy=strategy,
        draft_max=draft_max,
        category=category,
        prompts=1,
        decode_tps=10.0,
        decode_tps_min=None,
        decode_tps_max=None,
        speedup=speedup,
        speedup_total=speedup,
        draft_acceptance_rate=None,
        acceptance_per_position=(),
        mean_acceptance_length=None,
        passes_per_token=None,
        draft_share=None,
        overhead_share=None,
        ceiling=None,
        equal=equal,
    )


@pytest.mark.parametrize(
    ("rows", "advice"),
    [
        (
            [row("none", 1.0), row("ngram", 1.1), row("draft", 1.8)],
            "Use --spec draft: it decodes 1.80 times as fast as plain decoding here.",
        ),
        (
            [row("none", 1.0), row("draft", 1.80), row("auto", 1.78)],
            "Use --spec auto: it decodes 1.78 times as fast as plain decoding here.",
        ),
        (
            [row("none", 1.0), row("draft", 1.3, draft_max=3), row("draft", 1.2, draft_max=4)],
            "Use --spec draft --draft-max 3: it decodes 1.30 times as fast as plain decoding here.",
        ),
        (
            [row("none", 1.0), row("draft+ngram", 1.3)],
            "Use --spec draft,ngram: it decodes 1.30 times as fast as plain decoding here.",
        ),
        (
            [row("none", 1.0), row("ngram", 1.2), row("draft", 0.7)],
            "Use --spec ngram: it decodes 1.20 times as fast as plain decoding here, "
            "but do not use the draft model (draft 0.70 times).",
        ),
        (
            [row("none", 1.0), row("ngram", 1.2), row("ngram", 1.5, "edit"), row("ngram", 0.9, "chat")],
            "Use --spec ngram: it decodes 1.20 times as fast as plain decoding here, "
            "although it loses on chat.",
        ),
        (
            [row("none", 1.0), row("draft", 0.8), row("draft", 0.8, "chat")],
            "Do not use a draft model here (draft 0.80 times); plain decoding is the fastest on all kinds of "
            "prompts.",
        ),
        (
            [row("none", 1.0), row("draft", 0.8), row("ngram", 1.0), row("ngram", 1.4, "edit")],
            "Do not use speculation here (draft 0.80 times, ngram 1.00 times); "
            "it pays only for some prompts, most with --spec ngram on edit (1.40 times).",
        ),
        (
            [row("none", 1.0), row("draft", 2.0, equal=False)],
            "Do not use draft before this is solved: the output differs from plain decoding, "
            "which is a bug of specdec and should be reported.",
        ),
        (
            [row("none", 1.0)],
            "Nothing to advise: a comparison needs the strategy none and at least one other.",
        ),
        (
            [row("none", None), row("draft", None)],
            "Nothing to advise: a comparison needs the strategy none and at least one other.",
        ),
    ],
)
def test_advice(rows, advice):
    assert advise(rows) == advice


def test_m3_the_best_length_of_a_sweep():
    rows = [
        row("none", 1.0),
        row("draft", 1.3, draft_max=1),
        row("draft", 1.6, draft_max=2),
        row("draft", 1.5, draft_max=3),
        row("draft", 9.0, "edit", draft_max=3),
        row("ngram", 1.1, draft_max=1),
        row("ngram", None, draft_max=2),
        row("auto", 1.7),
    ]
    assert best_lengths(rows) == {"draft": 2, "ngram": 1}
