"""Statements: the SQL of a revision, in the language of the database that is migrated.

Room: ledger (edge: inside a transaction that the caller opened).
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import Connection

_SQL = Path(__file__).parent / "sql"


def run(db: Connection, name: str) -> None:
    """Run `sql/NAME_DATABASE.sql`."""
    for statement in (_SQL / f"{name}_{db.dialect.name}.sql").read_text().split(";\n\n"):
        db.exec_driver_sql(statement)


def drop(db: Connection, *tables: str) -> None:
    """Drop tables with their triggers, the last one first."""
    for table in reversed(tables):
        db.exec_driver_sql(f"DROP TABLE {table}")


def set_version(db: Connection, version: int) -> None:
    """Write a schema's number where SQLite's readers look; Alembic keeps its own table."""
    if db.dialect.name == "sqlite":
        db.exec_driver_sql(f"PRAGMA user_version = {version}")
