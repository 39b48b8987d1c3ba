"""Schema 4: the log's larger subtrees by their roots, so that a proof need not read every leaf."""

from __future__ import annotations

from alembic import op

from ledger.log_store import Nodes, add_nodes, read_leaves
from ledger.merkle_log import Edge, append
from ledger.migrations.statements import run

revision, down_revision = "0004", "0003"


def upgrade() -> None:
    """The roots come from the leaves."""
    db = op.get_bind()
    run(db, "0004")
    nodes = Nodes()
    append(Edge(), read_leaves(db), nodes.take)
    add_nodes(db, nodes)


def downgrade() -> None:
    """The leaves are all that is needed."""
    run(op.get_bind(), "0004_down")
