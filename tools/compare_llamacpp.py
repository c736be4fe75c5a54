"""Compare specdec's native executor with llama.cpp on the same files, machine and minutes.

    python tools/compare_llamacpp.py PEER_PYTHON MODEL.gguf... [--threads 2] [--depth 0,2048] [--json FILE]

PEER_PYTHON is an interpreter with llama-cpp-python. Both engines are loaded; they take turns, repetition by
repetition, and the one that waits sleeps. Medians; ratios are ours over theirs, so below 1 is good for times
and memory, above 1 for speeds. Nothing else may run meanwhile: threads that wait for each other in a spin
suffer most from a busy machine, so the load average is printed with the result.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROWS = tuple(range(1, 17))
PREFIX, DECODE = 64, 48
PREFILLS = (40, 128, 512)
TOOLS = Path(__file__).parent
ENGINES = ("specdec", "llamacpp")


class Worker:
    """One engine in a process of its own."""

    def __init__(self, python: str, script: str) -> None:
        self._process = subprocess.Popen(
            [python, str(TOOLS / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with code {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@contextmanager
def workers(peer: str) -> Iterator[dict[str, Worker]]:
    """Both engines, ended in any case."""
    made = {
        "specdec": Worker(sys.executable, "specdec_worker.py"),
        "llamacpp": Worker(peer, "llamacpp_worker.py"),
    }
    try:
        yield made
    finally:
        for worker in made.values():
            worker.close()


def compare(model: str, peer: str, *, threads: int, depths: list[int], repetitions: int) -> dict[str, Any]:
    """All figures of one model: {engine: {figure: value}}."""
    n_ctx = max(depths) + 1024
    Path(model).read_bytes()  # both load from the page cache
    loads: dict[str, list[float]] = {name: [] for name in ENGINES}
    for _ in range(2):
        with workers(peer) as engines:
            _load(engines, loads, model, threads, n_ctx)
    with workers(peer) as engines:
        labels = _load(engines, loads, model, threads, n_ctx)
        figures: dict[str, dict[str, Any]] = {
            name: {
                "engine": labels[name],
                "load_average": os.getloadavg()[0],
                "load_s": median(loads[name]),
                "memory_mb": engines[name]("memory")["peak_mb"],
            }
            for name in ENGINES
        }
        for n in PREFILLS:
            _alternate(engines, figures, f"prefill {n} ms", 3, lambda ask, n=n: ask("prefill", tokens=n))
        for depth in depths:
            _measure_depth(engines, figures, depth, repetitions)
        for name in ENGINES:
            figures[name]["memory_mb"] = engines[name]("memory")["peak_mb"]
    figures["specdec"]["first_token_s"] = median(_first_token(model, threads) for _ in range(3))
    peer_figures = figures["llamacpp"]
    peer_figures["first_token_s"] = peer_figures["load_s"] + peer_figures["prefill 40 ms"] / 1e3
    return figures


def _load(
    engines: dict[str, Worker], loads: dict[str, list[float]], model: str, threads: int, n_ctx: int
) -> dict[str, str]:
    labels = {}
    for name, ask in engines.items():
        reply = ask("load", model=model, threads=threads, n_ctx=n_ctx)
        loads[name].append(reply["seconds"])
        labels[name] = reply["engine"]
    return labels


def _alternate(
    engines: dict[str, Worker],
    figures: dict[str, dict[str, Any]],
    figure: str,
    repetitions: int,
    measure: Callable[[Worker], dict[str, Any]],
) -> None:
    """Measure one thing with the engines in turn, after a warm-up of each."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for repetition in range(repetitions + 1):
        for name, ask in engines.items():
            time.sleep(0.02)  # the other one's threads stop spinning
            seconds = measure(ask)["seconds"]
            if repetition:
                times[name].append(seconds)
    for name, measured in times.items():
        figures[name][figure] = 1e3 * median(measured)


def _measure_depth(
    engines: dict[str, Worker], figures: dict[str, dict[str, Any]], depth: int, repetitions: int
) -> None:
    times: dict[str, dict[int, list[float]]] = {name: {m: [] for m in ROWS} for name in engines}
    for ask in engines.values():
        ask("fill", tokens=PREFIX + depth)
    for repetition in range(repetitions + 1):
        for name, ask in engines.items():
            time.sleep(0.02)
            ask("pass", rows=1)  # brings its weights back into the caches
            for m in ROWS:
                seconds = ask("pass", rows=m)["seconds"]
                if repetition:
                    times[name][m].append(seconds)
    for name in engines:
        for m in ROWS:
            figures[name][f"t({m}) ms at {depth}"] = 1e3 * median(times[name][m])
    _alternate(engines, figures, f"decode ms at {depth}", 5, lambda ask: ask("decode", tokens=DECODE))
    for name in engines:
        milliseconds = figures[name].pop(f"decode ms at {depth}")
        figures[name][f"decode tok/s at {depth}"] = 1e3 * DECODE / milliseconds


def _first_token(model: str, threads: int) -> float:
    """Seconds from the shell to the first byte of an answer to a prompt of about 40 tokens."""
    command = [
        *(sys.executable, "-m", "specdec_cli.cli.main", "run", "--raw", "-m", model, "-t", str(threads)),
        *("-n", "4", "--temp", "0", "--no-spec", "--no-stats", "-p", "It was" + " the end of the" * 9),
    ]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        elapsed = time.perf_counter() - started
        process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"specdec run ended with code {process.returncode}")
    return elapsed


def table(model: str, figures: dict[str, Any], depths: list[int]) -> str:
    """A Markdown table: ours, theirs, ours over theirs."""
    ours, theirs = figures["specdec"], figures["llamacpp"]
    size = Path(model).stat().st_size / (1 << 20)
    lines = [
        f"{Path(model).name} ({size:.0f} MiB): {ours['engine']} against {theirs['engine']}, "
        f"load average {ours['load_average']:.1f}",
        "",
    ]
    lines += ["| figure | specdec | llama.cpp | ratio |", "| --- | ---: | ---: | ---: |"]
    for figure in (f for f in ours if f not in ("engine", "load_average")):
        a, b = ours[figure], theirs[figure]
        lines.append(f"| {figure} | {a:.2f} | {b:.2f} | {a / b:.2f} |")
    for depth in depths:
        for m in (2, 4, 5, 8, 16):
            a, b = (f[f"t({m}) ms at {depth}"] / f[f"t(1) ms at {depth}"] for f in (ours, theirs))
            lines.append(f"| t({m})/t(1) at {depth} | {a:.2f} | {b:.2f} | {a / b:.2f} |")
    share = (ours["memory_mb"] - 200) / size
    lines.append(f"| (peak memory - 200 MiB) / file | {share:.2f} | {theirs['memory_mb'] / size:.2f} | |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("peer_python")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", default="0")
    parser.add_argument("--reps", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    depths = [int(part) for part in args.depth.split(",")]
    documents = {}
    for model in args.models:
        figures = compare(model, args.peer_python, threads=args.threads, depths=depths, repetitions=args.reps)
        documents[Path(model).name] = figures
        print(table(model, figures, depths), end="\n\n", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
