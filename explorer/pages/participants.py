"""Participant pages: one node with its rounds and pay, and one verifier with its verdicts and pay.

Room: explorer (pure).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.bundle.report.charts import MEDIAN, MICRO, Chart, chart_of, medians_of
from assay.bundle.report.loss_kind import loss_kind
from assay.chain.commit_statement import evm_address
from assay.explorer.explored import Explored, Pay
from assay.explorer.pages.paging import HandOverLine, Head, NoSuchPage, Paging, cut, hand_overs_of, head_of
from assay.explorer.pages.round import VerdictLine, rounds_of, verdict_lines
from assay.explorer.pages.run import paid_to, state_text
from assay.protocol.agreement.inclusion import listed
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.run_state import RunState, VerifierRecord
from assay.protocol.types import PeerId, RoundId

PAY_ROWS_MAX = 20  # of the newest epochs on a participant's page; the epochs' own pages have all


@dataclass(frozen=True, slots=True, kw_only=True)
class PayLine:
    """A row of a payout table, of this participant."""

    epoch: int
    index: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One round of a node. loss_micro, tokens: of its accepted commit; None without one.

    lists: of verifiers, of what they held of the round in time; lists_naming: those that name the node.
    reason: why there is no commit, or why the step is unpaid; empty where it is paid.
    """

    round: int
    loss_micro: int | None
    tokens: int | None
    lists: int
    lists_naming: int
    audit: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePage:
    """One node: its rounds, one page of them, its audits and its pay."""

    TEMPLATE: ClassVar[str] = "node.html"
    head: Head
    peer: PeerId
    account: str
    hot: str
    state: str
    joined_round: int
    steps: int
    audits: int
    passed: int
    rate_ppm: int  # at which its next step would be drawn
    lists: int  # of verifiers, of what they held of a round in time, in rounds with a commit of the node
    lists_naming: int  # of these, those that name it
    absences: Mapping[str, int]  # rounds since it has its seat without an accepted step, by reason
    overdue: int  # openings that it owes, or that came after their deadline
    round_trip_us: int | None  # as the participant whose folder this is measured it; None: it did not
    loss: Chart | None  # of its steps, beside the run's; None without an accepted step
    paid: int
    pay: Sequence[PayLine]
    pay_rows: int
    rounds: Sequence[StepLine]
    paging: Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierPage:
    """One verifier: its verdicts, one page of them, and its pay."""

    TEMPLATE: ClassVar[str] = "verifier.html"
    head: Head
    peer: PeerId
    account: str
    hot: str
    certified: int
    manifests: int
    round_trip_us: int | None  # as a node's
    fault_round: int
    holds_seat: bool
    hand_overs: Sequence[HandOverLine]  # of the seat that it holds or held
    paid: int
    pay: Sequence[PayLine]
    pay_rows: int
    verdicts: Sequence[VerdictLine]
    evidence: Sequence[int]  # rounds whose manifests carry them
    paging: Paging


def node_page(run: Explored, peer: PeerId, page: int) -> NodePage:
    """The page of a node. Raises NoSuchPage."""
    last = run.delivered.run_states[-1]
    if peer not in last.nodes:
        raise NoSuchPage(f"a node {peer.hex()[:8]} of this run")
    record = last.nodes[peer]
    done = min(len(run.delivered.links), run.delivered.calendar.rounds)
    rounds, paging = cut(range(record.joined_round, done), page)
    rulings = [audit.ruling for (_, node), audit in run.audits.items() if node == peer]
    pay = run.pay.get(peer, ())
    return NodePage(
        head=head_of(run),
        peer=peer,
        account=evm_address(record.member.account),
        hot=evm_address(record.member.hot),
        state=state_text(record),
        joined_round=record.joined_round,
        steps=len(run.commits[peer]),
        audits=len(rulings),
        passed=rulings.count(AuditStatus.PASSED),
        rate_ppm=last.rate_ppm(peer),
        lists=run.arrivals[peer].lists,
        lists_naming=run.arrivals[peer].named,
        absences=Counter(
            _absence(run, peer, at) for at in range(record.joined_round, done) if at not in run.commits[peer]
        ),
        round_trip_us=_round_trip_us(run, peer),
        overdue=sum(ruling in (AuditStatus.OVERDUE, AuditStatus.LATE) for ruling in rulings),
        loss=_loss_chart(run, peer),
        paid=paid_to(run, peer),
        pay=_pay_lines(pay),
        pay_rows=len(pay),
        rounds=[_step_line(run, peer, round_id) for round_id in rounds],
        paging=paging,
    )


