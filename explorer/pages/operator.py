"""Operator page: all seats of one account in the runs that are served: health, pay, and what to do next.

Room: explorer (pure). Commands are those of docs/operators.md, and name the operator's file FILE.toml.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.bundle.report.progress import phase_of, status_of
from assay.chain.commit_statement import evm_address
from assay.explorer.explored import Explored
from assay.explorer.pages.paging import Head, NoSuchPage, Paging, cut, head_of
from assay.explorer.pages.run import paid_to, state_text
from assay.ledger.settlement.payouts import UnpaidReason
from assay.protocol.run_state import NodeRecord, StepId
from assay.protocol.types import PeerId, RoundId

SEATS_MAX = 50  # on one page
PAY_ROWS_MAX = 50  # of settled epochs, shared among the seats, on one page
BY_FAULT = (UnpaidReason.FAULT, UnpaidReason.EARLIER_FAULT, UnpaidReason.CONTRADICTION)
SILENT_ROUNDS = 3  # without an accepted step, after which something is said


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatLine:
    """One node of the account in one run. Amounts are token units."""

    head: Head
    peer: PeerId
    phase: str  # of the run
    status: str  # of the node: `bundle/report/progress.py`
    text: str  # of the same, as on the node's page
    steps: int
    last_round: int | None  # of its last accepted step
    last_s: int | None  # agreed time of this round
    silent_rounds: int  # of training since then, or since it has its seat
    paid: int
    due: int  # of what is not settled, if nothing is found against it
    per_hour: int | None  # paid and due, by the agreed time since it has its seat


@dataclass(frozen=True, slots=True, kw_only=True)
class EarnedLine:
    """What one epoch pays one node. index: of the row in its table; None while it is not settled."""

    head: Head
    peer: PeerId
    epoch: int
    index: int | None
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpaidLine:
    """One accepted step that earned nothing, and what bears this out.

    proof_round: of the audit that decided it, or of the manifest that did where `is_audit` is false.
    """

    head: Head
    peer: PeerId
    round: int
    reason: str
    proof_round: int
    is_audit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonLine:
    """A reason for which accepted steps earned nothing: how many, and the newest of them."""

    steps: int
    newest: UnpaidLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is to be done about one node, or all that can be said. command: empty where none mends it."""

    head: Head
    peer: PeerId
    text: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPage:
    """An operator's home."""

    TEMPLATE: ClassVar[str] = "operator.html"
    account: str
    seats: Sequence[SeatLine]
    seat_count: int
    paid: int
    due: int
    pay: Sequence[EarnedLine]
    pay_rows: int
    reasons: Sequence[ReasonLine]  # the most frequent first
    unpaid: Sequence[UnpaidLine]
    paging: Paging  # of these
    advice: Sequence[Advice]


