"""Journal triggers: what the database itself refuses, whoever asks it.

Room: ledger (pure: declarations). Rows are written once: UPDATE, DELETE, INSERT OR
REPLACE and TRUNCATE are refused (but for the columns in `CHANGES`), so is a posting
that its entry did not announce, and an entry that is not whole or not at zero.

    SQLite        when the entry's last line arrives: it has no check at the commit
    PostgreSQL    at the commit: constraint triggers, DEFERRABLE INITIALLY DEFERRED
"""

from __future__ import annotations

import sqlalchemy as sa

from ledger.journal_tables import CHANGES, TABLES


def triggers(dialect: str) -> list[str]:
    """The statements that make a database refuse what the module text forbids, once the tables are there."""
    return _sqlite() if dialect == "sqlite" else _postgresql()


def _fixed(table: sa.Table) -> str:
    changes = CHANGES.get(table.name, ())
    return ", ".join(column.name for column in table.columns if column.name not in changes)


# ---- SQLite


def _sqlite() -> list[str]:
    made = [_ANNOUNCED, _BALANCED]
    for name, table in TABLES.items():
        made.append(_refusal(name, "no_update", f"BEFORE UPDATE OF {_fixed(table)} ON {name}"))
        if name == "cursor":
            continue
        made.append(_refusal(name, "no_delete", f"BEFORE DELETE ON {name}"))
        # OR REPLACE deletes without firing the DELETE trigger unless recursive_triggers is on, and a
        # stranger's connection may have it off.
        for number, columns in enumerate(_unique(table)):
            same = " AND ".join(f"{column} = NEW.{column}" for column in columns)
            when = f"WHEN EXISTS (SELECT 1 FROM {name} WHERE {same})"
            made.append(_refusal(name, f"no_replace_{number}", f"BEFORE INSERT ON {name} {when}"))
    return made


def _refusal(table: str, name: str, when: str) -> str:
    return f"CREATE TRIGGER {table}_{name} {when} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"


def _unique(table: sa.Table) -> list[tuple[str, ...]]:
    found = [tuple(column.name for column in table.primary_key)]
    return found + [(column.name,) for column in table.columns if column.unique]


_ANNOUNCED = """
CREATE TRIGGER posting_announced BEFORE INSERT ON posting
WHEN NEW.line NOT BETWEEN 0 AND (SELECT lines - 1 FROM journal_entry WHERE id = NEW.entry)
BEGIN SELECT RAISE(ABORT, 'the entry did not announce this posting'); END
"""
_BALANCED = """
CREATE TRIGGER posting_balanced AFTER INSERT ON posting
WHEN NEW.line = (SELECT lines - 1 FROM journal_entry WHERE id = NEW.entry)
BEGIN
    SELECT RAISE(ABORT, 'the entry does not sum to zero') WHERE EXISTS (
        SELECT 1 FROM posting JOIN account ON account.id = posting.account
        WHERE posting.entry = NEW.entry GROUP BY account.asset HAVING sum(posting.amount) <> 0);
    SELECT RAISE(ABORT, 'lines of the entry are missing') WHERE NEW.line + 1 <>
        (SELECT count(*) FROM posting WHERE entry = NEW.entry);
END
"""


# ---- PostgreSQL


def _postgresql() -> list[str]:
    made = [_REFUSE, _PG_ANNOUNCED, _PG_ON_POSTING, _PG_WHOLE, _PG_ON_ENTRY]
    for name, table in TABLES.items():
        made.append(_pg_refusal(name, "no_update", f"BEFORE UPDATE OF {_fixed(table)} ON {name}"))
        if name != "cursor":
            made.append(_pg_refusal(name, "no_delete", f"BEFORE DELETE OR TRUNCATE ON {name}"))
    return made


def _pg_refusal(table: str, name: str, when: str) -> str:
    # Per statement, so that a stranger is told even when no row would have changed.
    return f"CREATE TRIGGER {table}_{name} {when} FOR EACH STATEMENT EXECUTE FUNCTION books_refuse()"


_REFUSE = """
CREATE FUNCTION books_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only', ERRCODE = '23000';
END $$
"""
# One call for each INSERT, however many postings it brings: a call for each row is the cost of the books.
_PG_ANNOUNCED = """
CREATE FUNCTION books_take_postings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh JOIN journal_entry ON journal_entry.id = fresh.entry
               WHERE fresh.line NOT BETWEEN 0 AND journal_entry.lines - 1) THEN
        RAISE EXCEPTION 'the entry did not announce this posting'
            USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$
"""
_PG_ON_POSTING = """
CREATE TRIGGER posting_announced AFTER INSERT ON posting
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION books_take_postings()
"""
_PG_WHOLE = """
CREATE FUNCTION books_entry_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.lines <> (SELECT count(*) FROM posting WHERE entry = NEW.id) THEN
        RAISE EXCEPTION 'lines of the entry are missing' USING ERRCODE = '23000';
    END IF;
    IF EXISTS (SELECT 1 FROM posting JOIN account ON account.id = posting.account
               WHERE posting.entry = NEW.id GROUP BY account.asset HAVING sum(posting.amount) <> 0) THEN
        RAISE EXCEPTION 'the entry does not sum to zero' USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$
"""
_PG_ON_ENTRY = """
CREATE CONSTRAINT TRIGGER journal_entry_whole AFTER INSERT ON journal_entry
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION books_entry_is_whole()
"""
