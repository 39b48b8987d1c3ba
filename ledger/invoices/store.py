"""Store: issues invoices and credit notes: each once, numbered without gaps, never changed.

Room: ledger (edge: the books' database). Figures, number and row are one transaction under
the writer's lock, so neither a crash nor concurrent threads leave a gap; its salted hash is an
entry of the journal, so that an audit finds a document that was removed or changed. The database's
triggers refuse a gap, a second invoice of an epoch, and any change (ledger/journal/triggers.py).
Credit notes take an invoice back, whole or in parts; once nothing is left of it, its epochs may be
invoiced again. A self-billed invoice of an operator's pay has the operator's own series.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from assay.chain.commit_statement import evm_address
from assay.ledger.books import DOCUMENT, document_hash, record
from assay.ledger.invoices.billing import Terms, bill
from assay.ledger.invoices.credits import credit_of, left_of
from assay.ledger.invoices.document import (
    SERIES,
    Document,
    Party,
    from_json,
    name_of,
    series_of,
    to_json,
)
from assay.ledger.invoices.figures import pay_of, read_escrow, read_facts, supply_times
from assay.ledger.journal.database import writing
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.rows import source_of
from assay.ledger.journal.tables import TABLES
from assay.ledger.journal.writer import write_entries
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest

_INVOICE = TABLES["invoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Seller, buyer and tax note of an invoice, and the terms by which it is stated in a currency."""

    supplier: Party
    buyer: Party  # its account is the run's
    tax_note: str = ""
    terms: Terms | None = None  # None: amounts in the token alone


def pro_forma(
    db: Connection, spec: RunSpec, run_id: Digest, first: int, last: int, issued_ms: int
) -> Document:
    """A pro forma invoice of these epochs; it takes no number and is not stored."""
    return _drafted(db, spec, run_id, first, last, None, issued_ms, "pro forma", 0)


def issue(
    engine: Engine,
    spec: RunSpec,
    run_id: Digest,
    first: int,
    last: int,
    parties: Parties,
    issued_ms: int,
    operator: str = "",
) -> Document:
    """The invoice of these epochs: the existing one unless credited, or a new one with the next number.

    Args:
        engine: The ledger service's books, open to write.
        spec: The run's.
        run_id: The run's.
        first: The first epoch.
        last: The last one, included.
        parties: Used only for a new invoice.
        issued_ms: Unix time; used only for a new invoice.
        operator: Account of the operator whose pay it is, which makes it a self-billed one; else empty.

    Raises:
        ConfigError: an epoch is not final, or is on another invoice that is not credited; or the operator
            earned nothing in them.
        LedgerIntegrityError: records differ, or the issued invoice differs from the books.
    """
    with writing(engine) as db:
        for row in _uncredited(db, series_of("invoice", operator)):
            if row.first_epoch <= last and first <= row.last_epoch:
                if (row.first_epoch, row.last_epoch) == (first, last):
                    return checked(db, spec, run_id, _document(row))
                name = name_of(run_id.hex(), "invoice", row.number, operator)
                raise ConfigError(
                    f"invoice {name} already covers epochs {row.first_epoch} to {row.last_epoch}; "
                    f"a credit note cancels it: --credit {row.number}"
                )
        number = _next_number(db, series_of("invoice", operator))
        made = _drafted(db, spec, run_id, first, last, parties, issued_ms, "invoice", number, operator)
        _insert(db, made)
        return made


def credit(
    engine: Engine,
    spec: RunSpec,
    run_id: Digest,
    number: int,
    reason: str,
    issued_ms: int,
    *,
    epoch: int | None = None,
    amount: int | None = None,
    operator: str = "",
) -> Document:
    """The credit note for an invoice or a part of it: the existing one, or a new one.

    A note for the same part, amount and reason exists already: it is returned, so that a command which
    was repeated takes nothing back twice. So is the last note of an invoice of which nothing is left.

    Raises:
        ConfigError: there is no such invoice, no reason, or less is left than the amount.
    """
    with writing(engine) as db:
        found = read_document(db, "invoice", number, operator)
        mine = sa.and_(_INVOICE.c.series == series_of("credit", operator), _INVOICE.c.corrects == number)
        rows = db.execute(sa.select(_INVOICE).where(mine).order_by(_INVOICE.c.number))
        earlier = [_document(row) for row in rows]
        if earlier and epoch is None and amount is None and not left_of(found, earlier):
            return earlier[-1]
        for note in reversed(earlier):
            if _is_repeated(note, epoch, amount, reason, left_of(found, earlier)):
                return note
        checked(db, spec, run_id, found)
        made = credit_of(
            found,
            earlier,
            epoch=epoch,
            amount=amount,
            number=_next_number(db, series_of("credit", operator)),
            issued_ms=issued_ms,
            reason=reason,
            salt=_salt(),
        )
        _insert(db, made)
        return made


def _is_repeated(
    note: Document, epoch: int | None, amount: int | None, reason: str, left: Mapping[int, int]
) -> bool:
    """Whether a note is what a repeated command asks for."""
    facts = note.facts
    if note.reason != reason or not note.is_partial or facts.first_epoch != facts.last_epoch:
        return False
    if epoch is None and amount is None:
        return False
    if epoch not in (None, facts.first_epoch):
        return False
    return -note.total == amount if amount is not None else facts.first_epoch not in left


