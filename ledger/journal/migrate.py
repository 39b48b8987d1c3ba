"""Migrate: bring books of an older schema to this one, or back, in one transaction.

Room: ledger (edge). Alembic, over ledger/journal/migrations. The journal and its log are not
touched by any revision, so every checkpoint that was signed holds afterwards. Nothing
migrates by itself: a delivered folder stays as it was signed, a copy can be brought up.

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
    """Bring the books at `place` to a schema; return the one they had and the one they have.

    Raises:
        ConfigError: there are none, they are of a schema that no way leads from or to, or the way
            back would lose something.
        Unavailable: disk or database refused; nothing has changed.
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
        found: The schema of what is there.
        to: The schema to reach.
    """
    if found and not sa.inspect(db).has_table(VERSION.name):  # SQLite's books of schema 2 had a number alone
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
    """Read the command line, migrate, and say in one line what was done."""
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
