"""Triggers: the SQL triggers that make the journal append-only and balanced for every client.

Room: ledger (pure: declarations). Rows are written once: UPDATE, DELETE, INSERT OR
REPLACE and TRUNCATE are refused (but for the columns in `CHANGES`), so is a posting
that its entry did not announce, an incomplete or unbalanced entry, and an overdrawn
account: triggers keep the balances, and a CHECK constraint on them refuses overdrafts.

    SQLite        when the entry's last line arrives: it has no check at commit
    PostgreSQL    at the commit: constraint triggers, DEFERRABLE INITIALLY DEFERRED
"""

from __future__ import annotations

import sqlalchemy as sa

from assay.ledger.journal.tables import TABLES, written_once


def triggers(dialect: str) -> list[str]:
    """The SQL statements that install the triggers, once the tables exist."""
    return _sqlite() if dialect == "sqlite" else _postgresql()


def _fixed(table: sa.Table) -> str:
    return ", ".join(column.name for column in written_once(table))


# ---- SQLite


def _sqlite() -> list[str]:
    made = [_ACCOUNT_BALANCE, _ANNOUNCED, _BALANCED, _INVOICE_IN_ORDER]
    for name, table in TABLES.items():
        made.append(_refusal(name, "no_update", f"BEFORE UPDATE OF {_fixed(table)} ON {name}"))
        if name == "cursor":
            continue
        made.append(_refusal(name, "no_delete", f"BEFORE DELETE ON {name}"))
        # OR REPLACE deletes without firing the DELETE trigger unless recursive_triggers is on, and
        # another client's connection may have it off.
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
# The sum of an invoice's credit notes, zero or less; NULL if it has none.
_TAKEN_BACK = """(SELECT sum(undone.total) FROM invoice AS undone
            WHERE undone.series = replace(held.series, 'invoice', 'credit')
                AND undone.corrects = held.number)"""
# Conditions that refuse an invoice if they select a row; with the same messages on both databases.
_INVOICE_RULES = (
    (
        "invoice numbers leave no gap",
        "NEW.number <> 1 + (SELECT coalesce(max(number), 0) FROM invoice WHERE series = NEW.series)",
    ),
    (
        "a credit note takes back no more than is left of its invoice",
        f"""substr(NEW.series, 1, 6) = 'credit' AND NOT EXISTS (
            SELECT 1 FROM invoice AS held
            WHERE held.series = replace(NEW.series, 'credit', 'invoice') AND held.number = NEW.corrects
                AND held.first_epoch <= NEW.first_epoch AND NEW.last_epoch <= held.last_epoch
                AND NEW.total <= 0 AND held.total + NEW.total + coalesce({_TAKEN_BACK}, 0) >= 0
                AND (NEW.total < 0 OR {_TAKEN_BACK} IS NULL))""",
    ),
    (
        "an epoch is invoiced once",
        f"""substr(NEW.series, 1, 7) = 'invoice' AND EXISTS (
            SELECT 1 FROM invoice AS held WHERE held.series = NEW.series
                AND held.first_epoch <= NEW.last_epoch AND held.last_epoch >= NEW.first_epoch
                AND coalesce({_TAKEN_BACK}, 1) <> -held.total)""",
    ),
)
_INVOICE_IN_ORDER = "\n".join(
    [
        "CREATE TRIGGER invoice_in_order BEFORE INSERT ON invoice",
        "BEGIN",
        *(f"    SELECT RAISE(ABORT, '{message}') WHERE {rule};" for message, rule in _INVOICE_RULES),
        "END",
    ]
)
_BALANCED = """
CREATE TRIGGER posting_balanced AFTER INSERT ON posting
WHEN NEW.line = (SELECT lines - 1 FROM journal_entry WHERE id = NEW.entry)
BEGIN
    SELECT RAISE(ABORT, 'the entry does not sum to zero') WHERE EXISTS (
        SELECT 1 FROM posting JOIN account ON account.id = posting.account
        WHERE posting.entry = NEW.entry GROUP BY account.asset HAVING sum(posting.amount) <> 0);
    SELECT RAISE(ABORT, 'lines of the entry are missing') WHERE NEW.line + 1 <>
        (SELECT count(*) FROM posting WHERE entry = NEW.entry);
    SELECT RAISE(ABORT, 'two postings of one account') WHERE EXISTS (
        SELECT 1 FROM posting WHERE entry = NEW.entry GROUP BY account HAVING count(*) > 1);
    UPDATE balance SET posted = posted + moved.amount
    FROM (SELECT account, amount FROM posting WHERE entry = NEW.entry) AS moved
    WHERE balance.account = moved.account;
END
"""
_ACCOUNT_BALANCE = """
CREATE TRIGGER account_balance AFTER INSERT ON account
BEGIN
    INSERT INTO balance VALUES
        (NEW.id, CASE WHEN substr(NEW.kind, 1, 6) = 'asset:' THEN 1 ELSE -1 END, 0);
END
"""


