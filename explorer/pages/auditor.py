"""Auditor page: all verifier's seats of one account in the runs that are served, and what to do now.

Room: explorer (pure). Commands are those of docs/auditors.md and docs/operators.md, and name the verifier's
file FILE.toml. A replay needs a delivered run, in a folder that has the name of its pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.bundle.report.auditors import Accuracy, accuracy_of, found_of
from assay.bundle.report.progress import phase_of
from assay.chain.commit_statement import evm_address
from assay.explorer.explored import CarriedVerdict, Explored
from assay.explorer.pages.paging import Head, NoSuchPage, Paging, cut, head_of
from assay.explorer.pages.participants import record_of
from assay.explorer.pages.round import replay_command
from assay.explorer.pages.run import paid_to
from assay.protocol.auditing.audits import (
    ADVERSE,
    Audit,
    AuditStatus,
    last_commitment,
    last_verdict,
    may_commit_verdict,
)
from assay.protocol.messages import Outcome, Verdict
from assay.protocol.run_state import StepId
from assay.protocol.types import NO_PEER, PeerId

SEATS_MAX = 50  # on one page
STEPS_MAX = 50  # in each list of open steps, on one page
SILENT_ROUNDS = 3  # without its signature under a manifest, after which something is said


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatLine:
    """One verifier of the account in one run. Amounts are token units."""

    head: Head
    peer: PeerId
    phase: str  # of the run
    certified: int  # manifests with its signature
    manifests: int
    verdicts: int
    unrevealed: int  # verdicts that it committed to and did not reveal in time
    accuracy: Accuracy
    fault_round: int  # of the step about which it was proved wrong; -1: none
    paid: int
    due: int  # of what is not settled, if nothing is found against it
    slash_ppm: int  # of its lot, that one proved fault costs
    is_locked: bool  # whether what it did in this run may still be disputed in the run


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """One drawn step that waits for the account's verifier, or is disputed in a run where it has a seat."""

    head: Head
    peer: PeerId  # the verifier's
    round: int
    node: PeerId
    text: str  # what is to be done or waited for
    until_round: int  # whose manifest is the last that takes it, or decides
    replay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenVerdict:
    """One verdict of the account, and what became of the audit."""

    head: Head
    peer: PeerId  # the verifier's
    round: int
    node: PeerId
    outcome: str
    carried_round: int
    status: str  # of the audit
    is_upheld: bool | None  # whether the audit found what the verdict says; None: neither, or not yet
    replay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is to be done about one seat."""

    head: Head
    peer: PeerId
    text: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorPage:
    """An auditor's home."""

    TEMPLATE: ClassVar[str] = "auditor.html"
    account: str
    seats: Sequence[SeatLine]
    seat_count: int
    paid: int
    due: int
    accuracy: Accuracy  # over all seats
    advice: Sequence[Advice]
    duties: Sequence[OpenStep]
    duty_count: int
    disputes: Sequence[OpenStep]
    dispute_count: int
    verdicts: Sequence[GivenVerdict]
    paging: Paging  # of these


def auditor_page(runs: Sequence[Explored], account: bytes, page: int) -> AuditorPage:
    """The page of an account.

    Args:
        runs: All that are served.
        account: 20 bytes.
        page: Of the verdicts, from 1.

    Raises:
        NoSuchPage: no verifier of it has a seat in any of them.
    """
    seats = list(_seats_of(runs, account))
    if not seats:
        raise NoSuchPage(f"a verifier of the account {evm_address(account)} in the runs that are served here")
    given = [(run, peer, one) for run, peer in seats for one in reversed(run.judged[peer])]
    rows, paging = cut(given, page)
    duties = [one for run, peer in seats for one in _duties(run, peer)]
    disputes = [one for run, peer in seats for one in _disputes(run, peer)]
    lines = [_seat_line(run, peer) for run, peer in seats]
    return AuditorPage(
        account=evm_address(account),
        seats=lines[:SEATS_MAX],
        seat_count=len(lines),
        paid=sum(line.paid for line in lines),
        due=sum(line.due for line in lines),
        accuracy=accuracy_of(pair for run, peer in seats for pair in _judged(run, peer)),
        advice=[one for run, peer in seats[:SEATS_MAX] for one in _advice(run, peer)],
        duties=duties[:STEPS_MAX],
        duty_count=len(duties),
        disputes=disputes[:STEPS_MAX],
        dispute_count=len(disputes),
        verdicts=[_given(run, peer, one) for run, peer, one in rows],
        paging=paging,
    )


def _seats_of(runs: Sequence[Explored], account: bytes) -> Iterator[tuple[Explored, PeerId]]:
    """Each seat of the account, those in runs that go on first."""
    for run in sorted(runs, key=lambda one: not one.is_live):
        for member in run.delivered.spec.judges:
            if member.account == account:
                yield run, member.peer


def _seat_line(run: Explored, peer: PeerId) -> SeatLine:
    last = run.delivered.run_states[-1]
    record = record_of(last, peer)
    return SeatLine(
        head=head_of(run),
        peer=peer,
        phase=phase_of(last),
        certified=run.certified[peer],
        manifests=len(run.delivered.links),
        verdicts=len(run.judged[peer]),
        unrevealed=record.silent,
        accuracy=accuracy_of(_judged(run, peer)),
        fault_round=record.fault_round,
        paid=paid_to(run, peer),
        due=sum(row.amount for table in run.drafts.values() for row in table.rows if row.peer == peer),
        slash_ppm=run.delivered.spec.money.verifier_slash_ppm,
        is_locked=not last.is_complete,
    )


