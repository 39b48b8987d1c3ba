"""Schema 3: balances that the database keeps, nobody overdrawn, and entries that are pending."""

from __future__ import annotations

from alembic import op

from assay.ledger.journal.migrations.statements import run
from assay.protocol.errors import ConfigError

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    """The balances come from the journal; books in which somebody is overdrawn stay as they are."""
    run(op.get_bind(), "0003")


def downgrade() -> None:
    """Books that ever had a pending entry stay: there would be no place for it."""
    db = op.get_bind()
    if db.exec_driver_sql("SELECT count(*) FROM pending_entry").scalar():
        raise ConfigError("schema 2 has no place for pending entries, and there are some")
    run(db, "0003_down")
