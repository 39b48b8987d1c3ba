"""Schema 4: the log's larger subtrees by their roots, so that a proof need not read every leaf.

What is computed here is written out, as the statements are: the code that keeps these roots today may
change, and what schema 4 held may not.
"""

from __future__ import annotations

import hashlib

from alembic import op

from assay.ledger.journal.migrations.statements import run

revision, down_revision = "0004", "0003"
KEPT_LEAVES = 64
INSERT = {
    "sqlite": "INSERT INTO log_node (place, node_hash) VALUES (?, ?)",
    "postgresql": "INSERT INTO log_node (place, node_hash) VALUES (%s, %s)",
}


def upgrade() -> None:
    """The roots come from the leaves."""
    db = op.get_bind()
    run(db, "0004")
    leaves = db.exec_driver_sql("SELECT leaf_hash FROM log_leaf ORDER BY seq").scalars()
    rows = _kept([bytes(leaf) for leaf in leaves])
    if rows:
        db.exec_driver_sql(INSERT[db.dialect.name], rows)


def downgrade() -> None:
    """The leaves are all that is needed."""
    run(op.get_bind(), "0004_down")


def _kept(level: list[bytes]) -> list[tuple[int, bytes]]:
    """Every perfect subtree of 64 leaves and more: first leaf * 2 + how many, and its RFC 6962 root."""
    rows, count = [], 1
    while len(level) > 1:
        pairs = zip(level[0::2], level[1::2], strict=False)  # the last one may have no sibling
        level = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in pairs]
        count *= 2
        if count >= KEPT_LEAVES:
            rows += [(index * count * 2 + count, root) for index, root in enumerate(level)]
    return rows
