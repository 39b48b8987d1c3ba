"""Schema 5: invoices and credit notes, numbered without a gap and never changed."""

from __future__ import annotations

from alembic import op

from assay.ledger.journal.migrations.statements import run
from assay.protocol.errors import ConfigError

revision, down_revision = "0005", "0004"


def upgrade() -> None:
    """Nothing was issued before."""
    run(op.get_bind(), "0005")


def downgrade() -> None:
    """Books from which an invoice was issued stay: its number may never be given again."""
    db = op.get_bind()
    if db.exec_driver_sql("SELECT count(*) FROM invoice").scalar():
        raise ConfigError("schema 4 has no place for invoices, and there are some")
    run(db, "0005_down")
