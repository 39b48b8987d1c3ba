"""Faults: the proved faults of a run's verifiers and nodes, as lines on a terminal.

Room: cli (edge: reads the books). The values come from ledger/queries/faults.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay.bundle.books import find_books, opened
from assay.ledger.queries.faults import read_faults
from assay.orders.amounts import UNIT, money_text
from assay.protocol.audits import FaultKind


def fault_lines(run: Path, verifier: str) -> Iterator[str]:
    """Two lines per fault of a verifier and per contradiction of a node, and how many there are.

    Args:
        run: The run.
        verifier: Only of verifiers whose peer id begins with this; empty for all.
    """
    with opened(find_books(run)) as db:
        found = read_faults(db, verifier)
    for one in found.verifiers:
        cost = "not slashed yet" if one.slashed is None else f"slashed {money_text(one.slashed)} {UNIT}"
        failing = FaultKind[one.failing.upper()].value
        of_node = "" if not any(one.node) else f" of node {one.node.hex()[:8]}"
        step = f"round {one.round}{of_node}"
        yield f"verifier {one.verifier.hex()}: {failing}, {step}; {cost}"
        yield f"    offence {one.offence_id.hex()}  verdict {one.verdict.hex()}  manifest {one.in_round}"
    for pair in found.nodes:
        yield f"node {pair.node.hex()}: two commits for round {pair.round}"
        yield f"    commits {pair.first.hex()} {pair.second.hex()}  manifest {pair.in_round}"
    counted = f"{len(found.verifiers)} faults of verifiers"
    yield counted if verifier else f"{counted}, {len(found.nodes)} contradictions of nodes"
    if found.kept_rounds < found.rounds:
        yield (
            f"the books hold faults of only {found.kept_rounds} of {found.rounds} rounds: they are from "
            "an older release, and a ledger service that opens them adds the rest"
        )
