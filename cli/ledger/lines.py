"""Ledger lines: print a run's ledger on a terminal, read-only.

Room: cli (edge: reads files). The values come from ledger/queries/lookup.py: an entry that differs from what
was logged is an error, never a line of output.

    RUN   a run's folder, or a ledger.db
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from assay.bundle.books import find_books, log_origin, opened, run_of, spec_of
from assay.ledger.accounts import NO_EPOCH
from assay.ledger.journal.leaf import Written
from assay.ledger.journal.log_store import read_notes
from assay.ledger.journal.reader import LedgerIntegrityError, read_journal
from assay.ledger.log.audit import Audited, audit
from assay.ledger.log.note import verifier_key
from assay.ledger.log.signer import read_published
from assay.ledger.queries.export import Language, export_lines, happened_at, recorded_at
from assay.ledger.queries.lookup import account_kinds, add_up, entry_page, has_account, prove_entry
from assay.ledger.queries.statement import AccountBalance
from assay.orders.amounts import UNIT, money_text
from assay.protocol.agreement.quorum import quorum
from assay.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Balance:
    """Every account that is not at zero, and the trial balance."""

    accounts: tuple[AccountBalance, ...]
    trial_balance: int


@dataclass(frozen=True, slots=True)
class PostingShown:
    """One line of an entry: a debit is positive, a credit negative."""

    account: str
    asset: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryShown:
    """One entry of the journal.

    time: of its block; of a document, which no block has, when it was written. epoch: None where it is of
    none. reverses: the key of another, or empty.
    """

    number: int
    time: str
    recorded_at: str
    kind: str
    epoch: int | None
    block: int
    reverses: str
    key: str
    postings: tuple[PostingShown, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """The journal, oldest entry first."""

    entries: list[EntryShown]


def read_balance(run: Path) -> Balance:
    """The balances of a run's books."""
    with opened(find_books(run)) as db:
        found = add_up(db)
    accounts = tuple(AccountBalance(account.code, amount) for account, amount in found.balances)
    return Balance(accounts, found.trial_balance)


def balance_lines(found: Balance) -> Iterator[str]:
    """One line for each account."""
    for one in found.accounts:
        yield f"{one.account:<80} {money_text(one.amount):>20} {UNIT}"
    yield f"{'trial balance':<80} {money_text(found.trial_balance):>20} {UNIT}"


def read_entries(run: Path, account: str | None) -> Iterator[EntryShown]:
    """Every entry with its postings.

    Args:
        run: The run.
        account: Only entries that touch accounts whose code begins with this.

    Raises:
        ConfigError: no account code begins so.
    """
    with opened(find_books(run)) as db:
        if account is not None and not has_account(db, account):
            kinds = ", ".join(sorted(account_kinds(db)))
            raise ConfigError(f"no account begins with {account!r}; there are accounts of {kinds}")
        after: int | None = 0
        while after is not None:
            page = entry_page(db, after=after, account=account or "")
            after = page.next_after
            yield from map(_shown, page.entries)


def _shown(one: Written) -> EntryShown:
    entry = one.entry
    return EntryShown(
        number=one.number,
        time=happened_at(one).isoformat(sep=" ", timespec="seconds"),
        recorded_at=recorded_at(one).isoformat(sep=" ", timespec="seconds"),
        kind=entry.kind,
        epoch=None if entry.epoch == NO_EPOCH else entry.epoch,
        block=entry.block_number,
        reverses=entry.reverses,
        key=entry.key,
        postings=_postings(one),
    )


def _postings(one: Written) -> tuple[PostingShown, ...]:
    return tuple(
        PostingShown(each.account.code, each.account.asset, each.amount) for each in one.entry.postings
    )


def entry_text(one: EntryShown) -> str:
    """An entry as lines."""
    epoch = "" if one.epoch is None else f"  epoch {one.epoch}"
    undone = f"  reverses {one.reverses}" if one.reverses else ""
    lines = [
        f"{one.number}  {one.time}  {one.kind}{epoch}  block {one.block}{undone}",
        f"    {one.key}",
        *(f"    {each.account:<80} {money_text(each.amount):>20} {each.asset}" for each in one.postings),
    ]
    return "\n".join(lines)


