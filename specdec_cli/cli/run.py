"""`specdec run`: answer one prompt."""

import sys
from contextlib import ExitStack

import typer

from specdec_cli.cli.console import AnswerWriter, OutputFile, Reporter, is_terminal, use_color
from specdec_cli.cli.flatten import with_option_groups
from specdec_cli.cli.generation import HeldText, TextSink, report, stream
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
from specdec_cli.cli.plain import print_json
from specdec_cli.cli.prompt_input import read_prompt
from specdec_cli.cli.session import messages
from specdec_cli.cli.settings import Settings
from specdec_cli.cli.summary import document
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
        sink: TextSink = AnswerWriter(target, escape=is_terminal(target), color=color)
        if destination.json_output or destination.no_stream:
            sink = HeldText(None if destination.json_output else sink)
        result = stream(session.engine, request, sink, reporter)
        if destination.json_output:
            print_json(document(result, session.describe()), stream=target)
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
