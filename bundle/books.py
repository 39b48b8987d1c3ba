"""Books: locates and opens the ledger of a run for reading.

Room: bundle (edge: reads files). A finished run has the delivered copy of its ledger, which its signed index
covers, and the ledger service's own, which goes on; a database may also stand alone.

    RUN   a run's folder, a ledger.db, or the URL of a ledger service's PostgreSQL database
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
        ConfigError: there is none.
    """
    if isinstance(run, str):
        return Place(books=run, checkpoints=None, spec=None)
    if run.is_file():
        return Place(books=run, checkpoints=run.parent / CHECKPOINTS, spec=None)
    return _in_folder(run, (run / _BOOKS, run / LEDGER_SERVICE / _BOOKS))


def find_keepers_books(run: Path) -> Place:
    """The ledger service's own books in a run's folder, never the delivered copy, which stays as signed.

    Raises:
        ConfigError: there are none.
    """
    if run.is_file():
        if (run.parent / INDEX).exists():
            raise ConfigError(
                f"{run}: is part of what was delivered, expected the ledger service's own books"
            )
        found = find_books(run)
        specs = _specs(run.parent)
        return Place(books=run, checkpoints=found.checkpoints, spec=specs[0] if specs else None)
    return _in_folder(run, (run / LEDGER_SERVICE / _BOOKS,))


def _in_folder(run: Path, books: tuple[Path, ...]) -> Place:
    found = [path for path in books if path.is_file()]
    if not found:
        raise ConfigError(f"{run}: no ledger.db here; expected a run's folder or a ledger.db")
    checkpoints = run / LEDGER_SERVICE / CHECKPOINTS
    specs = _specs(run)
    return Place(
        books=found[0],
        checkpoints=checkpoints if checkpoints.is_dir() else run / CHECKPOINTS,
        spec=specs[0] if specs else None,
    )


def _specs(folder: Path) -> list[Path]:
    return [path for path in (folder / "spec.cbor", folder / "bundle" / "spec.cbor") if path.is_file()]


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
