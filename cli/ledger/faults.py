"""Faults: the proved faults of a run's verifiers and nodes, as lines on a terminal.

Room: cli (pure). The values come from ledger/queries/faults.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.ledger.queries.faults import Faults
from assay.orders.amounts import token_text
from assay.protocol.auditing.audits import FaultKind


def fault_lines(found: Faults, verifier: str) -> Iterator[str]:
    """Two lines per fault of a verifier and per contradiction of a node, and how many there are.

    Args:
        found: The faults.
        verifier: The beginning of the one verifier's peer id whose faults these are; empty for all.
    """
    for one in found.verifiers:
        cost = "not slashed yet" if one.slashed is None else f"slashed {token_text(one.slashed)}"
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
