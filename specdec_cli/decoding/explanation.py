"""Why the controller decodes plainly, in words."""

from collections.abc import Mapping

from .account import Account
from .costs import PassCosts

_DEAR_ROW = 1.5  # t(2) / t(1) from which the verify pass is to blame
_DEAR_STEP = 0.8  # draft step / t(1) from which no acceptance pays


def explain(passes: PassCosts, accounts: Mapping[str, Account], has_model: Mapping[str, bool]) -> str:
    """One short sentence about every drafter."""
    if not accounts:
        return "plain: too short to learn what drafts would cost"
    reasons = [
        f"{name} {(_of_model if has_model[name] else _of_lookup)(account, passes)}"
        for name, account in accounts.items()
    ]
    return "plain: " + "; ".join(reasons)


def _of_model(account: Account, passes: PassCosts) -> str:
    step, single = account.costs.step.value, passes.ms(1)
    if step > _DEAR_STEP * single:
        return f"does not pay, a step costs {step:.1f} ms and a plain pass {single:.1f} ms"
    if not account.num_asked:
        return "not started, its own prompt pass would cost more than it can save"
    return _poor(account, passes)


def _of_lookup(account: Account, passes: PassCosts) -> str:
    return _poor(account, passes) if account.num_proposed else "found nothing that repeats"


def _poor(account: Account, passes: PassCosts) -> str:
    if passes.ms(2) > _DEAR_ROW * passes.ms(1):
        return f"does not pay, a pass of 2 rows takes {passes.ms(2) / passes.ms(1):.1f} times one of 1"
    if not account.num_verified:
        return "rests, its drafts were too uncertain to pay"
    return f"rests, {account.num_accepted}/{account.num_verified} accepted do not pay"
