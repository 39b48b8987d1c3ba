"""Every life of one audit among four verifiers, of which one lies: all orders, all lies, all omissions.

    python -m tests.simulation.explore_audit

The production rules of one audit (`protocol/auditing/audits.py`) are driven through every reachable state,
breadth first, states seen before left out. In each manifest a leader may carry any part of what may come:
honest messages late or never, the liar's at any time. The liar commits to any verdict: each outcome, of
either execution class, with its own, the node's or an invented sketch and witness, and it may keep it shut.
The node is honest, or did other work (by more than the limits between classes, or by less), sealed the sketch
of other work, or does not open. Some verifiers are of the node's class, the others judge in the reference
class.

Where the run allows absence the node may also return after its opening was overdue, and be judged anew.

Leaders are all of any kind, which must not convict the honest or dismiss a false step; or every other one is
honest and carries all that it holds, which must also pay honest steps and find false ones.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from assay.protocol.agreement.quorum import least_audit_rounds, least_dispute_rounds
from assay.protocol.auditing.audits import (
    RECOMPUTED,
    REFERENCE,
    Audit,
    AuditStatus,
    draw_replication,
    judges_in_reference,
    may_commit_verdict,
    may_open_sketch,
    may_open_verdict,
    rule,
    with_messages,
)
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Outcome, SketchOpening, Verdict, VerdictCommitment
from assay.protocol.params import PPM, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.messages import a_commit, a_verdict_commitment
from assay.testing.run import a_spec

LEAST = least_audit_rounds(len(VERIFIERS)), least_dispute_rounds(len(VERIFIERS))
SHORT = 4, 3  # the fewest states where all leaders may lie
COMMIT = a_commit(0, NODES[0], exec_class=Digest(hashlib.sha256(b"a class").digest()))
TRUE, SEALED, JUNK = (Digest(hashlib.sha256(name).digest()) for name in (b"true", b"sealed", b"junk"))
THERE = Digest(hashlib.sha256(b"true, in the reference class").digest())
OWN = COMMIT.exec_class


@dataclass(frozen=True, slots=True)
class Case:
    """What is fixed in one exploration.

    liar: its place in the order of responsibility, or None. is_false: the opened blocks do not follow.
    sketch: what the node has sealed; None if it never opens. wanted: auditors before a dispute.
    turn: whether even (0) or odd (1) manifests are an honest leader's; None: all are of any kind.
    rounds: of an audit and of a dispute; None: the least that the rules allow with honest turns, else fewer.
    own: verifiers of the node's class, the first in order. is_slight: false by less than the limits.
    has_limits: whether the reference class may be used at all. has_returned: from the return on of a node
    whose opening was overdue. is_blind: the reference class can tell nothing of this step.
    """

    liar: int | None
    is_false: bool = False
    sketch: Digest | None = TRUE
    wanted: int = 1
    turn: int | None = None
    rounds: tuple[int, int] | None = None
    own: int = 4
    is_slight: bool = False
    has_limits: bool = True
    has_returned: bool = False
    is_blind: bool = False

    @property
    def is_seen(self) -> bool:
        """Whether every honest verifier that recomputes the step finds it false, or unopened."""
        is_plain = self.sketch is None or (self.is_false and not self.is_slight)
        return is_plain or not (self.has_limits or self.is_honest)

    @property
    def spec(self) -> RunSpec:
        """The run's rules."""
        audit, dispute = self.rounds or (SHORT if self.turn is None else LEAST)
        return _spec(audit, dispute, PPM * (self.wanted - 1), int(self.has_returned))

    @property
    def words(self) -> str:
        """The case as text."""
        sealed = {None: "never opened", TRUE: "of the work", SEALED: "of other work"}[self.sketch]
        return (
            f"liar {self.liar}, {self.wanted} auditors, honest turn {self.turn}, "
            f"{self.own} of the class{', no limits' * (not self.has_limits)}, "
            f"blocks {'slightly ' * self.is_slight}{'false' if self.is_false else 'true'}, sketch {sealed}"
            f"{', returned' * self.has_returned}{', the reference class is blind' * self.is_blind}"
        )

    @property
    def is_honest(self) -> bool:
        """Whether the node has done nothing wrong."""
        return not self.is_false and self.sketch == TRUE


