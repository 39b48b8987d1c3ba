"""Earnings: what a node was paid for, and what it was not, as lines on a terminal.

Room: cli (edge: reads the books). The values come from ledger/earned.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ledger.earned import Evidence, read_earned, read_unpaid
from observer.run_books import find_books, opened
from orders.amounts import UNIT, money_text


def earning_lines(run: Path, node: str) -> Iterator[str]:
    """One line per epoch, and the sum.

    Raises:
        ConfigError: no such node.
    """
    with opened(find_books(run)) as db:
        found = read_earned(db, node)
    yield f"node {found.peer.hex()}"
    for one in found.epochs:
        counted = f"epoch {one.epoch}: {one.steps} steps accepted, {one.tokens:,} tokens"
        if not one.is_settled:
            yield f"{counted}, not settled yet"
            continue
        state = "" if not one.amount else ", claimed" if one.is_claimed else ", to be claimed"
        why = f"; {one.unpaid} unpaid, see --why {one.epoch}" if one.unpaid else ""
        yield f"{counted}, {money_text(one.amount)} {UNIT}{state}{why}"
    yield f"in all {money_text(found.total)} {UNIT}"


def reason_lines(run: Path, node: str, epoch: int) -> Iterator[str]:
    """Every step of the epoch that was not paid: round, reason, and the digests that show it.

    Raises:
        ConfigError: no such node, or the node has no step in this epoch, or it is not settled.
    """
    with opened(find_books(run)) as db:
        found = read_unpaid(db, node, epoch)
    for step in found.unpaid:
        yield f"round {step.round}: {step.reason} ({step.tokens:,} tokens)"
        yield f"    commit   {step.commit.hex()}"
        yield f"    update   {step.update.hex()}"
        yield f"    manifest {step.manifest.hex()}"
        yield from _evidence_lines(step.evidence)
        if step.fault_round is not None:
            yield f"    because of round {step.fault_round}:"
            yield from _evidence_lines(step.fault)
    yield f"{len(found.unpaid)} of {found.steps} steps in epoch {epoch} were not paid"


def _evidence_lines(found: Evidence) -> Iterator[str]:
    for draw in found.draws:
        yield f"    audit    drawn in round {draw.round}, offence {draw.offence_id.hex()}"
    for one in found.findings:
        yield (
            f"    verdict  {one.outcome} by {one.verifier.hex()[:8]} "
            f"in round {one.round}, manifest {one.manifest.hex()}"
        )
    for end in found.rulings:
        yield f"    ruling   {end.ruling} in round {end.round}, manifest {end.manifest.hex()}"
