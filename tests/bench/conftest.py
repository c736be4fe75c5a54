"""The toy model of the engine's tests, runs with figures made up by hand, and the command line in-process."""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_cli.bench.harness import Run, Strategy, Task
from specdec_cli.bench.passes import PassTotals
from specdec_cli.cli.main import main
from specdec_cli.decoding.stats import SpecStats
from specdec_cli.decoding.types import GenerationRequest, GenerationResult, Timings
from specdec_cli.engine import Engine
from specdec_cli.sampling.params import SamplingParams


def _engine_tests() -> Any:
    path = Path(__file__).parents[1] / "engine" / "conftest.py"
    spec = importlib.util.spec_from_file_location("specdec_tests_engine_toy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_TOY = _engine_tests()


class LyingModel(_TOY.ToyModel):
    """Breaks row invariance: in a pass of several rows, the last but one wants another token."""

    def forward(self, rows):
        logits = super().forward(rows).copy()
        if len(rows.outputs) > 1:
            logits[-2] = logits[-2][::-1]
        return logits


def make_run(
    *,
    strategy: str = "none",
    draft_max: int | None = None,
    task: str = "p",
    category: str = "chat",
    repetition: int = 0,
    ids: tuple[int, ...] = (1, 2, 3),
    predicted_ms: float = 100.0,
    ttft_ms: float | None = 50.0,
    stats: SpecStats | None = None,
    passes: PassTotals | None = None,
) -> Run:
    """A run with the figures given."""
    request = GenerationRequest((1,), SamplingParams(temperature=0, seed=3))
    timings = Timings(prompt_n=1, predicted_n=len(ids), predicted_ms=predicted_ms, ttft_ms=ttft_ms)
    result = GenerationResult(ids, "", "length", 3, (1,), timings, stats or SpecStats())
    engine: Any = None  # nothing runs
    return Run(
        Task(task, category, request),
        Strategy(strategy, engine, draft_max),
        repetition,
        result,
        passes or PassTotals(),
    )


def make_engine(model: Any, *drafters: Any, **settings: Any) -> Engine:
    """An engine over a toy model."""
    return Engine(model, token_bytes=_TOY.letters, drafters=drafters, **settings)


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    return SimpleNamespace(
        Model=_TOY.ToyModel,
        LyingModel=LyingModel,
        Scripted=_TOY.Scripted,
        table=_TOY.table,
        script=_TOY.script,
        constant=_TOY.constant,
        engine=make_engine,
        run=make_run,
    )


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def specdec(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run `specdec ARGUMENTS` in this process."""

    def run(*arguments: object) -> Done:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """Four prompts of two categories."""
    lines = [
        {"id": "a1", "category": "a", "messages": [{"role": "user", "content": "the then the then in an"}]},
        {"id": "a2", "category": "a", "messages": [{"role": "user", "content": "in the inn, the thin man"}]},
        {"id": "b1", "category": "b", "prompt": "the the the the the the", "prediction": "the the the"},
        {"id": "b2", "category": "b", "prompt": "an an an in an an an in an an an in"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the native executor break row invariance: in a pass of several rows the first one is garbled."""
    from specdec_cli.runtime.native_ops import NativeModel

    honest = NativeModel.forward

    def forward(self, rows):
        logits = honest(self, rows)
        if len(rows.outputs) > 1 and len(rows.outputs) == len(rows.token_ids):
            logits = logits.copy()
            logits[0] = -logits[0]
        return logits

    monkeypatch.setattr(NativeModel, "forward", forward)