@dataclass(frozen=True, slots=True)
class End:
    """How an audit ended: its status, whether it was disputed, and the places of verifiers at fault."""

    status: AuditStatus
    is_disputed: bool
    at_fault: frozenset[int]

    @classmethod
    def of(cls, audit: Audit) -> End:
        """The end of a closed audit."""
        at_fault = frozenset(VERIFIERS.index(fault.verdict.verifier) for fault in audit.faults)
        return cls(audit.ruling, audit.dispute_opened_round >= 0, at_fault)


@functools.lru_cache
def _spec(audit: int, dispute: int, replication_ppm: int, absence_s: int) -> RunSpec:
    return a_spec(
        audit_rounds=audit, dispute_rounds=dispute, replication_ppm=replication_ppm, absence_s=absence_s
    )


def explore(case: Case) -> tuple[dict[End, int], int]:
    """All ends with their number of states, and the states in all."""
    begun = Audit(
        round=COMMIT.round,
        node=COMMIT.node,
        commit=COMMIT,
        seed=TRUE,
        order=VERIFIERS,
    )
    ends: dict[End, int] = {}
    now = int(COMMIT.round) + 2
    front, count = [begun], 0
    if case.has_returned:
        front = [
            rule(one, now, case.spec, _name(now), is_banned=False, has_returned=True)
            for one in _overdue(case, begun)
        ]
        now += 1
    while front:
        after: dict[object, Audit] = {}
        for one in front:
            audit = draw_replication(one, now, TRUE, case.spec.audit, is_partial=False)
            for carried in _manifests(case, audit, now):
                ruled = rule(carried, now, case.spec, _name(now), is_banned=False)
                if ruled.is_open:
                    after.setdefault(_key(ruled), ruled)
                else:
                    end = End.of(ruled)
                    ends[end] = ends.get(end, 0) + 1
        count += len(after)
        front, now = list(after.values()), now + 1
    return ends, count


def _overdue(case: Case, begun: Audit) -> Iterator[Audit]:
    """The audit as it may have been left when its node was cut off, by what the liar said of it then."""
    for outcome in (Outcome.WITHHELD, Outcome.MISMATCH, Outcome.MATCH):
        has_worked = outcome in RECOMPUTED
        yield replace(
            begun,
            ruling=AuditStatus.OVERDUE,
            due_s=1,
            dispute_opened_round=1,
            auditors_wanted=1,
            verdicts=tuple(
                _verdict(
                    place,
                    outcome,
                    OWN if has_worked else NO_DIGEST,
                    JUNK if has_worked else NO_DIGEST,
                    NO_DIGEST,
                )
                if place == case.liar
                else _verdict(place, Outcome.WITHHELD, NO_DIGEST, NO_DIGEST, NO_DIGEST)
                for place in range(len(VERIFIERS))
            ),
        )


def _key(audit: Audit) -> object:
    """What decides an audit's future: not the rounds of commitments, nor the order within a dispute round."""
    cuts = (0, audit.undisputed, audit.earlier, len(audit.verdicts))
    return (
        audit.ruling,
        audit.auditors_wanted,
        audit.open_from,
        audit.dispute_round,
        audit.dispute_opened_round,
        audit.sketch,
        audit.silent,
        frozenset(one.verdict for one in audit.commitments),
        *(frozenset(map(id, audit.verdicts[a:b])) for a, b in itertools.pairwise(cuts)),
    )


