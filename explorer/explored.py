"""Explored: one run, delivered or followed, folded into what its pages look up.

Room: explorer (pure). Everything follows from the value that `bundle/read.py` has checked; a page is a
function of it and reads nothing from disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from assay.bundle.milestone import MilestoneFigures, milestones_of
from assay.bundle.read import Delivered
from assay.bundle.report.audits import final_audits
from assay.bundle.report.charts import Chart, Curve, charts_of, medians_of
from assay.bundle.report.loss_kind import loss_kind
from assay.bundle.report.progress import drafts
from assay.bundle.report.spending import EpochCost, costs_of
from assay.bundle.report.training import TrainingReport, training_report, with_stated_traffic
from assay.explorer.drawings import AuditMap, audit_map
from assay.explorer.latency import Arrivals, Latency, latency_of
from assay.explorer.losses import NodeLosses, Reached, loss_curves, node_losses, reached
from assay.ledger.settlement.payouts import Row, Settlement, UnpaidReason
from assay.participant.openings import named_openings
from assay.participant.telemetry.round_trips import RoundTrips
from assay.protocol.agreement.inclusion import listed
from assay.protocol.auditing.audits import Audit
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Commit, Verdict
from assay.protocol.run_state import StepId
from assay.protocol.types import Digest, PeerId, RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedVerdict:
    """A verdict and where the chain has it."""

    round: int  # of the manifest that carries it
    committed_round: int  # of the one that carries its commitment; -1: none does
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Pay:
    """One row of an epoch's payout table."""

    epoch: int
    index: int
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """A run with its lookups. name: of its pages, in their addresses."""

    name: str
    delivered: Delivered
    files: Mapping[str, Path]  # that the buyer signed, by their names in the index
    blobs: frozenset[Digest]  # updates and aggregates that the chain names
    openings: frozenset[Digest]  # of drawn steps, likewise
    commits: Mapping[PeerId, Mapping[int, Commit]]  # accepted steps of each node, by round
    report: TrainingReport  # its traffic as the bundle states it, where updates and aggregates are missing
    charts: tuple[Chart, ...]  # of this report
    losses: NodeLosses | None  # None without an accepted step
    reached: tuple[Reached, ...]  # by rounds with an accepted step
    loss_curves: Mapping[str, Curve]  # of their losses, by each of the other fields
    map: AuditMap
    audits: Mapping[StepId, Audit]  # in their final status, by round and node
    verdicts: Mapping[StepId, tuple[CarriedVerdict, ...]]  # on a step, as the chain took them
    judged: Mapping[PeerId, tuple[CarriedVerdict, ...]]  # of each verifier and reserve, likewise
    arrivals: Mapping[PeerId, Arrivals]  # of each node's commits
    latency: Latency | None  # None before the second round
    unfunded: frozenset[int]  # rounds of training that nobody paid for, by the reports until then
    certified: Mapping[PeerId, int]  # manifests whose certificate its signature is in
    pay: Mapping[PeerId, tuple[Pay, ...]]
    unpaid: Mapping[StepId, UnpaidReason]
    drafts: Mapping[int, Settlement]  # tables, as they stand, of epochs that have begun and are not settled
    costs: Sequence[EpochCost]  # of every ordered epoch
    milestones: Sequence[MilestoneFigures]
    round_trips: RoundTrips | None = None  # of a live run, by the participant whose folder this is

    @property
    def is_live(self) -> bool:
        """Whether the run goes on, or is at least not delivered here yet."""
        return self.delivered.is_followed


def explore(name: str, delivered: Delivered, files: Mapping[str, Path] = MappingProxyType({})) -> Explored:
    """The lookups of a run.

    Args:
        name: Of its pages.
        delivered: The run.
        files: Those that a reader may fetch.

    Raises:
        IntegrityError: the file of an update or an aggregate is missing, but not of all of them, or those
            of all are, and `report.json` does not state their sizes.
    """
    commits: dict[PeerId, dict[int, Commit]] = {peer: {} for peer in delivered.run_states[-1].nodes}
    committed: dict[Digest, int] = {}
    blobs: set[Digest] = set()
    verdicts: dict[StepId, list[CarriedVerdict]] = {}
    judged: dict[PeerId, list[CarriedVerdict]] = {peer: [] for peer in delivered.spec.seat_peers}
    certified = dict.fromkeys(delivered.spec.seat_peers, 0)
    arrivals = dict.fromkeys(commits, Arrivals())
    for at, link in enumerate(delivered.links):
        manifest, key = link.manifest, delivered.run_states[at].key
        blobs.add(manifest.aggregate)
        for seat in link.certificate.verifiers:
            certified[key(seat)] += 1
        members = tuple(delivered.run_states[at].nodes)
        held = [listed(members, one.inclusion_list.nodes) for one in manifest.inclusion_lists]
        for signed in manifest.commits:
            node = signed.commit.node
            before, named = arrivals[node], sum(node in one for one in held)
            arrivals[node] = Arrivals(lists=before.lists + len(held), named=before.named + named)
            commits[signed.commit.node][at] = signed.commit
            blobs.add(signed.commit.update)
        for seal in manifest.commitments:
            committed.setdefault(seal.commitment.verdict, at)
        for opened in manifest.verdicts:
            verdict = opened.verdict
            one = CarriedVerdict(
                round=at, committed_round=committed.get(digest(verdict), -1), verdict=verdict
            )
            verdicts.setdefault((verdict.round, verdict.node), []).append(one)
            judged[key(verdict.verifier)].append(one)
    pay: dict[PeerId, list[Pay]] = {}
    unpaid: dict[StepId, UnpaidReason] = {}
    for epoch, table in delivered.tables.items():
        for index, row in enumerate(table.rows):
            pay.setdefault(row.peer, []).append(Pay(epoch=epoch, index=index, row=row))
        for step in table.unpaid:
            unpaid[RoundId(step.round), step.node] = step.reason
    open_tables = drafts(delivered.run_states[-1], len(delivered.tables))
    audits = dict(sorted(final_audits(delivered.run_states).items()))
    if delivered.report is not None and not delivered.sizes:
        report = with_stated_traffic(delivered)
    else:
        report = training_report(delivered)
    by_round = reached(report.rounds)
    charts, medians = charts_of(report, loss_kind(delivered.spec)), medians_of(report.rounds)
    return Explored(
        name=name,
        delivered=delivered,
        files=files,
        blobs=frozenset(blobs),
        openings=frozenset(named_openings(audits.values())),
        commits=commits,
        report=report,
        charts=charts,
        losses=node_losses(charts[0], medians, commits) if medians else None,
        reached=by_round,
        loss_curves=loss_curves(by_round),
        map=audit_map(delivered.calendar.rounds, commits, audits),
        audits=audits,
        verdicts={step: tuple(found) for step, found in verdicts.items()},
        judged={peer: tuple(found) for peer, found in judged.items()},
        arrivals=arrivals,
        latency=latency_of(delivered.links, delivered.calendar.rounds, arrivals),
        unfunded=frozenset(  # a manifest's own reports count
            at
            for at, after in enumerate(delivered.run_states[1:])
            if at < delivered.calendar.rounds and not after.is_paid_for(at)
        ),
        certified=certified,
        pay={peer: tuple(found) for peer, found in pay.items()},
        unpaid=unpaid,
        drafts=open_tables,
        costs=costs_of(delivered, open_tables),
        milestones=milestones_of(delivered),
    )
