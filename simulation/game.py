"""Game: operators and auditors who want money play against an order's numbers, with stakes to lose.

Room: simulation (pure). One party plays one strategy for many epochs among honest others; draws and rates are
the protocol's (`protocol/auditing/draws.py`), money moves as the contracts move it. Its profit is compared
with what honesty would have earned in the same epochs, from the same draws. A strategy that wins is an attack
that the numbers invite; `OPERATOR_STRATEGIES` and `AUDITOR_STRATEGIES` are lists to extend.

What is assumed: the committee is honest by its majority, so a step that an honest auditor finds false is
found false; an operator that was banned comes back under a new name, on probation, with what is left of its
fortune; nothing but money counts.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from assay.protocol.auditing.draws import audit_rate_ppm
from assay.protocol.params import PPM, AuditSpec
from assay.protocol.types import NO_DIGEST

EPOCH_ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """An order's numbers; amounts in token units.

    step_pay, step_cost: of one accepted step, of its work. audit_pay, audit_cost: of one recomputed step.
    power: d. lasting: steps that a false state lasts. known_ppm: share of audits whose answer is known.
    outside: what a saboteur gains by each false message that is accepted.
    """

    audit: AuditSpec
    operator_stake: int = 1_000_000_000
    verifier_stake: int = 10_000_000_000
    slash_ppm: int = 300_000
    verifier_slash_ppm: int = 200_000
    step_pay: int = 10_000
    step_cost: int = 8_000
    audit_pay: int = 10_000
    audit_cost: int = 8_000
    verifiers: int = 4
    power: float = 0.95
    lasting: int = 128
    known_ppm: int = 0
    outside: int = 0


@dataclass(frozen=True, slots=True)
class OperatorView:
    """What an operator knows when it chooses. clean: audits passed in a row. since_lie: steps; -1: none."""

    round: int
    clean: int
    rate: float
    since_lie: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStrategy:
    """lies: whether this step is false. works: whether its work is done all the same.

    bribe: of what it would lose, the share offered to the auditor of a false step. bought: its own auditors.
    """

    name: str
    lies: Callable[[OperatorView, Market], bool]
    works: bool = False
    bribe: float = 0.0
    bought: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorStrategy:
    """computes: whether it recomputes. accuses: share of the steps that it calls false, unseen."""

    name: str
    computes: bool = False
    accuses: float = 0.0


OPERATOR_STRATEGIES = (
    OperatorStrategy(name="no work at all", lies=lambda *_: True),
    OperatorStrategy(name="no work once the rate is at its floor", lies=lambda view, _: view.rate < 0.06),
    OperatorStrategy(name="one step in ten", lies=lambda view, _: view.round % 10 == 0),
    OperatorStrategy(name="only in an epoch's last round", lies=lambda view, _: view.round % 10 == 9),
    OperatorStrategy(
        name="puppet: one false state in its life",
        lies=lambda view, market: not 0 <= view.since_lie < market.lasting,
        works=True,
    ),
    OperatorStrategy(
        name="puppet, once the rate is at its floor",
        lies=lambda view, market: view.rate < 0.06 and not 0 <= view.since_lie < market.lasting,
        works=True,
    ),
    OperatorStrategy(name="no work, half of the loss for a bribe", lies=lambda *_: True, bribe=0.5),
    OperatorStrategy(
        name="at the floor, nearly all of the loss for a bribe",
        lies=lambda view, _: view.rate < 0.06,
        bribe=0.99,
    ),
    OperatorStrategy(name="no work, one auditor of its own", lies=lambda *_: True, bought=1),
    OperatorStrategy(
        name="at the floor, one auditor of its own", lies=lambda view, _: view.rate < 0.06, bought=1
    ),
)
AUDITOR_STRATEGIES = (
    AuditorStrategy(name="passes all unseen"),
    AuditorStrategy(name="accuses one step in a hundred unseen", accuses=0.01),
    AuditorStrategy(name="recomputes, and accuses one in a hundred", computes=True, accuses=0.01),
)


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a strategy. profit, honest: token units an epoch. error: standard error of the difference."""

    name: str
    epochs: int
    profit: float
    honest: float
    error: float
    lies: int
    found: int

    @property
    def advantage(self) -> float:
        """Profit over honesty, token units an epoch."""
        return self.profit - self.honest

    @property
    def is_profitable(self) -> bool:
        """Whether the advantage is above zero by more than chance (two standard errors)."""
        return self.advantage > 2 * self.error


