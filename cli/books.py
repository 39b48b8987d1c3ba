"""Books: looking at a run's ledger without touching it.

Room: cli (edge: reads files). Everything shown passes through the log first: an
entry that is not what was logged is an error, never a line of output.

    RUN   a run's folder, or a ledger.db
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

from ledger.accounts import NO_EPOCH, Account
from ledger.export import beancount_text, csv_text, recorded_at
from ledger.journal_db import open_engine_to_read, reading
from ledger.log_audit import Audited, BooksAltered, audit, read_journal
from ledger.log_keeper import read_published
from ledger.log_leaf import Written, leaf_bytes
from ledger.log_note import origin_of, read_checkpoint, verifier_key
from ledger.log_store import read_notes
from ledger.merkle_log import inclusion_proof, leaf_hash, verify_inclusion
from ledger.results import run_id_of
from orders.amounts import UNIT, money_text
from protocol.errors import ConfigError
from replica.participant import read_spec

CHECKPOINTS = "checkpoints"
_KEEPER = Path("participants") / "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the parts of a ledger are."""

    books: Path
    checkpoints: Path  # may not exist
    spec: Path | None  # the run's, if it is at hand


def find_books(run: Path) -> Place:
    """The ledger of a run's folder, finished or not, or of a ledger.db by itself.

    Raises:
        ConfigError: there is none.
    """
    if run.is_file():
        return Place(books=run, checkpoints=run.parent / CHECKPOINTS, spec=None)
    books = [path for path in (run / "ledger.db", run / _KEEPER / "ledger.db") if path.is_file()]
    if not books:
        raise ConfigError(f"{run}: no ledger.db here; expected a run's folder or a ledger.db")
    checkpoints = run / _KEEPER / CHECKPOINTS
    specs = [path for path in (run / "spec.cbor", run / "bundle" / "spec.cbor") if path.is_file()]
    return Place(
        books=books[0],
        checkpoints=checkpoints if checkpoints.is_dir() else run / CHECKPOINTS,
        spec=specs[0] if specs else None,
    )


@contextmanager
def opened(place: Place) -> Iterator[Connection]:
    """A consistent view of the books.

    Raises:
        ConfigError: not books of this schema.
        Unavailable: the file is damaged.
    """
    engine = open_engine_to_read(place.books)
    try:
        with reading(engine) as db:
            yield db
    finally:
        engine.dispose()


def journal(run: Path) -> list[Written]:
    """All entries, each compared with the log.

    Raises:
        BooksAltered: one is not what was logged.
    """
    with opened(find_books(run)) as db:
        return list(read_journal(db))


# ---- what the commands print


def balance_lines(run: Path) -> Iterator[str]:
    """Every account that is not at zero, on its own side, and the trial balance."""
    balances: dict[Account, int] = {}
    for one in journal(run):
        for posting in one.entry.postings:
            balances[posting.account] = balances.get(posting.account, 0) + posting.amount
    for account, amount in sorted(balances.items(), key=lambda item: item[0].code):
        if amount:
            yield f"{account.code:<80} {money_text(amount * account.kind.side):>20} {UNIT}"
    yield f"{'trial balance':<80} {money_text(sum(balances.values())):>20} {UNIT}"


def entry_lines(run: Path, account: str | None) -> Iterator[str]:
    """Every entry with its postings: debits positive, credits negative.

    Args:
        run: The run.
        account: Only entries that touch accounts whose code begins so.

    Raises:
        ConfigError: no account begins so.
    """
    found = journal(run)
    prefix = account or ""
    codes = {posting.account.code for one in found for posting in one.entry.postings}
    if account is not None and not any(code.startswith(prefix) for code in codes):
        kinds = sorted({code.removeprefix("asset:").split(":")[0] for code in codes})
        raise ConfigError(f"no account begins with {account!r}; there are accounts of {', '.join(kinds)}")
    for one in found:
        entry = one.entry
        if not any(posting.account.code.startswith(prefix) for posting in entry.postings):
            continue
        epoch = "" if entry.epoch == NO_EPOCH else f"  epoch {entry.epoch}"
        undone = f"  reverses {entry.reverses}" if entry.reverses else ""
        when = recorded_at(one).isoformat(sep=" ", timespec="seconds")
        yield f"{one.number}  {when}  {entry.kind}{epoch}  block {entry.block_number}{undone}"
        yield f"    {entry.key}"
        for posting in entry.postings:
            yield f"    {posting.account.code:<80} {money_text(posting.amount):>20} {posting.account.asset}"


