"""Payouts: an epoch's payout table from the books, with the claim proof of each row.

Room: api (edge: reads the books).
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from assay.api.http.problems import Problem
from assay.api.schemas import PayoutAnswer, SettlementAnswer
from assay.chain.proofs.payout_tree import Payout, payout_tree
from assay.chain.statements import Address
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.journal.tables import TABLES


def payouts(db: Connection, run_id: bytes, epoch: int) -> SettlementAnswer:
    """The table of an epoch.

    Raises:
        Problem: it is not settled.
        LedgerIntegrityError: its rows do not hash to its root.
    """
    heads, payout = TABLES["settlement"], TABLES["payout"]
    head = db.execute(sa.select(heads).where(heads.c.epoch == epoch)).first()
    if head is None:
        raise Problem(404, f"epoch {epoch} is not settled")
    rows = list(db.execute(sa.select(payout).where(payout.c.epoch == epoch).order_by(payout.c.row_index)))
    tree = payout_tree(
        run_id, epoch, [Payout(account=Address(row.account), amount=row.amount) for row in rows]
    )
    if tree.root != head.root or [row.row_index for row in rows] != list(range(len(rows))):
        raise LedgerIntegrityError(f"ledger: the payout table of epoch {epoch} has another root")
    return SettlementAnswer.of(
        head,
        rows=[
            PayoutAnswer.of(
                row, index=row.row_index, proof=[f"0x{one.hex()}" for one in tree.proof(row.row_index)]
            )
            for row in rows
        ],
    )