def _manifests(case: Case, audit: Audit, now: int) -> Iterator[Audit]:
    """The audit after each set of messages that a manifest may carry of it."""
    is_honest = case.turn == now % 2
    options: list[list[tuple[str, object] | None]] = []
    for place, verifier in enumerate(VERIFIERS):
        choices: list[tuple[str, object] | None] = []
        is_liar, committed = place == case.liar, audit.committed_by(verifier)
        if may_commit_verdict(case.spec.audit, audit, verifier, now):
            kinds = (
                _lies(audit.pattern, case.sketch, case.has_limits)
                if is_liar
                else (_truth(case, audit, place),)
            )
            choices = [("commit", _verdict(place, *kind)) for kind in kinds]
        elif committed is not None and not audit.has_judged(verifier):
            verdict = _KNOWN[committed.verdict]
            if may_open_verdict(audit, verdict, now):
                choices = [("open", verdict)]
        if not choices or is_liar or not is_honest:
            choices.append(None)
        options.append(choices)
    if case.sketch is not None and may_open_sketch(audit, now):
        shown = ("sketch", _sketch(case.sketch))
        options.append([shown] if is_honest else [shown, None])
    for chosen in itertools.product(*options):
        messages = [one for one in chosen if one is not None]
        verdicts = [v for kind, v in messages if kind == "open"]
        commitments = [_commitment(v, audit.pattern) for kind, v in messages if kind == "commit"]
        sketch = next((s for kind, s in messages if kind == "sketch"), None)
        yield with_messages(audit, now, commitments, verdicts, sketch, is_known_answer=False)


def _truth(case: Case, audit: Audit, place: int) -> tuple[Outcome, Digest, Digest, Digest]:
    """What an honest verifier finds now: outcome, class, sketch, witness."""
    in_dispute = audit.ruling is AuditStatus.DISPUTED
    if in_dispute and case.sketch is None:
        return Outcome.WITHHELD, NO_DIGEST, NO_DIGEST, NO_DIGEST
    asks_reference = case.has_limits and judges_in_reference(audit) and not case.is_blind
    is_own = place < case.own and not asks_reference
    witness = _witness(audit.pattern, is_own) if in_dispute else NO_DIGEST
    if is_own:
        is_adverse = case.is_false or (in_dispute and case.sketch != TRUE)
        return (Outcome.MISMATCH if is_adverse else Outcome.MATCH), OWN, TRUE, witness
    if case.is_blind:
        return Outcome.INCONCLUSIVE, NO_DIGEST, NO_DIGEST, NO_DIGEST
    is_adverse = case.is_false and not case.is_slight
    return (Outcome.MISMATCH if is_adverse else Outcome.MATCH), REFERENCE, THERE, witness


@functools.lru_cache
def _lies(
    pattern: Digest, sealed: Digest | None, has_limits: bool
) -> tuple[tuple[Outcome, Digest, Digest, Digest], ...]:
    """Everything that a liar can commit to: also the truth, and the truth with one part of it changed."""
    told = []
    for is_own in (True, False)[: 1 + has_limits]:
        sketches = {TRUE, sealed or TRUE, JUNK} if is_own else {THERE, JUNK}
        witnesses = (NO_DIGEST,) if pattern == NO_DIGEST else (_witness(pattern, is_own), JUNK)
        told += [
            (outcome, OWN if is_own else REFERENCE, sketch, witness)
            for outcome in RECOMPUTED
            for sketch in sketches
            for witness in witnesses
        ]
    others = (Outcome.WITHHELD, Outcome.BORDERLINE, Outcome.INCONCLUSIVE)
    return (*told, *((outcome, NO_DIGEST, NO_DIGEST, NO_DIGEST) for outcome in others))


_KNOWN: dict[Digest, Verdict] = {}


