"""Audits: the life of one audit of a node's step, from draw to final status, as a pure state machine.

Room: protocol (pure). `state_transition` folds the finalised manifests and calls this file for each open
audit: which messages a manifest may carry about it, and which status follows from all of them. Verdicts are
commit-reveal: every auditor commits to its verdict before any verdict is revealed.

    OPEN:      commit --beacon--> replicated? second commit --> verdicts revealed, node opens its sketch
               |--all MATCH, sketches equal--> PASSED
               |--MISMATCH, WITHHELD, BORDERLINE, a sketch that differs or stays shut--> DISPUTED
               |--auditors committed, no MATCH in time, at most f could not tell--> DISPUTED
               '--no verdict in time--> EXPIRED (paid if no auditor committed: the node did its part)
    DISPUTED:  the committee commits, then reveals; its sketch pattern is drawn from the disputing manifest
               |--quorum against--> CONFIRMED (slash, ban); for a known-answer task KNOWN_ANSWER (neither);
               |                    in a run with such tasks not before the dispute's last manifest
               |--quorum against, but not more than f say MISMATCH--> OVERDUE, if the run allows absence
               |--quorum against, but the node may have such a task, and seems cut off--> likewise
               |--more than f matches, not more than f mismatches, and nobody left to reveal--> DISMISSED
               '--neither--> a second committee of all verifiers, once; then EXPIRED (unpaid, no slash)
    OVERDUE:   the opening or the task did not come, as from a machine that is cut off; its step is unpaid
               |--agreed time is over--> CONFIRMED
               |--a step found false is shown to be a known-answer task--> KNOWN_ANSWER
               '--its node returns--> DISPUTED before all verifiers: found true LATE, withheld again OVERDUE
    A MATCH from before a dispute does not count in it: its verifier had not seen the node's sketch.
    When one audit of a node is CONFIRMED, or the node contradicts itself, its other open audits are
    SUPERSEDED: one slash, and nothing from the faulty step on is paid.
A verifier whose verdict the committee has proved false is at fault: see `FaultKind`.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.protocol.agreement.configurations import Configuration
from assay.protocol.agreement.quorum import commitment_rounds, committee_size, faults_tolerated, quorum
from assay.protocol.auditing.commitments import witness_pattern
from assay.protocol.auditing.draws import is_replicated, opened_segment
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Commit, Outcome, SketchOpening, Verdict, VerdictCommitment
from assay.protocol.offences import offence_id
from assay.protocol.params import PPM, AuditSpec, RunSpec
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId

ADVERSE = (Outcome.MISMATCH, Outcome.WITHHELD)
RECOMPUTED = (Outcome.MATCH, Outcome.MISMATCH)  # outcomes that claim a recomputation
REFERENCE = Digest(hashlib.sha256(b"assay/class/reference/1").digest())  # every machine computes its bits


class AuditStatus(enum.Enum):
    """State of one audit; the module's diagram has the transitions."""

    OPEN = "open"
    DISPUTED = "disputed"
    PASSED = "passed"
    DISMISSED = "dismissed"
    CONFIRMED = "confirmed"
    KNOWN_ANSWER = "known-answer"
    EXPIRED = "expired"
    OVERDUE = "overdue"
    LATE = "late"
    SUPERSEDED = "superseded"


class FaultKind(enum.Enum):
    """What is proved about a verifier: all but the last by a dispute's result."""

    PASSED = "passed a false step"
    ACCUSED = "accused an honest step"
    NOT_RECOMPUTED = "judged without recomputing"
    DOUBLE_VOTED = "signed two consensus statements that exclude each other"


@dataclass(frozen=True, slots=True)
class Fault:
    """A verifier's fault in one audit, with the verdict that proves it."""

    verdict: Verdict
    failing: FaultKind

    @property
    def offence_id(self) -> Digest:
        """Identifier of the offence: the same whoever reports it."""
        return offence_id(self.verdict.run_id, b"assay/offence/2" + digest(self.verdict))


