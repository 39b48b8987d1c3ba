"""Odds: detection probability of an audit rate, and the stake and pay that make cheating unprofitable.

Room: verifier (pure). Derived in docs/odds.md. Whatever can set a default is an integer or an exact fraction
and rounds to the safe side; floats are for display.

Symbols: p audit rate, d power of one audit, x share of false steps, n steps, c what a false step saves, L
steps in flight before a verdict, B a saboteur's outside gain, k false steps it needs, v cost of an audit to
its auditor, kappa share of audits whose true answer is known beforehand.
"""

from __future__ import annotations

import math
from fractions import Fraction

from assay.protocol.draws import audit_rate_ppm
from assay.protocol.params import PPM, AuditSpec

SAFETY = Fraction(2)  # factor of stake over the amount at which cheating breaks even
PAY_MARGIN = Fraction(6, 5)  # of an auditor's pay over its cost
STATES_MAX = 1_000_000


def hit(rate: Fraction, cheat: Fraction, power: Fraction = Fraction(1)) -> Fraction:
    """h = p d x: probability that one step of this node is false, drawn and detected.

    Raises:
        ValueError: one of them is no share.
    """
    for name, share in (("rate", rate), ("cheat", cheat), ("power", power)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} is {float(share):g}, expected 0 to 1")
    return rate * cheat * power


def caught(one: Fraction, steps: int) -> float:
    """1 - (1 - h)^n: probability of detection within n steps, all drawn independently at one rate."""
    if one >= 1:
        return 1.0 if steps else 0.0
    return -math.expm1(steps * math.log1p(-float(one)))


def steps_until(one: Fraction, chance: Fraction) -> int | None:
    """The fewest steps after which a cheater is detected with this probability; None if never."""
    if one <= 0 or not 0 <= chance < 1:
        return None
    if one >= 1:
        return 1
    return max(math.ceil(math.log1p(-float(chance)) / math.log1p(-float(one))), 0)


def caught_by_rule(
    rules: AuditSpec, cheat: float, steps: int, power: float = 1.0, *, honest: int = 0
) -> float:
    """Probability of detection within `steps` steps under the run's rule: probation, then a falling rate.

    The rate depends on consecutive passed audits, and each drawn step that is not detected adds one. So
    this follows the distribution of their count, exactly, up to where the rate stands at its floor.

    Args:
        rules: Probation and floor.
        cheat: Share of steps that are false, independently of the draw.
        steps: Steps within which the node can be detected.
        power: Probability that the audit of a false step detects it.
        honest: Consecutive passed audits of the node at the start.
    """
    if rules.floor_ppm <= 0 or not (0 <= cheat <= 1 and 0 <= power <= 1):
        raise ValueError("the floor must be above 0, cheat and power from 0 to 1")
    last = max(rules.probation, -(-PPM * rules.probation // rules.floor_ppm)) + 1  # from here: the floor
    if last > STATES_MAX:
        raise ValueError(f"a floor of {rules.floor_ppm} ppm after {rules.probation} audits: too many states")
    rates = [audit_rate_ppm(rules, count) / PPM for count in range(last + 1)]
    rates[last] = audit_rate_ppm(rules, last) / PPM
    state = {min(honest, last): 1.0}
    found = 0.0
    for _ in range(steps):
        after: dict[int, float] = {}
        for count, mass in state.items():
            out = rates[count] * cheat * power
            up = rates[count] - out
            more = min(count + 1, last)
            found += mass * out
            after[more] = after.get(more, 0.0) + mass * up
            after[count] = after.get(count, 0.0) + mass * (1 - rates[count])
        state = {count: mass for count, mass in after.items() if mass > 1e-15}
    return min(found, 1.0)


def stake_against_laziness(
    saved: int, rate: Fraction, power: Fraction, *, in_flight: int = 0, safety: Fraction = SAFETY
) -> int:
    """Least S + H >= f c (1 / (p d) + L): the amount at risk must exceed what laziness saves until detection.

    Assumes: independent draws at the rate; all of it is lost on detection; nothing is earned after;
    L more false steps pass before the verdict. The share of false steps cancels out.
    See docs/odds.md, section 2.

    Args:
        saved: c, what one false step saves, token units.
        rate: p. power: d. in_flight: L. safety: f; 1 is indifference.

    Raises:
        ValueError: nothing is ever detected, so no stake deters.
    """
    if rate * power <= 0:
        raise ValueError("no audit ever finds anything: no stake deters")
    return math.ceil(safety * saved * (1 / (rate * power) + in_flight))


def saving_deterred(
    lost: int, rate: Fraction, power: Fraction, *, in_flight: int = 0, safety: Fraction = SAFETY
) -> int:
    """The largest saving per step that a loss of this size deters: inverts the above, rounded down."""
    if rate * power <= 0:
        return 0
    return math.floor(lost / (safety * (1 / (rate * power) + in_flight)))


def stake_against_sabotage(gain: int, rate: Fraction, power: Fraction, *, steps: int) -> int:
    """Least S >= B q / (1 - q), q = (1 - p d)^k: expected loss is at least the outside gain.

    Assumes: the gain comes only if all k false steps pass; on detection, the stake is lost and the gain
    with it. Robust aggregation decides k, stake does not. See docs/odds.md, section 3.

    Raises:
        ValueError: nothing is ever detected, or no step is needed.
    """
    if rate * power <= 0 or steps < 1:
        raise ValueError("no audit ever finds anything, or no false step is needed: no stake deters")
    passed = (1 - rate * power) ** steps
    return math.ceil(gain * passed / (1 - passed))


def auditor_pay(cost: int, known: Fraction, stake: int) -> int:
    """Least pay per audit so that recomputing beats passing blindly: a >= max(1.2 v, v / kappa - S_v).

    An auditor that always votes MATCH saves v and earns a, but with probability kappa meets a step whose
    answer is known and loses pay and stake: a - v >= a (1 - kappa) - kappa S_v. See docs/odds.md, section 4.
    Assumes known-answer tasks, or replicated audits, that no verifier can distinguish from another audit.

    Raises:
        ValueError: no answer is ever known, so lazy passing is never detected at any pay.
    """
    if not 0 < known <= 1:
        raise ValueError("no audit's answer is known beforehand: lazy passing beats every pay")
    return max(math.ceil(PAY_MARGIN * cost), math.ceil(cost / known) - stake)


def auditor_stake(cost: int, known: Fraction, safety: Fraction = SAFETY) -> int:
    """S_v >= f v / kappa: enough without counting on pay. See docs/odds.md, section 4."""
    if not 0 < known <= 1:
        raise ValueError("no audit's answer is known beforehand: no stake deters lazy passing")
    return math.ceil(safety * cost / known)


def power_under_collusion(bought: Fraction, second: Fraction) -> Fraction:
    """d = 1 - a (1 - q2) - a^2 q2: power if a share a of stake colludes and q2 of audits are replicated."""
    return 1 - bought * (1 - second) - bought**2 * second
