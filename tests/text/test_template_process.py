"""Hostile and broken chat templates: one error line, soon, and nothing touched (cases J1, J2)."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_cli.text import template_worker
from specdec_cli.text.template_process import TemplateError, TemplateLimits, TemplateRenderer

# Short, so that the tests are; what matters is that there is an end.
LIMITS = TemplateLimits(cpu_seconds=0.5, wall_seconds=30.0, memory_bytes=256 << 20, output_chars=100_000)


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    renderer = TemplateRenderer()
    yield renderer
    renderer.stop()


@pytest.fixture
def error_of(renderer: TemplateRenderer) -> Callable[..., str]:
    """The error line of a template, which must come within a bounded time (a minute on a busy machine)."""

    def render(source: str, **variables: Any) -> str:
        began = time.monotonic()
        with pytest.raises(TemplateError) as caught:
            renderer.render(source, variables, LIMITS)
        assert time.monotonic() - began < 60.0
        message = str(caught.value)
        assert message.isprintable()
        assert len(message) < 500
        return message

    return render


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ joiner.__init__.__globals__['__builtins__']['open']('CANARY', 'w') }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('CANARY', 'w').write('x') }}",
    "{{ strftime_now.__code__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ messages['__class__'] }}",
    "{{ messages | attr('__class__') }}",
    "{{ ['x'] | map(attribute='__class__') | list }}",
    "{{ ['x'] | groupby('__class__') | list }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ ('%s{0.__class__}' | format('')).format('') }}",
    "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "{{ (messages | tojson).__class__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ messages.append({'role': 'system'}) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{% for m in messages %}{{ loop.__class__ }}{% endfor %}",
    "{{ dict.__globals__ }}",
    "{{ (1).real.__class__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_j1_escape_is_rejected_and_writes_no_canary(
    error_of: Callable[..., str], tmp_path: Path, source: str
) -> None:
    canary = tmp_path / "canary"
    message = error_of(source.replace("CANARY", str(canary)), messages=[{"role": "user", "content": "x"}])
    assert "forbidden" in message
    assert not canary.exists()


@pytest.mark.parametrize(
    "source", ["{% include 'a' %}", "{% extends '/etc/passwd' %}", "{% import 'os' as o %}"]
)
def test_j1_no_other_file_is_read(error_of: Callable[..., str], source: str) -> None:
    assert "could not be rendered" in error_of(source)


def test_j1_second_wall_no_file_process_or_socket(tmp_path: Path) -> None:
    """What the limits of the process alone stop, if ever the sandbox had a hole."""
    script = f"""
        import socket, subprocess, sys
        from specdec_cli.text import template_worker
        template_worker.limit_process(256 << 20)
        for name, attempt in {{
            "read": lambda: open("/etc/hostname"),
            "write": lambda: open({str(tmp_path / "canary")!r}, "w"),
            "process": lambda: subprocess.run(["true"]),
            "socket": lambda: socket.socket(),
            "memory": lambda: bytearray(1 << 30),
        }}.items():
            try:
                attempt()
            except (OSError, MemoryError):
                continue
            print("possible:", name)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == ""
    assert not (tmp_path / "canary").exists()


ENDLESS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 'A' * 10**9 }}",
    "{{ 'A' * 10**8 }}",
    "{{ ('A' * 10**7) * 100 }}",
    "{% for i in range(90000) %}{% for j in range(90000) %}{% set k = j %}{% endfor %}{% endfor %}",
    "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ f() ~ f() }}{% endmacro %}{% set f = f %}{{ f() }}",
    "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n ** 9 %}{% endfor %}",
    "{{ '%099999999999d' | format(1) }}",
    "{{ 'x' | indent(10**9) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ '{:>1000000000}'.format('x') }}",
    "{{ range(99999) | map('string') | join('x' * 9999) }}",
    "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "{{ " + "not " * 20_000 + "1 }}",
    "{{ 1" + " + 1" * 20_000 + " }}",
    "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000,
]


@pytest.mark.parametrize("source", ENDLESS, ids=lambda source: source[:40])
def test_j2_too_much_of_something_ends_with_an_error(error_of: Callable[..., str], source: str) -> None:
    assert "could not be rendered" in error_of(source)


def test_j2_template_of_50_megabytes(error_of: Callable[..., str]) -> None:
    assert error_of("x" * 50_000_000) == (
        "the chat template has 50000000 characters; at most 1000000 are accepted"
    )


