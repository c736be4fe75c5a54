"""`specdec models`: list, fetch, inspect and pair models."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli.fetching import fetch_model, load_tokenizer
from specdec_cli.cli.options import DebugOption, option
from specdec_cli.cli.plain import one_line, print_json, print_text, table
from specdec_cli.errors import ModelError, PairingError
from specdec_cli.registry import Catalog, ModelEntry, PairingReport, check_pairing, find_local, load_catalog
from specdec_cli.registry.progress import format_bytes
from specdec_cli.registry.resolve import resolve_model

if TYPE_CHECKING:
    from specdec_cli.registry.describe import Description

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
models_app = app

_MODEL_HELP = "GGUF file, directory, alias or hf:OWNER/REPO[:FILE]."
JsonOption = Annotated[bool, option("--json", help="Print one JSON document.")]


def _entry_json(entry: ModelEntry, catalog: Catalog) -> dict[str, Any]:
    path = find_local(entry)
    draft = catalog.draft_for(entry.alias)
    return {
        "alias": entry.alias,
        "file": entry.file,
        "size": entry.size,
        "sha256": entry.sha256,
        "path": str(path) if path else None,
        "default": entry.alias == catalog.default,
        "draft_model": draft.alias if draft else None,
        "license": entry.license,
        "description": entry.description,
        "sources": [str(source) for source in entry.sources],
    }


@app.command("list")
def list_models(json_output: JsonOption = False, debug: DebugOption = False) -> None:  # noqa: ARG001
    """List known models, which are here, and their draft models."""
    catalog = load_catalog()
    entries = [_entry_json(entry, catalog) for entry in catalog.models.values()]
    if json_output:
        print_json(entries, indent=2)
        return
    rows = [("MODEL", "SIZE", "HERE", "DRAFT MODEL", "DESCRIPTION")]
    for entry in entries:
        here = "yes" if entry["path"] else "-"
        description = entry["description"] + (" (default)" if entry["default"] else "")
        draft = entry["draft_model"] or "-"
        rows.append((entry["alias"], format_bytes(entry["size"]), here, draft, one_line(description)))
    print_text(table(rows, right=frozenset({1})))


@app.command("pull")
def pull_models(
    names: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Alias or hf:OWNER/REPO[:FILE].")],
    with_draft: Annotated[
        bool, option("--with-draft", help="Also fetch the draft model that is paired with it.")
    ] = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Download and verify models, and print where they are."""
    catalog = load_catalog()
    for name in names:
        draft = catalog.draft_for(name) if with_draft else None
        if with_draft and draft is None:
            raise PairingError(f"no draft model is paired with {name}")
        for wanted in (name, draft.alias) if draft else (name,):
            print_text(str(fetch_model(wanted).path))


@app.command("show")
def show_model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP)],
    template: Annotated[bool, option("--template", help="Print the chat template and nothing else.")] = False,
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Show what a model file says about itself."""
    from specdec_cli.registry.describe import describe

    found = resolve_model(name, pull=False)
    description = describe(found.path, found.alias)
    if json_output:
        print_json(description.to_json(), indent=2)
    elif template:
        if description.chat_template is None:
            raise ModelError(f"{found.path} has no chat template")
        print_text(description.chat_template)
    else:
        print_text(_show(description))


def _show(d: "Description") -> str:
    rows = [
        (
            "file",
            f"{one_line(d.path)} ({format_bytes(d.file_size)}, {_files(d)}GGUF version {d.gguf_version})",
        ),
        ("alias", d.alias or "-"),
        ("name", one_line(d.name or "-")),
        (
            "architecture",
            one_line(d.architecture or "-") + (f"; {one_line(d.unsupported)}" if d.unsupported else ""),
        ),
        ("parameters", f"{_count(d.num_parameters)}, {_bits(d.bits_per_weight)} bits per weight"),
        ("shape", _shape(d)),
        ("context", _value(d.shape["context_length"], "{} tokens") + _window(d)),
        ("tokenizer", _tokenizer(d)),
        (
            "template",
            f"{len(d.chat_template)} characters (--template prints it)" if d.chat_template else "none",
        ),
        ("license", _license(d)),
        ("tensors", f"{sum(share.num_tensors for share in d.types)}, by type:"),
    ]
    types = [
        (one_line(s.name), str(s.num_tensors), _count(s.num_parameters), format_bytes(s.num_bytes))
        for s in d.types
    ]
    by_type = table(types, right=frozenset({1, 2, 3}), indent="  ") if types else ""
    return "\n".join(filter(None, (table(rows), by_type)))


def _license(d: "Description") -> str:
    if d.license is not None:
        return one_line(d.license)
    entry = load_catalog().models.get(d.alias) if d.alias else None
    return f"{one_line(entry.license)} (not stated in the file)" if entry and entry.license else "not stated"


def _files(d: "Description") -> str:
    return f"{d.num_files} files, " if d.num_files > 1 else ""


def _count(number: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.2f} {unit}"
    return str(number)


def _bits(bits: float | None) -> str:
    return "n/a" if bits is None else f"{bits:.2f}"


def _value(value: Any, form: str = "{}") -> str:
    return "n/a" if value is None else one_line(form.format(value))


def _shape(d: "Description") -> str:
    s = d.shape
    heads = f"{_value(s['head_count'])} heads ({_value(s['head_count_kv'])} for keys and values)"
    sizes = f"embedding {_value(s['embedding_length'])}, feed-forward {_value(s['feed_forward_length'])}"
    return f"{_value(s['block_count'])} layers, {sizes}, {heads}"


def _window(d: "Description") -> str:
    window = d.shape["sliding_window"]
    return "" if window is None else f", sliding window {_value(window)}"


def _tokenizer(d: "Description") -> str:
    t = d.tokenizer
    if t.model is None:
        return "none"
    kind = one_line(t.model) + (f" ({one_line(t.pre)})" if t.pre else "")
    ends = [
        f"{name} {_token(i, text)}"
        for name, i, text in (("BOS", t.bos_id, t.bos_text), ("EOS", t.eos_id, t.eos_text))
    ]
    return f"{kind}, {_value(t.num_tokens)} tokens, {', '.join(ends)}"


def _token(token_id: int | None, text: str | None) -> str:
    return "none" if token_id is None else f"{token_id} {one_line(text or '')}".rstrip()


@app.command("check")
def check_models(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"The target: {_MODEL_HELP}")],
    draft: Annotated[str, typer.Argument(metavar="DRAFT", help=f"The draft model: {_MODEL_HELP}")],
    allow_mismatch: Annotated[
        bool, option("--allow-mismatch", help="Accept ids that differ; they are never drafted.")
    ] = False,
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Say whether DRAFT can propose for TARGET.

    The exit code is 1 when it is refused.
    """
    report = check_pairing(load_tokenizer(target), load_tokenizer(draft), allow_mismatch=allow_mismatch)
    if json_output:
        print_json(report.to_json(), indent=2)
    else:
        print_text(_explain(report))
    if not report.compatible:
        raise typer.Exit(1)


def _explain(report: PairingReport) -> str:
    lines = [f"target: {report.target_n_vocab} tokens, draft: {report.draft_n_vocab} tokens"]
    lines += [f"note: {note}" for note in report.notes]
    if report.refusal is None:
        usable = report.n_shared - len(report.blocked)
        lines.append(f"compatible: {usable} of {report.n_shared} common ids can be drafted")
    else:
        lines.append(f"refused: {report.refusal}")
        if report.num_mismatches and report.maskable:
            lines.append("--allow-mismatch would use the others and never draft these")
    return "\n".join(lines)
