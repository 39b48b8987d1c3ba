"""Run: a small run's finalised chain, grown from the behaviour of its members; nothing is signed.

Room: testing (pure). The state transition is production's; so is the check of every manifest
(participant/links.py), unless an adversary's accomplices omit it. A verifier here is a function from an open
audit to its verdict; an honest one's follows from whether the step is false.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.participant.links import check_place
from assay.protocol.agreement.configurations import before_first
from assay.protocol.auditing.audits import Audit, AuditStatus, may_open_sketch, may_show_known_answer
from assay.protocol.identity import sign
from assay.protocol.membership import may_attend
from assay.protocol.messages import (
    NO_OWN_DATA,
    Attendance,
    AttendanceKind,
    Commit,
    KnownAnswer,
    Manifest,
    Outcome,
    OwnData,
    SignedAttendance,
    Verdict,
)
from assay.protocol.params import RunSpec
from assay.protocol.permitted import may_commit_verdict, may_open_verdict, with_reports
from assay.protocol.run_state import RunState, next_chain, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, NO_ITERATION, Digest, Iteration, PeerId, RoundId
from assay.testing import specs
from assay.testing.members import (
    DOMAIN,
    NODES,
    RUN_ID,
    VERIFIERS,
    a_digest,
    a_member,
    a_peer_key,
    name_of,
)
from assay.testing.messages import (
    UNSIGNED,
    Unsigned,
    a_funding_report,
    a_sketch_opening,
    a_verdict,
    a_verdict_commitment,
    an_inclusion_list,
    next_commit,
)

Step = tuple[RoundId, PeerId]
# Outcomes by step and verifier; with a table, what of the verdict is made up.
Votes = Mapping[tuple[int, PeerId], Mapping[PeerId, Outcome | tuple[Outcome, Mapping[str, Any]]]]


def a_spec(
    *, seed: int = 7, rounds: int = 12, nodes: Collection[PeerId] = NODES,
    verifiers: Collection[PeerId] = VERIFIERS, sequences: int = 2, **audit: Any,
) -> RunSpec:  # fmt: skip
    """A run in which every step is drawn and one auditor is assigned, unless `audit` differs."""
    return specs.a_spec(
        seed=seed,
        rounds=rounds,
        rule=specs.a_rule(sequences=sequences, k=4, lr_nano=1000, f=0),
        audit=specs.an_audit_spec(**{"probation": 100_000, "audit_rounds": 6, **audit}),
        money=specs.a_money_spec(epoch_rounds=4),
        nodes=tuple(map(a_member, nodes)),
        verifiers=tuple(map(a_member, verifiers)),
    )


def a_start(**choices: Any) -> RunState:
    """The state of such a run before its first manifest."""
    return start(a_spec(**choices), RUN_ID)


def funded_start(spec: RunSpec) -> RunState:
    """A run before its first manifest, of which every verifier has reported that it is paid for."""
    reports = (a_funding_report(verifier, epochs=spec.epochs) for verifier in spec.verifier_peers)
    return with_reports(start(spec, RUN_ID), reports)


# ---- manifests


def an_empty_manifest(run_id: Digest, round_id: RoundId, parent: Digest, **changes: Any) -> Manifest:
    """A manifest in which nothing is said but what `changes` say."""
    empty: dict[str, Any] = {
        "time_s": 0, "attendance": (), "admissions": (), "commits": (), "inclusion_lists": (),
        "beacon_shares": (), "drand": b"", "drand_next": 0, "is_partial": False, "commitments": (),
        "verdicts": (), "sketch_openings": (), "known_answers": (), "contradictions": (), "double_votes": (),
        "appraised": (), "stake_reports": (), "funding_reports": (), "evaluations": (), "disqualified": (),
        "aggregate": NO_DIGEST, "chain": NO_DIGEST,
    }  # fmt: skip
    return Manifest(run_id=run_id, round=round_id, parent=parent, **{**empty, **changes})


def a_manifest(
    run_state: RunState,
    *,
    nodes: Iterable[PeerId] | None = None,
    commits: Collection[Commit] | None = None,
    signer: Unsigned = UNSIGNED,
    **changes: Any,
) -> Manifest:
    """The next manifest: these commits, or those of these nodes, or those of all active ones."""
    if commits is None:
        commits = [next_commit(run_state, node) for node in (run_state.active if nodes is None else nodes)]
    commits = sorted(commits, key=lambda one: one.node)
    spec, committed = run_state.spec, {one.node for one in commits}
    first = before_first(run_state.rotation.configuration.number) + 1
    aggregate = changes.get("aggregate")
    if aggregate is None:
        aggregate = a_digest("aggregate", int(run_state.round)) if commits else NO_DIGEST
    lists = (an_inclusion_list(run_state, one, committed) for one in spec.verifier_peers)
    reports = (
        ()
        if run_state.funding_reports
        else (a_funding_report(one, run_id=run_state.run_id) for one in spec.verifier_peers)
    )
    content = {
        "commits": tuple(signer.commit(spec, one) for one in commits),
        "inclusion_lists": tuple(map(signer.inclusion_list, lists)),
        "funding_reports": tuple(map(signer.funding_report, reports)),
        "disqualified": run_state.disqualified,
        "aggregate": aggregate,
        "chain": next_chain(run_state.chain, tuple(commits), aggregate),
        "hand_over": run_state.hand_over,
        "iteration": Iteration(first + int(run_state.round) if spec.reserves else NO_ITERATION),
    }
    return an_empty_manifest(run_state.run_id, run_state.round, run_state.parent, **{**content, **changes})


def audit_messages(
    run_state: RunState,
    verdict_of: Callable[[Audit, PeerId], Verdict | None],
    *,
    mute: Collection[PeerId] = (),
    signer: Unsigned = UNSIGNED,
) -> dict[str, Any]:
    """The messages about audits that the next manifest may carry, of verifiers and of drawn nodes.

    Args:
        run_state: Before the manifest.
        verdict_of: A verifier's verdict on an audit.
        mute: Verifiers that commit and do not reveal, nodes that do not open their sketches.
    """
    commitments, verdicts, sketch_openings = [], [], []
    for _, audit in sorted(run_state.audits.items()):
        for verifier in run_state.spec.verifier_peers if audit.is_open else ():
            verdict = verdict_of(audit, verifier)
            if verdict is None:
                continue
            if may_commit_verdict(run_state, audit, verifier):
                commitments.append(signer.commitment(a_verdict_commitment(verdict, audit.pattern)))
            elif may_open_verdict(run_state, audit, verdict) and verifier not in mute:
                verdicts.append(signer.verdict(verdict))
        if may_open_sketch(audit, int(run_state.round)) and audit.node not in mute:
            sketch_openings.append(a_sketch_opening(audit))
    return {
        "commitments": tuple(commitments),
        "verdicts": tuple(verdicts),
        "sketch_openings": tuple(sketch_openings),
    }


def voted(votes: Votes) -> Callable[[Audit, PeerId], Verdict | None]:
    """The verdicts of these votes, by step and verifier."""

    def verdict_of(audit: Audit, verifier: PeerId) -> Verdict | None:
        vote = votes.get((audit.round, audit.node), {}).get(verifier)
        if vote is None:
            return None
        outcome, lies = vote if isinstance(vote, tuple) else (vote, {})
        return a_verdict(audit, verifier, outcome, **lies)

    return verdict_of


def vote_messages(run_state: RunState, votes: Votes, mute: Collection[PeerId] = ()) -> dict[str, Any]:
    """The messages about audits of verifiers with these votes, and of drawn nodes."""
    return audit_messages(run_state, voted(votes), mute=mute)


def grow(
    run_state: RunState, rounds: int, votes: Votes | None = None, mute: Collection[PeerId] = ()
) -> RunState:
    """The state this many manifests later, each message of these votes as soon as it is allowed."""
    for _ in range(rounds):
        run_state = advance(run_state, a_manifest(run_state, **vote_messages(run_state, votes or {}, mute)))
    return run_state


# ---- members that behave

Judgement = tuple[Outcome, Mapping[str, Any]] | None  # forged fields of a verdict; None: no verdict
Mind = Callable[["Network", Audit], Judgement]


def honest(network: Network, audit: Audit) -> Judgement:
    """The verdict of a recompute."""
    false = (audit.round, audit.node) in network.false
    withheld = (audit.round, audit.node) in network.withheld
    is_shut = audit.ruling is AuditStatus.DISPUTED and audit.node in network.committed
    if withheld or is_shut:
        return Outcome.WITHHELD, {}
    return (Outcome.MISMATCH, {"recomputed": a_digest("true", audit.round, audit.node)}) if false else (
        Outcome.MATCH, {}
    )  # fmt: skip


def always(outcome: Outcome, **fields: Any) -> Mind:
    """The same verdict for every step."""
    return lambda _network, _audit: (outcome, fields)


def mute(_network: Network, _audit: Audit) -> Judgement:
    """No verdict."""
    return None


@dataclass(slots=True)
class Network:
    """A run as it grows. Members are honest unless listed here.

    false: steps that a recompute refutes. withheld: steps whose node sends no opening.
    minds: verifiers that are not honest. unopened: verifiers that commit and do not reveal.
    committed: nodes that do not open their sketches. lists: roots of known-answer tasks, which nodes announce
    as soon as they may. known_answers: tasks that may be shown, by step. absent: nodes that do not commit.
    returning: nodes that say they are back whenever they may. round_s: agreed time between two manifests.
    """

    run_state: RunState
    false: set[Step] = field(default_factory=set)
    withheld: set[Step] = field(default_factory=set)
    minds: dict[PeerId, Mind] = field(default_factory=dict)
    unopened: set[PeerId] = field(default_factory=set)
    committed: set[PeerId] = field(default_factory=set)
    lists: dict[PeerId, Digest] = field(default_factory=dict)
    known_answers: dict[Step, KnownAnswer] = field(default_factory=dict)
    commit_changes: Callable[[RoundId, PeerId], Mapping[str, Any]] = lambda _round, _node: {}
    is_checked: bool = True
    absent: set[PeerId] = field(default_factory=set)
    returning: set[PeerId] = field(default_factory=set)
    round_s: int = 0

    def grow(self, rounds: int = 1) -> Network:
        """Add this many manifests, each message as soon as it is allowed."""
        for _ in range(rounds):
            manifest = self.manifest()
            if self.is_checked:
                check_place(self.run_state, manifest)
            self.run_state = advance(self.run_state, manifest)
        return self

    def trust(self, clean: int = 10**6) -> Network:
        """Let every node have passed so many audits in a row, in the class of its commits."""
        known = {
            node: replace(one, clean=clean, exec_class=a_digest("class"))
            for node, one in self.run_state.nodes.items()
        }
        self.run_state = replace(self.run_state, nodes=known)
        return self

    def finish(self) -> Network:
        """Grow to the last manifest of the run."""
        while not self.run_state.is_complete:
            self.grow()
        return self

    def audit(self, round_id: int, node: PeerId) -> Audit:
        """The audit of a step."""
        return self.run_state.audits[(RoundId(round_id), node)]

    def manifest(self, **changes: Any) -> Manifest:
        """The next manifest."""
        run_state = self.run_state
        commits = [
            next_commit(run_state, node, **self.commit_changes(run_state.round, node))
            for node in run_state.active
            if node not in self.absent
        ]
        content = {
            "time_s": run_state.time_s + self.round_s,
            "attendance": tuple(self._attendance()),
            "known_answers": tuple(self._known_answers()),
            **audit_messages(run_state, self.verdict_of, mute=self.unopened | self.committed),
        }
        return a_manifest(run_state, commits=commits, **{**content, **changes})

    def verdict_of(self, audit: Audit, verifier: PeerId) -> Verdict | None:
        """This verifier's verdict, the same on every call within one dispute round."""
        finding = self.minds.get(verifier, honest)(self, audit)
        return None if finding is None else a_verdict(audit, verifier, finding[0], **finding[1])

    def _attendance(self) -> Iterable[SignedAttendance]:
        run_state, time_s = self.run_state, self.run_state.time_s + self.round_s
        for node in sorted(self.returning | self.lists.keys()):
            said = [an_attendance(run_state, node, AttendanceKind.RETURN)] if node in self.returning else []
            if node in self.lists:
                said.append(an_attendance(run_state, node, AttendanceKind.TASKS, self.lists[node]))
            yield from [one for one in said if may_attend(run_state, one.attendance, time_s)][:1]

    def _known_answers(self) -> Iterable[KnownAnswer]:
        run_state = self.run_state
        for step, shown in sorted(self.known_answers.items()):
            audit = run_state.audits.get(step)
            if audit is not None and may_show_known_answer(run_state.spec.audit, audit, int(run_state.round)):
                yield shown


def an_attendance(
    run_state: RunState,
    node: PeerId,
    kind: AttendanceKind,
    tasks: Digest = NO_DIGEST,
    own: OwnData = NO_OWN_DATA,
) -> SignedAttendance:
    """What a node says of itself to the next manifest, signed."""
    one = Attendance(
        run_id=run_state.run_id, round=run_state.round, node=node, kind=kind, tasks=tasks, own=own
    )
    return SignedAttendance(attendance=one, signature=sign(a_peer_key(name_of(node)), DOMAIN, one))


def a_network(**choices: Any) -> Network:
    """A run before its first manifest."""
    return Network(funded_start(a_spec(**choices)))
