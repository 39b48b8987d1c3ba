"""Log keeper: signs checkpoints of the books as they grow, and refuses books that went back.

Room: ledger (edge: database and one folder). A note is in the database before its
file is there, so a process killed in between writes the file when it returns. The
files are what a restored or edited database is held against at the next start; keep
copies of them elsewhere, for who can rewrite both can rewrite what was signed last.

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
SETTLES = "ResultFinalized"  # the entry by which an epoch's pay becomes due
_ENTRY = TABLES["journal_entry"]
_CURE = "put back the newest ledger.db, or keep this folder as evidence and start with an empty one"


class LedgerRolledBack(ConfigError):
    """The books are not those that were signed, cosigned or anchored: stop, and sign nothing."""


class CheckpointSigner:
    """Checkpoints of one run's books. Threads may share it; they take turns at the files."""

    def __init__(
        self, books: BookStore, key: SigningKey, folder: Path, witnesses: Collection[PeerId] = ()
    ) -> None:
        """Compare the books with every checkpoint on disk.

        Args:
            books: The store.
            key: The keeper's peer key.
            folder: Where the notes are; made if missing.
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
            raise LedgerRolledBack(
                f"the books do not agree with what was signed about them ({error}); {_CURE}"
            ) from None
        self._publish()

    def sign_due(self) -> Checkpoint | None:
        """A checkpoint if an epoch was settled since the last one."""
        return self._sign(is_last=False)

    def sign_last(self) -> Checkpoint | None:
        """A checkpoint of all there is, unless the last one is."""
        return self._sign(is_last=True)

    def newest(self) -> Note | None:
        """The checkpoint of most entries; None before the first."""
        with self._books.reading() as db:
            return next(iter(read_notes(db, newest=1)), None)

    def check(self, told: Checkpoint, who: str) -> None:
        """Do nothing if the books hold what somebody else remembers of them.

        Args:
            told: A checkpoint that we signed, or that is on chain by our hand.
            who: Who remembers it.

        Raises:
            LedgerRolledBack: they do not.
            Unavailable: the books cannot be read now.
        """
        try:
            with self._books.reading() as db:
                root = read_root(db, told.size)
        except IndexError as error:
            raise LedgerRolledBack(
                f"{who} knows {told.size} entries: the books were rolled back ({error}); {_CURE}"
            ) from None
        except ValueError as error:
            raise LedgerRolledBack(f"the books do not hold their own log ({error}); {_CURE}") from None
        if root != told.root:
            raise LedgerRolledBack(
                f"{who} knows {told.size} entries with root {short(told.root)}, the books have {short(root)} "
                f"there; {_CURE}"
            )

    def request(self, old_size: int) -> Request:
        """The newest checkpoint, and the proof that it continues the log of `old_size` entries.

        Raises:
            Unavailable: there is no checkpoint, or none of so many entries.
        """
        with self._books.reading() as db:
            notes = read_notes(db, newest=1)
            if not notes or notes[0].size < old_size:
                raise Unavailable(f"no checkpoint of {old_size} entries or more is signed")
            proof = prove_consistency(db, notes[0].size, old_size)
        return Request(old_size=old_size, proof=proof, note=notes[0].text)

    def add_cosignature(self, size: int, verifier: PeerId, line: SignatureLine) -> None:
        """Keep a verifier's word on a checkpoint and publish it.

        Raises:
            BadNoteError: it is not its word on that checkpoint.
            Unavailable: disk or database refused.
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
            settled = sa.select(_ENTRY.c.id).where(_ENTRY.c.kind == SETTLES, _ENTRY.c.id > covered).limit(1)
            if edge.size == covered or not (is_last or db.execute(settled).first()):
                return None
            checkpoint = Checkpoint(origin=self.origin, size=edge.size, root=edge.root)
            text = sign_checkpoint(checkpoint, self._key)
            add_note(db, Note(size=edge.size, signer=bytes(self._key.verify_key), text=text))
        self._publish()
        return checkpoint

    def _publish(self) -> None:
        """Write the notes that have no file yet, or one without the newest cosignatures."""
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
    """The whole file or none, on disk when this returns."""
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