def play_operator(strategy: OperatorStrategy, market: Market, epochs: int, seed: int) -> Played:
    """One operator among honest parties for this many epochs."""
    dice = random.Random(_seed(strategy.name, seed))
    rounds, gains = 0, []
    clean, since, lies, found = 0, -1, 0, 0
    lost = market.operator_stake * market.slash_ppm // PPM
    for _ in range(epochs):
        money = 0.0
        for _ in range(EPOCH_ROUNDS):
            rate = audit_rate_ppm(market.audit, clean) / PPM
            is_false = strategy.lies(OperatorView(rounds, clean, rate, since), market)
            rounds += 1
            since = 0 if is_false else since + 1 if since >= 0 else -1
            lies += is_false
            is_drawn = dice.random() < rate
            is_found, cost = _judged(strategy, market, dice, lost) if is_false and is_drawn else (False, 0.0)
            money -= cost + (market.step_cost if strategy.works or not is_false else 0)
            if is_found:
                found += 1
                money -= lost
                clean, since = 0, -1  # banned; it comes back under a new name
                continue
            money += market.step_pay
            money += market.outside if 0 <= since < (market.lasting if strategy.works else 1) else 0
            clean += is_drawn
        gains.append(money)
    honest = float(EPOCH_ROUNDS * (market.step_pay - market.step_cost))
    return _played(strategy.name, gains, honest, lies, found)


def _judged(strategy: OperatorStrategy, market: Market, dice: random.Random, lost: int) -> tuple[bool, float]:
    """Whether the audit of a false step finds it, and what the operator paid for silence."""
    second = market.audit.replication_ppm / PPM
    order = dice.sample(range(market.verifiers), 2)
    wanted = order[: 2 if dice.random() < second else 1]
    offer = lost * strategy.bribe
    own = [auditor < strategy.bought for auditor in wanted]
    if offer and not own[0]:
        # An auditor takes an offer that is worth more than its own risk; the second one is not asked.
        own[0] = offer > second * market.verifier_stake * market.verifier_slash_ppm / PPM
        cost = offer if own[0] else 0.0
    else:
        cost = 0.0
    is_found = any(not mine and dice.random() < market.power for mine in own)
    if is_found and strategy.bought and own[0]:
        cost += market.verifier_stake * market.verifier_slash_ppm / PPM  # its own auditor said MATCH
    return is_found, cost


def play_auditor(strategy: AuditorStrategy, market: Market, epochs: int, seed: int) -> Played:
    """One auditor, one audit a round, of nodes that are honest but for the known-answer tasks.

    An accusation that the committee refutes costs stake, and so does passing a step that is known false. One
    that passes all unseen says that it judges in the reference class, where only a second look knows better.
    """
    compared = compared_share(market.audit)
    dice = random.Random(_seed(strategy.name, seed))
    gains, lies, found = [], 0, 0
    fine = market.verifier_stake * market.verifier_slash_ppm / PPM
    for _ in range(epochs):
        money = 0.0
        for _ in range(EPOCH_ROUNDS):
            is_known_false = dice.random() < market.known_ppm / PPM
            accuses = dice.random() < strategy.accuses or (strategy.computes and is_known_false)
            money -= market.audit_cost if strategy.computes else 0
            is_compared = not strategy.computes and not accuses and dice.random() < compared
            is_wrong = accuses != is_known_false or is_compared
            lies += is_wrong or not strategy.computes
            found += is_wrong
            money += -fine if is_wrong else market.audit_pay
        gains.append(money)
    honest = float(EPOCH_ROUNDS * (market.audit_pay - market.audit_cost))
    return _played(strategy.name, gains, honest, lies, found)


def compared_share(audit: AuditSpec) -> float:
    """Share of an idle auditor's audits in which another recompute must have the bits that it has invented.

    In the reference class: where it judges first and a second look follows, q2 of 1 + q2 audits. Without
    limits it cannot name that class, and the node's own sketch shows every one.
    """
    second = audit.replication_ppm / PPM
    return second / (1 + second) if audit.limits != NO_DIGEST else 1.0


def play_all(market: Market, epochs: int, seed: int) -> list[Played]:
    """Every strategy of both lists."""
    return [
        *(play_operator(one, market, epochs, seed) for one in OPERATOR_STRATEGIES),
        *(play_auditor(one, market, epochs, seed) for one in AUDITOR_STRATEGIES),
    ]


def _played(name: str, gains: list[float], honest: float, lies: int, found: int) -> Played:
    mean = math.fsum(gains) / len(gains)
    spread = math.fsum((gain - mean) ** 2 for gain in gains) / max(len(gains) - 1, 1)
    return Played(name, len(gains), mean, honest, math.sqrt(spread / len(gains)), lies, found)


def _seed(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"game {seed} {name}".encode()).digest()[:8], "big")
