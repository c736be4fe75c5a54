"""Counters of speculative decoding. Counters go in, ratios come out: only counters can be merged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _add(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)]


@dataclass(slots=True)
class DrafterStats:
    """What one drafter proposed for verification and what became of it."""

    num_rounds: int = 0  # rounds in which it drafted at least one token
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_at: list[int] = field(default_factory=list)  # [position in the draft] rounds that drafted so far
    accepted_at: list[int] = field(default_factory=list)  # [position in the draft] rounds that accepted it
    draft_ms: float = 0.0  # time spent proposing, also where nothing came of it

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted; None where nothing was drafted."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def acceptance_per_position(self) -> list[float | None]:
        """[position in the draft] accepted there / rounds that drafted there."""
        pairs = zip_longest(self.accepted_at, self.drafted_at, fillvalue=0)
        return [_ratio(accepted, drafted) for accepted, drafted in pairs]

    def record(self, depths: Sequence[int], num_accepted: int) -> None:
        """Count one round: `depths` are the positions of the drafted tokens (0..n-1 for a chain)."""
        if not depths:
            return
        self.num_rounds += 1
        self.num_draft_tokens += len(depths)
        self.num_accepted_tokens += num_accepted
        self.drafted_at = _add(self.drafted_at, [1] * (max(depths) + 1))
        self.accepted_at = _add(self.accepted_at, [1] * num_accepted)

    def merge(self, other: "DrafterStats") -> None:
        """Add the counters of another run."""
        self.num_rounds += other.num_rounds
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        self.drafted_at = _add(self.drafted_at, other.drafted_at)
        self.accepted_at = _add(self.accepted_at, other.accepted_at)
        self.draft_ms += other.draft_ms


@dataclass(slots=True)
class SpecStats:
    """Counters of one generation, or of several merged.

    A round is a target pass that decodes. The prompt pass also yields a token; it counts as a round only
    when it carried a draft, so that plain decoding has a mean acceptance length of exactly 1.
    """

    num_rounds: int = 0
    num_round_tokens: int = 0  # tokens emitted by those rounds
    target_ms: float = 0.0  # time of the target passes of those rounds, shared evenly within a batch
    drafters: dict[str, DrafterStats] = field(default_factory=dict)

    @property
    def num_draft_tokens(self) -> int:
        """Tokens drafted, over all drafters."""
        return sum(d.num_draft_tokens for d in self.drafters.values())

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens accepted, over all drafters."""
        return sum(d.num_accepted_tokens for d in self.drafters.values())

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted; None where nothing was drafted."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens emitted per target pass, recovered or bonus token included; None without a round."""
        return _ratio(self.num_round_tokens, self.num_rounds)

    @property
    def acceptance_per_position(self) -> list[float | None]:
        """[position in the draft] accepted there / rounds that drafted there, over all drafters."""
        return self._total().acceptance_per_position

    @property
    def draft_ms(self) -> float:
        """Time spent drafting, over all drafters."""
        return sum(d.draft_ms for d in self.drafters.values())

    def drafter(self, name: str) -> DrafterStats:
        """Counters of one drafter, made when first asked for."""
        return self.drafters.setdefault(name, DrafterStats())

    def merge(self, other: "SpecStats") -> None:
        """Add the counters of another run."""
        self.num_rounds += other.num_rounds
        self.num_round_tokens += other.num_round_tokens
        self.target_ms += other.target_ms
        for name, stats in other.drafters.items():
            self.drafter(name).merge(stats)

    def as_dict(self) -> dict[str, object]:
        """The `speculative_decoding` object of JSON output; undefined ratios are null."""
        return {
            "mean_acceptance_length": self.mean_acceptance_length,
            **_counters(self._total()),
            "num_rounds": self.num_rounds,
            "drafters": {
                name: {"num_rounds": d.num_rounds, **_counters(d), "draft_ms": round(d.draft_ms, 3)}
                for name, d in self.drafters.items()
            },
        }

    def _total(self) -> DrafterStats:
        total = DrafterStats()
        for stats in self.drafters.values():
            total.merge(stats)
        return total


def _counters(stats: DrafterStats) -> dict[str, object]:
    return {
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_per_position": stats.acceptance_per_position,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
    }
