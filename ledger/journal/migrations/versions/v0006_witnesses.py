"""Schema 6: what verifiers cosigned of the ledger's checkpoints."""

from __future__ import annotations

from alembic import op

from assay.ledger.journal.migrations.statements import run

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    """No checkpoint was cosigned before."""
    run(op.get_bind(), "0006")


def downgrade() -> None:
    """The published notes carry the cosignatures too."""
    run(op.get_bind(), "0006_down")