@dataclass(frozen=True, slots=True)
class CommittedVerdict:
    """A verifier's commitment to a verdict, and the manifest that carried it."""

    verifier: PeerId
    verdict: Digest
    in_reference: bool
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One audit: the drawn step, and every message that the chain carries about it."""

    round: RoundId
    node: PeerId
    commit: Commit
    seed: Digest
    order: tuple[PeerId, ...]  # verifiers in order of responsibility
    verifiers: int = 0  # of the run; those at fault, and one that retires, are not in `order`
    rate_ppm: int = PPM  # at which the node's steps were drawn: the lower, the more blocks are opened
    auditors_wanted: int = 0  # auditors needed; 0 until the beacon decides whether the audit is replicated
    commitments: tuple[CommittedVerdict, ...] = ()  # of this dispute round
    open_from: int = -1  # the first manifest that may reveal them; -1 while commitments are taken
    verdicts: tuple[Verdict, ...] = ()
    undisputed: int = 0  # how many of `verdicts` precede the dispute
    earlier: int = 0  # how many of `verdicts` precede this dispute round
    silent: tuple[PeerId, ...] = ()  # committed to a verdict and did not reveal it in time
    sketch: Digest | None = None  # digest of the node's own sketch, once opened
    is_known_answer: bool = False
    ruling: AuditStatus = AuditStatus.OPEN
    dispute_round: int = 0  # 1 before the second committee
    dispute_opened_round: int = -1  # manifest that opened the dispute, or called the second committee
    pattern: Digest = NO_DIGEST  # of this dispute round's sketches
    due_s: int = -1  # agreed time until which it may be overdue; -1: it never was
    withheld: tuple[Verdict, ...] = ()  # verdicts of dispute rounds from before its node returned
    left: tuple[tuple[Verdict, PeerId], ...] = ()  # verdicts of holders that gave their seats up since
    closed_round: int = -1
    faults: tuple[Fault, ...] = ()

    @property
    def segment(self) -> int:
        """Index of the segment of inner steps that auditors recompute."""
        return opened_segment(self.seed, self.node, len(self.commit.inner))

    @property
    def f(self) -> int:
        """How many verifiers may lie: as many of the order as of the run, for who retires may be honest."""
        return faults_tolerated(max(self.verifiers, len(self.order)))

    @property
    def committee(self) -> tuple[PeerId, ...]:
        """The verifiers that decide this dispute round."""
        return self.order[: committee_size(max(self.verifiers, len(self.order)), self.dispute_round)]

    def binds(self, verifier: PeerId, *, may_be_shown: bool = False) -> bool:
        """Whether it may still find this verifier's verdict about the step false, or not given in time.

        While it is overdue, which may be for hours, only one kind of verdict may yet be found false.
        may_be_shown: whether the step may yet be shown to be a known-answer task, as after a MATCH.
        """
        if self.ruling is AuditStatus.OVERDUE:
            doubted = Outcome.MISMATCH if self.awaits_return else Outcome.MATCH
            return any(one.verifier == verifier and one.outcome is doubted for one in self.verdicts)
        said = {one.verifier for one in self.commitments} | {one.verifier for one in self.verdicts}
        return verifier in said and (may_be_shown or not self.has_ended)

    def after_hand_over(self, seat: PeerId, holder: PeerId) -> Audit:
        """The audit once this holder has given the seat up: what it said stays its own."""
        if self.has_ended:
            return self
        known = dict(self.left)
        said = dict.fromkeys(one for one in (*self.withheld, *self.verdicts) if one.verifier == seat)
        return replace(self, left=(*self.left, *((one, holder) for one in said if one not in known)))

    def author(self, verdict: Verdict, at_its_end: Configuration) -> PeerId:
        """The key of the holder that gave a verdict: at the audit's end, or that gave the seat up before."""
        return dict(self.left).get(verdict) or at_its_end.key(verdict.verifier)

    @property
    def is_open(self) -> bool:
        """Whether messages about the step can change the status now."""
        return self.ruling is AuditStatus.OPEN or self.ruling is AuditStatus.DISPUTED

    @property
    def is_late(self) -> bool:
        """Whether its opening is overdue, or was and is judged now: its node may not train."""
        return self.due_s >= 0 and not self.has_ended

    @property
    def awaits_return(self) -> bool:
        """Whether the step is judged again if its node comes back: it is overdue, and was not found false."""
        return self.ruling is AuditStatus.OVERDUE and not self.is_false

    @property
    def has_ended(self) -> bool:
        """Whether nothing can change the status any more."""
        return not self.is_open and self.ruling is not AuditStatus.OVERDUE

    @property
    def is_unjudged(self) -> bool:
        """Whether verifiers looked into the step, and did not agree on what it is."""
        return self.ruling is AuditStatus.EXPIRED and (bool(self.verdicts) or self.dispute_opened_round >= 0)

    @property
    def is_borderline(self) -> bool:
        """Whether more than f verifiers found the step neither honest nor false, and no quorum found more."""
        found = sum(verdict.outcome is Outcome.BORDERLINE for verdict in self.counted)
        return self.ruling is AuditStatus.EXPIRED and found > self.f

    @property
    def adverse(self) -> tuple[Verdict, ...]:
        """Verdicts against the node, in the order the chain took them."""
        return tuple(v for v in self.verdicts if v.outcome in ADVERSE)

    @property
    def is_false(self) -> bool:
        """Whether more than f verifiers found MISMATCH (WITHHELD does not count)."""
        mismatches = sum(v.outcome is Outcome.MISMATCH for v in self.verdicts)
        return mismatches > self.f

    @property
    def offence_id(self) -> Digest:
        """Identifier of the offence: the same whoever reports it."""
        return case_id_of(self.commit)

    @property
    def wanted(self) -> int:
        """Commitments needed before a dispute: one per auditor, and one to replace each useless one."""
        useless = sum(v.outcome is Outcome.INCONCLUSIVE for v in self.verdicts)
        return max(self.auditors_wanted, 1) + useless + len(self.silent)

    @property
    def counted(self) -> tuple[Verdict, ...]:
        """Verdicts that count now, at most one a verifier: in a dispute, no MATCH from before it."""
        late = self.verdicts[self.undisputed :]
        return (*(v for v in self.verdicts[: self.undisputed] if v.outcome is not Outcome.MATCH), *late)

    def has_judged(self, verifier: PeerId) -> bool:
        """Whether this verifier has nothing more to judge: its verdict counts."""
        return any(verdict.verifier == verifier for verdict in self.counted)

    def committed_by(self, verifier: PeerId) -> CommittedVerdict | None:
        """This verifier's commitment in this dispute round, if any."""
        return next((commitment for commitment in self.commitments if commitment.verifier == verifier), None)


