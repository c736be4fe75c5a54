"""The process that renders chat templates: started when needed, reused, killed when it takes too long."""

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_cli.errors import ModelError

_SCRIPT = Path(__file__).with_name("template_worker.py")
_KEPT_VARIABLES = ("PATH", "LANG", "TZ", "VIRTUAL_ENV", "SYSTEMROOT")
_KEPT_PREFIXES = ("PYTHON", "LC_", "LD_LIBRARY", "DYLD_")
_MEGABYTE = 1 << 20


class TemplateError(ModelError):
    """A chat template could not be rendered; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What one rendering may use."""

    cpu_seconds: float = 5.0
    wall_seconds: float = 30.0  # for a process that waits, or a machine that is overloaded
    memory_bytes: int = 512 * _MEGABYTE
    source_chars: int = 1_000_000
    output_chars: int = 4_000_000  # beside eight times the characters that are put in


class _DeadError(Exception):
    """The process ended, or was ended, before it answered."""


class TemplateProcess:
    """One running worker. Not for several threads at once."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._owner = os.getpid()
        kept = {k: v for k, v in os.environ.items() if k in _KEPT_VARIABLES or k.startswith(_KEPT_PREFIXES)}
        # A session of its own, so that Ctrl-C in the terminal reaches only us; -P keeps this folder, where a
        # module may have the name of a library's, off the path.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", str(_SCRIPT), str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)

    def usable(self, memory_bytes: int) -> bool:
        """Whether it can take a request under this memory limit."""
        ours = self._owner == os.getpid()
        return ours and self._memory_bytes == memory_bytes and self._process.poll() is None

    def ask(self, request: bytes, *, wall_seconds: float, max_reply: int) -> bytes:
        """Send a line and return the line that comes back. Raises _DeadError when none does."""
        deadline = time.monotonic() + wall_seconds
        pending, reply = memoryview(request), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._input, selectors.EVENT_WRITE)
            while not reply.endswith(b"\n"):
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    raise _DeadError(f"it took longer than {wall_seconds:g} s")
                for key, _ in events:
                    if key.fd == self._input:
                        pending = self._write(pending)
                        if not pending:
                            selector.unregister(self._input)
                    else:
                        reply += self._read()
                if len(reply) > max_reply:
                    raise _DeadError("its output is too long")
        return bytes(reply)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._owner != os.getpid():
            return  # after a fork the process belongs to the parent
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, pending: memoryview) -> memoryview:
        try:
            return pending[os.write(self._input, pending[:65536]) :]
        except BlockingIOError:
            return pending
        except BrokenPipeError:
            raise _DeadError(self._cause()) from None

    def _read(self) -> bytes:
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return b""
        if not data:
            raise _DeadError(self._cause())
        return data

    def _cause(self) -> str:
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return "the renderer stopped answering"
        if code == -signal.SIGPROF:
            return "it took too much time"
        if code == -signal.SIGSEGV:
            return "it crashed the renderer (too deeply nested?)"
        return f"the renderer ended with code {code}"


class TemplateRenderer:
    """Renders in one worker process that several callers may share. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: TemplateProcess | None = None

    def start(self, limits: TemplateLimits) -> None:
        """Start the process now, so that it is ready (0.1 s) when the first template comes."""
        with self._lock:
            self._acquire(limits.memory_bytes)

    def stop(self) -> None:
        """End the process, if one runs."""
        with self._lock:
            self._discard()

    def render(self, source: str, variables: Mapping[str, Any], limits: TemplateLimits) -> str:
        """Render in the worker process; it is killed when it must be, and the next call starts another.

        Raises TemplateError when the template is broken, refuses the messages, does something forbidden, or
        exceeds a limit; TypeError or ValueError when a variable is not JSON.
        """
        if len(source) > limits.source_chars:
            raise TemplateError(
                f"the chat template has {len(source)} characters; at most {limits.source_chars} are accepted"
            )
        data = json.dumps(variables)
        max_chars = limits.output_chars + 8 * len(data)
        settings = {"source": source, "cpu_seconds": limits.cpu_seconds, "max_chars": max_chars}
        request = f'{json.dumps(settings)[:-1]}, "variables": {data}}}\n'.encode()
        max_reply = 12 * max_chars + 100_000  # every character escaped
        with self._lock:
            process = self._acquire(limits.memory_bytes)
            try:
                line = process.ask(request, wall_seconds=limits.wall_seconds, max_reply=max_reply)
                reply = json.loads(line)
            except _DeadError as error:
                self._discard()
                raise TemplateError(f"the chat template could not be rendered: {error}") from None
            except BaseException:  # Ctrl-C: the answer that is still to come belongs to nobody
                self._discard()
                raise
            if reply.get("error") == "memory":
                self._discard()  # what it holds may be too fragmented for the next one
        return _text_of(reply, limits)

    def _acquire(self, memory_bytes: int) -> TemplateProcess:
        """The running process, or a new one when it is gone, of other limits, or our parent's."""
        process = self._process
        if process is not None and process.usable(memory_bytes):
            return process
        self._discard()
        try:
            self._process = TemplateProcess(memory_bytes)
        except OSError as error:
            message = f"cannot start the process that renders chat templates: {error}"
            raise TemplateError(message) from error
        return self._process

    def _discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


def _text_of(reply: dict[str, Any], limits: TemplateLimits) -> str:
    kind = reply.get("error")
    if kind is None:
        text: str = reply["text"]
        return text
    message = one_line(str(reply.get("message", "")))
    if kind == "raised":
        raise TemplateError(f"the chat template refuses these messages: {message}")
    if kind == "syntax":
        raise TemplateError(f"the chat template is broken (line {reply.get('line')}): {message}")
    if kind == "forbidden":
        raise TemplateError(f"the chat template does something forbidden: {message}")
    if kind == "memory":
        message = f"it needs more than {limits.memory_bytes // _MEGABYTE} MB of memory"
    raise TemplateError(f"the chat template could not be rendered: {message}")


def one_line(text: str, limit: int = 300) -> str:
    """Text of a template for an error line: white space folded, control characters escaped, not too long."""
    folded = " ".join(text.split())
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in folded[: limit + 1])
    return shown if len(folded) <= limit else f"{shown[:limit]}..."


RENDERER = TemplateRenderer()
atexit.register(RENDERER.stop)
