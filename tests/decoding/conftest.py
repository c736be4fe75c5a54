"""A simulated machine for the controller: a virtual clock, drafters of known quality, known costs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_cli.decoding.drafters.base import Draft
from specdec_cli.decoding.policy import Outcome, RoundReport, SequenceState

Quality = Callable[[int], float]  # position of the output -> probability that a draft token there is right


def flat(t1: float = 26.0) -> Callable[[int], float]:
    """t(M) of a kernel for which further rows are nearly free: 1.02, 1.22, 1.66 t(1) for 2, 5, 8 rows."""
    return lambda rows: (
        t1 * float(np.interp(rows, [1, 2, 4, 5, 8, 16, 64], [1, 1.02, 1.2, 1.22, 1.66, 3.3, 12]))
    )


def steep(t1: float = 26.0) -> Callable[[int], float]:
    """t(M) of an engine for which every row costs almost a pass of its own."""
    return lambda rows: t1 * (1 + 0.8 * (rows - 1))


@dataclass
class SimulatedDrafter:
    """Right with probability `quality(position)`; a token's confidence knows that, blurred by `blur`."""

    name: str
    quality: Quality
    needs_prefill: bool = True
    step_ms: float = 6.0
    relative_cost: float = 0.3
    hit_rate: float = 1.0  # share of rounds with a draft
    confidence: float | None = None  # always this, instead of what it knows
    blur: float = 0.3
    held: dict[int, int] = field(default_factory=dict)

    def num_held(self, sequence: int) -> int:
        return self.held.get(sequence, 0)


class Simulation:
    """Generates with a policy on a virtual clock; `elapsed` is the time from the first token on."""

    def __init__(self, policy, drafters, pass_ms, *, prompt=64, noise=0.03, seed=0) -> None:
        self.policy, self.drafters, self.pass_ms, self.prompt = policy, drafters, pass_ms, prompt
        self.random = np.random.default_rng(seed)
        self.noise = noise
        self.elapsed = 0.0
        self.sequence = 0
        self.lengths: list[int] = []  # verified draft tokens of each round

    def run(self, num_tokens: int) -> float:
        """Milliseconds that a generation of `num_tokens` tokens takes after its prompt pass."""
        started = self.elapsed
        self.sequence += 1
        state = self._state(0, num_tokens)
        self.policy.plan(state, self.drafters)
        self.policy.observe(
            RoundReport(self.prompt, self.prompt, 5.0 * self.prompt, 5.0 * self.prompt, [self._outcome()])
        )
        emitted = 1
        while emitted < num_tokens:
            emitted += self._round(emitted, num_tokens)
        return self.elapsed - started

    def _state(self, emitted, num_tokens):
        left = num_tokens - emitted
        return SequenceState(
            self.sequence, self.prompt + emitted, emitted, left, left - 1, 0, emitted == 0, self.sequence
        )

    def _outcome(self):
        return Outcome(self.sequence, None, (), 0, 0, 1, {})

    def _noisy(self, milliseconds):
        return milliseconds * float(np.exp(self.noise * self.random.normal()))

    def _round(self, emitted, num_tokens):
        state = self._state(emitted, num_tokens)
        by_name = {drafter.name: drafter for drafter in self.drafters}
        draft_ms, chosen, draft, right = {}, None, Draft(), []
        for attempt in self.policy.plan(state, self.drafters):
            drafter = by_name[attempt.drafter]
            draft, right, milliseconds = self._draft(drafter, attempt, state)
            draft_ms[drafter.name] = self._noisy(milliseconds)
            draft.cut(self.policy.keep(state, drafter.name, draft))
            if len(draft.token_ids) >= attempt.min_tokens:
                chosen = drafter.name
                break
            draft = Draft()
        count = len(draft.token_ids)
        accepted = next((i for i, good in enumerate(right[:count]) if not good), count)
        forward = self._noisy(self.pass_ms(1 + count))
        total = forward + sum(draft_ms.values()) + 0.2
        outcome = Outcome(self.sequence, chosen, draft.confidences, count, accepted, accepted + 1, draft_ms)
        self.policy.observe(RoundReport(1 + count, 0, forward, total, [outcome]))
        self.elapsed += total
        self.lengths.append(count)
        return accepted + 1

    def _draft(self, drafter, attempt, state):
        """A draft, which of its tokens are right, and what it costs."""
        draft, right = Draft(), []
        limit = min(attempt.max_tokens, state.max_draft)
        if self.random.random() >= drafter.hit_rate:
            return draft, right, 0.02
        while len(draft.token_ids) < limit:
            quality = drafter.quality(state.num_emitted + len(right))
            easy = float(np.clip(quality + drafter.blur * self.random.normal(), 0.02, 0.999))
            confidence = easy if drafter.confidence is None else drafter.confidence
            draft.token_ids.append(0)
            draft.confidences.append(confidence)
            right.append(self.random.random() < (easy if quality else 0.0))
            if attempt.go_on is not None and drafter.needs_prefill and not attempt.go_on(draft.confidences):
                break
        if not drafter.needs_prefill:
            behind = state.context_length - drafter.held.get(state.sequence, 0)
            drafter.held[state.sequence] = state.context_length
            return draft, right, 0.05 + 0.01 * behind
        behind = state.context_length - drafter.held.get(state.sequence, 0)
        drafter.held[state.sequence] = state.context_length + len(right) - 1
        catch_up = 0.2 * drafter.step_ms * behind if behind > 8 else 0.0
        return draft, right, catch_up + drafter.step_ms * len(right)


@pytest.fixture(scope="session")
def simulated() -> SimpleNamespace:
    return SimpleNamespace(Simulation=Simulation, Drafter=SimulatedDrafter, flat=flat, steep=steep)
