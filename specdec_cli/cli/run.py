"""`specdec run`: answer one prompt."""

import json
import sys
from contextlib import ExitStack
from typing import Any, TextIO

import typer

from specdec_cli.cli.console import AnswerWriter, OutputFile, Reporter, is_terminal, use_color
from specdec_cli.cli.flatten import with_option_groups
from specdec_cli.cli.generation import HeldText, report, stream
from specdec_cli.cli.opening import open_session
from specdec_cli.cli.options import (
    CommonOptions,
    FileOptions,
    GenerationOptions,
    ModelOptions,
    OutputOptions,
    PromptOptions,
    SpecOptions,
    TemplateOptions,
)
from specdec_cli.cli.prompt_input import read_prompt
from specdec_cli.cli.session import Session, messages
from specdec_cli.cli.settings import Settings
from specdec_cli.cli.summary import document
from specdec_cli.decoding.types import GenerationRequest, GenerationResult
from specdec_cli.errors import UsageError


@with_option_groups
def run(
    *,
    source: PromptOptions,
    template: TemplateOptions,
    model: ModelOptions,
    generation: GenerationOptions,
    spec: SpecOptions,
    output: OutputOptions,
    destination: FileOptions,
    common: CommonOptions,
) -> None:
    """Answer one prompt: the text goes to stdout as it is generated, everything else to stderr."""
    settings = Settings.of(generation, spec, template, raw=source.raw)
    _check_output(output, destination)
    reporter = Reporter(verbose=common.verbose, color=output.color)
    with ExitStack() as stack:
        file = stack.enter_context(OutputFile(destination.output)) if destination.output else None
        prompt = read_prompt(source)
        session = stack.enter_context(open_session(model, spec, settings, reporter))
        prompt_ids = session.encode(prompt if source.raw else messages(settings.system, prompt))
        if template.show_prompt:
            reporter.line(session.prompt_text(prompt_ids))
        request = session.request(prompt_ids)
        target = sys.stdout if file is None else file.open()
        color = output.show_draft and use_color(target, output.color)
        writer = AnswerWriter(target, escape=is_terminal(target), color=color)
        result = _generate(session, request, writer, reporter, destination)
        if destination.json_output:
            _print_json(document(result, session.describe()), target)
        report(result, reporter, session=session, stats=output.stats)
    if result.finish_reason == "cancelled":
        raise typer.Exit(130)


def _check_output(output: OutputOptions, destination: FileOptions) -> None:
    """Refuse --show-draft where nothing can be coloured."""
    if not output.show_draft:
        return
    if destination.json_output:
        raise UsageError("--show-draft contradicts --json, which has no colours")
    to_file = destination.output is not None
    if not use_color(sys.stdout, output.color) or (to_file and output.color != "always"):
        raise UsageError("--show-draft needs colours, and there are none here (see --color)")


def _generate(
    session: Session,
    request: GenerationRequest,
    writer: AnswerWriter,
    reporter: Reporter,
    destination: FileOptions,
) -> GenerationResult:
    """Generate, and write the text as it comes, at the end, or not at all (JSON)."""
    held = HeldText() if destination.no_stream or destination.json_output else None
    try:
        return stream(session.engine, request, held or writer, reporter)
    finally:  # also when a second Ctrl-C or an error ends it: print what there is
        if held is not None and not destination.json_output:
            held.release(writer)
        writer.end()


def _print_json(value: dict[str, Any], target: TextIO) -> None:
    encoding = (target.encoding or "").lower().replace("-", "")
    text = json.dumps(value, ensure_ascii=encoding != "utf8", allow_nan=False)
    if is_terminal(target):  # JSON leaves DEL and C1 control characters as they are
        text = "".join(f"\\u{ord(c):04x}" if 0x7F <= ord(c) < 0xA0 else c for c in text)
    target.write(text + "\n")
    target.flush()