def export_text(run: Path, languages: Sequence[Language]) -> str:
    """The journal in a language.

    Raises:
        ConfigError: none was requested, or several.
    """
    if len(languages) != 1:
        raise ConfigError("expected one of --csv, --beancount and --hledger")
    with opened(find_books(run)) as db:
        found = list(read_journal(db))
    return "".join(export_lines(languages[0], lambda: found, f"Assay, {run.name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedEntry:
    """An entry with its inclusion proof in the log of the newest checkpoint."""

    entry: int
    key: str
    kind: str
    postings: tuple[PostingShown, ...]
    leaf_index: int
    leaf: bytes
    leaf_hash: bytes
    proof: tuple[bytes, ...]
    checkpoint: str
    verifier_key: str


def proof_of(run: Path, entry: str) -> ProvedEntry:
    """An entry with its proof.

    Args:
        run: The run.
        entry: Its number or its key.

    Raises:
        ConfigError: there is no such entry, or no checkpoint covers it yet.
        LedgerIntegrityError: the books differ from what was logged.
    """
    place = find_books(run)
    with opened(place) as db:
        found = prove_entry(db, log_origin(place, db), entry)
    one = found.written
    return ProvedEntry(
        entry=one.number,
        key=one.entry.key,
        kind=one.entry.kind,
        postings=_postings(one),
        leaf_index=one.number - 1,
        leaf=found.leaf,
        leaf_hash=one.leaf,
        proof=tuple(found.path),
        checkpoint=found.note,
        verifier_key=found.verifier_key,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedBooks:
    """What an audit of the books found right."""

    audited: Audited
    published: int  # checkpoints found as files
    verifier_key: str | None  # that signed them; None while there is none
    is_known_key: bool  # the caller gave it
    verifiers: int  # of the run; 0 where the run's spec is not here
    quorum: int
    witnessed_at: str | None  # when a quorum had cosigned
    anchor: str | None = None  # how the books compare with the chain


def audit_books(run: Path, key: str | None, *, must_be_witnessed: bool = False) -> AuditedBooks:
    """Audit the books.

    Args:
        run: The run.
        key: The ledger service's key if the caller knows it: hexadecimal, or as `audit` prints it.
        must_be_witnessed: Whether a quorum of verifiers has to have cosigned the newest checkpoint.

    Raises:
        LedgerIntegrityError: the first check that fails.
        ConfigError: the key is no key, or the run's verifiers are not known here.
    """
    place, signer = find_books(run), None if key is None else _public_key(key)
    has_spec = must_be_witnessed or place.spec is not None
    verifiers = spec_of(place).seat_peers if has_spec else ()
    with opened(place) as db:
        origin = log_origin(place, db)
        published = [] if place.checkpoints is None else read_published(place.checkpoints)
        run_id = run_of(place)[1] if has_spec else None
        found: Audited = audit(db, origin, signer, published, verifiers, run_id)
        notes = read_notes(db)
    if not found.checkpoints and must_be_witnessed:
        raise LedgerIntegrityError("no checkpoint is signed yet, so none is cosigned")
    used = signer or (notes[-1].signer if found.checkpoints else None)
    need = quorum(len(verifiers)) if verifiers else 0
    is_witnessed = bool(found.checkpoints) and bool(verifiers) and len(found.cosigners) >= need
    books = AuditedBooks(
        audited=found,
        published=len(published),
        verifier_key=None if used is None else verifier_key(origin, used),
        is_known_key=signer is not None,
        verifiers=len(verifiers),
        quorum=need,
        witnessed_at=_time(sorted(found.cosigners.values())[need - 1]) if is_witnessed else None,
    )
    if must_be_witnessed and not is_witnessed:
        raise LedgerIntegrityError(f"{_cosigned(books)}, {need} expected")
    return books


def audit_lines(books: AuditedBooks) -> Iterator[str]:
    """One line for each check passed."""
    found = books.audited
    yield f"entries: {found.entries} with {found.postings} postings, each with the leaf that the log holds"
    if books.verifiers:
        yield "postings: as the events and payout tables in these books lead to them"
    else:
        yield "postings: not compared with the events, which needs the run's spec.cbor"
    yield f"records: {found.records} events, rounds, payout tables and documents, each as it was logged"
    yield f"log: {found.entries} leaves, root {found.root.hex()}"
    yield f"trial balance: zero in {', '.join(found.assets) or 'empty books'}"
    if not found.checkpoints:
        yield "checkpoints: none yet, so no signature covers the books"
    else:
        newest, count = found.checkpoints[-1].size, len(found.checkpoints)
        yield f"checkpoints: {count}, {books.published} as files; the newest is of {newest} entries"
        advice = "the key you gave" if books.is_known_key else "compare it with the key you know"
        yield f"signed by {books.verifier_key}: {advice}"
        if books.witnessed_at is not None:
            yield f"witnessed: {_cosigned(books)}, a quorum by {books.witnessed_at} UTC"
        elif books.verifiers:
            yield f"witnesses: {_cosigned(books)}; a quorum is {books.quorum}"
        if found.entries > newest:
            yield f"entries {newest + 1} to {found.entries} are newer than any checkpoint"
    if books.anchor is not None:
        yield books.anchor


def _cosigned(books: AuditedBooks) -> str:
    have, size = len(books.audited.cosigners), books.audited.checkpoints[-1].size
    return f"the checkpoint of {size} entries is cosigned by {have} of {books.verifiers} verifiers"


def _time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(sep=" ")[:19]


def _public_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.split("+", 2)[2])[1:] if "+" in text else bytes.fromhex(text)
    except (ValueError, IndexError):
        key = b""
    if len(key) != 32:
        raise ConfigError(
            f"{text!r} is not an Ed25519 key, expected 64 hexadecimal digits or name+hash+base64"
        )
    return key
