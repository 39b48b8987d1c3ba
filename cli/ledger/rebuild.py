"""Rebuild: what `assay ledger rebuild` prints.

Room: cli (pure).
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.chain.text.units import token_text
from assay.observer.ledger_service.rebuild import RebuiltBooks


def rebuilt_lines(found: RebuiltBooks) -> Iterator[str]:
    """What was booked, and each account about which the books that are there say something else."""
    yield (
        f"{found.books}: {found.rounds} rounds, the chain up to block {found.next_block - 1}; "
        f"trial balance {token_text(found.trial_balance)}"
    )
    if found.reason:
        yield f"nothing to compare it with: {found.reason}"
        return
    if not found.differences:
        yield f"{found.present} has the same in every account"
        return
    yield f"{found.present} differs in {len(found.differences)} accounts:"
    for one in found.differences:
        yield f"  {one.account}: {token_text(one.present)} there, {token_text(one.rebuilt)} rebuilt"
