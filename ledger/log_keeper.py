"""Log keeper: signs checkpoints of the books as they grow, and refuses books that went back.

Room: ledger (edge: database and one folder). A note is in the database before its
file is there, so a process killed in between writes the file when it returns. The
files are what a restored or edited database is held against at the next start; keep
copies of them elsewhere, for who can rewrite both can rewrite what was signed last.

    checkpoints/000000000042.note
"""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa
from nacl.signing import SigningKey

from ledger.journal_db import writing
from ledger.journal_read import BooksAltered
from ledger.journal_tables import TABLES
from ledger.log_audit import audit
from ledger.log_note import Checkpoint, origin_of, sign_checkpoint
from ledger.log_store import Note, add_note, read_edge, read_notes
from ledger.store import BookStore
from protocol.errors import ConfigError, Unavailable

SUFFIX = ".note"
SETTLES = "ResultFinalized"  # the entry by which an epoch's pay becomes due
_ENTRY = TABLES["journal_entry"]


class LogKeeper:
    """Checkpoints of one run's books. One thread at a time."""

    def __init__(self, books: BookStore, key: SigningKey, folder: Path) -> None:
        """Compare the books with every checkpoint on disk.

        Args:
            books: The store.
            key: The keeper's peer key.
            folder: Where the notes are; made if missing.

        Raises:
            ConfigError: the books were altered or rolled back.
        """
        self._books, self._key, self._folder = books, key, folder
        self._origin = origin_of(books.run_id)
        try:
            with books.reading() as db:
                audit(db, self._origin, bytes(key.verify_key), read_published(folder))
        except (BooksAltered, Unavailable) as error:
            raise ConfigError(
                f"the books do not agree with what was signed about them ({error}); "
                "put back the newest ledger.db, or keep this folder as evidence and start with an empty one"
            ) from None
        self._publish()

    def sign_due(self) -> Checkpoint | None:
        """A checkpoint if an epoch was settled since the last one."""
        return self._sign(is_last=False)

    def sign_last(self) -> Checkpoint | None:
        """A checkpoint of all there is, unless the last one is."""
        return self._sign(is_last=True)

    def _sign(self, *, is_last: bool) -> Checkpoint | None:
        with writing(self._books.engine) as db:
            notes, edge = read_notes(db), read_edge(db)
            covered = notes[-1].size if notes else 0
            settled = sa.select(_ENTRY.c.id).where(_ENTRY.c.kind == SETTLES, _ENTRY.c.id > covered).limit(1)
            if edge.size == covered or not (is_last or db.execute(settled).first()):
                return None
            checkpoint = Checkpoint(origin=self._origin, size=edge.size, root=edge.root)
            text = sign_checkpoint(checkpoint, self._key)
            add_note(db, Note(size=edge.size, signer=bytes(self._key.verify_key), text=text))
        self._publish()
        return checkpoint

    def _publish(self) -> None:
        """Write the notes that have no file yet."""
        with self._books.reading() as db:
            notes = read_notes(db)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for note in notes:
                path = self._folder / f"{note.size:012d}{SUFFIX}"
                if not path.exists():
                    _write(path, note.text.encode())
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
