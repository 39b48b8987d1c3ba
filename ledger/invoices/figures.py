"""Figures: reads the cost of settled epochs from the books and cross-checks it for an invoice.

Room: ledger (edge: reads the store). Four records must agree before anything is
invoiced: the payout table, the price in the run's spec, the contract's final result, and the
journal's postings. If two differ, no invoice is issued.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.chain.commit_statement import evm_address
from assay.chain.events import LogAnchored, ResultFinalized, ResultProposed, RunOpened, Swept
from assay.ledger.accounts import Kind, budget
from assay.ledger.invoices.document import Basis, Escrow, Facts, Line, NotCharged
from assay.ledger.journal.database import ask
from assay.ledger.journal.leaf import Written
from assay.ledger.journal.log_store import Note, read_notes
from assay.ledger.journal.reader import LedgerIntegrityError, read_entries, read_events
from assay.ledger.journal.tables import TABLES
from assay.ledger.log.note import origin_of
from assay.ledger.queries.earned import unpaid_reason
from assay.ledger.queries.lookup import checkpoint_of
from assay.ledger.settlement.payouts import Row, UnpaidReason, gross_of, table_hash
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import Address, Digest, PeerId

_ACCOUNT, _ENTRY, _POSTING = TABLES["account"], TABLES["journal_entry"], TABLES["posting"]
_TRAINING, _VERIFICATION, _FEE = "training", "verification", "fee"


def final_epochs(db: Connection, run_id: bytes) -> list[int]:
    """The epochs whose result is final on chain, ascending."""
    return sorted(event.epoch for event in read_events(db, ResultFinalized) if event.run_id == run_id)


def read_facts(db: Connection, spec: RunSpec, run_id: Digest, first: int, last: int) -> Facts:
    """The invoice figures of these epochs.

    Args:
        db: A reading or writing transaction.
        spec: The run's.
        run_id: The run's.
        first: The first epoch.
        last: The last one, included.

    Raises:
        ConfigError: an epoch is not final, or no checkpoint covers its entry yet.
        LedgerIntegrityError: two records differ.
    """
    final = final_epochs(db, run_id)
    missing = [epoch for epoch in range(first, last + 1) if epoch not in final]
    if missing or first > last:
        known = ", ".join(map(str, final)) or "none"
        raise ConfigError(
            f"epoch {(missing or [first])[0]} is not final: no invoice yet; final epochs: {known}"
        )
    opened = [event for event in read_events(db, RunOpened) if event.run_id == run_id]
    if [event.buyer for event in opened] != [evm_address(spec.buyer)]:
        raise LedgerIntegrityError("ledger: the run was not opened by the buyer that its spec names")
    lines: list[Line] = []
    not_charged: list[NotCharged] = []
    bases: list[Basis] = []
    for epoch in range(first, last + 1):
        basis, charged = _epoch(db, spec, run_id, epoch)
        bases.append(basis)
        lines += charged
        not_charged += _not_charged(db, spec, epoch)
    note = _covering(db, max(basis.entry for basis in bases))
    checkpoint = checkpoint_of(note, origin_of(run_id))
    return Facts(
        run_id=run_id.hex(),
        run_name=spec.name,
        deployment_id=spec.deployment_id.hex(),
        first_epoch=first,
        last_epoch=last,
        price_per_mtoken=spec.money.price_per_mtoken,
        operators_ppm=spec.money.operators_ppm,
        verifiers_ppm=spec.money.verifiers_ppm,
        lines=tuple(lines),
        not_charged=tuple(not_charged),
        bases=tuple(bases),
        checkpoint_size=checkpoint.size,
        checkpoint_root=checkpoint.root.hex(),
        checkpoint_note=note.text,
        anchor_tx=_anchor(db, run_id, checkpoint.size),
    )


def pay_of(facts: Facts, account: str) -> Facts:
    """The part of the figures that is one operator's pay.

    Raises:
        ConfigError: nothing was paid to the account.
    """
    lines = tuple(line for line in facts.lines if line.what == _TRAINING and line.account == account)
    if not sum(line.amount for line in lines):
        raise ConfigError(f"epochs {facts.first_epoch} to {facts.last_epoch} paid nothing to {account}")
    epochs = {line.epoch for line in lines}
    bases = tuple(basis for basis in facts.bases if basis.epoch in epochs)
    return replace(facts, lines=lines, not_charged=(), bases=bases)


def supply_times(db: Connection, run_id: bytes, facts: Facts) -> dict[int, int]:
    """When each epoch of a document was supplied: the time of the block that made its result final.

    Returns:
        Unix seconds by epoch.

    Raises:
        LedgerIntegrityError: the event and the journal's entry have other times.
    """
    numbers = [basis.entry for basis in facts.bases if basis.entry]
    logged = {one.number: one.entry.block_time for one in read_entries(db, numbers)}
    found = {}
    for basis in facts.bases:
        final, _ = _result(db, run_id, basis.epoch)
        if basis.entry:
            _same(basis.epoch, "time of its final result", final.block_time, logged[basis.entry])
        found[basis.epoch] = final.block_time
    return found


def read_escrow(db: Connection, run_id: bytes) -> Escrow:
    """The buyer's deposits and refunds so far, from the journal."""
    free = budget(run_id)
    touching = sa.select(_POSTING.c.entry).join_from(_POSTING, _ACCOUNT).where(_ACCOUNT.c.code == free.code)
    kinds = ("RunOpened", "RunToppedUp", "Refunded", Swept.__name__)
    numbers = db.execute(
        sa.select(_ENTRY.c.id).where(
            _ENTRY.c.kind.in_(kinds), sa.or_(_ENTRY.c.id.in_(touching), _ENTRY.c.kind == Swept.__name__)
        )
    ).scalars()
    funded = refunded = 0
    for one in read_entries(db, numbers):
        if one.entry.kind == Swept.__name__:  # unclaimed pay is returned from several accounts at once
            for posting in one.entry.postings:
                kind, owner = posting.account.kind, posting.account.owner
                is_ours = kind is Kind.PAYABLE or (kind is Kind.RESERVED and owner == run_id.hex())
                refunded += posting.amount if is_ours else 0
            continue
        amount = sum(posting.amount for posting in one.entry.postings if posting.account == free)
        if one.entry.kind == "Refunded":
            refunded += amount
        else:
            funded -= amount
    return Escrow(funded=funded, refunded=refunded)