# ---- which messages a manifest may carry


def last_commitment(rules: AuditSpec, audit: Audit) -> int:
    """The last manifest that may carry a verdict commitment in this dispute round."""
    if audit.ruling is AuditStatus.DISPUTED:
        return audit.dispute_opened_round + commitment_rounds(rules.dispute_rounds)
    return int(audit.round) + rules.audit_rounds - 1


def last_verdict(rules: AuditSpec, audit: Audit) -> int:
    """The last manifest that may carry a verdict in this dispute round; it closes the round."""
    if audit.ruling is AuditStatus.DISPUTED:
        return audit.dispute_opened_round + rules.dispute_rounds
    return int(audit.round) + rules.audit_rounds


def may_commit_verdict(rules: AuditSpec, audit: Audit, verifier: PeerId, at: int) -> bool:
    """Whether the manifest of `at` may carry this verifier's verdict commitment."""
    if not audit.is_open or audit.open_from >= 0 or at > last_commitment(rules, audit):
        return False
    if audit.has_judged(verifier) or audit.committed_by(verifier) is not None:
        return False
    if audit.ruling is AuditStatus.DISPUTED:
        return verifier in audit.committee
    if len(audit.commitments) >= audit.wanted or verifier not in audit.order:
        return False
    turns_over = max((at - int(audit.round) - 2) // rules.takeover_rounds, 0)
    return audit.order.index(verifier) < audit.wanted + turns_over


@functools.lru_cache(maxsize=4096)  # leaders ask again with every message
def _name_of(verdict: Verdict) -> Digest:
    return digest(verdict)


def may_open_verdict(audit: Audit, verdict: Verdict, at: int) -> bool:
    """Whether the manifest of `at` may carry this verdict: it opens a commitment, after all have arrived."""
    committed = audit.committed_by(verdict.verifier)
    if not audit.is_open or committed is None or not 0 <= audit.open_from <= at:
        return False
    if verdict.outcome in RECOMPUTED and committed.in_reference != (verdict.exec_class == REFERENCE):
        return False
    return not audit.has_judged(verdict.verifier) and committed.verdict == _name_of(verdict)


def may_open_sketch(audit: Audit, at: int) -> bool:
    """Whether the node may open its sketch now: once every auditor has committed, and in a dispute at once.

    A committee gains nothing by copying it: its verdicts need a sketch in the dispute's own pattern too.
    """
    is_due = audit.ruling is AuditStatus.DISPUTED or 0 <= audit.open_from <= at
    return audit.is_open and audit.sketch is None and is_due


def may_show_known_answer(rules: AuditSpec, audit: Audit, at: int) -> bool:
    """Whether this step may still be shown to be a known-answer task: only once a verdict on it exists.

    In a dispute it may be shown to the end: the verdict that opened it may have come at the last chance. A
    node that was cut off for all of one that found the step false may show it while it is overdue.
    """
    if not audit.verdicts or audit.is_known_answer:
        return False
    if audit.ruling is AuditStatus.DISPUTED or (audit.ruling is AuditStatus.OVERDUE and audit.is_false):
        return True
    is_passed = audit.ruling in (AuditStatus.OPEN, AuditStatus.PASSED)
    return is_passed and at <= int(audit.round) + rules.audit_rounds


def judges_in_reference(audit: Audit) -> bool:
    """Whether an auditor of the node's class, too, judges in the reference class now.

    It does once somebody says that it judged there: so whoever says so is compared with one that has.
    """
    if audit.ruling is AuditStatus.DISPUTED:
        return bool(_recomputed(audit, REFERENCE))
    return any(commitment.in_reference for commitment in audit.commitments)


def awaits(rules: AuditSpec, audit: Audit, at: int) -> tuple[frozenset[PeerId], frozenset[PeerId], bool]:
    """The messages that an honest leader of the manifest of `at` waits for: it may be their last chance.

    It is if all leaders after it lie, and leave out what they hold: at most f, since leaders take turns.

    Returns:
        Verifiers whose commitment is missing, verifiers whose verdict is, and whether something of the node's
        is: its sketch, or in a dispute the proof that the step is a known-answer task.
    """
    commitments: frozenset[PeerId] = frozenset()
    verdicts: frozenset[PeerId] = frozenset()
    if not audit.is_open:
        return commitments, verdicts, False
    last = at + audit.f
    if audit.open_from < 0 and last >= last_commitment(rules, audit):
        able = (v for v in audit.order if may_commit_verdict(rules, audit, v, at))
        # One commitment suffices before a dispute; in a dispute the whole committee is awaited.
        is_needed = audit.ruling is AuditStatus.DISPUTED or not audit.commitments
        commitments = frozenset(able) if is_needed else frozenset()
    if 0 <= audit.open_from <= at and last >= last_verdict(rules, audit):
        committed = (commitment.verifier for commitment in audit.commitments)
        verdicts = frozenset(v for v in committed if not audit.has_judged(v))
    wants_sketch = audit.ruling is AuditStatus.OPEN and audit.sketch is None and bool(verdicts)
    wants_task = (
        _may_be_known_answer(rules, audit) and bool(audit.adverse) and last >= last_verdict(rules, audit)
    )
    return commitments, verdicts, wants_sketch or (audit.ruling is AuditStatus.DISPUTED and wants_task)


def _may_be_known_answer(rules: AuditSpec, audit: Audit) -> bool:
    """Whether the run has known-answer tasks, and the chain does not say yet that this is one."""
    return rules.known_answer_count > 0 and not audit.is_known_answer


# ---- what follows from all messages


def with_messages(
    audit: Audit,
    now: int,
    commitments: Sequence[VerdictCommitment],
    verdicts: Sequence[Verdict],
    sketch_openings: SketchOpening | None,
    *,
    is_known_answer: bool,
) -> Audit:
    """The audit with the messages that the manifest of `now` carries about it, all already admissible."""
    new = tuple(CommittedVerdict(one.verifier, one.verdict, one.in_reference, now) for one in commitments)
    return replace(
        audit,
        commitments=(*audit.commitments, *new),
        verdicts=(*audit.verdicts, *verdicts),
        sketch=audit.sketch if sketch_openings is None else sketch_openings.sketch,
        is_known_answer=audit.is_known_answer or is_known_answer,
    )


def draw_replication(audit: Audit, now: int, seed: Digest, rules: AuditSpec, *, is_partial: bool) -> Audit:
    """Decide by the beacon on replication if round `now - 1` carried the audit's first commitment.

    A leader may have chosen the shares of a partial beacon, so by that one every audit is replicated.
    """
    if audit.auditors_wanted or not audit.commitments or audit.commitments[0].round != now - 1:
        return audit
    again = is_partial or is_replicated(seed, audit.node, int(audit.round), rules.replication_ppm)
    return replace(audit, auditors_wanted=1 + again)


def rule(
    audit: Audit,
    now: int,
    spec: RunSpec,
    manifest: Digest,
    *,
    is_banned: bool,
    time_s: int = 0,
    has_returned: bool = False,
    heard_round: int = -1,
) -> Audit:
    """The audit after the manifest of `now`: closed, disputed, or one phase on.

    Args:
        audit: With everything the manifest says about it.
        now: The manifest's round.
        spec: The run.
        manifest: Its digest; if it opens a dispute, the committee's sketch pattern is drawn from it.
        is_banned: Whether the node is banned already, for a fault that ends its other audits.
        time_s: Agreed time of the manifest.
        has_returned: Whether the manifest carries the node's return.
        heard_round: The last manifest that the node is known to have had: its last accepted step needed it.
    """
    if not audit.has_ended and is_banned:
        return _closed(audit, AuditStatus.SUPERSEDED, now)
    if audit.ruling is AuditStatus.OVERDUE:
        return _awaited(audit, now, manifest, time_s, has_returned=has_returned)
    if audit.ruling is AuditStatus.PASSED and audit.is_known_answer:
        return _alarmed(audit, now, manifest)  # a verifier passed a step that is false on purpose
    if audit.ruling is AuditStatus.OPEN:
        return _investigated(audit, now, spec.audit, manifest)
    if audit.ruling is AuditStatus.DISPUTED:
        return _decided(audit, now, spec.audit, manifest, time_s, heard_round)
    return audit


def _awaited(audit: Audit, now: int, manifest: Digest, time_s: int, *, has_returned: bool) -> Audit:
    if audit.is_known_answer:
        return _with_faults(_closed(audit, AuditStatus.KNOWN_ANSWER, now))
    if time_s >= audit.due_s:
        return _with_faults(_closed(audit, AuditStatus.CONFIRMED, now))
    if not has_returned or not audit.awaits_return:
        return audit
    # Who found the step false stays; who found nothing to judge, or judged before, judges again.
    stands = tuple(v for v in audit.verdicts if v.outcome is Outcome.MISMATCH)
    past = tuple(v for v in audit.verdicts if v.outcome is not Outcome.MISMATCH)
    again = replace(audit, dispute_round=1, verdicts=stands, withheld=(*audit.withheld, *past))
    return _alarmed(again, now, manifest)


def _investigated(audit: Audit, now: int, rules: AuditSpec, manifest: Digest) -> Audit:
    outcomes = [verdict.outcome for verdict in audit.verdicts]
    if any(o in ADVERSE or o is Outcome.BORDERLINE for o in outcomes) or _differs(audit):
        return _alarmed(audit, now, manifest)
    audit = replace(audit, silent=_silent(audit, now, rules))
    finished = {verdict.verifier for verdict in audit.verdicts} | set(audit.silent)
    is_judged = all(commitment.verifier in finished for commitment in audit.commitments)
    matches = outcomes.count(Outcome.MATCH)
    is_last = now >= last_verdict(rules, audit)
    is_enough = is_last or (is_judged and matches >= max(audit.auditors_wanted, 1))
    if matches and audit.sketch is not None and is_enough:
        return _closed(audit, AuditStatus.PASSED, now)
    if is_last:
        # Where auditors match, a committee requires the node's commitment, which is unopened.
        is_alarm = bool(matches) or _is_evaded(audit)
        return _alarmed(audit, now, manifest) if is_alarm else _closed(audit, AuditStatus.EXPIRED, now)
    needs_more = len(audit.commitments) < audit.wanted
    if audit.open_from >= 0:
        # A replacement auditor commits first, like every auditor.
        goes_back = is_judged and needs_more and now < last_commitment(rules, audit)
        return replace(audit, open_from=-1) if goes_back else audit
    is_full = not needs_more and audit.auditors_wanted > 0
    if audit.commitments and (is_full or now >= last_commitment(rules, audit)):
        return replace(audit, open_from=now + 1)
    return audit


def _is_evaded(audit: Audit) -> bool:
    """Whether auditors committed, and so few could not tell that all of these may be liars."""
    unable = sum(verdict.outcome is Outcome.INCONCLUSIVE for verdict in audit.verdicts)
    return bool(audit.commitments) and unable <= audit.f


def _decided(
    audit: Audit, now: int, rules: AuditSpec, manifest: Digest, time_s: int, heard_round: int
) -> Audit:
    conclusive = [v for v in audit.verdicts if v.outcome in RECOMPUTED]
    if audit.is_known_answer and conclusive and all(v.outcome is Outcome.MISMATCH for v in conclusive):
        return _with_faults(_closed(audit, AuditStatus.KNOWN_ANSWER, now))  # of who made its recompute up
    judges = set(audit.committee)
    against = sum(v.verifier in judges for v in audit.adverse)
    matches = sum(v.outcome is Outcome.MATCH and v.verifier in judges for v in audit.counted)
    is_last = now >= last_verdict(rules, audit)
    if against >= quorum(len(judges)):
        # Auditors may have been a quorum when the dispute began: the node has all of it to show a task, and
        # may have been cut off if nothing says that it knows of the dispute.
        may_show = _may_be_known_answer(rules, audit)
        is_away = may_show and is_last and heard_round < audit.dispute_opened_round
        if rules.absence_s and not audit.is_known_answer and (is_away or not audit.is_false):
            due_s = audit.due_s if audit.due_s >= 0 else time_s + rules.absence_s
            return replace(audit, ruling=AuditStatus.OVERDUE, due_s=due_s, open_from=-1)
        if not may_show or is_last:
            found = AuditStatus.KNOWN_ANSWER if audit.is_known_answer else AuditStatus.CONFIRMED
            return _with_faults(_closed(audit, found, now))
    if matches > audit.f and not audit.is_false and (is_last or _are_revealed(audit)):
        found = AuditStatus.LATE if audit.is_late else AuditStatus.DISMISSED
        return _with_faults(_closed(audit, found, now))
    if is_last:
        if len(audit.order) > len(judges) and audit.dispute_round == 0:
            return _alarmed(replace(audit, dispute_round=1), now, manifest)
        return _closed(audit, AuditStatus.EXPIRED, now)
    if audit.open_from < 0:
        is_full = all(audit.has_judged(v) or audit.committed_by(v) is not None for v in judges)
        if is_full or now >= last_commitment(rules, audit):
            return replace(audit, open_from=now + 1)
    return audit


def _are_revealed(audit: Audit) -> bool:
    """Whether everybody who committed has revealed: a leader may carry few verdicts, one of them invented."""
    return all(audit.has_judged(one.verifier) for one in audit.commitments)


def _alarmed(audit: Audit, now: int, manifest: Digest) -> Audit:
    return replace(
        audit,
        ruling=AuditStatus.DISPUTED,
        dispute_opened_round=now,
        pattern=witness_pattern(manifest, audit.round, audit.node),
        commitments=(),
        open_from=-1,
        undisputed=audit.undisputed if audit.ruling is AuditStatus.DISPUTED else len(audit.verdicts),
        earlier=len(audit.verdicts),
        closed_round=-1,
    )


def _closed(audit: Audit, ruling: AuditStatus, now: int) -> Audit:
    return replace(audit, ruling=ruling, closed_round=now)


def _silent(audit: Audit, now: int, rules: AuditSpec) -> tuple[PeerId, ...]:
    if not 0 <= audit.open_from <= now - rules.takeover_rounds:
        return audit.silent
    late = (s.verifier for s in audit.commitments if not audit.has_judged(s.verifier))
    return tuple(sorted({*audit.silent, *late}))


def _differs(audit: Audit) -> bool:
    """Whether two recomputes that must have equal bits do not, the node's own sketch being one of them."""
    own = {v.recomputed for v in _recomputed(audit, audit.commit.exec_class)}
    is_false_sketch = audit.sketch is not None and not own <= {audit.sketch}
    return is_false_sketch or len({v.recomputed for v in _recomputed(audit, REFERENCE)}) > 1


def _recomputed(audit: Audit, exec_class: Digest) -> tuple[Verdict, ...]:
    """Recomputed verdicts of one class, whose sketches must be equal bit for bit."""
    return tuple(v for v in audit.verdicts if v.exec_class == exec_class and v.outcome in RECOMPUTED)


def _with_faults(audit: Audit) -> Audit:
    """The audit with the faults of verifiers that its status, or the winning side's sketches, refute.

    Honest verdicts of two classes may differ where a step is false by less than the limits between classes.
    So nobody of the reference class is at fault by bits of the node's class, and nobody of the node's class,
    who accused, by matches of the reference class.
    """
    is_false = audit.ruling is not AuditStatus.DISMISSED and audit.is_false
    f = audit.f
    right = Outcome.MISMATCH if is_false else Outcome.MATCH
    faults: dict[PeerId, Fault] = {}  # one a verifier, however often it judged
    for exec_class in (REFERENCE, audit.commit.exec_class):
        comparable = _recomputed(audit, exec_class)
        is_any = is_false and exec_class != REFERENCE
        is_proved = sum(v.outcome is right and (is_any or v in comparable) for v in audit.counted) > f
        sided = [v for v in audit.counted if v in comparable and v.outcome is right]
        sided = [v for v in sided if v.verifier in audit.committee]
        recomputed = _shared([v.recomputed for v in sided], f + 1)
        in_time = audit.verdicts[audit.earlier :]
        witness = _shared([v.witness for v in in_time if v in sided], f + 1)
        # The node committed to another sketch than its work has, or the chain does not show to which: an
        # auditor that recomputed it may match.
        is_misled = recomputed not in (NO_DIGEST, audit.sketch) and exec_class != REFERENCE
        for verdict in comparable:
            if verdict.outcome is not right and is_proved:
                if not is_false:
                    faults.setdefault(verdict.verifier, Fault(verdict, FaultKind.ACCUSED))
                    continue
                if not (is_misled and verdict.recomputed == recomputed):
                    faults.setdefault(verdict.verifier, Fault(verdict, FaultKind.PASSED))
                    continue
            if recomputed not in (NO_DIGEST, verdict.recomputed) or (
                verdict in in_time and witness not in (NO_DIGEST, verdict.witness)
            ):
                faults.setdefault(verdict.verifier, Fault(verdict, FaultKind.NOT_RECOMPUTED))
    return replace(audit, faults=tuple(faults.values()))


def _shared(digests: Sequence[Digest], need: int) -> Digest:
    counted = Counter(one for one in digests if one != NO_DIGEST).most_common(1)
    return counted[0][0] if counted and counted[0][1] >= need else NO_DIGEST


def case_id_of(commit: Commit) -> Digest:
    """Id of the offence that a false step is, and of the case about it: the same whoever reports it."""
    return offence_id(commit.run_id, b"assay/offence/1" + digest(commit))
