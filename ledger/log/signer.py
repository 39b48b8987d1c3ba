"""Signer: signs checkpoints of the books as they grow, and refuses books that were rolled back.

Room: ledger (edge: database and one folder). A note is in the database before its
file exists, so a process killed in between writes the file at its next start. At each start
the database is compared with the files; keep copies of them elsewhere, because
an attacker that can rewrite both can rewrite what was signed last.

    checkpoints/000000000042.note
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from threading import Lock

import sqlalchemy as sa
from nacl.signing import SigningKey

from assay.ledger.journal.database import writing
from assay.ledger.journal.log_store import (
    Note,
    add_cosignature,
    add_note,
    prove_consistency,
    read_edge,
    read_notes,
    read_root,
)
from assay.ledger.journal.reader import LedgerIntegrityError, short
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import TABLES
from assay.ledger.log.audit import audit
from assay.ledger.log.cosignature import read_cosignature
from assay.ledger.log.note import (
    BadNoteError,
    Checkpoint,
    SignatureLine,
    origin_of,
    read_checkpoint,
    sign_checkpoint,
)
from assay.ledger.log.witness import Request
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.types import PeerId

SUFFIX = ".note"
SETTLES = "ResultFinalized"  # the entry by which an epoch's payouts become due
_ENTRY = TABLES["journal_entry"]
_CURE = "restore the newest ledger.db, or keep this folder as evidence and start with an empty one"


class LedgerRolledBack(ConfigError):
    """The books contradict a signed, cosigned or anchored checkpoint: stop, and sign nothing."""


class CheckpointSigner:
    """Signs and publishes the checkpoints of one run's books. Thread-safe."""

    def __init__(
        self, books: BookStore, key: SigningKey, folder: Path, witnesses: Collection[PeerId] = ()
    ) -> None:
        """Compare the books with every checkpoint on disk.

        Args:
            books: The store.
            key: The ledger service's peer key.
            folder: For the notes; created if missing.
            witnesses: The run's verifiers.

        Raises:
            LedgerRolledBack: the books were altered or rolled back.
        """
        self._books, self._key, self._folder = books, key, folder
        self._files = Lock()
        self.origin = origin_of(books.run_id)
        try:
            with books.reading() as db:
                audit(db, self.origin, bytes(key.verify_key), read_published(folder), witnesses)
        except (LedgerIntegrityError, Unavailable) as error:
            raise LedgerRolledBack(f"the books contradict a signed checkpoint ({error}); {_CURE}") from None
        self._publish()

    def sign_due(self) -> Checkpoint | None:
        """Sign a checkpoint if an epoch was settled since the last one."""
        return self._sign(is_last=False)

    def sign_last(self) -> Checkpoint | None:
        """Sign a checkpoint of the whole log, unless the last one covers it."""
        return self._sign(is_last=True)

    def newest(self) -> Note | None:
        """The checkpoint of most entries; None before the first."""
        with self._books.reading() as db:
            return next(iter(read_notes(db, newest=1)), None)

    def check(self, checkpoint: Checkpoint, holder: str) -> None:
        """Do nothing if the books are consistent with a checkpoint that another party holds.

        Args:
            checkpoint: A checkpoint that we signed or anchored on chain.
            holder: The party that holds it.

        Raises:
            LedgerRolledBack: the books contradict it.
            Unavailable: the books cannot be read now.
        """
        try:
            with self._books.reading() as db:
                root = read_root(db, checkpoint.size)
        except IndexError as error:
            raise LedgerRolledBack(
                f"{holder} has a checkpoint of {checkpoint.size} entries: "
                f"the books were rolled back ({error}); {_CURE}"
            ) from None
        except ValueError as error:
            raise LedgerRolledBack(f"the books' log cannot be read ({error}); {_CURE}") from None
        if root != checkpoint.root:
            raise LedgerRolledBack(
                f"{holder} has a checkpoint of {checkpoint.size} entries with root {short(checkpoint.root)}, "
                f"the books have root {short(root)} at that size; {_CURE}"
            )

    def request(self, old_size: int) -> Request:
        """The newest checkpoint, and the proof that it continues the log of `old_size` entries.

        Raises:
            Unavailable: there is no checkpoint, or none of at least `old_size` entries.
        """
        with self._books.reading() as db:
            notes = read_notes(db, newest=1)
            if not notes or notes[0].size < old_size:
                raise Unavailable(f"no checkpoint of {old_size} entries or more is signed")
            proof = prove_consistency(db, notes[0].size, old_size)
        return Request(old_size=old_size, proof=proof, note=notes[0].text)

    def add_cosignature(self, size: int, verifier: PeerId, line: SignatureLine) -> None:
        """Store a verifier's cosignature of a checkpoint and publish it.

        Raises:
            BadNoteError: it is not this verifier's cosignature of that checkpoint.
            Unavailable: disk or database failed.
        """
        with writing(self._books.engine) as db:
            note = next((one for one in read_notes(db) if one.size == size), None)
            if note is None:
                raise BadNoteError(f"cosignature of {size} entries: there is no such checkpoint")
            read_cosignature(line, read_checkpoint(note.text, self.origin, note.signer), verifier)
            add_cosignature(db, size, verifier, line.text())
        self._publish()

    def _sign(self, *, is_last: bool) -> Checkpoint | None:
        with writing(self._books.engine) as db:
            notes, edge = read_notes(db), read_edge(db)
            covered = notes[-1].size if notes else 0
            is_due = sa.and_(_ENTRY.c.kind == SETTLES, _ENTRY.c.lines > 0, _ENTRY.c.id > covered)
            settled = sa.select(_ENTRY.c.id).where(is_due).limit(1)
            if edge.size == covered or not (is_last or db.execute(settled).first()):
                return None
            checkpoint = Checkpoint(origin=self.origin, size=edge.size, root=edge.root)
            text = sign_checkpoint(checkpoint, self._key)
            add_note(db, Note(size=edge.size, signer=bytes(self._key.verify_key), text=text))
        self._publish()
        return checkpoint

    def _publish(self) -> None:
        """Write the notes whose file is missing or lacks the newest cosignatures."""
        try:
            with self._files:
                with self._books.reading() as db:
                    notes = read_notes(db)
                self._folder.mkdir(parents=True, exist_ok=True)
                for note in notes:
                    path, body = self._folder / f"{note.size:012d}{SUFFIX}", note.published().encode()
                    if not path.exists() or path.read_bytes() != body:
                        _write(path, body)
        except OSError as error:
            raise Unavailable(f"checkpoints: {error}") from error


def read_published(folder: Path) -> list[tuple[str, str]]:
    """Name and text of every note in a folder, smallest first; none if there is no folder."""
    return [
        (f"{folder.name}/{path.name}", path.read_bytes().decode(errors="replace"))
        for path in sorted(folder.glob(f"*{SUFFIX}"))
    ]


def _write(path: Path, body: bytes) -> None:
    """Write a file atomically; it is durable on return."""
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