def _epoch(db: Connection, spec: RunSpec, run_id: Digest, epoch: int) -> tuple[Basis, list[Line]]:
    """One epoch's lines, if table, price, contract and journal agree on them."""
    tables = ask(db, "SELECT * FROM settlement WHERE epoch = :epoch", epoch=epoch)
    if len(tables) != 1:
        raise LedgerIntegrityError(f"epoch {epoch}: {len(tables)} payout tables on record, one expected")
    table = tables[0]
    rows = [
        Row(
            role=row.role,
            peer=PeerId(bytes(row.peer)),
            account=Address(bytes.fromhex(row.account.removeprefix("0x"))),
            amount=row.amount,
        )
        for row in ask(db, "SELECT * FROM payout WHERE epoch = :epoch ORDER BY row_index", epoch=epoch)
    ]
    _same(epoch, "payout table's hash", bytes(table.table_hash), table_hash(spec, run_id, epoch, tuple(rows)))
    _same(epoch, "payout table's sum", table.total, sum(row.amount for row in rows))
    gross = gross_of(spec, table.tokens_paid, falls_short=_fell_short(spec, epoch, table))
    _same(epoch, "price of its tokens", table.total, gross)
    final, proposed = _result(db, run_id, epoch)
    recorded = (bytes(table.table_hash), bytes(table.root), table.total)
    _same(epoch, "contract's result", recorded, (proposed.table_hash, proposed.root, proposed.total))
    tokens = _tokens(db, epoch)
    _same(epoch, "tokens of its paid steps", table.tokens_paid, sum(tokens.values()))
    entry = _booked(db, epoch, rows)
    operators = {row.peer: row for row in rows if row.role == "operator"}
    lines = [
        Line(
            epoch=epoch,
            what=_TRAINING,
            peer=peer.hex(),
            account=evm_address(operators[PeerId(peer)].account) if peer in operators else "",
            tokens=count,
            amount=operators[PeerId(peer)].amount if peer in operators else 0,
        )
        for peer, count in sorted(tokens.items())
    ]
    for role, what in (("verifier", _VERIFICATION), ("fee", _FEE)):
        paid = [row for row in rows if row.role == role]
        payee = evm_address(paid[0].account) if role == "fee" and paid else ""
        amount = sum(row.amount for row in paid)
        lines.append(Line(epoch=epoch, what=what, peer="", account=payee, tokens=0, amount=amount))
    _same(epoch, "lines", table.total, sum(line.amount for line in lines))
    basis = Basis(
        epoch=epoch,
        tokens=table.tokens_paid,
        total=table.total,
        table_hash=bytes(table.table_hash).hex(),
        root=bytes(table.root).hex(),
        result=final.digest.hex(),
        proposed_tx=proposed.tx_hash.hex(),
        final_tx=final.tx_hash.hex(),
        entry=0 if entry is None else entry.number,
        entry_key="" if entry is None else entry.entry.key,
    )
    return basis, lines


