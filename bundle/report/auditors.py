"""Auditor report: results of a finished run's auditors, and of the known-answer tasks that tested them.

Room: bundle (pure).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from assay.protocol.auditing.audits import RECOMPUTED, Audit, AuditStatus, FaultKind
from assay.protocol.messages import Outcome, Verdict
from assay.protocol.params import PPM
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, PeerId
from assay.verifier.audit.intervals import exact_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorFigures:
    """One auditor. peer: in hexadecimal. faults: by their kind."""

    peer: str
    behaviour: str
    verdicts: int
    unopened: int
    known_answers_found: int
    known_answers_passed: int
    faults: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedFigures:
    """Audits with a second auditor."""

    drawn: int
    of: int
    interval: tuple[float, float]  # 95 %, exact
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswerFigures:
    """Known-answer tasks, and how auditors judged them at first."""

    ordered: int  # on the lists that nodes announced
    judged: int
    found: int
    passed_first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorsReport:
    """All figures of a run's auditors."""

    verifiers: tuple[AuditorFigures, ...]
    replicated_audits: ReplicatedFigures
    known_answers: KnownAnswerFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How an auditor's recomputed verdicts compare with what became of their audits."""

    judged_true: int = 0  # on steps that were found true
    false_alarms: int = 0  # of these, those that accused
    judged_false: int = 0  # on steps that were found false, known-answer tasks among them
    missed: int = 0  # of these, those that passed

    @property
    def false_alarm_ppm(self) -> int | None:
        """Rate of false alarms on true steps, in millionths; None without one."""
        return self.false_alarms * PPM // self.judged_true if self.judged_true else None


def accuracy_of(judged: Iterable[tuple[Audit, Verdict]]) -> Accuracy:
    """The accuracy of these verdicts, each with its audit in its final status.

    Verdicts without a recomputation, and on steps of which nothing was found out, count nowhere.
    """
    outcomes = [(found_of(audit), one.outcome) for audit, one in judged if one.outcome in RECOMPUTED]
    true = [outcome for is_true, outcome in outcomes if is_true is True]
    false = [outcome for is_true, outcome in outcomes if is_true is False]
    return Accuracy(
        judged_true=len(true),
        false_alarms=true.count(Outcome.MISMATCH),
        judged_false=len(false),
        missed=false.count(Outcome.MATCH),
    )


def found_of(audit: Audit) -> bool | None:
    """Whether the audit found its step true; None where it found neither, or has not yet."""
    match audit.ruling:
        case AuditStatus.PASSED | AuditStatus.DISMISSED | AuditStatus.LATE:
            return True
        case AuditStatus.CONFIRMED if not audit.is_false:
            return None  # its opening never came
        case AuditStatus.CONFIRMED | AuditStatus.KNOWN_ANSWER:
            return False
        case _:
            return None


def auditors_of(
    last: RunState, audits: Collection[Audit], behaviours: Mapping[PeerId, str]
) -> AuditorsReport:
    """Statistics of a run's auditors: of everybody that holds a verifier's seat, or held one.

    Args:
        last: The run's state after its last manifest.
        audits: In their final status.
        behaviours: Test behaviours of verifiers, if known.
    """
    spec = last.spec
    known_answers = [
        audit for audit in audits if audit.is_known_answer and audit.ruling is not AuditStatus.DISMISSED
    ]
    found = sum(audit.ruling is AuditStatus.KNOWN_ANSWER and not _passed(audit) for audit in known_answers)
    lists = sum(record.tasks != NO_DIGEST for record in last.nodes.values())
    drawn = [audit.auditors_wanted for audit in audits if audit.auditors_wanted]
    again = drawn.count(2)
    return AuditorsReport(
        verifiers=tuple(
            _auditor(last, member.peer, behaviours.get(member.peer, ""), audits, known_answers)
            for member in spec.judges
            if member.peer in last.verifiers
        ),
        replicated_audits=ReplicatedFigures(
            drawn=again,
            of=len(drawn),
            interval=exact_interval(again, len(drawn)),
            expected=spec.audit.replication_ppm / PPM,
        ),
        known_answers=KnownAnswerFigures(
            ordered=spec.audit.known_answer_count * lists,
            judged=len(known_answers),
            found=found,
            passed_first=sum(map(_passed, known_answers)),
        ),
    )


def _auditor(
    last: RunState,
    peer: PeerId,
    behaviour: str,
    audits: Collection[Audit],
    known_answers: Collection[Audit],
) -> AuditorFigures:
    def judged(audit: Audit) -> list[Verdict]:
        return [one for one in audit.verdicts if last.author(audit, one) == peer]

    wrong = [(fault, last.author(audit, fault.verdict)) for audit in audits for fault in audit.faults]
    faults = Counter(fault.failing for fault, holder in wrong if holder == peer)
    outcomes = [one.outcome for audit in known_answers for one in judged(audit)]
    return AuditorFigures(
        peer=peer.hex(),
        behaviour=behaviour,
        verdicts=sum(len(judged(audit)) for audit in audits),
        unopened=last.verifiers[peer].silent if peer in last.verifiers else 0,
        known_answers_found=outcomes.count(Outcome.MISMATCH),
        known_answers_passed=outcomes.count(Outcome.MATCH),
        faults={failing.value: faults[failing] for failing in FaultKind if faults[failing]},
    )


def _passed(audit: Audit) -> bool:
    return any(fault.failing is FaultKind.PASSED for fault in audit.faults)