# ---- PostgreSQL


def _postgresql() -> list[str]:
    made = [_REFUSE, _PG_ACCOUNT, _PG_ON_ACCOUNT, _PG_POST, _PG_ON_LINES, _PG_WHOLE, _PG_ON_HEAD]
    made += [_PG_INVOICE, _PG_ON_INVOICE]
    for name, table in TABLES.items():
        made.append(_pg_refusal(name, "no_update", f"BEFORE UPDATE OF {_fixed(table)} ON {name}"))
        if name != "cursor":
            made.append(_pg_refusal(name, "no_delete", f"BEFORE DELETE OR TRUNCATE ON {name}"))
    return made


def _pg_refusal(table: str, name: str, when: str) -> str:
    # Per statement, so that a client gets the error even if no row would have changed.
    return f"CREATE TRIGGER {table}_{name} {when} FOR EACH STATEMENT EXECUTE FUNCTION books_refuse()"


_REFUSE = """
CREATE FUNCTION books_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only', ERRCODE = '23000';
END $$
"""
_PG_ACCOUNT = """
CREATE FUNCTION books_open_accounts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO balance
        SELECT id, CASE WHEN left(kind, 6) = 'asset:' THEN 1 ELSE -1 END, 0 FROM fresh;
    RETURN NULL;
END $$
"""
_PG_ON_ACCOUNT = """
CREATE TRIGGER account_balance AFTER INSERT ON account
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION books_open_accounts()
"""
# One call per INSERT, however many postings it has: calls per row would dominate the cost.
_PG_POST = """
CREATE FUNCTION books_take_postings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh JOIN journal_entry ON journal_entry.id = fresh.entry
               WHERE fresh.line NOT BETWEEN 0 AND journal_entry.lines - 1) THEN
        RAISE EXCEPTION 'the entry did not announce this posting' USING ERRCODE = '23000';
    END IF;
    UPDATE balance SET posted = posted + moved.amount
    FROM (SELECT account, sum(amount) AS amount FROM fresh GROUP BY account) AS moved
    WHERE balance.account = moved.account;
    RETURN NULL;
END $$
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
    IF EXISTS (SELECT 1 FROM posting WHERE entry = NEW.id GROUP BY account HAVING count(*) > 1) THEN
        RAISE EXCEPTION 'two postings of one account' USING ERRCODE = '23000';
    END IF;
    RETURN NULL;
END $$
"""
_PG_ON_HEAD = """
CREATE CONSTRAINT TRIGGER journal_entry_whole AFTER INSERT ON journal_entry
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION books_entry_is_whole()
"""
_PG_ON_LINES = """
CREATE TRIGGER posting_announced AFTER INSERT ON posting
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION books_take_postings()
"""
_PG_INVOICE = "\n".join(
    [
        "CREATE FUNCTION books_invoice_in_order() RETURNS trigger LANGUAGE plpgsql AS $$",
        "BEGIN",
        *(
            f"    IF {rule} THEN\n        RAISE EXCEPTION '{message}' USING ERRCODE = '23000';\n    END IF;"
            for message, rule in _INVOICE_RULES
        ),
        "    RETURN NEW;",
        "END $$",
    ]
)
_PG_ON_INVOICE = """
CREATE TRIGGER invoice_in_order BEFORE INSERT ON invoice
FOR EACH ROW EXECUTE FUNCTION books_invoice_in_order()
"""
