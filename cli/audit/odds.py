"""Odds: the answers of `assay audit odds`: detection by a rule's audits, and deterrence by stakes and pay.

Room: cli (pure). The formulas are verifier/audit/odds.py's; here they get amounts and labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from rich import box
from rich.table import Table

from assay.orders.amounts import DECIMALS, UNIT, scaled, token_text
from assay.protocol.errors import ConfigError
from assay.protocol.params import AuditSpec
from assay.verifier.audit import odds

PAGE = "docs/odds.md, section"
SABOTAGE = "stake against sabotage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Shares as numbers from 0 to 1, amounts in tokens, as a person writes them."""

    rate: float
    cheat: float
    steps: int
    power: float = 0.95
    probation: int = 0
    stake: float = 0.0
    slash: float = 0.3
    withheld: float | None = None  # share of the stake lost for refusing to open; as `slash` if left out
    price: float = 0.0
    cost: float = 0.0
    late: int = 12
    gain: float = 0.0
    false_steps: int = 1
    lasting: int = 128
    idle: int = 1
    runs: int = 1
    replicated: float = 0.2
    auditor_slash: float = 0.2
    known: float = 0.0
    auditor_stake: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One figure. value: None if no amount suffices. is_met: whether the given amount suffices."""

    name: str
    value: float | int | None
    text: str
    formula: str
    source: str
    assumes: str
    is_met: bool | None = None


@dataclass(frozen=True, slots=True)
class Odds:
    """A question and its figures; amounts in `unit`."""

    asked: Question
    unit: str
    answers: list[Answer]


def odds_of(question: Question) -> Odds:
    """Every figure for which the question gives the numbers.

    Raises:
        ConfigError: a number out of its range.
    """
    return Odds(question, f"10^-{DECIMALS} {UNIT}", answers(question))


def answers(question: Question) -> list[Answer]:
    """Every figure for which the question gives the numbers.

    Raises:
        ConfigError: a number out of its range.
    """
    try:
        found = [*_detection(question), *_deterrence(question), *_auditor(question)]
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"odds: {error}") from None
    return found


def odds_table(found: list[Answer]) -> Table:
    """One row per figure, with its formula and what it assumes."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "", "formula", "source", "assumes"):
        table.add_column(name, overflow="fold")
    for one in found:
        met = "" if one.is_met is None else (", met" if one.is_met else ", NOT met")
        table.add_row(one.name, one.text + met, one.formula, one.source, one.assumes)
    return table


def _detection(question: Question) -> list[Answer]:
    rate, cheat, power = (_share(question, name) for name in ("rate", "cheat", "power"))
    if question.steps < 0:
        raise ValueError(f"steps is {question.steps}, expected at least 0")
    one = odds.hit(rate, cheat, power)
    chance = odds.caught(one, question.steps)
    found = [
        Answer(
            "detected within the run", chance, f"{chance:.4%}", "1 - (1 - p d x)^n", f"{PAGE} 1",
            f"p = {question.rate:g} in every step, independently; "
            f"an audit of a false step finds it with d = {question.power:g}",
        )
    ]  # fmt: skip
    if question.probation:
        rules = AuditSpec(
            probation=question.probation,
            floor_ppm=scaled(question.rate, 6),
            blocks=1,
            replication_ppm=0,
            takeover_rounds=1,
            audit_rounds=4,
            dispute_rounds=2,
        )
        chance = odds.caught_by_rule(rules, question.cheat, question.steps, question.power)
        found.append(
            Answer(
                "same, with probation", chance, f"{chance:.4%}",
                "sum over clean audits, rate(clean) = max(p, probation / clean)",
                "docs/protocol.md 5.2, protocol/auditing/draws.py",
                "verdicts before the next draw; false steps from the first step on",
            )
        )  # fmt: skip
    for percent in (50, 99):
        steps = odds.steps_until(one, Fraction(percent, 100))
        text = "never" if steps is None else f"{steps:,} steps"
        name = f"until detected with {percent} %"
        found.append(Answer(name, steps, text, "log(1 - P) / log(1 - p d x)", f"{PAGE} 1", "as above"))
    return found


