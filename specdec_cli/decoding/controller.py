"""The policy that drafts only what pays, judged by measured costs and acceptance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..errors import UsageError
from .acceptance import Acceptance
from .account import Account
from .costs import DraftCosts, PassCosts, Smoothed
from .drafters.base import Draft, Drafter
from .explanation import explain
from .policy import Attempt, Outcome, RoundReport, SequenceState

_PLAIN_PASSES = 2  # before the first draft: something must be known of t(1)
_LONGEST_FREE, _LONGEST_PAID = 32, 16  # tokens per draft
_TRIAL_LENGTH, _TRIAL_TOKENS = 2, 5  # drafts of an unknown model stay short until so many tokens were judged
_MARGIN = 0.02  # tokens that a draft must be expected to bring beyond its cost
_HORIZON = 512  # tokens over which a prefill may earn its cost
_TRUST = 0.8  # share of the expected gain that a prefill may cost
_DOUBT = 0.3  # what a new look leaves of the old verdict
_UNKNOWN_STEP = 0.3  # draft step over target pass where a drafter does not tell
_FREE_LOOKUP = 0.002  # likewise for one without a model
_DEAREST_LOOKUP = 0.5  # of t(1): the most that a lookup is charged with
_RATE_MEMORY = 0.98  # per round
_NEARLY_ALL = 0.95  # share of recent rounds without a draft from which decoding counts as plain


@dataclass(slots=True)
class _Round:
    """A decision under way for one sequence."""

    kv: int
    others: int  # rows that other sequences have in the pass
    rival: float = 0.0  # gain expected of the drafter with a model
    probe: str | None = None
    held: dict[str, int] = field(default_factory=dict)  # tokens that a model drafter held before
    num_drafted: dict[str, int] = field(default_factory=dict)


class Controller:
    """Chooses drafter and length by E - g T: tokens expected, less what the time is worth.

    E = 1 + sum over j of S_j, S_j the probability that draft token j and all before it are accepted; T the
    time of the target pass, the draft steps and the catch-up; g the long-run rate in tokens per ms. All
    lengths are compared, 0 included. A lookup drafter is asked first (it costs next to nothing) and its draft
    is used when it promises more than a model's; a model drafts step by step as long as that pays.
    """

    def __init__(self, *, max_tokens: int | None = None, min_tokens: int = 1, p_min: float = 0.0) -> None:
        """`max_tokens` bounds drafts, `min_tokens` refuses shorter ones, `p_min` ends those of a model.

        Raises UsageError for values that make no sense.
        """
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"the draft length is {max_tokens}, it must be 0 (off) or more")
        longest = _LONGEST_PAID if max_tokens is None else max(1, max_tokens)
        if not 0 <= min_tokens <= longest:
            raise UsageError(f"the minimum draft length is {min_tokens}, it must lie between 0 and {longest}")
        if not 0 <= p_min <= 1:
            raise UsageError(f"draft_p_min is {p_min:g}, it must lie between 0 and 1")
        self._max_tokens = max_tokens
        self._min_tokens = max(1, min_tokens)
        self._p_min = p_min
        self.passes = PassCosts()
        self.acceptance = Acceptance()
        self.accounts: dict[str, Account] = {}
        self._overhead = Smoothed(0.05)
        self._rate = (0.0, 0.0)  # tokens and ms, decayed
        self._plain_share = 1.0
        self._rounds: dict[int, _Round] = {}
        self._rows: dict[int, int] = {}  # rows of each sequence in the last pass
        self._held: dict[str, Callable[[int], int]] = {}
        self._has_model: dict[str, bool] = {}

    def plan(self, state: SequenceState, drafters: Sequence[Drafter]) -> Sequence[Attempt]:
        """Lookups first, then the model drafter that promises most, if any promises something."""
        if state.first_pass or self.passes.count < _PLAIN_PASSES:
            return ()
        others = sum(rows for number, rows in self._rows.items() if number != state.sequence)
        current = self._rounds[state.sequence] = _Round(state.kv, others)
        free: list[Attempt] = []
        paid: list[tuple[float, Attempt]] = []
        for drafter in drafters:
            account = self._account(drafter)
            limit = self._limit(state, _LONGEST_PAID if drafter.needs_prefill else _LONGEST_FREE)
            if limit < self._min_tokens or self.acceptance.now < account.resting_until:
                continue
            if drafter.needs_prefill:
                paid += self._with_model(drafter.name, account, state, current, limit)
            elif account.balance > 0:
                account.is_resting = False
                free.append(Attempt(drafter.name, limit, self._min_tokens))
        if paid:
            current.rival = max(paid, key=lambda item: item[0])[0]
        return [*free, *(attempt for _, attempt in sorted(paid, key=lambda item: -item[0])[:1])]

    def keep(self, state: SequenceState, drafter: str, draft: Draft) -> int:
        """The length of the draft that brings most, its cost being spent already."""
        current = self._rounds.get(state.sequence)
        if current is None or draft.parents is not None:
            return len(draft.token_ids)
        current.num_drafted[drafter] = len(draft.token_ids)
        if not draft.token_ids:
            return 0
        estimates = self.acceptance.of_draft(drafter, draft.confidences)
        length, gain, _ = self._best(estimates, current.others, 0.0)
        if current.probe == drafter:
            return max(1, length)
        if gain > (_MARGIN if self._has_model[drafter] else max(_MARGIN, current.rival)):
            return length
        if self._has_model[drafter]:
            self.acceptance.record_unverified(drafter, draft.confidences)
        return 0

    def observe(self, report: RoundReport) -> None:
        """Learn costs from decoding passes, acceptance from all."""
        emitted = sum(outcome.num_emitted for outcome in report.outcomes)
        self.acceptance.now += emitted
        decoding = report.num_prompt_rows == 0 and emitted > 0
        if decoding:
            self.passes.observe(report.num_rows, report.forward_ms)
            drafting = sum(sum(outcome.draft_ms.values()) for outcome in report.outcomes)
            self._overhead.observe(max(1e-3, report.total_ms - report.forward_ms - drafting))
            tokens, milliseconds = self._rate
            self._rate = (_RATE_MEMORY * tokens + emitted, _RATE_MEMORY * milliseconds + report.total_ms)
            self._rows = {outcome.sequence: 1 + outcome.num_verified for outcome in report.outcomes}
        for outcome in report.outcomes:
            current = self._rounds.pop(outcome.sequence, None)
            self._learn(outcome, current)
            if decoding:
                self._settle(outcome, report, current)

    def explain(self) -> str | None:
        """Why decoding has become plain, in a short sentence; None while drafts are in use."""
        if self._plain_share < _NEARLY_ALL:
            return None
        return explain(self.passes, self.accounts, self._has_model)

    @property
    def rate(self) -> float:
        """The long-run rate g in tokens per ms, at least that of plain decoding."""
        plain = 1 / self._plain_ms(max(1, len(self._rows)))
        tokens, milliseconds = self._rate
        return max(plain, tokens / milliseconds) if milliseconds else plain

    def _plain_ms(self, num_sequences: int) -> float:
        """Time that a token costs when nobody drafts."""
        return (self.passes.ms(num_sequences) + self._overhead.value) / num_sequences

    def _limit(self, state: SequenceState, longest: int) -> int:
        return min(state.max_draft, longest if self._max_tokens is None else min(longest, self._max_tokens))

    def _account(self, drafter: Drafter) -> Account:
        account = self.accounts.get(drafter.name)
        if account is None:
            usual = _UNKNOWN_STEP if drafter.needs_prefill else _FREE_LOOKUP
            relative: float = getattr(drafter, "relative_cost", usual)
            costs = DraftCosts(Smoothed(max(1e-6, relative * self.passes.ms(1))))
            account = self.accounts[drafter.name] = Account(costs)
            self._has_model[drafter.name] = drafter.needs_prefill
        if drafter.needs_prefill:
            held = getattr(drafter, "num_held", None)
            if held is not None:
                self._held[drafter.name] = held
        return account

    def _with_model(
        self, name: str, account: Account, state: SequenceState, current: _Round, limit: int
    ) -> list[tuple[float, Attempt]]:
        """(expected gain in tokens, attempt) where asking a model pays or is due for a look; else nothing."""
        known = self._held[name](state.kv) if name in self._held else state.context_length - 1
        current.held[name] = known
        catch_up = account.costs.catch_up_ms(state.context_length - known)
        estimates = self.acceptance.expected(name, limit)
        _, gain, tokens = self._best(estimates, current.others, account.costs.step.value)
        saved = gain / self.rate * min(state.num_left, _HORIZON) / tokens
        on_trial = self.acceptance.num_tried(name) < _TRIAL_TOKENS
        if gain > _MARGIN:
            worth = catch_up < _TRUST * saved
        else:  # the first few tokens are no verdict, unless even perfect drafts would not pay
            started = on_trial and account.num_asked > 0 and not account.is_resting and not catch_up
            worth = started and self._best([1.0] * limit, current.others, account.costs.step.value)[0] > 0
        if worth and account.balance > 0:
            account.is_resting = False
            if on_trial:
                limit = max(self._min_tokens, min(limit, _TRIAL_LENGTH))
            go_on = partial(self._go_on, name, current.others, limit)
            return [(gain, Attempt(name, limit, self._min_tokens, self._p_min, go_on))]
        if not account.num_asked:
            return []
        if account.is_resting:
            cost = catch_up + 3 * (_TRIAL_LENGTH * account.costs.step.value + self.passes.ms(3))
            if account.balance < (cost - 3 * self.passes.ms(1)) / self.passes.ms(1):
                return []
            account.begin_probe()
            self.acceptance.doubt(name, _DOUBT)
        elif account.probes_left == 0:
            account.begin_rest(self.acceptance.now)
            return []
        account.probes_left -= 1
        current.probe = name
        return [(0.0, Attempt(name, max(self._min_tokens, min(limit, _TRIAL_LENGTH)), self._min_tokens))]

    def _best(self, estimates: Sequence[float], others: int, step_ms: float) -> tuple[int, float, float]:
        """Length with the highest E - g T, what it gains over length 0 in tokens, and its E."""
        rate, passes = self.rate, self.passes
        plain = passes.ms(others + 1)
        best = (0, 0.0, 1.0)
        survival, expected = 1.0, 0.0
        for length, estimate in enumerate(estimates, 1):
            survival *= estimate
            expected += survival
            cost = passes.ms(others + 1 + length) - plain + length * step_ms
            if expected - rate * cost > best[1]:
                best = (length, expected - rate * cost, 1 + expected)
        return best

    def _go_on(self, name: str, others: int, limit: int, confidences: Sequence[float]) -> bool:
        """Whether one more draft step can still pay, given the tokens drafted so far."""
        estimates = self.acceptance.of_draft(name, confidences)
        _, have, _ = self._best(estimates, others, 0.0)
        drafted = len(confidences)
        rate, passes, step = self.rate, self.passes, self.accounts[name].costs.step.value
        plain = passes.ms(others + 1)
        survival, expected = 1.0, 0.0
        for estimate in estimates:
            survival *= estimate
            expected += survival
        for length, estimate in enumerate(self.acceptance.expected(name, limit)[drafted:], drafted + 1):
            survival *= estimate
            expected += survival
            cost = passes.ms(others + 1 + length) - plain + (length - drafted) * step
            if expected - rate * cost > have:
                return True
        return False

    def _learn(self, outcome: Outcome, current: _Round | None) -> None:
        """Acceptance, counters and draft costs."""
        self._plain_share += 0.05 * ((outcome.drafter is None) - self._plain_share)
        if outcome.drafter in self.accounts:
            account = self.accounts[outcome.drafter]
            account.num_verified += outcome.num_verified
            account.num_accepted += outcome.num_accepted
            self.acceptance.record(outcome.drafter, outcome.confidences, outcome.num_accepted)
        for name, milliseconds in outcome.draft_ms.items():
            if current is None or name not in self.accounts:
                continue
            account = self.accounts[name]
            num_drafted = current.num_drafted.get(name, 0)
            account.num_asked += 1
            account.num_proposed += num_drafted > 0
            steps = max(1, num_drafted) if self._has_model[name] else 1
            backlog = self._caught_up(name, current, num_drafted)
            account.costs.observe(milliseconds, num_steps=steps, backlog=backlog)

    def _caught_up(self, name: str, current: _Round, num_drafted: int) -> int:
        """Tokens of context that a model drafter computed in this round before it could draft."""
        if name not in self._held:
            return 1
        grown = self._held[name](current.kv) - current.held.get(name, 0)
        return max(1, grown - max(0, num_drafted - 1))

    def _settle(self, outcome: Outcome, report: RoundReport, current: _Round | None) -> None:
        """Book what a round gained or lost against plain decoding to the drafters that were asked."""
        unit = self.passes.ms(1)
        for name, account in self.accounts.items():
            lost = outcome.draft_ms.get(name, 0.0)
            if lost and current is not None and current.probe != name:
                backlog = self._caught_up(name, current, current.num_drafted.get(name, 0))
                lost -= min(lost, account.costs.catch_up_ms(backlog))  # decided on its own merits
            if not self._has_model[name]:  # its first lookup indexes the prompt, once
                lost = min(lost, _DEAREST_LOOKUP * unit)
            if name == outcome.drafter:
                rows = report.num_rows
                lost += self.passes.ms(rows) - self.passes.ms(max(1, rows - outcome.num_verified))
                lost -= outcome.num_accepted * self._plain_ms(len(report.outcomes))
            account.settle(-lost / unit, outcome.num_emitted, self.acceptance.now)
