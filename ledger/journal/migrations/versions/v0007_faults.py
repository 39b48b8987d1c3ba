"""Schema 7: what rulings proved of verifiers, and nodes that contradicted themselves."""

from __future__ import annotations

from alembic import op

from assay.ledger.journal.migrations.statements import run

revision, down_revision = "0007", "0006"


def upgrade() -> None:
    """The rows come when the keeper folds its chain again; the cursor `next_faults` says how far they go."""
    run(op.get_bind(), "0007")


def downgrade() -> None:
    """They follow from the chain of manifests."""
    run(op.get_bind(), "0007_down")