def test_j2_large_template_below_the_limit_is_bounded_too(error_of: Callable[..., str]) -> None:
    assert "could not be rendered" in error_of("{{ x }}{% if y %}z{% endif %}" * 30_000)


def test_j2_error_message_of_any_size(error_of: Callable[..., str]) -> None:
    message = error_of("{{ raise_exception('bad \\x1b[2J\\n' ~ 'x' * 50000) }}")
    assert message.startswith("the chat template refuses these messages: bad \\x1b[2J xxx")


def test_process_is_reused_and_replaced_after_it_was_killed(renderer: TemplateRenderer) -> None:
    assert renderer.render("a{{ x }}", {"x": 1}, LIMITS) == "a1"
    first = renderer._process
    assert renderer.render("b{{ x }}", {"x": 2}, LIMITS) == "b2"
    assert renderer._process is first
    with pytest.raises(TemplateError, match="too much time"):
        renderer.render(ENDLESS[4], {}, LIMITS)
    assert renderer.render("a{{ x }}", {"x": 3}, LIMITS) == "a3"
    assert renderer._process is not first


def test_process_that_died_meanwhile_is_replaced(renderer: TemplateRenderer) -> None:
    renderer.render("x", {}, LIMITS)
    assert renderer._process is not None
    renderer._process._process.kill()
    renderer._process._process.wait()
    assert renderer.render("y", {}, LIMITS) == "y"


def test_process_that_does_not_answer_is_given_up(renderer: TemplateRenderer) -> None:
    renderer.render("x", {}, LIMITS)
    process = renderer._process
    assert process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    short = TemplateLimits(cpu_seconds=0.5, wall_seconds=0.3, memory_bytes=LIMITS.memory_bytes)
    with pytest.raises(TemplateError, match=r"longer than 0\.3 s"):
        renderer.render("x", {"filler": "x" * 1_000_000}, short)  # more than a pipe holds
    assert process._process.returncode == -signal.SIGKILL


def test_ctrl_c_while_waiting_leaves_no_stale_answer(renderer: TemplateRenderer) -> None:
    limits = TemplateLimits(cpu_seconds=10.0, wall_seconds=20.0, memory_bytes=LIMITS.memory_bytes)
    renderer.render("x", {}, limits)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        renderer.render(ENDLESS[4], {}, limits)
    timer.join()
    assert renderer.render("after", {}, limits) == "after"


def test_ctrl_c_in_the_terminal_does_not_reach_the_process(renderer: TemplateRenderer) -> None:
    renderer.render("x", {}, LIMITS)
    assert renderer._process is not None
    pid = renderer._process._process.pid
    assert os.getpgid(pid) != os.getpgid(0)


def test_process_ends_with_its_parent() -> None:
    """Also when the parent is killed and cannot clean up."""
    script = (
        "import os, sys\n"
        "from specdec_cli.text.template_process import RENDERER, TemplateLimits\n"
        "RENDERER.render('x', {}, TemplateLimits())\n"
        "print(RENDERER._process._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pid = int(result.stdout)
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.02)
    pytest.fail("the renderer outlived its parent")


def test_leaves_no_process_and_no_warning_at_exit() -> None:
    script = (
        "from specdec_cli.text.template_process import RENDERER, TemplateLimits\n"
        "print(RENDERER.render('ok', {}, TemplateLimits()))\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script], capture_output=True, text=True, check=True
    )
    assert (result.stdout, result.stderr) == ("ok\n", "")


def test_several_threads_share_one_process(renderer: TemplateRenderer) -> None:
    answers: dict[int, str] = {}

    def work(i: int) -> None:
        answers[i] = renderer.render("{{ x }}", {"x": str(i) * 2000}, LIMITS)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: str(i) * 2000 for i in range(8)}


def test_secrets_of_the_environment_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    renderer = TemplateRenderer()
    try:
        renderer.render("x", {}, LIMITS)
        assert renderer._process is not None
        environ = Path(f"/proc/{renderer._process._process.pid}/environ")
        if environ.exists():
            assert b"hf_secret" not in environ.read_bytes()
    finally:
        renderer.stop()


def test_starting_is_fast_and_imports_little() -> None:
    """No module of ours and none of the heavy packages."""
    code = (
        f"import runpy, sys\nmodule = runpy.run_path({template_worker.__file__!r})\nmodule['Renderer']()\n"
        "print(sorted({'torch', 'numpy', 'tokenizers', 'specdec_cli', 'rich', 'typer'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
