"""What passes and drafts cost on this machine, in milliseconds, followed while it runs."""

import math
from dataclasses import dataclass, field

_PRIOR_SLOPE = 0.08  # a further row of a small pass, as a share of t(1), until it is measured
_SETTLED = 4  # observations after which outliers are clipped
_CLIP = 0.25  # of an outlier, the most that counts, in units of log time
_SMALL_CATCH_UP = 8  # rows that a draft step takes along at no extra cost worth counting


@dataclass(slots=True)
class Smoothed:
    """A positive figure that is followed in log space: the mean of the first few observations, then a moving
    average that single outliers cannot throw.
    """

    value: float
    count: int = 0
    gain: float = 0.1

    def observe(self, value: float) -> None:
        """Take an observation; the first replaces the initial value."""
        if value <= 0:
            return
        error = math.log(value / self.value)
        if self.count >= _SETTLED:
            error = max(-_CLIP, min(_CLIP, error))
        self.value *= math.exp(max(self.gain, 1 / (self.count + 1)) * error)
        self.count += 1


class PassCosts:
    """t(M): time of a target pass with M rows, as a level (that of one row) times a curve.

    The level follows the depth of the context, whatever M is used; the curve is interpolated between the M
    that occurred, continued with its mean slope, and never falls.
    """

    def __init__(self) -> None:
        self.count = 0  # passes observed
        self._level = Smoothed(1.0)
        self._ratios: dict[int, Smoothed] = {}
        self._curve: list[float] = []  # [rows - 1] ratio to one row

    def ms(self, rows: int) -> float:
        """Expected time of a pass with `rows` rows. Meaningless before the first observation."""
        while len(self._curve) < rows:
            self._curve = self._drawn(max(64, 2 * rows))
        return self._level.value * self._curve[rows - 1]

    def observe(self, rows: int, milliseconds: float) -> None:
        """Learn from a pass."""
        if milliseconds <= 0 or rows < 1:
            return
        self.count += 1
        if rows == 1:
            self._level.observe(milliseconds)
            return
        expected = self.ms(rows)
        if not self._level.count:  # the prior curve has to do
            self._level.observe(milliseconds * self._level.value / expected)
            return
        ratio = self._ratios.setdefault(rows, Smoothed(self._curve[rows - 1], gain=0.05))
        if ratio.count >= _SETTLED:  # a known point of the curve says something about the level
            error = max(-_CLIP, min(_CLIP, math.log(milliseconds / expected)))
            self._level.value *= math.exp(0.1 * error)
        ratio.observe(max(1.0, milliseconds / self._level.value))
        self._curve = self._drawn(len(self._curve))

    def _drawn(self, length: int) -> list[float]:
        """The curve for 1 .. `length` rows through the points that are known."""
        curve = [1.0]
        for rows in sorted(self._ratios):
            start, first = len(curve), curve[-1]
            last = max(first, self._ratios[rows].value)
            curve += [first + (last - first) * (i - start + 1) / (rows - start) for i in range(start, rows)]
        slope = max(_PRIOR_SLOPE, (curve[-1] - 1) / max(1, len(curve) - 1))
        end = curve[-1]
        return curve + [end + slope * (i + 1) for i in range(length - len(curve))]


@dataclass(slots=True)
class DraftCosts:
    """What a drafter costs: a step for each token and its way through context that it has not seen.

    For a drafter without a model the step stands for the whole lookup.
    """

    step: Smoothed
    row: Smoothed = field(init=False)

    def __post_init__(self) -> None:
        self.row = Smoothed(0.2 * self.step.value)  # of a long pass, until measured

    def catch_up_ms(self, backlog: int) -> float:
        """Time to compute `backlog` tokens of context; a few come along with the first step."""
        if backlog <= _SMALL_CATCH_UP:
            return 0.0
        row = self.row.value if self.row.count else min(self.row.value, 0.2 * self.step.value)
        return backlog * row

    def observe(self, milliseconds: float, *, num_steps: int, backlog: int) -> None:
        """Learn from a draft of `num_steps` steps that began `backlog` tokens behind."""
        if backlog > _SMALL_CATCH_UP:
            rest = milliseconds - self.step.value * max(0, num_steps - 1)
            self.row.observe(max(rest, 0.1 * milliseconds) / backlog)
        else:
            self.step.observe(milliseconds / max(1, num_steps))