def export_text(run: Path, *, is_csv: bool, is_beancount: bool) -> str:
    """The journal in one of two languages.

    Raises:
        ConfigError: none or both were asked for.
    """
    if is_csv == is_beancount:
        raise ConfigError("expected one of --csv and --beancount")
    found = journal(run)
    return csv_text(found) if is_csv else beancount_text(found, f"Assay, {run.name}")


def proof_of(run: Path, entry: str) -> dict[str, Any]:
    """An entry and the proof that it is in the log that the newest checkpoint names.

    Args:
        run: The run.
        entry: Its number or its key.

    Raises:
        ConfigError: there is no such entry, or no checkpoint covers it yet.
        BooksAltered: the books are not what was logged.
    """
    place = find_books(run)
    with opened(place) as db:
        found = list(read_journal(db))
        notes = read_notes(db)
        origin = _origin(place, db)
    by_name = {name: one for one in found for name in (str(one.number), one.entry.key)}
    if entry not in by_name:
        raise ConfigError(f"no entry {entry!r}; they are numbered from 1 to {len(found)}")
    one = by_name[entry]
    if not notes or notes[-1].size < one.number:
        covered = notes[-1].size if notes else 0
        raise ConfigError(f"entry {one.number} is newer than the last checkpoint, of {covered} entries")
    note = notes[-1]
    checkpoint = read_checkpoint(note.text, origin, note.signer)
    if checkpoint.size > len(found):
        raise BooksAltered(f"the books were rolled back: {checkpoint.size} entries signed, {len(found)} here")
    body = leaf_bytes(one.entry, one.recorded_ms)
    path = inclusion_proof([each.leaf for each in found[: checkpoint.size]], one.number - 1)
    verify_inclusion(leaf_hash(body), one.number - 1, checkpoint.size, path, checkpoint.root)
    return {
        "entry": one.number,
        "key": one.entry.key,
        "kind": one.entry.kind,
        "postings": [
            {"account": each.account.code, "asset": each.account.asset, "amount": each.amount}
            for each in one.entry.postings
        ],
        "leaf_index": one.number - 1,
        "leaf": body.hex(),
        "leaf_hash": one.leaf.hex(),
        "proof": [each.hex() for each in path],
        "checkpoint": note.text,
        "verifier_key": verifier_key(origin, note.signer),
    }


def audit_lines(run: Path, key: str | None) -> Iterator[str]:
    """One line per thing found good.

    Args:
        run: The run.
        key: The keeper's key if the caller knows it: hexadecimal, or as `audit` prints it.

    Raises:
        BooksAltered: the first thing that is not.
        ConfigError: the key is no key.
    """
    place, signer = find_books(run), None if key is None else _public_key(key)
    with opened(place) as db:
        origin = _origin(place, db)
        published = read_published(place.checkpoints)
        found: Audited = audit(db, origin, signer, published)
        notes = read_notes(db)
    yield f"entries: {found.entries} with {found.postings} postings, each makes the leaf that was logged"
    yield f"log: {found.entries} leaves, root {found.root.hex()}"
    yield f"trial balance: zero in {', '.join(found.assets) or 'empty books'}"
    if not found.checkpoints:
        yield "checkpoints: none yet, so nothing outside the books vouches for them"
        return
    used = signer or notes[-1].signer
    newest = found.checkpoints[-1].size
    count = len(found.checkpoints)
    yield f"checkpoints: {count}, {len(published)} as files; the newest is of {newest} entries"
    told = "the key you gave" if signer else "compare the key with one you had before"
    yield f"signed by {verifier_key(origin, used)}: {told}"
    if found.entries > newest:
        yield f"entries {newest + 1} to {found.entries} are newer than any checkpoint"


def proof_text(run: Path, entry: str) -> str:
    """`proof_of` as JSON."""
    return json.dumps(proof_of(run, entry), indent=2, ensure_ascii=False)


def _origin(place: Place, db: Connection) -> str:
    """The log's name: by the run's spec if it is at hand, else as the newest checkpoint says."""
    if place.spec is not None:
        return origin_of(run_id_of(read_spec(place.spec)))
    notes = read_notes(db)
    return notes[-1].text.split("\n")[0] if notes else ""


def _public_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.split("+", 2)[2])[1:] if "+" in text else bytes.fromhex(text)
    except (ValueError, IndexError):
        key = b""
    if len(key) != 32:
        raise ConfigError(f"{text!r} is no Ed25519 key: expected 64 hexadecimal digits or name+hash+base64")
    return key
