"""Committees: at most f liars convict nobody honest, clear no false step and frame no honest verifier.

For every count of verifiers from 4 to 31, every count of liars up to f in the committee, every combination of
their votes, and every count of honest verifiers that come too late. The rule sees only how many members said
what; `test_only_the_counts_of_votes_matter` checks that, so one placement of the liars stands for all.
"""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace

import pytest

from assay.ledger.settlement.payouts import why_unpaid
from assay.protocol.agreement.quorum import committee_size, faults_tolerated
from assay.protocol.auditing.audits import Audit, AuditStatus, last_verdict, rule
from assay.protocol.messages import Outcome
from assay.protocol.types import Digest, PeerId, RoundId
from assay.testing.members import NODES
from assay.testing.messages import a_commit, a_verdict, sketch_of
from assay.testing.run import a_spec

MATCH, MISMATCH, WITHHELD = Outcome.MATCH, Outcome.MISMATCH, Outcome.WITHHELD
LIES = (MATCH, MISMATCH, WITHHELD, Outcome.BORDERLINE, None)  # None: says nothing
COMMIT = a_commit(0, NODES[0])
TRUE, MADE_UP = sketch_of(COMMIT.round, COMMIT.node), Digest(b"m" * 32)
MANIFEST = Digest(b"a" * 32)
COUNTS = [n if n <= 16 else pytest.param(n, marks=pytest.mark.slow) for n in range(4, 32)]

# What the node did: what an honest auditor finds before a dispute and in it, and the sketch the node opens.
HONEST = (MATCH, MATCH, TRUE)
FALSE = (MISMATCH, MISMATCH, MADE_UP)
FALSE_WITH_A_TRUE_SKETCH = (MISMATCH, MISMATCH, TRUE)
TRUE_WITH_A_FALSE_SKETCH = (MATCH, MISMATCH, MADE_UP)
SHUT = (MATCH, WITHHELD, None)
SHOWN_TO_LIARS = (WITHHELD, WITHHELD, MADE_UP)
TRUTHS = {
    "honest": HONEST,
    "false": FALSE,
    "false with a true sketch": FALSE_WITH_A_TRUE_SKETCH,
    "true with a false sketch": TRUE_WITH_A_FALSE_SKETCH,
    "commitment stays shut": SHUT,
}


SPEC = a_spec()
EVERYBODY = tuple(PeerId(bytes([n + 1]) * 32) for n in range(len(COUNTS) + 4))


@functools.lru_cache(maxsize=4096)
def a_vote(audit_pattern: Digest, verifier: PeerId, outcome: Outcome, is_liar: bool):
    """Honest verdicts carry the true sketch, a liar's MATCH the one that the node made up."""
    lies = {"recomputed": MADE_UP, "witness": MADE_UP} if is_liar and outcome is MATCH else {}
    audit = Audit(round=RoundId(0), node=NODES[0], commit=COMMIT, seed=TRUE, order=(), pattern=audit_pattern)
    return a_verdict(audit, verifier, outcome, **lies)


def opened(
    count: int, liars: frozenset[PeerId], first: tuple[Outcome | None, ...], truth, retired: int = 0
) -> Audit:
    """The audit at its end, its first auditors having said this; None is what an honest one finds."""
    order = EVERYBODY[: count - retired]
    audit = Audit(
        round=RoundId(0), node=NODES[0], commit=COMMIT, seed=TRUE, order=order, auditors_wanted=1,
        open_from=0, sketch=truth[2], verifiers=count,
    )  # fmt: skip
    said = [
        a_vote(audit.pattern, verifier, outcome or truth[0], verifier in liars)
        for verifier, outcome in zip(order, first, strict=False)
    ]
    return rule(
        replace(audit, verdicts=tuple(said)),
        last_verdict(SPEC.audit, audit),
        SPEC,
        MANIFEST,
        is_banned=False,
    )


def judged(audit: Audit, votes: dict[PeerId, Outcome | None], liars: frozenset[PeerId]) -> Audit:
    """A dispute round's verdicts, and what the chain makes of them at once; who has judged is not asked."""
    said = tuple(
        a_vote(audit.pattern, verifier, outcome, verifier in liars)
        for verifier, outcome in votes.items()
        if outcome is not None and not audit.has_judged(verifier)
    )
    audit = replace(audit, verdicts=(*audit.verdicts, *said), open_from=0)
    return rule(audit, audit.dispute_opened_round + 1, SPEC, MANIFEST, is_banned=False)


def at_the_end(audit: Audit) -> Audit:
    """The same at the dispute round's last manifest."""
    return rule(audit, last_verdict(SPEC.audit, audit), SPEC, MANIFEST, is_banned=False)


def check(audit: Audit, liars: frozenset[PeerId], truth) -> None:
    blamed = {fault.verdict.verifier for fault in audit.faults}
    assert blamed <= liars, f"an honest verifier is at fault: {audit.ruling} of {truth}"
    if truth is HONEST:
        assert audit.ruling is not AuditStatus.CONFIRMED
    elif not audit.is_open:
        assert audit.ruling not in (AuditStatus.PASSED, AuditStatus.DISMISSED)
        assert audit.ruling is AuditStatus.CONFIRMED or why_unpaid(audit), "a false step is paid"


