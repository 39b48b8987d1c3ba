"""Round and audit pages: one manifest with its certificate, and one audit with its draw and verdicts.

Room: explorer (pure).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.explorer.explored import CarriedVerdict, Explored
from assay.explorer.pages.paging import ROWS_MAX, Head, NoSuchPage, Paging, cut, head_of
from assay.ledger.settlement.payouts import UnpaidReason
from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing.audits import Audit
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import CertifiedManifest, Commit, HandOver
from assay.protocol.run_state import StepId
from assay.protocol.types import Digest, PeerId, RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictLine:
    """One verdict, and which manifests carry it and its commitment (-1: none does)."""

    round: int
    node: PeerId
    verifier: PeerId
    outcome: str
    distance_ppb: int
    committed_round: int
    carried_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLine:
    """One accepted commit. audit: the status of its audit; None: it was not drawn."""

    commit: Commit
    audit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPage:
    """One round: its manifest and the certificate that makes it final."""

    TEMPLATE: ClassVar[str] = "round.html"
    head: Head
    round: int
    rounds: int  # manifests of the chain
    digest: Digest
    parent: Digest
    time_s: int
    iteration: int
    aggregate: Digest
    beacon_shares: int
    is_partial: bool
    commit_count: int
    verdict_count: int
    commitments: int
    hand_over: Sequence[HandOver]
    evidence: Sequence[int]  # rounds whose manifests bear out what the page shows
    signers: Sequence[PeerId]
    signatures: Sequence[bytes]
    quorum: int
    verifiers: int
    commits: Sequence[CommitLine]
    verdicts: Sequence[VerdictLine]
    paging: Paging  # of commits and of verdicts, the longer list


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """One audit: why the step was drawn, who judged it, and how it ended."""

    TEMPLATE: ClassVar[str] = "audit.html"
    head: Head
    audit: Audit
    commit_digest: Digest
    status: str
    rate_ppm: int
    drawn_by: int  # the round whose manifest carries the beacon of the draw
    order: Sequence[PeerId]
    committee: Sequence[PeerId]
    verdicts: Sequence[VerdictLine]
    evidence: Sequence[int]  # rounds whose manifests carry the commit, its commitments or its verdicts
    unpaid: UnpaidReason | None
    faults: Sequence[tuple[PeerId, str]]
    replay: str


def round_page(run: Explored, round_id: int, page: int) -> RoundPage:
    """The page of a round. Raises NoSuchPage."""
    link = link_of(run, round_id)
    manifest = link.manifest
    _, paging = cut(max(manifest.commits, manifest.verdicts, key=len), page)
    part = slice(paging.first, paging.first + ROWS_MAX)
    verdicts = []
    for signed in manifest.verdicts[part]:
        verdict = signed.verdict
        carried = run.verdicts[verdict.round, verdict.node]
        verdicts += verdict_lines([one for one in carried if one.verdict == verdict])
    return RoundPage(
        head=head_of(run),
        round=round_id,
        rounds=len(run.delivered.links),
        digest=link.block.manifest,
        parent=manifest.parent,
        time_s=manifest.time_s,
        iteration=int(link.block.iteration),
        aggregate=manifest.aggregate,
        beacon_shares=len(manifest.beacon_shares),
        is_partial=manifest.is_partial,
        commit_count=len(manifest.commits),
        verdict_count=len(manifest.verdicts),
        commitments=len(manifest.commitments),
        hand_over=manifest.hand_over,
        evidence=rounds_of(verdicts, max(round_id - 1, 0), round_id),
        signers=link.certificate.verifiers,
        signatures=link.certificate.signatures,
        quorum=quorum(len(run.delivered.spec.verifiers)),
        verifiers=len(run.delivered.spec.verifiers),
        commits=[
            CommitLine(commit=signed.commit, audit=_status(run, (RoundId(round_id), signed.commit.node)))
            for signed in manifest.commits[part]
        ],
        verdicts=verdicts,
        paging=paging,
    )


def link_of(run: Explored, round_id: int) -> CertifiedManifest:
    """One certified manifest. Raises NoSuchPage."""
    links = run.delivered.links
    if not 0 <= round_id < len(links):
        raise NoSuchPage(f"round {round_id}; the chain has rounds 0 to {len(links) - 1}")
    return links[round_id]


def audit_page(run: Explored, round_id: int, node: PeerId) -> AuditPage:
    """The page of an audit. Raises NoSuchPage."""
    step = (RoundId(round_id), node)
    audit = run.audits.get(step)
    if audit is None:
        raise NoSuchPage(f"an audit of {node.hex()[:8]}'s step of round {round_id}")
    verdicts = verdict_lines(run.verdicts.get(step, ()))
    run_states = run.delivered.run_states
    opened = next(at for at in range(round_id + 1, len(run_states)) if step in run_states[at].audits)
    return AuditPage(
        head=head_of(run),
        audit=audit,
        commit_digest=digest(audit.commit),
        status=audit.ruling.value,
        rate_ppm=run_states[round_id + 1].rate_ppm(node),
        drawn_by=opened - 1,
        order=audit.order,
        committee=audit.committee if audit.dispute_opened_round >= 0 else (),
        verdicts=verdicts,
        evidence=rounds_of(verdicts, round_id),
        unpaid=run.unpaid.get(step),
        faults=[(fault.verdict.verifier, fault.failing.value) for fault in audit.faults],
        replay=replay_command(run, round_id, node),
    )


def replay_command(run: Explored, round_id: int, node: PeerId) -> str:
    """The command that recomputes a step, once the run is in a folder that is named as its pages are."""
    return f"assay audit replay {run.name}:{round_id}:{node.hex()}"


def verdict_lines(carried: Sequence[CarriedVerdict]) -> list[VerdictLine]:
    """Verdicts as lines of a page."""
    return [
        VerdictLine(
            round=int(one.verdict.round),
            node=one.verdict.node,
            verifier=one.verdict.verifier,
            outcome=one.verdict.outcome.name.lower(),
            distance_ppb=one.verdict.distance_ppb,
            committed_round=one.committed_round,
            carried_round=one.round,
        )
        for one in carried
    ]


def rounds_of(verdicts: Sequence[VerdictLine], *also: int) -> list[int]:
    """Rounds whose manifests carry these verdicts or their commitments, and others; ascending."""
    carried = {at for one in verdicts for at in (one.committed_round, one.carried_round) if at >= 0}
    return sorted({*also, *carried})


def _status(run: Explored, step: StepId) -> str | None:
    audit = run.audits.get(step)
    return None if audit is None else audit.ruling.value
