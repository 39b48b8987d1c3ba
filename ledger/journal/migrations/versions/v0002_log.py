"""Schema 2: the journal, its Merkle log, and what the books keep beside them.

Schema 1 had no log; leaves made afterwards would prove nothing, so no way leads here from it.
"""

from __future__ import annotations

from alembic import op

from assay.ledger.journal.migrations.statements import drop, run, set_version
from assay.protocol.errors import ConfigError

revision, down_revision = "0002", None
TABLES = (
    "account", "journal_entry", "posting", "log_leaf", "log_edge", "checkpoint", "chain_event", "round",
    "contribution", "reveal", "audit", "verdict", "ruling", "settlement", "payout", "unpaid", "cursor",
)  # fmt: skip
FUNCTIONS = ("books_refuse", "books_take_postings", "books_entry_is_whole")


def upgrade() -> None:
    """From nothing."""
    run(op.get_bind(), "0002")


def downgrade() -> None:
    """To nothing, which only books without an entry survive."""
    db = op.get_bind()
    if db.exec_driver_sql("SELECT count(*) FROM journal_entry").scalar():
        raise ConfigError("books with entries in them are not taken away")
    drop(db, *TABLES)
    if db.dialect.name == "postgresql":
        for name in FUNCTIONS:
            db.exec_driver_sql(f"DROP FUNCTION {name}")
    set_version(db, 0)