def lateness(honest: int, count: int) -> list[int]:
    """How many honest members come too late: every number, in large committees some."""
    return sorted(set(range(honest + 1)) if count <= 13 else {0, honest // 2})


def every_vote(members, liars, truth, count):
    """Every combination of the liars' votes with every count of late honest members."""
    lying = [m for m in members if m in liars]
    honest = [m for m in members if m not in liars]
    lies = LIES if count <= 16 else (MATCH, MISMATCH, WITHHELD, None)
    for said in itertools.combinations_with_replacement(lies, len(lying)):
        for late in lateness(len(honest), count):
            prompt = dict.fromkeys(honest[late:], truth[1])
            yield dict(zip(lying, said, strict=True)) | prompt


def first_words(order, liars):
    """What the first auditors may have said: an honest one, or each lie, or nobody before a known answer."""
    return [(None,)] if order[0] not in liars else [(lie,) for lie in LIES if lie is not None]


def check_votes(audit: Audit, liars: frozenset[PeerId], truth, count: int) -> None:
    """Whatever the committee votes, until the dispute ends: nobody honest loses, and no lie passes."""
    for votes in every_vote(audit.committee, liars, truth, count):
        check(after := judged(audit, votes, liars), liars, truth)
        if after.ruling is AuditStatus.DISPUTED:
            check(at_the_end(after), liars, truth)


@pytest.mark.slow
@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_f_liars_of_a_committee_convict_clear_and_frame_nobody(count, truth):
    order, f = EVERYBODY[:count], faults_tolerated(count)
    size = committee_size(count, 0)
    # More than 16 verifiers are not allowed in a run yet: there, all liars sit in the committee.
    for lying in range(min(f, size) + 1) if count <= 16 else [min(f, size)]:
        for is_first in {False, lying > 0}:  # is the first auditor a liar?
            at = 0 if is_first else 1
            liars = frozenset(order[at : at + lying])
            for said in first_words(order, liars):
                audit = opened(count, liars, said, truth)
                if audit.ruling is not AuditStatus.DISPUTED:
                    assert truth is HONEST or order[0] in liars  # only a bought auditor passes a lie
                    continue
                check_votes(audit, liars, truth, count)


@pytest.mark.slow
@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_committee_of_all_decides_whatever_f_liars_say_and_frames_nobody(count, truth):
    order = EVERYBODY[:count]
    liars = frozenset(order[: faults_tolerated(count)])
    audit = opened(count, liars, (MISMATCH,), truth)
    if committee_size(count, 0) < count:
        audit = at_the_end(audit)
    assert audit.committee == order
    for votes in every_vote(order, liars, truth, count):
        after = judged(audit, votes, liars)
        check(after, liars, truth)
        if all(votes.get(verifier) is not None for verifier in order if verifier not in liars):
            expected = AuditStatus.DISMISSED if truth is HONEST else AuditStatus.CONFIRMED
            assert after.ruling is expected
        elif after.ruling is AuditStatus.DISPUTED:
            check(at_the_end(after), liars, truth)


@pytest.mark.parametrize("truth", [*TRUTHS.values(), SHOWN_TO_LIARS], ids=[*TRUTHS, "shown to liars"])
@pytest.mark.parametrize(
    ("seats", "at_fault"), [(n, k) for n in (4, 5, 7, 8, 10) for k in range(faults_tolerated(n) + 1)]
)
def test_f_liars_convict_clear_and_frame_nobody_while_f_other_seats_retire(seats, at_fault, truth):
    """With reserves: those that judge are fewer, and each verifier at fault is one liar less among them."""
    f = faults_tolerated(seats)
    for retiring in range(f + 1):
        count = seats - at_fault - retiring
        members = EVERYBODY[:count][: committee_size(seats, 0)]
        is_framed = truth is HONEST  # by a liar that is drawn first; else an honest one opens the dispute
        for lying in range(is_framed, min(f - at_fault, len(members)) + 1):
            liars = frozenset(members[:lying] if is_framed else members[1 : 1 + lying])
            audit = opened(seats, liars, (MISMATCH if is_framed else None,), truth, at_fault + retiring)
            assert audit.ruling is AuditStatus.DISPUTED and audit.committee == members
            check_votes(audit, liars, truth, count)


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("count", [4, 7, 10, 16])
def test_f_liars_frame_and_clear_nobody_while_an_honest_seat_retires(count, truth):
    """The order is shorter then, and as many of it may lie as before."""
    f = faults_tolerated(count)
    for at in (0, 1):
        liars = frozenset(EVERYBODY[at : at + f])
        for said in first_words(EVERYBODY, liars):
            audit = opened(count, liars, said, truth, retired=1)
            assert audit.f == f
            if audit.ruling is AuditStatus.DISPUTED:
                check_votes(audit, liars, truth, count)


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("count", [4, 5, 6, 7])
def test_only_the_counts_of_votes_matter(count, truth):
    """Every placement of the liars in the committee, with votes in any order: one result."""
    order, f = EVERYBODY[:count], faults_tolerated(count)
    drawn = random.Random(count)
    members = order[: committee_size(count, 0)]
    for said in itertools.combinations_with_replacement(LIES, f):
        found = set()
        for liars in itertools.combinations(members[1:], f):
            audit = opened(count, frozenset(), (Outcome.BORDERLINE,), truth)
            votes = dict.fromkeys(members[1:], truth[1]) | dict(zip(liars, said, strict=True))
            mixed = list(votes.items())
            drawn.shuffle(mixed)
            after = judged(audit, dict(mixed), frozenset(liars))
            check(after, frozenset(liars), truth)
            found.add((after.ruling, len(after.faults)))
        assert len(found) == 1