def read_document(db: Connection, series: str, number: int, operator: str = "") -> Document:
    """A document as issued.

    Raises:
        ConfigError: there is none of this number.
        LedgerIntegrityError: it was altered since.
    """
    same = sa.and_(_INVOICE.c.series == series_of(series, operator), _INVOICE.c.number == number)
    row = db.execute(sa.select(_INVOICE).where(same)).first()
    if row is None:
        raise ConfigError(f"no {series} has the number {number}")
    return _document(row)


def read_documents(db: Connection, operator: str = "") -> list[Document]:
    """All documents of one supplier, invoices first, by number; an operator's are not the buyer's to see."""
    series = [series_of(one, operator) for one in SERIES]
    rows = db.execute(
        sa.select(_INVOICE)
        .where(_INVOICE.c.series.in_(series))
        .order_by(_INVOICE.c.series.desc(), _INVOICE.c.number)
    )
    return [_document(row) for row in rows]


def checked(db: Connection, spec: RunSpec, run_id: Digest, document: Document) -> Document:
    """The document, if every line still agrees with the books.

    Raises:
        LedgerIntegrityError: one does not.
    """
    facts = document.facts
    now = read_facts(db, spec, run_id, facts.first_epoch, facts.last_epoch)
    now = pay_of(now, document.operator) if document.operator else now
    # An anchor may come later; an invoice does not change for it.
    issued = {name: getattr(facts, name) for name in facts.__slots__ if name != "anchor_tx"}
    for name, value in issued.items():
        if getattr(now, name) != value:
            raise LedgerIntegrityError(
                f"{document.name}: its {name.replace('_', ' ')} differs from the books"
            )
    return document


def _drafted(
    db: Connection,
    spec: RunSpec,
    run_id: Digest,
    first: int,
    last: int,
    parties: Parties | None,
    issued_ms: int,
    series: str,
    number: int,
    operator: str = "",
) -> Document:
    account = "" if operator else evm_address(spec.buyer)  # of a self-billed document each party has its own
    buyer = Party() if parties is None else parties.buyer
    terms = None if parties is None else parties.terms
    facts = read_facts(db, spec, run_id, first, last)
    facts = pay_of(facts, operator) if operator else facts
    billed = None
    if terms is not None:
        lines = [(line.epoch, line.amount) for line in facts.lines]
        billed = bill(lines, supply_times(db, run_id, facts), terms)
    return Document(
        series=series,
        number=number,
        issued_ms=issued_ms,
        supplier=Party() if parties is None else parties.supplier,
        buyer=replace(buyer, account=account),
        tax_note="" if parties is None else parties.tax_note,
        operator=operator,
        facts=facts,
        billed=billed,
        escrow=read_escrow(db, run_id),
        salt="" if parties is None else _salt(),
    )


def _salt() -> str:
    return secrets.token_hex(16)


def _uncredited(db: Connection, series: str) -> list[Any]:
    """Invoices of a series that credit notes have not taken back as a whole."""
    notes = sa.select(_INVOICE.c.corrects, sa.func.sum(_INVOICE.c.total).label("taken"))
    notes = notes.where(_INVOICE.c.series == series.replace("invoice", "credit"))
    undone = notes.group_by(_INVOICE.c.corrects).subquery()
    query = sa.select(_INVOICE).join(undone, undone.c.corrects == _INVOICE.c.number, isouter=True)
    stands = sa.or_(undone.c.taken.is_(None), undone.c.taken + _INVOICE.c.total != 0)
    return list(db.execute(query.where(_INVOICE.c.series == series, stands).order_by(_INVOICE.c.number)))


def _next_number(db: Connection, series: str) -> int:
    last = sa.select(sa.func.coalesce(sa.func.max(_INVOICE.c.number), 0)).where(_INVOICE.c.series == series)
    return int(db.execute(last).scalar_one()) + 1


def _insert(db: Connection, made: Document) -> None:
    """Keep the document, and its hash as an entry of the journal, so that the Merkle log has it."""
    body = to_json(made)
    row = {
        "series": made.counted_as,
        "number": made.number,
        "first_epoch": made.facts.first_epoch,
        "last_epoch": made.facts.last_epoch,
        "corrects": made.corrects,
        "total": made.total,
        "issued_ms": made.issued_ms,
        "body": body,
        "body_hash": document_hash(body),
    }
    name = f"{made.counted_as}/{made.number}"
    write_entries(db, [record(DOCUMENT, name, source_of({_INVOICE.name: [row]}))], made.issued_ms)
    db.execute(sa.insert(_INVOICE), [row])


def _document(row: Any) -> Document:
    name = f"{row.series} {row.number}"
    if document_hash(row.body) != bytes(row.body_hash):
        raise LedgerIntegrityError(f"{name}: its text does not have the recorded hash")
    try:
        found = from_json(row.body)
    except ValueError as error:
        raise LedgerIntegrityError(f"{name}: {error}") from None
    head = (row.series, row.number, row.first_epoch, row.last_epoch, row.corrects, row.total, row.issued_ms)
    facts = found.facts
    contents = (found.counted_as, found.number, facts.first_epoch, facts.last_epoch)
    if head != (*contents, found.corrects, found.total, found.issued_ms):
        raise LedgerIntegrityError(f"{name}: its text and its table row differ")
    return found