def _judged(run: Explored, peer: PeerId) -> Iterator[tuple[Audit, Verdict]]:
    for one in run.judged[peer]:
        yield run.audits[one.verdict.round, one.verdict.node], one.verdict


def _given(run: Explored, peer: PeerId, one: CarriedVerdict) -> GivenVerdict:
    verdict = one.verdict
    audit = run.audits[verdict.round, verdict.node]
    found, says = found_of(audit), {Outcome.MATCH: True, Outcome.MISMATCH: False}.get(verdict.outcome)
    return GivenVerdict(
        head=head_of(run),
        peer=peer,
        round=int(verdict.round),
        node=verdict.node,
        outcome=verdict.outcome.name.lower(),
        carried_round=one.round,
        status=audit.ruling.value,
        is_upheld=None if found is None or says is None else found == says,
        replay=replay_command(run, int(verdict.round), verdict.node),
    )


# ---- steps that are open


def _open_audits(run: Explored) -> Iterator[tuple[StepId, Audit]]:
    """Audits of a run that goes on whose status messages can change, the oldest first."""
    if run.is_live:
        audits = run.delivered.run_states[-1].audits
        yield from sorted((step, audit) for step, audit in audits.items() if audit.is_open)


def _duties(run: Explored, peer: PeerId) -> Iterator[OpenStep]:
    """Steps that wait for this verifier's commitment or verdict."""
    last = run.delivered.run_states[-1]
    rules, now, seat = run.delivered.spec.audit, int(last.round), last.seat_of(peer)
    for step, audit in _open_audits(run):
        is_committed = audit.committed_by(seat) is not None and not audit.has_judged(seat)
        if is_committed and audit.open_from >= 0:
            yield _open_step(run, peer, step, "reveal the verdict", last_verdict(rules, audit))
        elif is_committed:
            yield _open_step(run, peer, step, "committed: others commit first", last_commitment(rules, audit))
        elif may_commit_verdict(rules, audit, seat, now):
            yield _open_step(
                run, peer, step, "recompute, and commit to a verdict", last_commitment(rules, audit)
            )


def _disputes(run: Explored, peer: PeerId) -> Iterator[OpenStep]:
    """Steps of this verifier's run that are disputed now."""
    rules, seat = run.delivered.spec.audit, run.delivered.run_states[-1].seat_of(peer)
    for step, audit in _open_audits(run):
        if audit.ruling is AuditStatus.DISPUTED and seat != NO_PEER:
            against = sum(one.outcome in ADVERSE for one in audit.counted)
            part = "one of" if seat in audit.committee else "none of"
            text = (
                f"{len(audit.counted)} of {len(audit.committee)} verdicts, {against} against the step; "
                f"this verifier is {part} the committee"
            )
            yield _open_step(run, peer, step, text, last_verdict(rules, audit))


def _open_step(run: Explored, peer: PeerId, step: StepId, text: str, until_round: int) -> OpenStep:
    round_id, node = step
    return OpenStep(
        head=head_of(run),
        peer=peer,
        round=int(round_id),
        node=node,
        text=text,
        until_round=until_round,
        replay=replay_command(run, int(round_id), node),
    )


# ---- what to do now


def _advice(run: Explored, peer: PeerId) -> Iterator[Advice]:
    for text, command in (*_on_fault(run, peer), *_on_seat(run, peer), *_on_money(run, peer)):
        yield Advice(head=head_of(run), peer=peer, text=text, command=command)


def _on_fault(run: Explored, peer: PeerId) -> Iterator[tuple[str, str]]:
    record = record_of(run.delivered.run_states[-1], peer)
    if not record.is_disqualified:
        return
    yield (
        f"It is at fault since round {record.fault_round:,}: no later step draws it, and no epoch from there "
        "on pays it. End every copy of it, and look at what is left of its lot.",
        "assay stake show FILE.toml",
    )
    if not run.is_live:
        yield "This says what was proved, with the evidence.", f"assay ledger faults {run.name}"


def _on_seat(run: Explored, peer: PeerId) -> Iterator[tuple[str, str]]:
    last = run.delivered.run_states[-1]
    seat = last.seat_of(peer)
    if not run.is_live or last.is_complete or record_of(last, peer).is_disqualified or seat == NO_PEER:
        return
    newest = run.delivered.links[-SILENT_ROUNDS:]
    is_silent = not any(seat in link.certificate.verifiers for link in newest)
    if is_silent and len(newest) == SILENT_ROUNDS:
        yield (
            f"Its signature is in none of the last {SILENT_ROUNDS} manifests. This names what is missing:",
            "assay doctor FILE.toml",
        )
    elif last.away.get(seat, 0) > int(last.round):
        yield (
            "It missed its share of a beacon, and pauses. Start its process.",
            "assay verifier run FILE.toml",
        )
    duties = sum(1 for _ in _duties(run, peer))
    if duties:
        yield (
            f"{duties:,} drawn {'step waits' if duties == 1 else 'steps wait'} for its verdict, which its "
            "process gives by itself. Leave it on:",
            "assay verifier run FILE.toml",
        )


def _on_money(run: Explored, peer: PeerId) -> Iterator[tuple[str, str]]:
    rows = len(run.pay.get(peer, ()))
    if rows:
        yield (
            f"{rows:,} settled {'epoch pays' if rows == 1 else 'epochs pay'} it. Claim what is final on the "
            "chain and not claimed yet; its process does so too.",
            "assay claim FILE.toml",
        )
    if run.delivered.run_states[-1].is_complete:
        yield (
            "The run has no more steps to judge. Its lot is free once the set of its term was replaced and "
            "all runs of the set are over; this says from when.",
            "assay stake release FILE.toml",
        )