def _result(db: Connection, run_id: bytes, epoch: int) -> tuple[ResultFinalized, ResultProposed]:
    finalized = [e for e in read_events(db, ResultFinalized) if (e.run_id, e.epoch) == (run_id, epoch)]
    claims = [e for e in read_events(db, ResultProposed) if finalized and e.digest == finalized[-1].digest]
    if not claims:
        raise LedgerIntegrityError(f"ledger: epoch {epoch} has no ResultFinalized with its ResultProposed")
    return finalized[-1], claims[-1]


def _booked(db: Connection, epoch: int, rows: Iterable[Row]) -> Written | None:
    """The entry by which the table's rows became payable; None where the table is empty.

    Raises:
        LedgerIntegrityError: the journal owes other amounts than the table's.
    """
    numbers = db.execute(
        sa.select(_ENTRY.c.id).where(_ENTRY.c.kind == ResultFinalized.__name__, _ENTRY.c.epoch == epoch)
    ).scalars()
    booked: dict[tuple[str, str], int] = {}
    last: Written | None = None
    for one in read_entries(db, numbers):
        last = last if one.entry.reverses else one
        for posting in one.entry.postings:
            account = posting.account
            if account.kind is Kind.PAYABLE:
                place = (account.role, account.owner)
                booked[place] = booked.get(place, 0) - posting.amount
    owed: dict[tuple[str, str], int] = {}
    for row in rows:
        place = (row.role, evm_address(row.account))
        owed[place] = owed.get(place, 0) + row.amount
    _same(epoch, "journal's entry", {place: amount for place, amount in booked.items() if amount}, owed)
    return last


def _tokens(db: Connection, epoch: int) -> dict[bytes, int]:
    """Accepted tokens of paid steps, by node."""
    rows = ask(
        db,
        "SELECT contribution.node, sum(contribution.tokens) AS tokens FROM contribution "
        "LEFT JOIN unpaid USING (round, node) "
        "WHERE contribution.epoch = :epoch AND unpaid.reason IS NULL GROUP BY contribution.node",
        epoch=epoch,
    )
    return {bytes(row.node): int(row.tokens) for row in rows}


def _not_charged(db: Connection, spec: RunSpec, epoch: int) -> list[NotCharged]:
    rows = ask(
        db,
        "SELECT unpaid.reason, count(*) AS steps, sum(contribution.tokens) AS tokens FROM contribution "
        "JOIN unpaid USING (round, node) WHERE contribution.epoch = :epoch "
        "GROUP BY unpaid.reason ORDER BY unpaid.reason",
        epoch=epoch,
    )
    charges = [
        NotCharged(
            epoch=epoch,
            reason=unpaid_reason(row.reason),
            steps=row.steps,
            tokens=int(row.tokens),
            worth=int(row.tokens) * spec.money.price_per_mtoken // 10**6,
        )
        for row in rows
    ]
    for table in ask(db, "SELECT tokens_paid, total FROM settlement WHERE epoch = :epoch", epoch=epoch):
        if _fell_short(spec, epoch, table):
            worth = gross_of(spec, table.tokens_paid, falls_short=False) - table.total
            charges.append(
                NotCharged(epoch=epoch, reason=UnpaidReason.MILESTONE, steps=0, tokens=0, worth=worth)
            )
    return charges


def _fell_short(spec: RunSpec, epoch: int, table: Any) -> bool:
    """Whether an epoch has a milestone, and costs what it does if the model missed it."""
    least = gross_of(spec, table.tokens_paid, falls_short=True)
    return spec.money.accept.milestone(epoch) is not None and table.total == least


def _covering(db: Connection, number: int) -> Note:
    """The first checkpoint that covers the entry, so that an invoice always names the same one."""
    for note in read_notes(db):
        if note.size >= max(number, 1):
            return note
    raise ConfigError(f"no checkpoint covers entry {number} yet: one is signed for each settled epoch")


def _anchor(db: Connection, run_id: bytes, least: int) -> str:
    """The first transaction that anchored a checkpoint of at least `least` entries; empty if none."""
    signed = {checkpoint_of(note, origin_of(run_id)) for note in read_notes(db) if note.size >= least}
    roots = {(one.size, one.root) for one in signed}
    for event in read_events(db, LogAnchored):
        if event.run_id == run_id and (event.size, event.root) in roots:
            return event.tx_hash.hex()
    return ""


def _same(epoch: int, what: str, one: object, other: object) -> None:
    if one != other:
        raise LedgerIntegrityError(
            f"epoch {epoch}: {what}: {_short_text(one)} on record, {_short_text(other)} expected"
        )


def _short_text(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)[:200]
