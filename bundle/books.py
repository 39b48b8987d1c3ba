"""Books: locates and opens the ledger of a run for reading.

Room: bundle (edge: reads files). A finished run has the delivered copy of its ledger, which its signed index
covers, and the ledger service's own, which goes on; a database may also stand alone.

    RUN   a run's folder, a ledger.db, or the URL of a ledger service's PostgreSQL database
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.engine import Connection

from assay.ledger.journal.database import Place as Database
from assay.ledger.journal.database import open_engine_to_read, reading
from assay.ledger.journal.log_store import read_notes
from assay.ledger.log.note import origin_of
from assay.ledger.settlement.results import run_id_of
from assay.participant.config import read_spec
from assay.participant.files.index import INDEX
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest

CHECKPOINTS = "checkpoints"
LEDGER_SERVICE = Path("participants") / "ledger"
_BOOKS = "ledger.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Paths of the parts of a ledger."""

    books: Database
    checkpoints: Path | None  # may not exist
    spec: Path | None  # the run's, if available


def find_books(run: Path | str) -> Place:
    """The ledger in a run's folder, finished or not, or a single database.

    Raises:
        ConfigError: there is none, or as `_spec`.
    """
    if isinstance(run, str):
        return Place(books=run, checkpoints=None, spec=None)
    if run.is_file():
        return Place(books=run, checkpoints=run.parent / CHECKPOINTS, spec=None)
    if (run / INDEX).exists():  # nobody signed for what is among the participants' own files
        return _in_folder(run, (run / _BOOKS,))
    return _in_folder(run, (run / _BOOKS, run / LEDGER_SERVICE / _BOOKS))


def find_keepers_books(run: Path) -> Place:
    """The ledger service's own books in a run's folder, never the delivered copy, which stays as signed.

    Raises:
        ConfigError: there are none, or as `_spec`.
    """
    if run.is_file():
        if (run.parent / INDEX).exists():
            raise ConfigError(
                f"{run}: is part of what was delivered, expected the ledger service's own books"
            )
        return replace(find_books(run), spec=_spec(run.parent))
    return _in_folder(run, (run / LEDGER_SERVICE / _BOOKS,))


def _in_folder(run: Path, books: tuple[Path, ...]) -> Place:
    found = [path for path in books if path.is_file()]
    if not found:
        raise ConfigError(f"{run}: no ledger.db here; expected a run's folder or a ledger.db")
    checkpoints = run / LEDGER_SERVICE / CHECKPOINTS
    return Place(
        books=found[0],
        checkpoints=checkpoints if checkpoints.is_dir() else run / CHECKPOINTS,
        spec=_spec(run),
    )


def _spec(folder: Path) -> Path | None:
    """The spec of the run in this folder: the bundle's where there is one, which is what a buyer signs for.

    Raises:
        ConfigError: another one lies beside the bundle.
    """
    beside, delivered = folder / "spec.cbor", folder / "bundle" / "spec.cbor"
    if not delivered.parent.exists() and not (folder / INDEX).exists():
        return beside if beside.is_file() else None
    if not delivered.is_file():
        return None
    if beside.exists() and beside.read_bytes() != delivered.read_bytes():
        raise ConfigError(f"{beside}: differs from {delivered}, the spec of the run")
    return delivered


def spec_of(place: Place) -> RunSpec:
    """The run's spec.

    Raises:
        ConfigError: it is not available.
    """
    if place.spec is None:
        raise ConfigError(f"{place.books}: no spec.cbor beside the books, expected the run's")
    return read_spec(place.spec)


def run_of(place: Place) -> tuple[RunSpec, Digest]:
    """The run's spec and id.

    Raises:
        ConfigError: the spec is not available.
    """
    spec = spec_of(place)
    return spec, run_id_of(spec)


@contextmanager
def opened(place: Place) -> Iterator[Connection]:
    """A consistent read-only view of the books.

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


def log_origin(place: Place, db: Connection) -> str:
    """The log's name: from the run's spec if available, else from the newest checkpoint."""
    if place.spec is not None:
        return origin_of(run_id_of(read_spec(place.spec)))
    notes = read_notes(db, newest=1)
    return notes[-1].text.split("\n")[0] if notes else ""