def operator_page(runs: Sequence[Explored], account: bytes, page: int) -> OperatorPage:
    """The page of an account.

    Args:
        runs: All that are served.
        account: 20 bytes.
        page: Of the unpaid steps, from 1.

    Raises:
        NoSuchPage: no node of it took part in any of them.
    """
    seats = list(_seats_of(runs, account))
    if not seats:
        raise NoSuchPage(f"a node of the account {evm_address(account)} in the runs that are served here")
    unpaid = list(_unpaid_steps(seats))
    counts = Counter(reason for _, _, reason in unpaid)
    newest = {reason: (run, step) for run, step, reason in reversed(unpaid)}
    rows, paging = cut(unpaid, page)
    each = max(PAY_ROWS_MAX // len(seats), 1)
    lines = [_seat_line(run, record) for run, record in seats]
    return OperatorPage(
        account=evm_address(account),
        seats=lines[:SEATS_MAX],
        seat_count=len(lines),
        paid=sum(line.paid for line in lines),
        due=sum(line.due for line in lines),
        pay=[
            one for run, record in seats[:SEATS_MAX] for one in _earned_lines(run, record.member.peer, each)
        ],
        pay_rows=sum(len(run.pay.get(record.member.peer, ())) for run, record in seats),
        reasons=[
            ReasonLine(steps=count, newest=_unpaid_line(*newest[reason], reason))
            for reason, count in counts.most_common()
        ],
        unpaid=[_unpaid_line(run, step, reason) for run, step, reason in rows],
        paging=paging,
        advice=[one for run, record in seats[:SEATS_MAX] for one in _advice(run, record)],
    )


def _seats_of(runs: Sequence[Explored], account: bytes) -> Iterator[tuple[Explored, NodeRecord]]:
    """Each seat of the account, those in runs that go on first."""
    for run in sorted(runs, key=lambda one: not one.is_live):
        for record in run.delivered.run_states[-1].nodes.values():
            if record.member.account == account:
                yield run, record


def _seat_line(run: Explored, record: NodeRecord) -> SeatLine:
    delivered, peer = run.delivered, record.member.peer
    last, trained = delivered.run_states[-1], delivered.links[: delivered.calendar.rounds]
    last_round = max(run.commits[peer], default=None)
    paid, due = paid_to(run, peer), _due(run, peer)
    held_s = 0
    if len(trained) > record.joined_round:
        held_s = trained[-1].manifest.time_s - trained[max(record.joined_round - 1, 0)].manifest.time_s
    phase = phase_of(last)
    status = status_of(last, record, last_round)
    return SeatLine(
        head=head_of(run),
        peer=peer,
        phase=phase,
        status=status if phase == "training" or record.banned or record.has_left else phase,
        text=state_text(record),
        steps=len(run.commits[peer]),
        last_round=last_round,
        last_s=None if last_round is None else trained[last_round].manifest.time_s,
        silent_rounds=_silent_rounds(run, record),
        paid=paid,
        due=due,
        per_hour=(paid + due) * 3600 // held_s if held_s > 0 else None,
    )


def _silent_rounds(run: Explored, record: NodeRecord) -> int:
    """Rounds of training without an accepted step, up to now or to the end of the training."""
    done = min(len(run.delivered.links), run.delivered.calendar.rounds)
    return max(done - max(record.joined_round, 1 + max(run.commits[record.member.peer], default=-1)), 0)


def _due(run: Explored, peer: PeerId) -> int:
    return sum(row.amount for table in run.drafts.values() for row in table.rows if row.peer == peer)


def _earned_lines(run: Explored, peer: PeerId, count: int) -> list[EarnedLine]:
    """What the newest epochs pay a node, newest first: those that are not settled, and some that are."""
    head = head_of(run)
    found = [
        EarnedLine(head=head, peer=peer, epoch=one.epoch, index=one.index, amount=one.row.amount)
        for one in run.pay.get(peer, ())[-count:]
    ]
    for epoch, table in run.drafts.items():
        amounts = [row.amount for row in table.rows if row.peer == peer]
        if amounts:
            found.append(EarnedLine(head=head, peer=peer, epoch=epoch, index=None, amount=sum(amounts)))
    return found[::-1]


def _unpaid_steps(
    seats: Sequence[tuple[Explored, NodeRecord]],
) -> Iterator[tuple[Explored, StepId, UnpaidReason]]:
    """Accepted steps of these seats that earned nothing in settled epochs, of each run newest first."""
    for run in {run.name: run for run, _ in seats}.values():
        mine = {record.member.peer for of_run, record in seats if of_run is run}
        for step, reason in reversed(list(run.unpaid.items())):
            if step[1] in mine:
                yield run, step, reason


def _unpaid_line(run: Explored, step: StepId, reason: UnpaidReason) -> UnpaidLine:
    round_id, peer = step
    record = run.delivered.run_states[-1].nodes[peer]
    proof = RoundId(record.fault_round) if reason in BY_FAULT and record.banned else round_id
    return UnpaidLine(
        head=head_of(run),
        peer=peer,
        round=int(round_id),
        reason=reason.text,
        proof_round=int(proof),
        is_audit=(proof, peer) in run.audits,
    )


# ---- what to do next


def _advice(run: Explored, record: NodeRecord) -> Iterator[Advice]:
    head, peer = head_of(run), record.member.peer
    for text, command in (*_on_faults(run, record), *_on_seat(run, record), *_on_money(run, record)):
        yield Advice(head=head, peer=peer, text=text, command=command)


def _on_faults(run: Explored, record: NodeRecord) -> Iterator[tuple[str, str]]:
    at, audit = record.fault_round, run.audits.get((RoundId(record.fault_round), record.member.peer))
    if record.has_contradicted:
        yield (
            f"It signed two commits for round {at:,}, as a second copy with the same keys does. End every "
            "copy, and look at what is left of the stake.",
            "assay stake show FILE.toml",
        )
    elif audit is not None and audit.is_false:
        yield (
            f"Its step of round {at:,} was found false. If it was right, appeal within the veto window; the "
            "dry run recomputes it first.",
            f"assay appeal open FILE.toml {at} --dry-run",
        )
    elif record.banned:
        yield (
            f"The opening of its step of round {at:,} never came. Look at what is left of the stake.",
            "assay stake show FILE.toml",
        )


def _on_seat(run: Explored, record: NodeRecord) -> Iterator[tuple[str, str]]:
    last, peer = run.delivered.run_states[-1], record.member.peer
    if not run.is_live or not record.is_seated or last.is_settled:
        return
    silent = _silent_rounds(run, record)
    if peer in last.late:
        yield (
            "It owes the opening of an earlier step and may not train. Start its process, which opens it.",
            "assay node run FILE.toml",
        )
    elif last.awaits_funding:
        yield (
            "No quorum of verifiers finds the next epoch paid for: the run waits for its buyer.",
            "assay watch FILE.toml",
        )
    elif last.is_training and silent >= SILENT_ROUNDS:
        lost = ", and another node may take its seat" if last.is_idle(peer) else ""
        yield (
            f"No step of it was accepted in the last {silent:,} rounds{lost}. This names what is missing:",
            "assay doctor FILE.toml",
        )
    if record.is_suspect:
        yield (
            "Its audits deviate in one direction, so that its steps are unpaid until it has passed probation "
            "again. Give it the build and the instruction set of the others.",
            "assay doctor FILE.toml",
        )
    if not last.has_whole_stake(peer):
        yield (
            "Verifiers find less stake behind it than the run asks for: every step is audited.",
            "assay stake lock FILE.toml AMOUNT",
        )


def _on_money(run: Explored, record: NodeRecord) -> Iterator[tuple[str, str]]:
    peer = record.member.peer
    rows = len(run.pay.get(peer, ()))
    if rows:
        yield (
            f"{rows:,} settled {'epoch pays' if rows == 1 else 'epochs pay'} it. Claim what is final on the "
            "chain and not claimed yet; its process does so too.",
            "assay claim FILE.toml",
        )
    if record.has_left or run.delivered.run_states[-1].is_settled:
        yield (
            "It has no more steps to make here. The lot is free an evidence window later.",
            "assay stake release FILE.toml",
        )
