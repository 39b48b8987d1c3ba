"""Report: a run's figures for people and pages: money, nodes, verifiers, rounds, audits.

Room: ledger (edge: reads the store). Every number is a query over rows; nothing
replays the chain. Amounts are token units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from assay.chain.commit_statement import evm_address
from assay.chain.events import (
    CaseClosed,
    CaseOpened,
    Equivocation,
    ResultFinalized,
    Slashed,
    SlashReversed,
)
from assay.chain.statements import OPERATOR, VERIFIER
from assay.ledger.accounts import Kind, budget
from assay.ledger.journal.database import ask
from assay.ledger.journal.store import BookStore
from assay.ledger.queries.reconcile import Difference
from assay.ledger.settlement.ending import Ending, ending_of
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState

PASSED, FAILED = ("passed", "dismissed"), ("confirmed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Uses of the buyer's money and of the slashed stake, in token units.

    Once a run is settled: funded = paid_operators + paid_verifiers + fees + refunded, and always
    slashed = burnt + to_buyer + to_challengers.
    """

    funded: int
    paid_operators: int
    paid_verifiers: int
    fees: int
    refunded: int
    slashed: int
    burnt: int
    to_buyer: int
    to_challengers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpaidStep:
    """One step that earned nothing, and why."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """One node's accepted steps, audits, slashes and pay. peer: in hexadecimal."""

    peer: str
    accepted: int
    audits_passed: int
    audits_failed: int
    slashed: int
    paid: int
    unpaid: tuple[UnpaidStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFigures:
    """One verifier's beacon shares that counted, verdicts in the chain, slashes and pay."""

    peer: str
    votes: int
    audits: int
    slashed: int
    paid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigures:
    """Audits drawn, passed and failed; expired ones are neither."""

    drawn: int
    passed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    """One final round: participants, bytes sent, and the audits up to this round.

    Escrow and slashes are the present ones: chain time does not map to rounds.
    """

    round: int
    rounds: int
    loss: float | None  # mean, in nats; None without contributions
    nodes: int
    active: int
    bytes: int
    signatures: int
    verifiers: int
    audits: AuditFigures
    slashes: int
    escrow: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledFigures:
    """A run whose money has all been paid out."""

    ending: Ending
    unsettled_steps: int  # accepted, in an epoch without a final result: unpaid work
    money: Money
    nodes: tuple[NodeFigures, ...]
    verifiers: tuple[VerifierFigures, ...]
    audits: AuditFigures
    open_cases: int
    trial_balance: int
    chain_matches_books: bool
    differences: tuple[Difference, ...]


def settled_figures(
    store: BookStore, run_state: RunState, differences: tuple[Difference, ...], trial_balance: int
) -> SettledFigures:
    """The summary of a run, with the reconciliation of its books and the chain."""
    spec = run_state.spec
    return SettledFigures(
        ending=ending_of(run_state),
        unsettled_steps=_unsettled_steps(store),
        money=money(store),
        nodes=nodes(store, run_state),
        verifiers=verifiers(store, spec),
        audits=audits(store, run_state.calendar.last_round),
        open_cases=len(open_offences(store)),
        trial_balance=trial_balance,
        chain_matches_books=not differences,
        differences=differences,
    )


def money(store: BookStore) -> Money:
    """The run's money so far, from the journal."""
    free = budget(store.run_id).owner
    with store.reading() as db:
        funded = -_flow(db, Kind.BUDGET, ("RunOpened", "RunToppedUp"), owner=free)
        refunded = _flow(db, Kind.BUDGET, ("Refunded",), owner=free) + _flow(db, Kind.PAYABLE, ("Swept",))
        paid = {role: _flow(db, Kind.PAYABLE, ("Claimed",), role=role) for role in _ROLES}
    slashes = _slashes(store)
    return Money(
        funded=funded,
        paid_operators=paid["operator"],
        paid_verifiers=paid["verifier"],
        fees=paid["fee"],
        refunded=refunded,
        slashed=sum(event.amount for event in slashes),
        burnt=sum(event.burnt for event in slashes),
        to_buyer=sum(event.buyer_amount for event in slashes),
        to_challengers=sum(event.challenger_amount for event in slashes),
    )


def nodes(store: BookStore, run_state: RunState) -> tuple[NodeFigures, ...]:
    """The figures of each node that took part, ascending by peer."""
    slashed = _slashed(store, OPERATOR)
    with store.reading() as db:
        accepted = _count(db, "SELECT node, count(*) FROM contribution GROUP BY node")
        by_ruling = "SELECT node, count(*) FROM ruling WHERE ruling IN :rulings GROUP BY node"
        passed = _count(db, by_ruling, rulings=PASSED)
        failed = _count(db, by_ruling, rulings=FAILED)
        paid = _paid(db, "operator")
        unpaid = ask(db, "SELECT node, round, reason FROM unpaid ORDER BY round")
    return tuple(
        NodeFigures(
            peer=peer.hex(),
            accepted=accepted.get(peer, 0),
            audits_passed=passed.get(peer, 0),
            audits_failed=failed.get(peer, 0),
            slashed=slashed.get(evm_address(record.member.account), 0),
            paid=paid.get(evm_address(record.member.account), 0),
            unpaid=tuple(UnpaidStep(round=at, reason=why) for node, at, why in unpaid if node == peer),
        )
        for peer, record in run_state.nodes.items()
    )


def verifiers(store: BookStore, spec: RunSpec) -> tuple[VerifierFigures, ...]:
    """The figures of each verifier and reserve, in the spec's order."""
    slashed = _slashed(store, VERIFIER)
    with store.reading() as db:
        votes = _count(db, "SELECT verifier, count(*) FROM reveal GROUP BY verifier")
        audits = _count(db, "SELECT verifier, count(*) FROM verdict GROUP BY verifier")
        paid = _paid(db, "verifier")
    return tuple(
        VerifierFigures(
            peer=member.peer.hex(),
            votes=votes.get(member.peer, 0),
            audits=audits.get(member.peer, 0),
            slashed=slashed.get(evm_address(member.account), 0),
            paid=paid.get(evm_address(member.account), 0),
        )
        for member in spec.judges
    )


def _slashes(store: BookStore) -> list[Slashed]:
    """Every slash of the run that no veto reversed; other runs of the deployment have their own."""
    run_id = store.run_id
    ours = {event.case_id for event in store.events(CaseOpened) if event.run_id == run_id}
    ours |= {event.offence_id for event in store.events(Equivocation) if event.run_id == run_id}
    reversed_ = {event.offence_id for event in store.events(SlashReversed)}
    return [
        event
        for event in store.events(Slashed)
        if event.offence_id in ours and not (event.payable_at and event.offence_id in reversed_)
    ]


def _slashed(store: BookStore, role: int) -> dict[str, int]:
    """Slashed amount of each account in one role."""
    found: dict[str, int] = {}
    for event in _slashes(store):
        if event.role == role:
            found[event.account] = found.get(event.account, 0) + event.amount
    return found


def round_figures(store: BookStore, run_state: RunState, round_id: int) -> RoundFigures:
    """The figures of one final round, in a run as far as it is known."""
    spec = run_state.spec
    balance = store.balances().get(budget(store.run_id), 0)
    with store.reading() as db:
        (head,) = ask(db, "SELECT signatures, active FROM round WHERE round = :round", round=round_id)
        sums = "SELECT count(*), sum(loss_micro), coalesce(sum(update_bytes), 0) FROM contribution"
        ((count, loss_micro, size),) = ask(db, f"{sums} WHERE round = :round", round=round_id)
    return RoundFigures(
        round=round_id,
        rounds=run_state.training_rounds,
        loss=loss_micro / count / 10**6 if count else None,
        nodes=count,
        active=head.active,
        bytes=size,
        signatures=head.signatures,
        verifiers=len(spec.verifiers),
        audits=audits(store, round_id),
        slashes=len(_slashes(store)),
        escrow=-balance,
    )


def audits(store: BookStore, up_to_round: int) -> AuditFigures:
    """The audits by the manifests up to a round."""
    with store.reading() as db:
        ruled = "SELECT count(*) FROM ruling WHERE closed_round <= :round AND ruling IN :rulings"
        drawn = "SELECT count(*) FROM audit WHERE drawn_round <= :round"
        return AuditFigures(
            drawn=_number(db, drawn, round=up_to_round),
            passed=_number(db, ruled, round=up_to_round, rulings=PASSED),
            failed=_number(db, ruled, round=up_to_round, rulings=FAILED),
        )


def _unsettled_steps(store: BookStore) -> int:
    """Accepted steps in epochs that have no final result."""
    final = tuple(event.epoch for event in store.events(ResultFinalized) if event.run_id == store.run_id)
    with store.reading() as db:
        steps = "SELECT count(*) FROM contribution JOIN round USING (round) WHERE epoch NOT IN :final"
        return _number(db, steps, final=final)


def open_offences(store: BookStore) -> frozenset[bytes]:
    """Offence ids of confirmed audits, and of verifiers' faults, whose case is not closed on chain."""
    with store.reading() as db:
        ids = ask(
            db,
            "SELECT audit.offence_id FROM ruling JOIN audit USING (round, node) "
            "WHERE ruling.ruling = 'confirmed' UNION SELECT offence_id FROM fault",
        )
    closed = {event.case_id for event in store.events(CaseClosed)}
    return frozenset(bytes(offence) for (offence,) in ids) - closed


_ROLES = ("operator", "verifier", "fee")
_FLOW = """
SELECT coalesce(sum(posting.amount), 0)
FROM posting JOIN journal_entry ON journal_entry.id = posting.entry
    JOIN account ON account.id = posting.account
WHERE account.kind = :account AND journal_entry.kind IN :kinds
  AND (:owner = '' OR account.owner = :owner) AND (:role = '' OR account.role = :role)
"""
_PAID = """
SELECT account.owner, sum(posting.amount)
FROM posting JOIN journal_entry ON journal_entry.id = posting.entry
    JOIN account ON account.id = posting.account
WHERE account.kind = 'payable' AND account.role = :role AND journal_entry.kind = 'Claimed'
GROUP BY account.owner
"""


def _flow(db: Connection, account: Kind, kinds: tuple[str, ...], *, owner: str = "", role: str = "") -> int:
    """Sum that entries of these kinds moved on one kind of account; a reversal has its entry's kind."""
    return _number(db, _FLOW, account=account.value, kinds=kinds, owner=owner, role=role)


def _paid(db: Connection, role: str) -> dict[str, int]:
    return {owner: int(amount) for owner, amount in ask(db, _PAID, role=role)}


def _number(db: Connection, question: str, **given: Any) -> int:
    ((found,),) = ask(db, question, **given)
    return int(found)


def _count(db: Connection, question: str, **given: Any) -> dict[bytes, int]:
    return {bytes(peer): int(count) for peer, count in ask(db, question, **given)}
