"""One sentence that says what to do on this machine with these models and prompts."""

from collections.abc import Mapping, Sequence

from specdec_cli.bench.harness import PLAIN
from specdec_cli.bench.prompts import ALL
from specdec_cli.bench.rows import Row

_PAYS = 1.03  # below that a gain is noise
_AUTO = "auto"
_DRAFT = "draft"


def advise(rows: Sequence[Row]) -> str:
    """The advice; the speed-ups in it are those of decoding, over all prompts unless a category is named."""
    overall = {row.label: row for row in rows if row.category == ALL and row.speedup is not None}
    unequal = [row.label for row in rows if row.category == ALL and not row.equal]
    if unequal:
        return (
            f"Do not use {_listed(unequal)} before this is solved: the output differs from plain decoding, "
            "which is a bug of specdec and should be reported."
        )
    candidates = {label: row.speedup or 0.0 for label, row in overall.items() if label != PLAIN}
    if PLAIN not in overall or not candidates:
        return "Nothing to advise: a comparison needs the strategy none and at least one other."
    best = max(candidates, key=candidates.__getitem__)
    if candidates.get(_AUTO, 0.0) >= candidates[best] / _PAYS:
        best = _AUTO  # as good, and it adapts to other prompts
    if candidates[best] < _PAYS:
        return f"{_refusal(candidates)} ({_figures(candidates)}); {_exception(rows)}."
    sentence = f"Use {_option(best)}: it decodes {candidates[best]:.2f} times as fast as plain decoding here"
    useless = [label for label in candidates if _names_draft(label) and candidates[label] < 1]
    if useless and not any(_names_draft(label) and candidates[label] >= _PAYS for label in candidates):
        figures = _figures({label: candidates[label] for label in useless})
        return f"{sentence}, but do not use the draft model ({figures})."
    losing = _losing_categories(rows, best)
    return f"{sentence}{f', although it loses on {losing}' if losing else ''}."


def best_lengths(rows: Sequence[Row]) -> dict[str, int]:
    """Of each strategy that was swept over draft lengths, the length with the largest speed-up over all."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.category == ALL and row.draft_max is not None and row.speedup is not None:
            known = best.get(row.strategy)
            if known is None or row.speedup > (known.speedup or 0.0):
                best[row.strategy] = row
    return {name: row.draft_max for name, row in best.items() if row.draft_max is not None}


def _refusal(candidates: Mapping[str, float]) -> str:
    only_draft = all(_names_draft(label) for label in candidates)
    return "Do not use a draft model here" if only_draft else "Do not use speculation here"


def _exception(rows: Sequence[Row]) -> str:
    """Where it would still pay, if anywhere."""
    paying = [r for r in rows if r.category != ALL and r.label != PLAIN and (r.speedup or 0.0) >= _PAYS]
    if not paying:
        return "plain decoding is the fastest on all kinds of prompts"
    best = max(paying, key=lambda row: row.speedup or 0.0)
    return f"it pays only for some prompts, most with {_option(best.label)} on {best.category} " + (
        f"({best.speedup:.2f} times)"
    )


def _losing_categories(rows: Sequence[Row], label: str) -> str:
    losing = [
        row.category
        for row in rows
        if row.label == label and row.speedup is not None and row.speedup < 1 / _PAYS
    ]
    return _listed(losing)


def _option(label: str) -> str:
    name, _, length = label.partition("@")
    return f"--spec {name.replace('+', ',')}" + (f" --draft-max {length}" if length else "")


def _names_draft(label: str) -> bool:
    return _DRAFT in label.partition("@")[0].split("+")


def _figures(candidates: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {speedup:.2f} times" for label, speedup in candidates.items())


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + (f" and {names[-1]}" if names else "")
