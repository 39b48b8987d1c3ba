"""Odds: detection probability of an audit rate, and the stake and pay that make cheating unprofitable.

Room: verifier (pure). Derived in docs/odds.md. Whatever can set a default is an integer or an exact fraction
and rounds to the safe side; floats are for display.

Symbols: p audit rate, d power of one audit, x share of false steps, n steps, c what a false step saves, L
steps in flight before a verdict, B a saboteur's outside gain, k false steps it needs, v cost of an audit to
its auditor, kappa share of audits whose true answer is known beforehand, T steps that a false state lasts, l
those of them that need no work.
"""

from __future__ import annotations

import math
from fractions import Fraction

from assay.protocol.auditing.draws import audit_rate_ppm
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
    saved: int,
    rate: Fraction,
    power: Fraction,
    *,
    idle: int = 1,
    in_flight: int = 0,
    safety: Fraction = SAFETY,
) -> int:
    """Least S + H >= f c (l / (p d) + L): the amount at risk must exceed what laziness saves until detection.

    Assumes: independent draws at the rate; all of it is lost on detection; nothing is earned after;
    L more false steps pass before the verdict (x L if only a share x of steps is false).
    See docs/odds.md, section 2.

    Args:
        saved: c, what one false step saves, token units.
        rate: p. power: d. in_flight: L. safety: f; 1 is indifference.
        idle: l, steps without work that one false step makes possible, itself counted.

    Raises:
        ValueError: nothing is ever detected, so no stake deters.
    """
    if rate * power <= 0:
        raise ValueError("no audit ever finds anything: no stake deters")
    return math.ceil(safety * saved * (idle / (rate * power) + in_flight))


def saving_deterred(
    lost: int,
    rate: Fraction,
    power: Fraction,
    *,
    idle: int = 1,
    in_flight: int = 0,
    safety: Fraction = SAFETY,
) -> int:
    """The largest saving per step that a loss of this size deters: inverts the above, rounded down."""
    if rate * power <= 0:
        return 0
    return math.floor(lost / (safety * (idle / (rate * power) + in_flight)))


def stake_against_sabotage(
    gain: int, rate: Fraction, power: Fraction, *, steps: int, lasting: int = 1
) -> int:
    """Least S >= B q / (1 - q), q = (1 - p d)^ceil(k / T): expected loss is at least the outside gain.

    Assumes: the gain comes only if all k false messages pass; on detection, the stake is lost and the gain
    with it. One false state decides up to T messages, and only the step that wrote it is false. Robust
    aggregation decides k, stake does not. See docs/odds.md, section 3.

    Raises:
        ValueError: nothing is ever detected, or no step is needed.
    """
    if rate * power <= 0 or steps < 1:
        raise ValueError("no audit ever finds anything, or no false step is needed: no stake deters")
    passed = (1 - rate * power) ** -(-steps // lasting)
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


def power_under_collusion(bought: int, seats: int, second: Fraction) -> Fraction:
    """d = 1 - (m / n) (1 - q2 + q2 (m - 1) / (n - 1)): power if m of n auditors collude, q2 of audits twice.

    Auditors are drawn without replacement: a second one is never the first again.

    Raises:
        ValueError: not 0 <= m <= n, or fewer than 2 seats.
    """
    if not (0 <= bought <= seats and seats >= 2):
        raise ValueError(
            f"{bought} of {seats} auditors collude, expected at least 2 seats and no more bought"
        )
    first = Fraction(bought, seats)
    return 1 - first * (1 - second + second * Fraction(max(bought - 1, 0), seats - 1))


def power_over_blocks(rules: AuditSpec, blocks: int, false: int) -> Fraction:
    """Probability that one audit opens at least one of `false` blocks in which a step uses other work.

    The sketch binds what a node has computed; that it uses the same shows only in opened blocks.
    Assumes that every block sends something, so that both halves of the draw are uniform. See
    docs/odds.md, section 6.

    Args:
        rules: How many blocks an audit opens, and a wide one, and how often it is wide.
        blocks: Of the model.
        false: Of them, 1 to `blocks`.
    """
    wide = Fraction(rules.wide_ppm, PPM)
    return sum(
        (
            share * (1 - Fraction(math.perm(blocks - opened, false), math.perm(blocks, false)))
            for share, opened in (
                (1 - wide, min(rules.blocks, blocks)),
                (wide, min(rules.wide_blocks, blocks)),
            )
        ),
        Fraction(0),
    )


def stake_against_bribery(node_loss: int, second: Fraction, slash: Fraction) -> int:
    """Least S_v >= S (1 - q2) / (q2 s_v): what a bribed auditor may lose exceeds what its briber would.

    A node that is drawn offers its auditor anything below its own loss; the auditor is found out if the
    audit turns out to be replicated, with chance q2. Assumes the second auditor cannot be bribed as well.
    See docs/odds.md, section 5.

    Args:
        node_loss: What the node loses if the truth is told, token units.
        second: q2. slash: s_v, the share of its stake that a verifier at fault loses.

    Raises:
        ValueError: nothing is replicated or slashed, so no stake deters.
    """
    if second <= 0 or slash <= 0:
        raise ValueError("no audit is replicated, or no verifier is slashed: no stake deters a bribe")
    return math.ceil(node_loss * (1 - second) / (second * slash))