def verifier_page(run: Explored, peer: PeerId, page: int) -> VerifierPage:
    """The page of a verifier. Raises NoSuchPage."""
    member = next((one for one in run.delivered.spec.judges if one.peer == peer), None)
    if member is None:
        raise NoSuchPage(f"a verifier {peer.hex()[:8]} of this run")
    judged, paging = cut(run.judged[peer], page)
    verdicts = verdict_lines(judged)
    pay, last = run.pay.get(peer, ()), run.delivered.run_states[-1]
    record = record_of(last, peer)
    return VerifierPage(
        head=head_of(run),
        peer=peer,
        account=evm_address(member.account),
        hot=evm_address(member.hot),
        certified=run.certified[peer],
        manifests=len(run.delivered.links),
        round_trip_us=_round_trip_us(run, peer),
        fault_round=record.fault_round,
        holds_seat=peer in last.holders,
        hand_overs=[
            one for one in hand_overs_of(run) if one.seat == last.rotation.configuration.seat_of(peer)
        ],
        paid=paid_to(run, peer),
        pay=_pay_lines(pay),
        pay_rows=len(pay),
        verdicts=verdicts,
        evidence=rounds_of(verdicts),
        paging=paging,
    )


def record_of(last: RunState, peer: PeerId) -> VerifierRecord:
    """What the chain records of a verifier; a reserve that never held a seat has a clean record."""
    return last.verifiers.get(peer, VerifierRecord())


def _round_trip_us(run: Explored, peer: PeerId) -> int | None:
    """The round trip to a peer of a live run."""
    return None if run.round_trips is None else run.round_trips.us.get(peer)


def _pay_lines(pay: Sequence[Pay]) -> list[PayLine]:
    newest = pay[-PAY_ROWS_MAX:]
    return [PayLine(epoch=one.epoch, index=one.index, amount=one.row.amount) for one in newest]


def _loss_chart(run: Explored, peer: PeerId) -> Chart | None:
    """The losses that a node stated, and the median of all nodes, in the rounds since it has its seat."""
    kind, first = loss_kind(run.delivered.spec), run.delivered.run_states[-1].nodes[peer].joined_round
    return chart_of(
        kind.name[0].upper() + kind.name[1:],
        f"{kind.unit.capitalize()}, of its accepted steps, as it states and signs it, and the median of all "
        "nodes, since it has its seat. Its line bridges rounds without an accepted step.",
        kind.unit,
        {
            "this node": {at: one.loss_micro / MICRO for at, one in run.commits[peer].items()},
            MEDIAN: medians_of(run.report.rounds[first:]),
        },
        decimals=3,
        is_from_zero=False,
    )


def _step_line(run: Explored, peer: PeerId, round_id: int) -> StepLine:
    commit = run.commits[peer].get(round_id)
    audit = run.audits.get((RoundId(round_id), peer))
    unpaid = run.unpaid.get((RoundId(round_id), peer))
    members = tuple(run.delivered.run_states[round_id].nodes)
    lists = [one.inclusion_list.nodes for one in run.delivered.links[round_id].manifest.inclusion_lists]
    return StepLine(
        round=round_id,
        loss_micro=None if commit is None else commit.loss_micro,
        tokens=None if commit is None else commit.tokens,
        lists=len(lists),
        lists_naming=sum(peer in listed(members, one) for one in lists),
        audit=None if audit is None else audit.ruling.value,
        reason=_absence(run, peer, round_id) if commit is None else "" if unpaid is None else unpaid.text,
    )


def _absence(run: Explored, peer: PeerId, round_id: int) -> str:
    """Why the manifest of this round carries no commit of the node, as far as the chain says."""
    before = run.delivered.run_states[round_id]
    record = before.nodes.get(peer)
    if record is None:
        return "it had no seat yet"
    if record.banned:
        return "it was banned"
    if record.has_left:
        return "it had left"
    if peer in before.late:
        return "it owed the opening of an earlier step"
    if round_id in run.unfunded:
        return "the round was not funded"
    return "no commit of it reached this manifest"
