"""Migrate: moves a journal database between schema versions, up or down, in one transaction.

Room: ledger (edge). Alembic, over ledger/journal/migrations. No revision touches the journal
or its log, so every signed checkpoint stays valid. Nothing migrates
automatically: a delivered bundle stays as signed; migrate a copy.

    python -m assay.ledger.journal.migrate runs/quickstart/ledger.db
    python -m assay.ledger.journal.migrate postgresql://me@here/books --to 2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection

from assay.ledger.journal.database import VERSION, Place, engine_of, revision, told, version_of, writing
from assay.ledger.journal.tables import SCHEMA_VERSION
from assay.protocol.errors import AssayError, ConfigError

OLDEST = 2


def migrate(place: Place, to: int = SCHEMA_VERSION) -> tuple[int, int]:
    """Migrate the books at `place` to schema version `to`; return the old and the new version.

    Raises:
        ConfigError: there are no books, no revision leads between the versions, or the downgrade
            would lose data.
        Unavailable: disk or database failed; nothing has changed.
    """
    if isinstance(place, Path) and not place.is_file():
        raise ConfigError(f"{place}: there are no books here")
    if not OLDEST <= to <= SCHEMA_VERSION:
        raise ConfigError(f"no way leads to schema {to}; there are {OLDEST} to {SCHEMA_VERSION}")
    engine = engine_of(place)
    try:
        with writing(engine) as db:
            found = version_of(db)
            if not OLDEST <= found <= SCHEMA_VERSION:
                raise ConfigError(f"{told(place)}: no way leads from schema {found}")
            move(db, found, to)
    finally:
        engine.dispose()
    return found, to


def move(db: Connection, found: int, to: int) -> None:
    """Run the revisions between two schemas; 0 is an empty database.

    Args:
        db: A writing transaction.
        found: The present schema version.
        to: The schema version to reach.
    """
    if found and not sa.inspect(db).has_table(VERSION.name):  # in SQLite's schema 2 only a number
        VERSION.create(db)
        db.execute(sa.insert(VERSION), [{"version_num": revision(found)}])
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = db
    if to > found:
        command.upgrade(config, revision(to))
    elif to < found:
        command.downgrade(config, revision(to) if to else "base")


def main() -> None:
    """Read the command line, migrate, and print one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("place", help="a ledger.db, or the URL of a PostgreSQL database")
    parser.add_argument("--to", type=int, default=SCHEMA_VERSION, help="default: this release's schema")
    args = parser.parse_args()
    place: Place = args.place if "://" in args.place else Path(args.place)
    try:
        found, to = migrate(place, args.to)
    except AssayError as error:
        print(f"migrate: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{told(place)}: schema {found} -> {to}" if found != to else f"{told(place)}: is of schema {to}")


if __name__ == "__main__":
    main()
