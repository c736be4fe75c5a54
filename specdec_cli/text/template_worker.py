"""Renders chat templates in a process of its own. A script: needs jinja2 and nothing of this project.

A template comes from a model file and is hostile until proved otherwise. Three walls: Jinja's immutable
sandbox; limits of the process (memory, no new file or socket, no new process), set before the first
template is read; a CPU timer that kills the process, armed for each request. Whoever started it also
watches the clock.

Protocol: one JSON object per line on stdin, one per line on stdout. A request holds `source`, `variables`,
`cpu_seconds`, `max_chars`. The answer is {"text": ...}, or {"error": KIND, "message": ..., "line": ... or
null} with KIND one of raised (by the template's own raise_exception), syntax, forbidden, memory, size,
failed.
"""

import json
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn


class RaisedByTemplateError(Exception):
    """The template called raise_exception."""


class TooLongError(Exception):
    """The output exceeds its limit."""


def limit_process(memory_bytes: int) -> None:
    """Give up what rendering does not need. Limits that the system does not know are skipped."""
    import resource

    limits = {
        "RLIMIT_AS": memory_bytes,
        "RLIMIT_DATA": memory_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 3,  # standard input, output and error stay open; nothing else can be opened
    }
    for name, value in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):
            continue


def _raise_exception(message: object = "") -> NoReturn:
    raise RaisedByTemplateError(str(message))


def _strftime_now(date_format: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(date_format)


def _tojson(  # as in Transformers: no HTML escaping, and these options
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def build_environment() -> Any:
    """The Jinja environment that templates in the wild are written for (that of Transformers)."""
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationExtension(Extension):
        """`{% generation %}` marks text for training; here its body is simply rendered."""

        tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja wants

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        """A sandbox that refuses at once instead of handing out an undefined value that prints as nothing."""

        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__}")

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationExtension, LoopControlExtension]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _new_dict
    del environment.globals["lipsum"]  # filler text; it reads a file
    return environment


class Renderer:
    """Answers requests; keeps the compiled form of the latest template."""

    def __init__(self) -> None:
        self.environment = build_environment()
        self._source: str | None = None
        self._template: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Render one request within its limits."""
        from jinja2.exceptions import SecurityError, TemplateSyntaxError

        try:
            return {"text": self._render(request)}
        except RaisedByTemplateError as error:
            return self._failure("raised", error)
        except TemplateSyntaxError as error:
            return self._failure("syntax", error, line=error.lineno)
        except SecurityError as error:
            return self._failure("forbidden", error)
        except TooLongError as error:
            return self._failure("size", error)
        except (MemoryError, RecursionError) as error:
            kind = "memory" if isinstance(error, MemoryError) else "failed"
            return {"error": kind, "message": "it calls itself without end", "line": None}
        except Exception as error:  # whatever a template manages to raise
            return self._failure("failed", error)

    def _render(self, request: dict[str, Any]) -> str:
        source = request["source"]
        if source != self._source:
            self._source, self._template = None, None
            self._template = self.environment.from_string(source)
            self._source = source
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(**request["variables"]):
            length += len(piece)
            if length > request["max_chars"]:
                raise TooLongError(f"the output is longer than {request['max_chars']} characters")
            pieces.append(piece)
        return "".join(pieces)

    @staticmethod
    def _failure(kind: str, error: Exception, *, line: int | None = None) -> dict[str, Any]:
        message = str(error)[:2000] or type(error).__name__
        return {"error": kind, "message": message, "line": line}


def _with_timer(seconds: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run `work`; the process dies when it uses more CPU time, wherever it is stuck."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


_WARM_UP = r"""{% macro m(x) %}{{ 'a\tb' ~ x | tojson | indent | pprint | wordwrap | urlize }}{% endmacro %}
{%- set ns = namespace(n=0) %}{% for i in [1] %}{% set ns.n = i %}{% break %}{% endfor %}
{{- m('x') | title }}"""


def preload(environment: Any) -> None:
    """Import what Jinja would import while it renders, codecs included: no file can be opened later."""
    import datetime
    import pprint
    import textwrap
    import time

    import jinja2.debug

    assert all((pprint, textwrap, jinja2.debug))
    environment.from_string(_WARM_UP).render()
    time.localtime()  # reads the time zone
    datetime.datetime.now().strftime("%c")


def main() -> None:
    """Serve requests from stdin until it closes. The argument is the memory limit in bytes."""
    try:
        renderer = Renderer()
        preload(renderer.environment)
    except ImportError as error:
        reply = {"error": "failed", "message": f"the renderer cannot start: {error}", "line": None}
        sys.stdout.write(json.dumps(reply) + "\n")
        return
    limit_process(int(sys.argv[1]))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        reply = _with_timer(request["cpu_seconds"], lambda request=request: renderer.answer(request))  # type: ignore[misc]
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