@functools.cache
def _verdict(
    place: int, outcome: Outcome, exec_class: Digest, recomputed: Digest, witness: Digest
) -> Verdict:
    verdict = Verdict(
        run_id=RUN_ID, round=COMMIT.round, node=COMMIT.node, verifier=VERIFIERS[place], salt=NO_DIGEST,
        outcome=outcome, exec_class=exec_class, recomputed=recomputed, is_biased=False, witness=witness,
        opening=NO_DIGEST, opening_bytes=0, distance_ppb=0, block=0,
    )  # fmt: skip
    _KNOWN[digest(verdict)] = verdict
    return verdict


@functools.cache
def _commitment(verdict: Verdict, pattern: Digest) -> VerdictCommitment:
    return a_verdict_commitment(verdict, pattern)


@functools.lru_cache
def _sketch(sketch: Digest) -> SketchOpening:
    return SketchOpening(
        run_id=RUN_ID, round=COMMIT.round, node=COMMIT.node, salt=NO_DIGEST, sketch=sketch, path=()
    )


def _witness(pattern: Digest, is_own: bool) -> Digest:
    return Digest(hashlib.sha256(b"witness %d" % is_own + pattern).digest())


def _name(now: int) -> Digest:
    return Digest(hashlib.sha256(b"manifest %d" % now).digest())


def broken(case: Case) -> tuple[list[str], int]:
    """The promises that some life of the audit breaks, as text; the states seen."""
    ends, count = explore(case)
    found = []
    for end in ends:
        status, place = end.status, f"{case.words}: {end}"
        if end.at_fault - {case.liar}:
            found.append(f"{place}: an honest verifier is at fault")
        if case.is_honest and status is AuditStatus.CONFIRMED:
            found.append(f"{place}: an honest node is convicted")
        if case.is_seen and status in (AuditStatus.DISMISSED, AuditStatus.LATE):
            found.append(f"{place}: a false step is dismissed")
        if case.turn is None:
            continue
        cleared = AuditStatus.LATE if case.has_returned else AuditStatus.DISMISSED
        if case.is_honest and (end.is_disputed and status is not cleared):
            found.append(f"{place}: an honest step is not cleared")
        if case.has_returned and case.sketch is None:
            if status is not AuditStatus.OVERDUE:
                found.append(f"{place}: an opening that never came is not overdue any more")
            continue
        has_looked = case.liar != 0 or case.wanted > 1
        if case.is_honest and case.own == len(VERIFIERS) and status is AuditStatus.EXPIRED:
            found.append(f"{place}: an honest step of the verifiers' own class is not judged")
        if case.is_seen and status is AuditStatus.EXPIRED:
            found.append(f"{place}: a false step is not judged")
        if case.is_seen and has_looked and status is not AuditStatus.CONFIRMED:
            found.append(f"{place}: a false step is not found though an honest verifier looked")
    return found, count


CASES = tuple(
    Case(liar, is_false, sketch, wanted, turn, own=own, is_slight=is_slight, has_limits=has_limits)
    for liar in (None, 0, 1, 2, 3)
    for own, has_limits in ((4, False), (4, True), (2, True), (1, True), (0, True))
    for is_false, is_slight, sketch in (
        (False, False, TRUE),
        (True, False, TRUE),
        (True, True, TRUE),
        (True, False, SEALED),
        (False, False, SEALED),
        (False, False, None),
    )
    for wanted in (1, 2)
    for turn in (None, 0, 1)
)
CASES += tuple(
    replace(case, is_blind=True) for case in CASES if case.own == len(VERIFIERS) and case.has_limits
)
CASES += tuple(replace(case, has_returned=True) for case in CASES if case.wanted == 1)


def main() -> int:
    """Explore every case on all cores; 1 if a promise is broken."""
    started, states, failed = time.perf_counter(), 0, 0
    with ProcessPoolExecutor() as pool:
        for found, count in pool.map(broken, CASES):
            states += count
            failed += bool(found)
            for line in found:
                print(line)
    spent = time.perf_counter() - started
    print(f"{len(CASES)} audits explored, {states:,} states, {failed} break a promise, {spent:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
