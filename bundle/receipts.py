"""Receipts: one JSON summary per round of what became of each contribution, with the digests that prove it.

Room: bundle (pure). Digests name commits, updates, manifests and blocks; the signers are those of the
manifest's certificate; pay is a row of an epoch's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from assay.ledger.journal.round_facts import RoundFacts, round_facts
from assay.ledger.settlement.payouts import Settlement, UnpaidReason
from assay.protocol.audits import Audit
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import CertifiedManifest, Commit
from assay.protocol.params import RunSpec
from assay.protocol.state_transition import StepId, advance, start
from assay.protocol.types import Digest


def facts_of(
    spec: RunSpec,
    run_id: Digest,
    links: Iterable[CertifiedManifest],
    settlements: Mapping[int, Settlement],
) -> Iterator[RoundFacts]:
    """The facts of each round of a whole checked chain, from round 0."""
    run_state = start(spec, run_id)
    for certified in links:
        before, run_state = run_state, advance(run_state, certified.manifest)
        yield round_facts(before, certified, run_state, settlements)


def round_receipts(
    spec: RunSpec,
    links: Iterable[CertifiedManifest],
    facts: Iterable[RoundFacts],
    settlements: Mapping[int, Settlement],
) -> Iterator[dict[str, Any]]:
    """One receipt per round, in order.

    Args:
        spec: The run.
        links: The whole chain.
        facts: `facts_of` that chain.
        settlements: By epoch.
    """
    drawn: set[StepId] = set()
    ruled: dict[StepId, Audit] = {}
    verdicts: dict[StepId, list[dict[str, Any]]] = {}
    for one in facts:
        drawn |= {(audit.round, audit.node) for audit in one.drawn}
        ruled |= {(audit.round, audit.node): audit for audit in one.ruled}
        for verdict in one.verdicts:
            verdict_json = {
                "round": one.round,
                "verifier": verdict.verifier.hex(),
                "outcome": verdict.outcome.name.lower(),
            }
            verdicts.setdefault((verdict.round, verdict.node), []).append(verdict_json)

    def audit_of(step: StepId) -> dict[str, Any] | None:
        if step not in drawn:
            return None
        ruling = ruled[step].ruling.value if step in ruled else "open"
        return {"ruling": ruling, "verdicts": verdicts.get(step, [])}

    for certified in links:
        manifest, block = certified.manifest, certified.block
        commits = [signed.commit for signed in manifest.commits]
        yield {
            "round": int(manifest.round),
            "manifest": digest(manifest).hex(),
            "block": digest(block).hex(),
            "signers": [verifier.hex() for verifier in certified.certificate.verifiers],
            "aggregate": manifest.aggregate.hex(),
            "contributions": [
                {
                    "node": commit.node.hex(),
                    "commit": digest(commit).hex(),
                    "update": commit.update.hex(),
                    "tokens": commit.tokens,
                    "loss_micro": commit.loss_micro,
                    "audit": audit_of((commit.round, commit.node)),
                    "paid": _pay_of(spec, commit, settlements),
                }
                for commit in commits
            ],
        }


def _pay_of(spec: RunSpec, commit: Commit, settlements: Mapping[int, Settlement]) -> dict[str, Any]:
    """The table row that pays a step, with the steps that share it; or the reason why there is none."""
    epoch = int(commit.round) // spec.money.epoch_rounds
    settlement = settlements.get(epoch)
    if settlement is None:
        return {"epoch": epoch, "row": None, "reason": UnpaidReason.UNSETTLED.value}
    for one in settlement.unpaid:
        if (one.round, one.node) == (int(commit.round), commit.node):
            return {"epoch": epoch, "row": None, "reason": one.reason.value}
    for index, row in enumerate(settlement.rows):
        if row.role == "operator" and row.peer == commit.node:
            return {"epoch": epoch, "row": index, "reason": None}
    return {"epoch": epoch, "row": None, "reason": UnpaidReason.ROUNDED.value}
