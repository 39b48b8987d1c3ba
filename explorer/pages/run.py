"""Run pages: the index of runs, one run, and its lists of rounds, nodes, audits and epochs.

Room: explorer (pure).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.bundle.report.charts import Chart
from assay.chain.commit_statement import evm_address
from assay.explorer.drawings import AuditMap
from assay.explorer.explored import Explored
from assay.explorer.latency import Latency
from assay.explorer.losses import NodeLosses
from assay.explorer.pages.paging import Head, NoSuchPage, Paging, cut, head_of
from assay.ledger.settlement.ending import ending_of
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.encoding.codec import digest
from assay.protocol.params import RunSpec
from assay.protocol.run_state import BORDERLINE_MAX, NodeRecord
from assay.protocol.types import Digest, PeerId
from assay.training.methods.presets import method_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run in the index."""

    head: Head
    rounds: int
    nodes: int
    verifiers: int
    audits: int
    paid: int  # token units


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A folder whose run did not pass the checks of its chain and settlements."""

    TEMPLATE: ClassVar[str] = "damaged.html"
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPage:
    """All runs that are served."""

    TEMPLATE: ClassVar[str] = "index.html"
    runs: Sequence[RunLine]
    damaged: Sequence[Damaged]
    paging: Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierLine:
    """One verifier of a run."""

    peer: PeerId
    account: str
    certified: int  # manifests that it signed
    verdicts: int
    paid: int  # token units
    fault: bool
    holds_seat: bool  # a reserve, and who gave a seat up, holds none


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTripFigures:
    """Round trips between the participant whose folder this is and its peers, as it measured them."""

    at_s: int  # Unix time
    peers: int
    median_us: int
    longest_us: int
    longest_peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """One run: its terms, parties, charts, audits and money. Amounts are token units."""

    TEMPLATE: ClassVar[str] = "run.html"
    head: Head
    spec: RunSpec
    spec_hash: Digest
    method: str
    buyer: str
    ending: str
    manifests: int
    files: int  # that a reader may fetch
    steps: int
    steps_unpaid: int
    nodes: int
    epochs: int
    charts: Sequence[Chart]
    losses: NodeLosses | None
    latency: Latency | None
    round_trips: RoundTripFigures | None  # None where nobody measures: the run is delivered, or fetched
    is_stated: bool  # sizes in its traffic, by the bundle: the copy has no updates and aggregates
    map: AuditMap
    audits: Mapping[str, int]  # by status
    paid: Mapping[str, int]  # by role
    verifiers: Sequence[VerifierLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLine:
    """One round in the list."""

    round: int
    time_s: int
    commits: int
    verdicts: int
    signers: int
    loss_micro: int | None  # median of its nodes
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsPage:
    """The chain of manifests, one page of it."""

    TEMPLATE: ClassVar[str] = "rounds.html"
    head: Head
    rows: Sequence[RoundLine]
    paging: Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node in the list."""

    peer: PeerId
    account: str
    steps: int
    audits: int
    passed: int
    paid: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesPage:
    """The nodes that ever took part, one page of them."""

    TEMPLATE: ClassVar[str] = "nodes.html"
    head: Head
    rows: Sequence[NodeLine]
    paging: Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One audit in the list."""

    round: int
    node: PeerId
    status: str
    auditors: int
    verdicts: int
    closed_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditsPage:
    """The audits of a run, or those with one status; one page of them."""

    TEMPLATE: ClassVar[str] = "audits.html"
    head: Head
    status: str | None
    counts: Mapping[str, int]
    rows: Sequence[AuditLine]
    paging: Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLine:
    """One settled epoch in the list."""

    epoch: int
    first_round: int
    last_round: int
    rows: int
    unpaid: int
    total: int
    is_final: bool  # proved final on the chain


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsPage:
    """The settled epochs of a run, one page of them."""

    TEMPLATE: ClassVar[str] = "epochs.html"
    head: Head
    rows: Sequence[EpochLine]
    paging: Paging


def index_page(runs: Sequence[Explored], damaged: Sequence[Damaged], page: int) -> IndexPage:
    """The index. Raises NoSuchPage."""
    rows, paging = cut(runs, page)
    return IndexPage(
        runs=[
            RunLine(
                head=head_of(run),
                rounds=run.delivered.calendar.rounds,
                nodes=len(run.commits),
                verifiers=len(run.delivered.spec.verifiers),
                audits=len(run.audits),
                paid=sum(table.total for table in run.delivered.tables.values()),
            )
            for run in rows
        ],
        damaged=damaged,
        paging=paging,
    )


def run_page(run: Explored) -> RunPage:
    """The page of a run."""
    delivered = run.delivered
    last = delivered.run_states[-1]
    roles = ("operator", "verifier", "fee")
    return RunPage(
        head=head_of(run),
        spec=delivered.spec,
        spec_hash=digest(delivered.spec),
        method=method_name(delivered.spec.rule),
        buyer=evm_address(delivered.spec.buyer),
        ending=ending_of(last).text,
        manifests=len(delivered.links),
        files=len(run.files),
        steps=sum(map(len, run.commits.values())),
        steps_unpaid=len(run.unpaid),
        nodes=len(run.commits),
        epochs=len(delivered.tables),
        charts=run.charts,
        losses=run.losses,
        latency=run.latency,
        round_trips=_round_trips(run),
        is_stated=not delivered.sizes,
        map=run.map,
        audits=_by_status(run),
        paid={role: sum(table.paid(role) for table in delivered.tables.values()) for role in roles},
        verifiers=[
            VerifierLine(
                peer=member.peer,
                account=evm_address(member.account),
                certified=run.certified[member.peer],
                verdicts=len(run.judged[member.peer]),
                paid=paid_to(run, member.peer),
                fault=member.peer in last.verifiers and last.verifiers[member.peer].is_disqualified,
                holds_seat=member.peer in last.holders,
            )
            for member in delivered.spec.judges
        ],
    )


def _round_trips(run: Explored) -> RoundTripFigures | None:
    trips = run.round_trips
    if trips is None or trips.median_us is None:
        return None
    return RoundTripFigures(
        at_s=trips.at_s,
        peers=len(trips.us),
        median_us=trips.median_us,
        longest_us=max(trips.us.values()),
        longest_peer=max(trips.us, key=trips.us.__getitem__),
    )


def rounds_page(run: Explored, page: int) -> RoundsPage:
    """A page of the chain of manifests. Raises NoSuchPage."""
    links, paging = cut(run.delivered.links, page)
    rows = [
        RoundLine(
            round=at,
            time_s=link.manifest.time_s,
            commits=len(link.manifest.commits),
            verdicts=len(link.manifest.verdicts),
            signers=len(link.certificate.verifiers),
            loss_micro=_loss(run, at),
            digest=link.block.manifest,
        )
        for at, link in enumerate(links, paging.first)
    ]
    return RoundsPage(head=head_of(run), rows=rows, paging=paging)


def nodes_page(run: Explored, page: int) -> NodesPage:
    """A page of the nodes. Raises NoSuchPage."""
    peers, paging = cut(list(run.commits), page)
    found, passed = Counter[PeerId](), Counter[PeerId]()
    for (_, node), audit in run.audits.items():
        found[node] += 1
        passed[node] += audit.ruling is AuditStatus.PASSED
    records = run.delivered.run_states[-1].nodes
    rows = [
        NodeLine(
            peer=peer,
            account=evm_address(records[peer].member.account),
            steps=len(run.commits[peer]),
            audits=found[peer],
            passed=passed[peer],
            paid=paid_to(run, peer),
            state=state_text(records[peer]),
        )
        for peer in peers
    ]
    return NodesPage(head=head_of(run), rows=rows, paging=paging)


def audits_page(run: Explored, page: int, status: str | None) -> AuditsPage:
    """A page of the audits, of all or of one status. Raises NoSuchPage."""
    counts = _by_status(run)
    if status is not None and status not in counts:
        raise NoSuchPage(f"audits that ended {status[:40]!r}; there are {', '.join(counts) or 'none'}")
    chosen = [
        (step, audit) for step, audit in run.audits.items() if status is None or audit.ruling.value == status
    ]
    found, paging = cut(chosen, page)
    rows = [
        AuditLine(
            round=int(round_id),
            node=node,
            status=audit.ruling.value,
            auditors=max(audit.auditors_wanted, 1),
            verdicts=len(run.verdicts.get((round_id, node), ())),
            closed_round=audit.closed_round,
        )
        for (round_id, node), audit in found
    ]
    return AuditsPage(head=head_of(run), status=status, counts=counts, rows=rows, paging=paging)


def epochs_page(run: Explored, page: int) -> EpochsPage:
    """A page of the settled epochs. Raises NoSuchPage."""
    settled, paging = cut(list(run.delivered.settled.items()), page)
    calendar = run.delivered.calendar
    rows = [
        EpochLine(
            epoch=epoch,
            first_round=epoch * calendar.epoch_rounds,
            last_round=calendar.epoch_end(epoch) - 1,
            rows=len(one.settlement.rows),
            unpaid=len(one.settlement.unpaid),
            total=one.settlement.total,
            is_final=one.anchor is not None,
        )
        for epoch, one in settled
    ]
    return EpochsPage(head=head_of(run), rows=rows, paging=paging)


def paid_to(run: Explored, peer: PeerId) -> int:
    """Token units that the run's tables pay to this peer."""
    return sum(pay.row.amount for pay in run.pay.get(peer, ()))


def state_text(record: NodeRecord) -> str:
    """What the chain says about a node at the run's end."""
    if record.has_contradicted:
        return f"banned from round {record.fault_round}: it signed two commits for one round"
    if record.banned:
        return f"banned: the fault in round {record.fault_round} is confirmed"
    if record.borderline >= BORDERLINE_MAX:
        return "lost its seat: too many of its audits ended borderline"
    return "left its seat" if record.has_left else "in good standing"


def _loss(run: Explored, at: int) -> int | None:
    rounds = run.report.rounds
    spread = rounds[at].loss_micro if at < len(rounds) else None
    return None if spread is None else spread.median


def _by_status(run: Explored) -> dict[str, int]:
    counts = Counter(audit.ruling.value for audit in run.audits.values())
    return {status.value: counts[status.value] for status in AuditStatus if counts[status.value]}
