"""`specdec chat`: several turns with one model."""

import os
import sys
from dataclasses import dataclass, field

import typer

from specdec_cli.cli.console import AnswerWriter, Reporter, is_terminal, use_color
from specdec_cli.cli.flatten import with_option_groups
from specdec_cli.cli.generation import report, stream
from specdec_cli.cli.opening import open_session
from specdec_cli.cli.options import (
    CommonOptions,
    GenerationOptions,
    ModelOptions,
    OutputOptions,
    SpecOptions,
    TemplateOptions,
)
from specdec_cli.cli.session import Session
from specdec_cli.cli.settings import Settings
from specdec_cli.cli.turns import (
    Conversation,
    InputInterruptError,
    LineSource,
    PipedLines,
    command_of,
    read_turn,
)
from specdec_cli.errors import SpecdecError, UsageError

_SESSION = "chat"  # turns reuse each other's prompt prefix
_HELP = '''/help   show this
/clear  forget the conversation (the system message stays)
/exit   leave, as Ctrl-D does
"""     begin and end a text of several lines
Ctrl-C  stop the answer; once more to leave'''


@with_option_groups
def chat(
    *,
    template: TemplateOptions,
    model: ModelOptions,
    generation: GenerationOptions,
    spec: SpecOptions,
    output: OutputOptions,
    common: CommonOptions,
) -> None:
    """Talk with a model over several turns, on a terminal or line by line from a pipe."""
    settings = Settings.of(generation, spec, template)
    color = output.show_draft and use_color(sys.stdout, output.color)
    if output.show_draft and not color:
        raise UsageError("--show-draft needs colours, and there are none here (see --color)")
    reporter = Reporter(verbose=common.verbose, color=output.color)
    interactive = _interactive()
    with open_session(model, spec, settings, reporter) as session:
        loop = ChatLoop(
            session,
            _line_source(interactive),
            AnswerWriter(sys.stdout, escape=is_terminal(sys.stdout), color=color),
            reporter,
            stats=output.stats,
            show_prompt=template.show_prompt,
        )
        if interactive:
            reporter.line("/help lists the commands, Ctrl-D leaves", dim=True)
        code = loop.run()
    raise typer.Exit(code)


def _interactive() -> bool:
    """Whether a person types; the line editor needs both ends of the terminal and cursor movement."""
    return (
        sys.stdin is not None
        and is_terminal(sys.stdin)
        and is_terminal(sys.stdout)
        and os.environ.get("TERM") != "dumb"
    )


def _line_source(interactive: bool) -> LineSource:
    if interactive:
        from specdec_cli.cli.terminal_input import TerminalLines

        return TerminalLines()
    if sys.stdin is None:
        raise UsageError("stdin is closed")
    return PipedLines(sys.stdin.buffer)


@dataclass(slots=True)
class ChatLoop:
    """Reads what the user says, answers, and keeps the conversation."""

    session: Session
    source: LineSource
    writer: AnswerWriter
    reporter: Reporter
    stats: bool = True
    show_prompt: bool = False
    conversation: Conversation = field(default_factory=Conversation)
    failed: bool = False
    _interrupted: bool = False  # the last thing that happened was Ctrl-C

    def run(self) -> int:
        """Talk until the user leaves; return the exit code.

        A turn that fails (too long, refused by the template) is reported and forgotten; the code is then 1.
        """
        self.conversation.system = self.session.settings.system
        # A template that refuses system messages should say so before anything is typed.
        self.session.encode(self.conversation.with_question("?"))
        while True:
            try:
                text = read_turn(self.source)
            except InputInterruptError:
                if self._interrupted:
                    return 130
                self._interrupted = True
                self.reporter.line("(Ctrl-C again or Ctrl-D leaves)", dim=True)
                continue
            if text is None:
                return 1 if self.failed else 0
            if not text.strip():
                continue
            self._interrupted = False
            command = command_of(text)
            if command == "/exit":
                return 1 if self.failed else 0
            self._answer_or_report(text) if command is None else self._obey(command)

    def _obey(self, command: str) -> None:
        if command == "/help":
            self.reporter.line(_HELP)
        elif command == "/clear":
            self.conversation.clear()
            self.session.engine.forget(_SESSION)
            self.reporter.line("the conversation is forgotten", dim=True)
        else:
            self._fail(f"unknown command {command}; /help lists them")

    def _answer_or_report(self, text: str) -> None:
        try:
            self._answer(text)
        except SpecdecError as error:
            self._fail(str(error))

    def _fail(self, message: str) -> None:
        self.failed = True
        self.reporter.line(f"error: {message}")

    def _answer(self, text: str) -> None:
        prompt_ids = self.session.encode(self.conversation.with_question(text))
        if self.show_prompt:
            self.reporter.line(self.session.prompt_text(prompt_ids))
        request = self.session.request(prompt_ids, session=_SESSION)
        result = stream(self.session.engine, request, self.writer, self.reporter)
        self._interrupted = result.finish_reason == "cancelled"
        if result.text or not self._interrupted:  # a question without any answer would break the alternation
            self.conversation.add(text, result.text)
        report(result, self.reporter, session=self.session, stats=self.stats)
