"""What the controller remembers of one drafter: its costs, what it gained or lost, whether it rests."""

from dataclasses import dataclass

from .costs import DraftCosts

_STAKE = 3.0  # a drafter may lose this much before it has earned anything; in plain passes, like all balances
_ALLOWANCE = 0.01  # what it may lose more, per token of output
_CREDIT = 20.0  # gains beyond this do not pay for later losses
_SHORT_REST, _FIRST_REST, _LONGEST_REST = 8, 32, 1024  # tokens; short where it has earned something
_PROBES = 3  # rounds of a new look


@dataclass(slots=True)
class Account:
    """Gains and losses of a drafter against plain decoding, and the rests that follow from them.

    Losses are bounded: with the balance used up the drafter rests, longer each time, and is looked at
    again only when the allowance has grown enough to pay for the look.
    """

    costs: DraftCosts
    balance: float = _STAKE
    rest: int = _SHORT_REST
    resting_until: int = 0
    is_resting: bool = False
    probes_left: int = 0
    num_asked: int = 0
    num_proposed: int = 0  # times it had a draft
    num_verified: int = 0  # tokens
    num_accepted: int = 0

    def begin_rest(self, now: int) -> None:
        """Leave it alone for a while, longer each time."""
        self.is_resting = True
        self.probes_left = 0
        if self.balance <= _STAKE:
            self.rest = max(self.rest, _FIRST_REST)
        self.resting_until = now + self.rest
        self.rest = min(_LONGEST_REST, 2 * self.rest)

    def begin_probe(self) -> None:
        """Look at it again for a few rounds."""
        self.is_resting = False
        self.probes_left = _PROBES

    def settle(self, gain: float, num_tokens: int, now: int) -> None:
        """Book a round: `gain` in plain passes (negative: lost) and the tokens it emitted."""
        self.balance = min(_CREDIT, self.balance + gain + _ALLOWANCE * num_tokens)
        if self.balance < 0 and not self.is_resting:
            self.begin_rest(now)
        elif gain > 0 and self.balance > _STAKE:
            self.rest = _SHORT_REST
