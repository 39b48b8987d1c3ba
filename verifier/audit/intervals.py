"""Intervals: exact confidence bounds of a rate, from a count of successes.

Room: verifier (pure). Clopper & Pearson, Biometrika 1934: covers the true rate at least at the stated
confidence, for any number of trials; for display, never for a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LEVEL = 0.95


def exact_interval(found: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Lower and upper bound of a rate after `found` successes in `trials`; (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = 0.0 if not found else _solve(lambda rate: 1 - _at_most(found - 1, trials, rate), tail)
    high = 1.0 if found == trials else _solve(lambda rate: 1 - _at_most(found, trials, rate), 1 - tail)
    return low, high


def rule_of_three(trials: int, level: float = LEVEL) -> float:
    """Upper bound of a rate after no event in `trials` trials: 1 - 0.05^(1/n), about 3 / n."""
    return 1.0 if not trials else 1 - (1 - level) ** (1 / trials)


def _at_most(count: int, trials: int, rate: float) -> float:
    """P(X <= count), X binomial."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return 1.0 if count >= trials else 0.0
    log_all = math.lgamma(trials + 1)
    terms = (
        math.exp(
            log_all - math.lgamma(i + 1) - math.lgamma(trials - i + 1)
            + i * math.log(rate) + (trials - i) * math.log1p(-rate)
        )
        for i in range(count + 1)
    )  # fmt: skip
    return min(math.fsum(terms), 1.0)


def _solve(rising: Callable[[float], float], target: float) -> float:
    """The rate at which a rising function reaches the target."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2
