"""Run builder: grows a small run's finalised chain from the behaviour of its members.

Room: redteam (pure). The fold is production's; so is the check of every manifest (participant/links.py),
unless an adversary's accomplices omit it. A verifier here is a function from an open audit to its verdict; an
honest one's follows from whether the step is false.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.participant.links import check_place
from assay.protocol.audits import RECOMPUTED, Audit, AuditStatus, may_open_sketch, may_show_known_answer
from assay.protocol.commitments import commitment_of, open_commitment
from assay.protocol.encoding.codec import digest
from assay.protocol.inclusion import nodes_bitmap
from assay.protocol.membership import may_attend
from assay.protocol.messages import (
    Attendance,
    AttendanceKind,
    BeaconShare,
    Closing,
    Commit,
    FundingReport,
    InclusionList,
    KnownAnswer,
    Manifest,
    Outcome,
    SignedAttendance,
    SignedCommit,
    SignedInclusionList,
    SignedVerdict,
    SignedVerdictCommitment,
    SketchOpening,
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import (
    AuditSpec,
    ComputeSpec,
    DataSpec,
    Member,
    MoneySpec,
    Precision,
    RunSpec,
    TimingSpec,
    check_spec,
)
from assay.protocol.state_transition import (
    RunState,
    advance,
    may_commit_verdict,
    may_open_verdict,
    next_chain,
    start,
    with_reports,
)
from assay.protocol.types import NO_DIGEST, Address, Digest, HotSignature, PeerId, RoundId, Signature
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.presets import gpt_spec

RUN_ID = Digest(hashlib.sha256(b"redteam run").digest())
Step = tuple[RoundId, PeerId]


def mark(*what: object) -> Digest:
    """A placeholder digest."""
    return Digest(hashlib.sha256(repr(what).encode()).digest())


def peers(kind: str, count: int) -> tuple[PeerId, ...]:
    """This many peer ids, ascending."""
    return tuple(sorted(PeerId(mark(kind, n)) for n in range(count)))


NODES, VERIFIERS = peers("node", 3), peers("verifier", 4)


def a_member(peer: PeerId) -> Member:
    """One participant with its own accounts."""
    return Member(peer=peer, account=Address(peer[:20]), hot=Address(peer[12:]))


def a_spec(
    *,
    seed: int = 7,
    rounds: int = 12,
    nodes: tuple[PeerId, ...] = NODES,
    verifiers: tuple[PeerId, ...] = VERIFIERS,
    members: Callable[[PeerId], Member] = a_member,
    sequences: int = 2,
    **audit: Any,
) -> RunSpec:
    """A run in which every step is drawn and one auditor is assigned, unless `audit` differs."""
    rules = AuditSpec(
        probation=100_000, floor_ppm=200_000, blocks=4, replication_ppm=0, takeover_rounds=1, audit_rounds=6,
        dispute_rounds=3,
    )  # fmt: skip
    spec = RunSpec(
        deployment_id=mark("deployment"),
        name="redteam",
        seed=seed,
        rounds=rounds,
        state_every=1,
        model=gpt_spec(layers=1, width=8, heads=2, context=8),
        compute=ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0),
        data=DataSpec(
            root=NO_DIGEST, manifest=NO_DIGEST, tokenizer=NO_DIGEST, vocabulary=256, token_bytes=1,
            tokens=10_000, validation_tokens=100, source="made up", licence="none",
        ),
        rule=method_rule("demo", Choices(sequences=sequences, warmup_rounds=0, k=4, lr_nano=1000, f=0)),
        audit=replace(rules, **audit),
        money=MoneySpec(
            price_per_mtoken=10**9, operators_ppm=870_000, verifiers_ppm=80_000, treasury=Address(bytes(20)),
            slash_ppm=500_000, withheld_ppm=500_000, verifier_slash_ppm=100_000, epoch_rounds=4,
        ),
        timing=TimingSpec(collect_ms=1, ready_ms=1, iteration_ms=1, resend_ms=1),
        buyer=Address(bytes(20)),
        seats=len(nodes),
        nodes=tuple(map(members, nodes)),
        verifiers=tuple(map(members, verifiers)),
    )  # fmt: skip
    check_spec(spec)
    return spec


def a_commit(run_state: RunState, node: PeerId, **changes: Any) -> Commit:
    """A node's commit in the next round."""
    round_id = run_state.round
    commit = Commit(
        run_id=run_state.run_id,
        round=round_id,
        node=node,
        parent=run_state.parent,
        state=mark("state", round_id),
        batch_root=mark("batch", round_id, node),
        update=mark("update", round_id, node),
        update_bytes=10,
        base=run_state.nodes[node].base,
        momentum_before=mark("before", round_id, node),
        momentum_after=mark("after", round_id, node),
        inner=(),
        commitment=commitment_of(_salt(node), [said_sketch(round_id, node)]),
        exec_class=mark("class"),
        tokens=run_state.spec.tokens_per_step,
        loss_micro=5_000_000,
    )
    return replace(commit, **changes)


