"""Receipts: one JSON summary per round of what became of each contribution, with the digests that prove it.

Room: bundle (pure). Digests name commits, updates, manifests and blocks; the signers are those of the
manifest's certificate; pay is a row of an epoch's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from assay.ledger.journal.round_facts import RoundFacts, round_facts
from assay.ledger.settlement.payouts import Settlement, UnpaidReason
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import CertifiedManifest, Commit, Outcome, Score
from assay.protocol.params import RunSpec
from assay.protocol.run_state import StepId, start
from assay.protocol.state_transition import advance
from assay.protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    """One auditor's verdict on a step. round: whose manifest has it."""

    round: int
    verifier: PeerId
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAudit:
    """The audit of a step."""

    ruling: AuditStatus
    verdicts: tuple[StepVerdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPay:
    """The table row that pays a step, with the steps that share it; or the reason why there is none."""

    epoch: int
    row: int | None
    reason: UnpaidReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What became of one accepted step. audit: None if it was not drawn."""

    node: PeerId
    commit: Digest
    update: Digest
    tokens: int
    loss_micro: int
    audit: StepAudit | None
    paid: StepPay


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a verifier measured of the model after an epoch with a milestone."""

    epoch: int
    verifier: PeerId
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReceipt:
    """The content of a round's file in a bundle."""

    round: int
    manifest: Digest
    block: Digest
    signers: tuple[PeerId, ...]
    aggregate: Digest
    contributions: tuple[Contribution, ...]
    evaluations: tuple[Measured, ...]


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
) -> Iterator[RoundReceipt]:
    """One receipt per round, in order.

    Args:
        spec: The run.
        links: The whole chain.
        facts: `facts_of` that chain.
        settlements: By epoch.
    """
    drawn: set[StepId] = set()
    ruled: dict[StepId, Audit] = {}
    verdicts: dict[StepId, tuple[StepVerdict, ...]] = {}
    for one in facts:
        drawn |= {(audit.round, audit.node) for audit in one.drawn}
        ruled |= {(audit.round, audit.node): audit for audit in one.ruled}
        for given in one.verdicts:
            step = (given.round, given.node)
            verdict = StepVerdict(round=one.round, verifier=given.verifier, outcome=given.outcome)
            verdicts[step] = (*verdicts.get(step, ()), verdict)

    def audit_of(step: StepId) -> StepAudit | None:
        if step not in drawn:
            return None
        ruling = ruled[step].ruling if step in ruled else AuditStatus.OPEN
        return StepAudit(ruling=ruling, verdicts=verdicts.get(step, ()))

    for certified in links:
        manifest = certified.manifest
        yield RoundReceipt(
            round=int(manifest.round),
            manifest=digest(manifest),
            block=digest(certified.block),
            signers=certified.certificate.verifiers,
            aggregate=manifest.aggregate,
            contributions=tuple(
                Contribution(
                    node=commit.node,
                    commit=digest(commit),
                    update=commit.update,
                    tokens=commit.tokens,
                    loss_micro=commit.loss_micro,
                    audit=audit_of((commit.round, commit.node)),
                    paid=_pay_of(spec, commit, settlements),
                )
                for commit in (signed.commit for signed in manifest.commits)
            ),
            evaluations=tuple(
                Measured(epoch=one.epoch, verifier=one.verifier, score=one.score)
                for one in (signed.evaluation for signed in manifest.evaluations)
            ),
        )


def _pay_of(spec: RunSpec, commit: Commit, settlements: Mapping[int, Settlement]) -> StepPay:
    epoch = int(commit.round) // spec.money.epoch_rounds
    settlement = settlements.get(epoch)
    if settlement is None:
        return StepPay(epoch=epoch, row=None, reason=UnpaidReason.UNSETTLED)
    for one in settlement.unpaid:
        if (one.round, one.node) == (int(commit.round), commit.node):
            return StepPay(epoch=epoch, row=None, reason=one.reason)
    for index, row in enumerate(settlement.rows):
        if row.role == "operator" and row.peer == commit.node:
            return StepPay(epoch=epoch, row=index, reason=None)
    return StepPay(epoch=epoch, row=None, reason=UnpaidReason.ROUNDED)
