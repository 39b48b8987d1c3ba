"""Lookup: queries on a run's books for commands and the API: balances, entries, proofs, checkpoints.

Room: ledger (edge: reads the store). Every entry that an answer uses is compared with the log
(ledger/journal/reader.py), and an answer reads only the entries it needs: a proof is two or three
small subtrees of the log, whatever the journal's length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.ledger.accounts import Account
from assay.ledger.journal.leaf import Written, leaf_bytes
from assay.ledger.journal.log_store import Note, prove_inclusion, read_edge, read_notes
from assay.ledger.journal.reader import LedgerIntegrityError, read_entries, read_journal
from assay.ledger.journal.tables import TABLES
from assay.ledger.log.note import BadNoteError, Checkpoint, read_checkpoint, verifier_key
from assay.ledger.merkle_log import Edge, ProofError, append, leaf_hash, verify_inclusion
from assay.protocol.errors import ConfigError

PAGE_MAX = 500
_ACCOUNT, _ENTRY, _POSTING = TABLES["account"], TABLES["journal_entry"], TABLES["posting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Account totals over the first `edge.size` entries; debits positive."""

    edge: Edge = field(default_factory=Edge)
    amounts: Mapping[Account, int] = field(default_factory=dict)  # none of them zero

    @property
    def balances(self) -> tuple[tuple[Account, int], ...]:
        """Every account that is not at zero, by its code, each on its own side."""
        ordered = sorted(self.amounts.items(), key=lambda item: item[0].code)
        return tuple((account, amount * account.kind.side) for account, amount in ordered)

    @property
    def trial_balance(self) -> int:
        """The sum of all accounts; anything but zero means that the books are wrong."""
        return sum(self.amounts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPage:
    """One page of entries, oldest first."""

    entries: tuple[Written, ...]
    next_after: int | None  # cursor of the next page; None: this is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryProof:
    """An entry with its inclusion proof in the log of a signed checkpoint."""

    written: Written
    leaf: bytes  # preimage of the leaf's hash
    path: tuple[bytes, ...]
    checkpoint: Checkpoint
    note: str  # the signed checkpoint
    verifier_key: str  # of the signer, in signed-note's form


def log_edge(db: Connection) -> Edge:
    """The log's present edge.

    Raises:
        LedgerIntegrityError: the stored edge is invalid.
    """
    try:
        return read_edge(db)
    except ValueError as error:
        raise LedgerIntegrityError(f"log: {error}") from None


def add_up(db: Connection, so_far: Totals | None = None) -> Totals:
    """The balances from the journal, each entry compared with the log.

    Args:
        db: A reading transaction.
        so_far: Earlier totals: only later entries are read. None reads all of them.

    Raises:
        LedgerIntegrityError: an entry differs from the log, or the log does not continue the one
            of `so_far`.
    """
    at = so_far or Totals()
    edge = log_edge(db)
    if edge.size < at.edge.size:
        raise LedgerIntegrityError(
            f"the books were rolled back: {at.edge.size} entries were read, {edge.size} are here"
        )
    fresh = read_entries(db, range(at.edge.size + 1, edge.size + 1)) if at.edge.size else read_journal(db)
    amounts, leaves = dict(at.amounts), []
    for one in fresh:
        leaves.append(one.leaf)
        for posting in one.entry.postings:
            amounts[posting.account] = amounts.get(posting.account, 0) + posting.amount
    made = append(at.edge, leaves)
    if made != edge:
        raise LedgerIntegrityError(
            f"log: {edge.size} leaves are on record, but the entries have another root or count"
        )
    return Totals(edge=edge, amounts={account: amount for account, amount in amounts.items() if amount})


def entry_page(db: Connection, *, after: int = 0, limit: int = PAGE_MAX, account: str = "") -> EntryPage:
    """Entries from a number on, oldest first, each compared with the log.

    Args:
        db: A reading transaction.
        after: Number of the last entry before the page.
        limit: Largest number of entries, up to `PAGE_MAX`.
        account: Only entries that touch an account whose code begins with it.

    Raises:
        LedgerIntegrityError: one of them differs from the log.
    """
    limit = max(1, min(limit, PAGE_MAX))
    query = sa.select(_ENTRY.c.id).where(_ENTRY.c.id > after).order_by(_ENTRY.c.id).limit(limit + 1)
    if account:
        touching = sa.select(_POSTING.c.entry).join_from(_POSTING, _ACCOUNT).where(_begins(account))
        query = query.where(_ENTRY.c.id.in_(touching))
    numbers = list(db.execute(query).scalars())
    found = tuple(read_entries(db, numbers[:limit]))
    return EntryPage(entries=found, next_after=numbers[limit - 1] if len(numbers) > limit else None)


def has_account(db: Connection, prefix: str) -> bool:
    """Whether any account's code begins with `prefix`."""
    return db.execute(sa.select(_ACCOUNT.c.id).where(_begins(prefix)).limit(1)).first() is not None


def account_kinds(db: Connection) -> list[str]:
    """The account kinds in these books."""
    return [
        str(kind).removeprefix("asset:")
        for kind in db.execute(sa.select(_ACCOUNT.c.kind).distinct()).scalars()
    ]


def number_of(db: Connection, entry: str) -> int:
    """An entry's number, by its number or its key.

    Raises:
        ConfigError: there is no such entry.
    """
    by_key = db.execute(sa.select(_ENTRY.c.id).where(_ENTRY.c.key == entry)).scalar()
    if by_key is not None:
        return int(by_key)
    count = log_edge(db).size
    if entry.isascii() and entry.isdecimal() and len(entry) < 20 and 1 <= int(entry) <= count:
        return int(entry)
    raise ConfigError(f"no entry {entry[:200]!r}; entries are numbered from 1 to {count}")


def prove_entry(db: Connection, origin: str, entry: str) -> EntryProof:
    """An entry and its inclusion proof in the log of the newest checkpoint.

    Args:
        db: A reading transaction.
        origin: The log's name; empty takes the checkpoint's.
        entry: Its number or its key.

    Raises:
        ConfigError: there is no such entry, or no checkpoint covers it yet.
        LedgerIntegrityError: the books differ from what was logged and signed.
    """
    one = next(read_entries(db, [number_of(db, entry)]))
    note = newest_note(db)
    if note is None or note.size < one.number:
        covered = note.size if note else 0
        raise ConfigError(f"entry {one.number} is newer than the last checkpoint, of {covered} entries")
    checkpoint = checkpoint_of(note, origin)
    size = log_edge(db).size
    if checkpoint.size > size:
        raise LedgerIntegrityError(
            f"the books were rolled back: {checkpoint.size} entries signed, {size} here"
        )
    body = leaf_bytes(one.entry.to_bytes(), one.recorded_ms)
    try:
        path = prove_inclusion(db, checkpoint.size, one.number - 1)
        verify_inclusion(leaf_hash(body), one.number - 1, checkpoint.size, path, checkpoint.root)
    except (ValueError, ProofError) as error:
        raise LedgerIntegrityError(f"entry {one.number} ({one.entry.key}): {error}") from None
    return EntryProof(
        written=one,
        leaf=body,
        path=path,
        checkpoint=checkpoint,
        note=note.text,
        verifier_key=verifier_key(checkpoint.origin, note.signer),
    )


def newest_note(db: Connection) -> Note | None:
    """The largest checkpoint; None before the first."""
    notes = read_notes(db, newest=1)
    return notes[0] if notes else None


def checkpoint_of(note: Note, origin: str) -> Checkpoint:
    """The checkpoint in a stored note, if the recorded signer signed it.

    Raises:
        LedgerIntegrityError: it did not.
    """
    try:
        checkpoint = read_checkpoint(note.text, origin or note.text.split("\n")[0], note.signer)
    except BadNoteError as error:
        raise LedgerIntegrityError(f"checkpoint of {note.size} entries: {error}") from None
    if checkpoint.size != note.size:
        raise LedgerIntegrityError(f"checkpoint of {note.size} entries: it says {checkpoint.size}")
    return checkpoint


def _begins(prefix: str) -> sa.ColumnElement[bool]:
    return sa.func.substr(_ACCOUNT.c.code, 1, len(prefix)) == prefix
