"""Ways to run the command line: in the test process, in one with pipes, in one on a pseudo terminal."""

import codecs
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.cli.main import main


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


@pytest.fixture
def specdec(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run `specdec ARGUMENTS` in this process, with stdout and stderr captured."""

    def run(*arguments: str) -> Done:
        code = main(arguments)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


TOY = Path(__file__).with_name("toy.py")


def toy_environment(
    *replies: str | bytes, delay: float = 0.0, draft: bool = False, **more: str
) -> dict[str, str]:
    """Environment of a toy process (see toy.py), free of settings of whoever runs the tests."""
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("SPECDEC_", "TOY_")) and k != "NO_COLOR"
    }
    data = [reply.encode() if isinstance(reply, str) else reply for reply in replies or ("hello",)]
    toy = {"TOY_REPLY": json.dumps([d.hex() for d in data]), "TOY_DELAY": str(delay)}
    return {**clean, "PYTHONUTF8": "1", **toy, **({"TOY_DRAFT": "1"} if draft else {}), **more}


@dataclass(frozen=True)
class Finished:
    """A finished process."""

    code: int
    out: bytes
    err: str


class ToyProcess:
    """Starts `specdec` with the toy model and pipes for stdin, stdout and stderr."""

    environment = staticmethod(toy_environment)

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """Its command line."""
        return [sys.executable, str(TOY), *arguments]

    def start(
        self, *arguments: str, stdin: Any = subprocess.DEVNULL, **settings: Any
    ) -> "subprocess.Popen[bytes]":
        replies = settings.pop("replies", ())
        return subprocess.Popen(
            self.command(*arguments),
            stdin=stdin,
            stdout=settings.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            env=toy_environment(*replies, **settings),
        )

    def __call__(self, *arguments: str, stdin: bytes | None = None, **settings: Any) -> Finished:
        """Run to the end. `settings`: replies, delay, draft, and further environment variables."""
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        with self.start(*arguments, stdin=source, **settings) as process:
            out, err = process.communicate(stdin, timeout=30)
        return Finished(process.returncode, out or b"", err.decode())


@pytest.fixture
def toy() -> ToyProcess:
    """Run `specdec ARGUMENTS` with a toy model in a process of its own."""
    return ToyProcess()


class Terminal:
    """A process on a pseudo terminal of 100 columns: what it writes, and keys for it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:  # pragma: no cover
            os.execve(sys.executable, [sys.executable, str(TOY), *arguments], dict(environment))
        self.pid = pid
        self.screen = ""  # everything that was read so far
        self._unread = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

    def wait_for(self, text: str, *, seconds: float = 20) -> str:
        """Read until `text` appears after what was read before; return everything up to its end."""
        start = len(self.screen)
        deadline = time.monotonic() + seconds
        while text not in self.screen[start:]:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{text!r} did not appear in {self.screen[start:]!r}")
        end = self.screen.index(text, start) + len(text)
        self.screen, rest = self.screen[:end], self.screen[end:]
        self._unread = rest + self._unread
        return self.screen[start:]

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._fd, keys.encode())

    def finish(self, *, seconds: float = 20) -> int:
        """Read to the end and return the exit code (negative: killed by that signal)."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def _read(self, seconds: float) -> bool:
        unread, self._unread = self._unread, ""
        if unread:
            self.screen += unread
            return True
        ready, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        if not ready:
            raise AssertionError(f"nothing came for too long after {self.screen!r}")
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other side is closed
            return False
        self.screen += self._decoder.decode(data)
        return bool(data)

    def close(self) -> None:
        """End the process if it still runs."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start `specdec ARGUMENTS` with a toy model on a pseudo terminal; settings as for `toy`."""
    started: list[Terminal] = []

    def start(*arguments: str, **settings: Any) -> Terminal:
        replies = settings.pop("replies", ())
        # Nobody answers cursor position requests here.
        environment = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **settings}
        started.append(Terminal(arguments, toy_environment(*replies, **environment)))
        return started[-1]

    yield start
    for one in started:
        one.close()
