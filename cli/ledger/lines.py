"""Ledger lines: print a run's ledger on a terminal, read-only.

Room: cli (edge: reads files). The values come from ledger/queries/lookup.py: an entry that differs from what
was logged is an error, never a line of output.

    RUN   a run's folder, or a ledger.db
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from assay.bundle.books import find_books, log_origin, opened, spec_of
from assay.ledger.accounts import NO_EPOCH
from assay.ledger.journal.log_store import read_notes
from assay.ledger.journal.reader import LedgerIntegrityError, read_journal
from assay.ledger.log.audit import Audited, audit
from assay.ledger.log.note import verifier_key
from assay.ledger.log.signer import read_published
from assay.ledger.queries.export import beancount_text, csv_text, recorded_at
from assay.ledger.queries.lookup import account_kinds, add_up, entry_page, has_account, prove_entry
from assay.orders.amounts import UNIT, money_text
from assay.protocol.errors import ConfigError
from assay.protocol.quorum import quorum
from assay.protocol.types import PeerId


def balance_lines(run: Path) -> Iterator[str]:
    """Every account that is not at zero, on its own side, and the trial balance."""
    with opened(find_books(run)) as db:
        found = add_up(db)
    for account, amount in found.balances:
        yield f"{account.code:<80} {money_text(amount):>20} {UNIT}"
    yield f"{'trial balance':<80} {money_text(found.trial_balance):>20} {UNIT}"


def entry_lines(run: Path, account: str | None) -> Iterator[str]:
    """Every entry with its postings: debits positive, credits negative.

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
            for one in page.entries:
                entry = one.entry
                epoch = "" if entry.epoch == NO_EPOCH else f"  epoch {entry.epoch}"
                undone = f"  reverses {entry.reverses}" if entry.reverses else ""
                when = recorded_at(one).isoformat(sep=" ", timespec="seconds")
                yield f"{one.number}  {when}  {entry.kind}{epoch}  block {entry.block_number}{undone}"
                yield f"    {entry.key}"
                for posting in entry.postings:
                    yield (
                        f"    {posting.account.code:<80} {money_text(posting.amount):>20} "
                        f"{posting.account.asset}"
                    )


def export_text(run: Path, *, is_csv: bool, is_beancount: bool) -> str:
    """The journal in one of two formats.

    Raises:
        ConfigError: none or both were requested.
    """
    if is_csv == is_beancount:
        raise ConfigError("expected one of --csv and --beancount")
    with opened(find_books(run)) as db:
        found = list(read_journal(db))
    return csv_text(found) if is_csv else beancount_text(found, f"Assay, {run.name}")


def proof_of(run: Path, entry: str) -> dict[str, Any]:
    """An entry with its inclusion proof in the log of the newest checkpoint.

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
    return {
        "entry": one.number,
        "key": one.entry.key,
        "kind": one.entry.kind,
        "postings": [
            {"account": each.account.code, "asset": each.account.asset, "amount": each.amount}
            for each in one.entry.postings
        ],
        "leaf_index": one.number - 1,
        "leaf": found.leaf.hex(),
        "leaf_hash": one.leaf.hex(),
        "proof": [each.hex() for each in found.path],
        "checkpoint": found.note,
        "verifier_key": found.verifier_key,
    }


def audit_lines(run: Path, key: str | None, *, must_be_witnessed: bool = False) -> Iterator[str]:
    """Audit the books; returns one line for each check passed.

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
    verifiers = spec_of(place).verifier_peers if has_spec else ()
    with opened(place) as db:
        origin = log_origin(place, db)
        published = [] if place.checkpoints is None else read_published(place.checkpoints)
        found: Audited = audit(db, origin, signer, published, verifiers)
        notes = read_notes(db)
    yield f"entries: {found.entries} with {found.postings} postings, each with the leaf that the log holds"
    yield f"log: {found.entries} leaves, root {found.root.hex()}"
    yield f"trial balance: zero in {', '.join(found.assets) or 'empty books'}"
    if not found.checkpoints:
        if must_be_witnessed:
            raise LedgerIntegrityError("no checkpoint is signed yet, so none is cosigned")
        yield "checkpoints: none yet, so no signature covers the books"
        return
    used = signer or notes[-1].signer
    newest = found.checkpoints[-1].size
    count = len(found.checkpoints)
    yield f"checkpoints: {count}, {len(published)} as files; the newest is of {newest} entries"
    advice = "the key you gave" if signer else "compare it with the key you know"
    yield f"signed by {verifier_key(origin, used)}: {advice}"
    if verifiers:
        yield _witness_line(found, verifiers, must_be_witnessed=must_be_witnessed)
    if found.entries > newest:
        yield f"entries {newest + 1} to {found.entries} are newer than any checkpoint"


def _witness_line(found: Audited, verifiers: tuple[PeerId, ...], *, must_be_witnessed: bool) -> str:
    """How many of the run's verifiers cosigned the newest checkpoint, as a line.

    Raises:
        LedgerIntegrityError: fewer than a quorum, and a quorum was required.
    """
    have, need, of = len(found.cosigners), quorum(len(verifiers)), len(verifiers)
    count_text = (
        f"the checkpoint of {found.checkpoints[-1].size} entries is cosigned by {have} of {of} verifiers"
    )
    if have >= need:
        last = datetime.fromtimestamp(sorted(found.cosigners.values())[need - 1], timezone.utc)
        return f"witnessed: {count_text}, a quorum by {last.isoformat(sep=' ')[:19]} UTC"
    if must_be_witnessed:
        raise LedgerIntegrityError(f"{count_text}, {need} expected")
    return f"witnesses: {count_text}; a quorum is {need}"


def proof_text(run: Path, entry: str) -> str:
    """`proof_of` as JSON."""
    return json.dumps(proof_of(run, entry), indent=2, ensure_ascii=False)


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