def said_sketch(round_id: int, node: PeerId) -> Digest:
    """The sketch that a node commits to: of an honest step, the one that everybody recomputes."""
    return mark("sketch", int(round_id), node)


def inclusion_lists(run_state: RunState, nodes: Collection[PeerId]) -> tuple[InclusionList, ...]:
    """Every verifier's list of these nodes' commits for the next manifest."""
    bitmap = nodes_bitmap(tuple(run_state.nodes), nodes)
    return tuple(
        InclusionList(
            run_id=RUN_ID, round=run_state.round, parent=run_state.parent, verifier=verifier, nodes=bitmap
        )
        for verifier in run_state.spec.verifier_peers
    )


# ---- verdicts of verifiers

Judgement = tuple[Outcome, Mapping[str, Any]] | None  # forged fields of a verdict; None: no verdict
Mind = Callable[["Network", Audit], Judgement]


def honest(network: Network, audit: Audit) -> Judgement:
    """The verdict of a recompute."""
    false = (audit.round, audit.node) in network.false
    withheld = (audit.round, audit.node) in network.withheld
    is_shut = audit.ruling is AuditStatus.DISPUTED and audit.node in network.committed
    if withheld or is_shut:
        return Outcome.WITHHELD, {}
    return (Outcome.MISMATCH, {"recomputed": mark("true", audit.round, audit.node)}) if false else (
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
    committed: nodes that do not open their sketches. known_answers: those that may be revealed, by step.
    absent: nodes that do not commit. returning: nodes that say they are back whenever they may, unsigned, so
    that `is_checked` must be off. round_s: agreed time between two manifests.
    """

    run_state: RunState
    false: set[Step] = field(default_factory=set)
    withheld: set[Step] = field(default_factory=set)
    minds: dict[PeerId, Mind] = field(default_factory=dict)
    unopened: set[PeerId] = field(default_factory=set)
    committed: set[PeerId] = field(default_factory=set)
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

    def finish(self) -> Network:
        """Grow to the last manifest of the run."""
        while not self.run_state.is_complete:
            self.grow()
        return self

    def audit(self, round_id: int, node: PeerId) -> Audit:
        """The audit of a step."""
        return self.run_state.audits[(RoundId(round_id), node)]

    def manifest(self, beacon_shares: tuple[BeaconShare, ...] = ()) -> Manifest:
        """The next manifest."""
        run_state = self.run_state
        commits = tuple(
            a_commit(run_state, node, **self.commit_changes(run_state.round, node))
            for node in run_state.active
            if node not in self.absent
        )
        commitments, verdicts, sketch_openings = self._messages()
        aggregate = mark("aggregate", run_state.round) if commits else NO_DIGEST
        return Manifest(
            run_id=run_state.run_id,
            round=run_state.round,
            time_s=run_state.time_s + self.round_s,
            attendance=tuple(
                SignedAttendance(attendance=one, signature=Signature(bytes(64)))
                for one in (
                    Attendance(
                        run_id=run_state.run_id, round=run_state.round, node=node, kind=AttendanceKind.RETURN
                    )
                    for node in sorted(self.returning)
                )
                if may_attend(run_state, one, run_state.time_s + self.round_s)
            ),
            admissions=(),
            parent=run_state.parent,
            commits=tuple(
                SignedCommit(commit=one, signature=Signature(bytes(64)), statement=HotSignature(bytes(65)))
                for one in commits
            ),
            inclusion_lists=tuple(
                SignedInclusionList(inclusion_list=one, signature=Signature(bytes(64)))
                for one in inclusion_lists(run_state, {one.node for one in commits})
            ),
            beacon_shares=beacon_shares,
            drand=b"",
            drand_next=0,
            is_partial=False,
            commitments=tuple(commitments),
            verdicts=tuple(verdicts),
            sketch_openings=tuple(sketch_openings),
            known_answers=tuple(self._known_answers()),
            contradictions=(),
            double_votes=(),
            appraised=(),
            stake_reports=(),
            funding_reports=(),
            disqualified=run_state.disqualified,
            aggregate=aggregate,
            chain=next_chain(run_state.chain, commits, aggregate),
        )

    def verdict_of(self, audit: Audit, verifier: PeerId) -> Verdict | None:
        """This verifier's verdict, the same on every call within one dispute round."""
        finding = self.minds.get(verifier, honest)(self, audit)
        return None if finding is None else a_verdict(audit, verifier, finding[0], **finding[1])

    def _messages(self) -> tuple[list[SignedVerdictCommitment], list[SignedVerdict], list[SketchOpening]]:
        run_state, nothing = self.run_state, Signature(bytes(64))
        commitments, verdicts, sketch_openings = [], [], []
        for _, audit in sorted(run_state.audits.items()):
            for verifier in run_state.spec.verifier_peers:
                verdict = self.verdict_of(audit, verifier) if audit.is_open else None
                if verdict is None:
                    continue
                if may_commit_verdict(run_state, audit, verifier):
                    commitments.append(
                        SignedVerdictCommitment(
                            commitment=a_commitment(verdict, audit.pattern), signature=nothing
                        )
                    )
                elif may_open_verdict(run_state, audit, verdict) and verifier not in self.unopened:
                    verdicts.append(SignedVerdict(verdict=verdict, signature=nothing))
            if may_open_sketch(audit, int(run_state.round)) and audit.node not in self.committed:
                sketch = said_sketch(audit.round, audit.node)
                sketch_openings.append(
                    open_commitment(audit.commit, _salt(audit.node), [sketch], audit.segment)
                )
        return commitments, verdicts, sketch_openings

    def _known_answers(self) -> Iterable[KnownAnswer]:
        run_state = self.run_state
        for step, shown in sorted(self.known_answers.items()):
            audit = run_state.audits.get(step)
            if audit is not None and may_show_known_answer(run_state.spec.audit, audit, int(run_state.round)):
                yield shown


def a_network(**choices: Any) -> Network:
    """A run before its first manifest."""
    return Network(funded_start(a_spec(**choices)))


def funded_start(spec: RunSpec) -> RunState:
    """A run before its first manifest, of which every verifier has reported that it is paid for."""
    reports = (
        FundingReport(run_id=RUN_ID, verifier=peer, block=1, epochs=spec.epochs, closing=Closing.NO)
        for peer in spec.verifier_peers
    )
    return with_reports(start(spec, RUN_ID), reports)


def a_verdict(audit: Audit, verifier: PeerId, outcome: Outcome, **fields: Any) -> Verdict:
    """A verdict that is true in every field not given."""
    has_worked = outcome in RECOMPUTED
    in_dispute = has_worked and audit.pattern != NO_DIGEST
    verdict = Verdict(
        run_id=audit.commit.run_id, round=audit.round, node=audit.node, verifier=verifier,
        salt=mark("salt", audit.pattern, verifier, audit.round, audit.node), outcome=outcome,
        exec_class=audit.commit.exec_class if has_worked else NO_DIGEST,
        recomputed=said_sketch(audit.round, audit.node) if has_worked else NO_DIGEST,
        witness=mark("witness", audit.pattern) if in_dispute else NO_DIGEST,
        opening=NO_DIGEST, opening_bytes=0, is_biased=False, distance_ppb=0, block=0,
    )  # fmt: skip
    return replace(verdict, **fields)


def a_commitment(verdict: Verdict, pattern: Digest = NO_DIGEST) -> VerdictCommitment:
    """The commitment to a verdict."""
    return VerdictCommitment(
        run_id=verdict.run_id, round=verdict.round, node=verdict.node, verifier=verdict.verifier,
        pattern=pattern, verdict=digest(verdict),
    )  # fmt: skip


def _salt(node: PeerId) -> Digest:
    return mark("node salt", node)