def _deterrence(question: Question) -> list[Answer]:
    for name in ("runs", "lasting", "idle"):
        if getattr(question, name) < 1:
            raise ValueError(f"{name} is {getattr(question, name)}, expected at least 1")
    rate, power, slash = (_share(question, name) for name in ("rate", "power", "slash"))
    stake, found = _units(question, "stake"), []
    ways = [("", slash)]
    if question.withheld is not None:
        ways.append((" if the node refuses to open", _share(question, "withheld")))
    for how, share in ways if stake else ():
        lost = int(stake * share) // question.runs
        saving = odds.saving_deterred(lost, rate, power, idle=question.idle, in_flight=question.late)
        found.append(
            Answer(
                f"saving per step deterred{how}", saving, token_text(saving),
                "S slash / runs / (2 (l / (p d) + L))", f"{PAGE} 2",
                f"{token_text(lost)} are lost; one lie spares l = {question.idle}; "
                f"L = {question.late} steps in flight; factor 2",
            )
        )  # fmt: skip
    asked_for = [
        (
            f"stake if a false step saves the {what} of a step",
            odds.stake_against_laziness(amount, rate, power, idle=question.idle, in_flight=question.late),
            "runs 2 c (l / (p d) + L) / slash",
            f"c = {token_text(amount)}; withheld pay not counted; nothing earned after detection",
        )
        for what, amount in (("cost", _units(question, "cost")), ("price", _units(question, "price")))
        if amount
    ]
    if question.gain:
        asked_for.append(
            (
                SABOTAGE,
                odds.stake_against_sabotage(
                    _units(question, "gain"),
                    rate,
                    power,
                    steps=question.false_steps,
                    lasting=question.lasting,
                ),
                "runs B q / (1 - q) / slash, q = (1 - p d)^ceil(k / T)",
                f"B = {question.gain:g} {UNIT} only if all k = {question.false_steps} false messages pass; "
                f"one lie lasts T = {question.lasting}",
            )
        )
    for name, need, formula, assumes in asked_for:
        whole = math.ceil(need * question.runs / slash) if slash else None
        text = "none" if whole is None else token_text(whole)
        is_met = (whole is not None and stake >= whole) if stake else None
        section = 3 if name == SABOTAGE else 2
        found.append(Answer(name, whole, text, formula, f"{PAGE} {section}", assumes, is_met))
    return [*found, _against_bribery(question, int(stake * slash))] if stake else found


def _against_bribery(question: Question, lost: int) -> Answer:
    second, slash = _share(question, "replicated"), _share(question, "auditor_slash")
    have = _units(question, "auditor_stake")
    is_possible = second > 0 and slash > 0
    need = odds.stake_against_bribery(lost, second, slash) if is_possible else None
    return Answer(
        "auditor's stake against bribery",
        need,
        "none" if need is None else token_text(need),
        "S slash (1 - q2) / (q2 s_v)",
        f"{PAGE} 5",
        f"q2 = {question.replicated:g} of audits are replicated; s_v = {question.auditor_slash:g}; "
        "the second auditor is honest",
        None if need is None or not have else have >= need,
    )


def _auditor(question: Question) -> list[Answer]:
    cost = _units(question, "cost")
    if not cost:
        return []
    source = f"{PAGE} 4"
    pays = "least pay that deters lazy auditing"
    if not question.known:
        assumes = "no known-answer tasks: add --known, their share of audits"
        return [Answer(pays, None, "none suffices", "v / kappa - S_v", source, assumes)]
    known, stake = _share(question, "known"), _units(question, "auditor_stake")
    pay, safe = odds.auditor_pay(cost, known, stake), odds.auditor_stake(cost, known)
    assumes = f"v = {token_text(cost)} an audit; kappa = {question.known:g} of audits are known-answer tasks"
    safe_text = token_text(safe)
    return [
        Answer(pays, pay, token_text(pay), "max(1.2 v, v / kappa - S_v)", source, assumes),
        Answer(
            "auditor's stake at which a pay of 1.2 v suffices",
            safe,
            safe_text,
            "2 v / kappa",
            source,
            assumes,
        ),
    ]


def _share(question: Question, name: str) -> Fraction:
    share = Fraction(str(getattr(question, name)))
    if not 0 <= share <= 1:
        raise ValueError(f"{name} is {float(share):g}, expected 0 to 1")
    return share


def _units(question: Question, name: str) -> int:
    try:
        amount = scaled(getattr(question, name), DECIMALS)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if amount < 0:
        raise ValueError(f"{name} is negative")
    return amount
