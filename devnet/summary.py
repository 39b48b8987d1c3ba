"""Summary: one run in one JSON object, and the invariants that must hold.

Room: devnet (pure). Others read `summary.json`: keys are added, never renamed, and follow the fields of
`Summary`. `invariants` needs nothing but the summary, so anybody can check one again.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from itertools import chain

from pydantic import TypeAdapter

from assay.devnet.faults.behaviours import NODE_CHEATS, SLASHED_VERIFIERS
from assay.ledger.queries.report import Money
from assay.ledger.settlement.ending import Ending
from assay.orders.amounts import DECIMALS, UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Mean loss in nats per token: of the first and last round's batches, and held out before and after.

    None: not finite. With GRPO the first two are missed reward, and the held-out loss, of the answers, is not
    what the run minimises.
    """

    first: float | None
    last: float | None
    validation_first: float | None
    validation_last: float | None
    is_minimised: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFigures:
    """Traffic of accepted updates."""

    bytes_per_node_round: float
    bits_per_coefficient: float
    reduction_vs_fp32_gradient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTotals:
    """All audits of the run. Some are neither passed nor failed: no verdict came in time."""

    drawn: int
    passed: int
    failed: int
    opening_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """One node, and how it was made to behave. peer: in hexadecimal."""

    peer: str
    behaviour: str
    accepted: int
    audits_passed: int
    audits_failed: int
    slashed: int
    paid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierResult:
    """One verifier, and how it was made to behave. peer: in hexadecimal."""

    behaviour: str
    peer: str
    votes: int
    audits: int
    slashed: int
    paid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksCheck:
    """The reconciliation of books and chain."""

    trial_balance: int
    chain_matches_books: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. Identifiers are in hexadecimal, amounts in token units."""

    run_id: str
    deployment_id: str
    rounds: int
    rounds_finalised: int  # training rounds whose manifest is final
    ending: Ending
    unsettled_steps: int  # accepted, in an epoch without a final result: unpaid work
    wall_s: float  # from the first set-up step to the last claim
    params: int
    loss: Losses
    state_agreement: bool  # every honest process held the same parameters at every round
    record: str | None  # of the model on chain
    wire: WireFigures
    audits: AuditTotals
    nodes: tuple[NodeResult, ...]
    verifiers: tuple[VerifierResult, ...]
    money: Money
    ledger: BooksCheck


def summary_json(summary: Summary) -> str:
    """The content of `summary.json`; `ok` says whether every invariant holds."""
    plain = asdict(summary)
    if summary.loss.is_minimised:  # what holds of nearly every run is not said
        del plain["loss"]["is_minimised"]
    plain["money"] = {"unit": f"10^-{DECIMALS} {UNIT}", **plain["money"]}
    return json.dumps({**plain, "ok": not invariants(summary)}, indent=2)


def read_summary(text: str) -> Summary:
    """Inverts `summary_json`.

    Raises:
        ValueError: it is no such text.
    """
    return TypeAdapter(Summary).validate_json(text)


def finite(loss: float) -> float | None:
    """A loss as JSON can hold it, which has no NaN and no infinity."""
    return round(loss, 6) if math.isfinite(loss) else None


def wire_figures(updates: int, update_bytes: int, coefficients: int, parameters: int) -> WireFigures:
    """Means over all accepted updates.

    Args:
        updates: Their number.
        update_bytes: Their total size.
        coefficients: (index, sign) pairs sent in all of them.
        parameters: Of the model.
    """
    per_update = update_bytes / updates if updates else 0.0
    return WireFigures(
        bytes_per_node_round=round(per_update, 1),
        bits_per_coefficient=round(8 * update_bytes / max(coefficients, 1), 3),
        reduction_vs_fp32_gradient=round(4 * parameters / per_update, 1) if per_update else 0.0,
    )


def invariants(summary: Summary) -> list[str]:
    """Violated invariants, one sentence each; empty if all hold."""
    return [
        *_broken_training(summary),
        *_broken_money(summary),
        *chain.from_iterable(map(_broken_justice, summary.verifiers)),
        *chain.from_iterable(map(_broken_justice, summary.nodes)),
        *_broken_books(summary.ledger),
    ]


def _broken_training(summary: Summary) -> list[str]:
    broken = []
    final, rounds = summary.rounds_finalised, summary.ending.rounds
    if final != rounds:
        broken.append(f"{final} rounds are final, expected {rounds}")
    if not summary.state_agreement:
        broken.append("honest processes held different parameters")
    if summary.unsettled_steps:
        broken.append(f"{summary.unsettled_steps} accepted steps are in epochs without a final result")
    if summary.record is None and rounds:
        broken.append("the model is not on record on chain")
    first, last = summary.loss.validation_first, summary.loss.validation_last
    if first is None or last is None:
        broken.append("validation loss is missing or not finite")
    elif summary.loss.is_minimised and not last < first and summary.ending.closed_by is None:
        broken.append(f"validation loss went from {first:.4f} to {last:.4f}, expected it to fall")
    return broken


def _broken_money(summary: Summary) -> list[str]:
    """Every unit is somewhere, and nothing is negative."""
    money, nodes, verifiers = summary.money, summary.nodes, summary.verifiers
    slashed = sum(n.slashed for n in nodes) + sum(v.slashed for v in verifiers)
    spent = money.paid_operators + money.paid_verifiers + money.fees + money.refunded
    taken = money.burnt + money.to_buyer + money.to_challengers
    pairs = (
        ("funded", money.funded, "paid to operators and verifiers, fees and refunded", spent),
        ("slashed", money.slashed, "burnt, to the buyer and to challengers", taken),
        ("paid to operators", money.paid_operators, "what nodes received", sum(n.paid for n in nodes)),
        (
            "paid to verifiers",
            money.paid_verifiers,
            "what verifiers received",
            sum(v.paid for v in verifiers),
        ),
        ("slashed", money.slashed, "what nodes and verifiers lost", slashed),
    )
    broken = [
        f"money: {left} is {amount} units, {right} are {total} units"
        for left, amount, right, total in pairs
        if amount != total
    ]
    return broken + [
        f"money: {key} is {units} units, below 0" for key, units in asdict(money).items() if units < 0
    ]


def _broken_justice(one: NodeResult | VerifierResult) -> list[str]:
    """A cheater was slashed, anybody else was not."""
    if isinstance(one, NodeResult):
        name, is_cheater, was_judged = "node", one.behaviour in NODE_CHEATS, True
    else:
        name, is_cheater, was_judged = "verifier", one.behaviour in SLASHED_VERIFIERS, one.audits > 0
    name = f"{name} {one.peer[:8]} ({one.behaviour})"
    if is_cheater and was_judged and one.slashed <= 0:
        return [f"{name} cheated and was not slashed"]
    if not is_cheater and one.slashed != 0:
        return [f"{name} did not cheat and was slashed {one.slashed} units"]
    return []


def _broken_books(ledger: BooksCheck) -> list[str]:
    broken = []
    if ledger.trial_balance != 0:
        broken.append(f"the trial balance is {ledger.trial_balance} units, expected 0")
    if not ledger.chain_matches_books:
        broken.append("the books differ from the chain")
    return broken
