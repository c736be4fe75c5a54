"""What the passes of a generation cost, taken down while it runs."""

from dataclasses import dataclass, field

from specdec_cli.decoding.policy import RoundReport


@dataclass(slots=True)
class PassTotals:
    """Sums over decoding passes; prompt passes are left out. Times in milliseconds."""

    num_passes: int = 0
    forward_ms: float = 0.0
    draft_ms: float = 0.0
    num_tried: int = 0  # draft tokens that counted: the accepted ones and the first rejected of each draft
    num_accepted: int = 0
    by_rows: dict[int, tuple[int, float]] = field(default_factory=dict)  # rows -> (passes, their time)

    @property
    def acceptance(self) -> float | None:
        """Probability that a draft token is accepted, given that all before it were; None: no drafts."""
        return self.num_accepted / self.num_tried if self.num_tried else None

    def observe(self, report: RoundReport) -> None:
        """Take down one pass of the engine."""
        if report.num_prompt_rows:
            return
        self.num_passes += 1
        self.forward_ms += report.forward_ms
        self._add_rows(report.num_rows, 1, report.forward_ms)
        for outcome in report.outcomes:
            self.draft_ms += sum(outcome.draft_ms.values())
            self.num_accepted += outcome.num_accepted
            self.num_tried += min(outcome.num_verified, outcome.num_accepted + 1)

    def merge(self, other: "PassTotals") -> None:
        """Add the sums of another run."""
        self.num_passes += other.num_passes
        self.forward_ms += other.forward_ms
        self.draft_ms += other.draft_ms
        self.num_tried += other.num_tried
        self.num_accepted += other.num_accepted
        for rows, (count, milliseconds) in other.by_rows.items():
            self._add_rows(rows, count, milliseconds)

    def _add_rows(self, rows: int, count: int, milliseconds: float) -> None:
        known_count, known_ms = self.by_rows.get(rows, (0, 0.0))
        self.by_rows[rows] = (known_count + count, known_ms + milliseconds)
