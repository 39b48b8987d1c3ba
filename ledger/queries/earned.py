"""Earned: a node's earnings per epoch, and for every unpaid step the reason and its evidence.

Room: ledger (edge: reads the store). Steps, audit results and tables are as derived from the certified
chain; `assay ledger settle --check` recomputes them. Claims come from
the journal, each of those entries compared with the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.events import Claimed
from assay.chain.statements import Address
from assay.ledger.accounts import payable
from assay.ledger.journal.database import ask
from assay.ledger.journal.reader import LedgerIntegrityError, read_entries
from assay.ledger.journal.tables import TABLES
from assay.ledger.settlement.payouts import UnpaidReason
from assay.protocol.errors import ConfigError

OPERATOR = "operator"
FAULTS = (UnpaidReason.FAULT, UnpaidReason.EARLIER_FAULT)
_ACCOUNT, _ENTRY, _POSTING = TABLES["account"], TABLES["journal_entry"], TABLES["posting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEarned:
    """One node's epoch. Amounts in token units."""

    epoch: int
    steps: int  # accepted
    tokens: int
    unpaid: int  # accepted steps that earn nothing
    is_settled: bool
    account: Address | None  # payee; None if nothing is paid
    amount: int
    claimed: int

    @property
    def is_claimed(self) -> bool:
        """Whether everything due was claimed."""
        return self.amount > 0 and self.claimed >= self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Earned:
    """All epochs of one node."""

    peer: bytes
    epochs: tuple[EpochEarned, ...]

    @property
    def total(self) -> int:
        """Sum of the settled epochs, in token units."""
        return sum(one.amount for one in self.epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The draw of a step for an audit."""

    round: int
    offence_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One verifier's verdict, and the manifest that carries it."""

    outcome: str
    verifier: bytes
    round: int
    manifest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Final status of an audit, and the manifest that closed it."""

    ruling: str
    round: int
    manifest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The audit of one step: its draw, verdicts and final status."""

    draws: tuple[Draw, ...] = ()
    findings: tuple[Finding, ...] = ()
    rulings: tuple[Ended, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpaidStep:
    """An accepted step that earned nothing, with the digests that prove the reason."""

    round: int
    reason: UnpaidReason
    tokens: int
    commit: bytes
    update: bytes
    manifest: bytes
    evidence: Evidence
    fault_round: int | None  # of another step, whose confirmed fault is the reason
    fault: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaid:
    """The unpaid steps of one node in one epoch."""

    peer: bytes
    epoch: int
    steps: int  # accepted
    unpaid: tuple[UnpaidStep, ...]


def read_earned(db: Connection, node: str) -> Earned:
    """A node's earnings, epoch by epoch.

    Args:
        db: A reading transaction.
        node: Its peer id in hexadecimal, or the beginning of it.

    Raises:
        ConfigError: no such node.
        LedgerIntegrityError: a claim differs from the log.
    """
    peer = find_peer(db, node)
    steps = ask(
        db,
        "SELECT contribution.epoch, count(*) AS steps, sum(contribution.tokens) AS tokens, "
        "count(unpaid.reason) AS unpaid FROM contribution LEFT JOIN unpaid USING (round, node) "
        "WHERE contribution.node = :node GROUP BY contribution.epoch ORDER BY contribution.epoch",
        node=peer,
    )
    settled = {row.epoch for row in ask(db, "SELECT epoch FROM settlement")}
    pay = {
        row.epoch: row
        for row in ask(
            db,
            "SELECT epoch, account, amount FROM payout WHERE role = 'operator' AND peer = :node",
            node=peer,
        )
    }
    claimed = _claims(db, {(row.account, epoch) for epoch, row in pay.items()})
    return Earned(
        peer=peer,
        epochs=tuple(
            EpochEarned(
                epoch=row.epoch,
                steps=row.steps,
                tokens=int(row.tokens),
                unpaid=row.unpaid,
                is_settled=row.epoch in settled,
                account=pay[row.epoch].account if row.epoch in pay else None,
                amount=pay[row.epoch].amount if row.epoch in pay else 0,
                claimed=claimed.get((pay[row.epoch].account, row.epoch), 0) if row.epoch in pay else 0,
            )
            for row in steps
        ),
    )


def read_unpaid(db: Connection, node: str, epoch: int) -> Unpaid:
    """Every step of the epoch that was not paid.

    Args:
        db: A reading transaction.
        node: Its peer id in hexadecimal, or the beginning of it.
        epoch: From 0.

    Raises:
        ConfigError: no such node, or the node has no step in this epoch, or it is not settled.
    """
    peer = find_peer(db, node)
    steps = ask(
        db,
        "SELECT contribution.round, tokens, commit_digest, update_digest, unpaid.reason, "
        "round.manifest FROM contribution JOIN round USING (round) LEFT JOIN unpaid "
        "ON unpaid.round = contribution.round AND unpaid.node = contribution.node "
        "WHERE contribution.node = :node AND contribution.epoch = :epoch ORDER BY contribution.round",
        node=peer,
        epoch=epoch,
    )
    if not steps:
        raise ConfigError(f"node {peer.hex()[:8]} has no accepted step in epoch {epoch}")
    if not ask(db, "SELECT epoch FROM settlement WHERE epoch = :epoch", epoch=epoch):
        raise ConfigError(f"epoch {epoch} is not settled yet")
    is_paid = bool(
        ask(
            db,
            "SELECT 1 FROM payout WHERE role = 'operator' AND peer = :node AND epoch = :epoch",
            node=peer,
            epoch=epoch,
        )
    )
    query = "SELECT min(round) AS round FROM ruling WHERE node = :node AND ruling = 'confirmed'"
    fault = ask(db, query, node=peer)[0].round
    found = []
    for row in steps:
        if row.reason is None and is_paid:
            continue
        reason = unpaid_reason(row.reason) if row.reason else UnpaidReason.ROUNDED
        is_elsewhere = fault is not None and fault != row.round and reason in FAULTS
        found.append(
            UnpaidStep(
                round=row.round,
                reason=reason,
                tokens=row.tokens,
                commit=bytes(row.commit_digest),
                update=bytes(row.update_digest),
                manifest=bytes(row.manifest),
                evidence=_evidence(db, peer, row.round),
                fault_round=fault if is_elsewhere else None,
                fault=_evidence(db, peer, fault) if is_elsewhere else Evidence(),
            )
        )
    return Unpaid(peer=peer, epoch=epoch, steps=len(steps), unpaid=tuple(found))


def unpaid_reason(code: str) -> UnpaidReason:
    """The reason of a row of the table `unpaid`. Raises LedgerIntegrityError."""
    try:
        return UnpaidReason(code)
    except ValueError:
        raise LedgerIntegrityError(f"ledger: table unpaid has the reason {code!r}, which is none") from None


def find_peer(db: Connection, node: str) -> bytes:
    """The peer id of the only node with an accepted step whose id begins with `node`.

    Raises:
        ConfigError: there is none, or several.
    """
    known = [bytes(row.node) for row in ask(db, "SELECT DISTINCT node FROM contribution ORDER BY node")]
    fits = [peer for peer in known if node and peer.hex().startswith(node.lower())]
    if len(fits) != 1:
        names = ", ".join(peer.hex()[:8] for peer in known)
        problem = "several nodes begin" if fits else "no node with an accepted step begins"
        raise ConfigError(f"{problem} with {node[:80]!r}; there are {names or 'none'}")
    return fits[0]


def _evidence(db: Connection, peer: bytes, round_id: int) -> Evidence:
    step = {"round": round_id, "node": peer}
    drawn = ask(
        db, "SELECT offence_id, drawn_round FROM audit WHERE audit.round = :round AND node = :node", **step
    )
    verdicts = ask(
        db,
        "SELECT verifier, outcome, in_round, manifest FROM verdict JOIN round ON round.round = in_round "
        "WHERE verdict.round = :round AND node = :node ORDER BY in_round, verifier",
        **step,
    )
    rulings = ask(
        db,
        "SELECT ruling, closed_round, manifest FROM ruling JOIN round ON round.round = closed_round "
        "WHERE ruling.round = :round AND node = :node",
        **step,
    )
    return Evidence(
        draws=tuple(Draw(round=row.drawn_round, offence_id=bytes(row.offence_id)) for row in drawn),
        findings=tuple(
            Finding(
                outcome=row.outcome,
                verifier=bytes(row.verifier),
                round=row.in_round,
                manifest=bytes(row.manifest),
            )
            for row in verdicts
        ),
        rulings=tuple(
            Ended(ruling=row.ruling, round=row.closed_round, manifest=bytes(row.manifest)) for row in rulings
        ),
    )


def _claims(db: Connection, places: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Amounts claimed from each of these operators' payable accounts, from the journal."""
    codes = {payable(OPERATOR, account, epoch).code: (account, epoch) for account, epoch in places}
    numbers = db.execute(
        sa.select(_POSTING.c.entry)
        .join_from(_POSTING, _ACCOUNT, _POSTING.c.account == _ACCOUNT.c.id)
        .join(_ENTRY, _POSTING.c.entry == _ENTRY.c.id)
        .where(_ACCOUNT.c.code.in_(list(codes)), _ENTRY.c.kind == Claimed.__name__)
    ).scalars()
    claimed: dict[tuple[str, int], int] = {}
    for one in read_entries(db, numbers):
        for posting in one.entry.postings:
            place = codes.get(posting.account.code)
            if place is not None:
                claimed[place] = claimed.get(place, 0) + posting.amount
    return claimed
