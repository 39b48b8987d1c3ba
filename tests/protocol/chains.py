"""Builders for the fold over the finalised chain: a small run and its manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from assay.protocol.audits import RECOMPUTED, Audit, may_open_sketch
from assay.protocol.commitments import commitment_of, open_commitment
from assay.protocol.encoding.codec import digest
from assay.protocol.inclusion import nodes_bitmap
from assay.protocol.messages import (
    BeaconShare,
    Closing,
    Commit,
    FundingReport,
    InclusionList,
    KnownAnswer,
    Manifest,
    Outcome,
    SignedCommit,
    SignedFundingReport,
    SignedInclusionList,
    SignedVerdict,
    SignedVerdictCommitment,
    SketchOpening,
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import (
    Member,
    MoneySpec,
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
)
from assay.protocol.types import NO_DIGEST, Address, Digest, HotSignature, PeerId, RoundId, Signature
from tests.specs import FLOAT32_WHOLE, a_model, a_rule, an_audit_spec, some_data

NODE_SALT = Digest(b"n" * 32)
RUN_ID = Digest(hashlib.sha256(b"a run").digest())


def a_peer(name: str) -> PeerId:
    return PeerId(hashlib.sha256(name.encode()).digest())


NODES = tuple(sorted(a_peer(f"node {n}") for n in range(3)))
VERIFIERS = tuple(sorted(a_peer(f"verifier {n}") for n in range(4)))


def a_member(peer: PeerId) -> Member:
    return Member(peer=peer, account=Address(peer[:20]), hot=Address(peer[12:]))


def a_spec(*, rounds: int = 12, verifiers=VERIFIERS, **audit: object) -> RunSpec:
    """A run in which every step is audited, unless `audit` says otherwise."""
    spec = RunSpec(
        deployment_id=Digest(bytes(32)),
        name="tiny",
        seed=7,
        rounds=rounds,
        state_every=1,
        model=a_model(width=8, context=8),
        compute=FLOAT32_WHOLE,
        data=some_data(),
        rule=a_rule(k=4, lr_nano=1000, floor_ppm=0),
        audit=an_audit_spec(**{"audit_rounds": 6, **audit}),
        money=MoneySpec(
            price_per_mtoken=10**6,
            operators_ppm=870_000,
            verifiers_ppm=80_000,
            treasury=Address(bytes(20)),
            slash_ppm=500_000,
            withheld_ppm=500_000,
            verifier_slash_ppm=100_000,
            epoch_rounds=4,
        ),
        timing=TimingSpec(collect_ms=1, ready_ms=1, iteration_ms=1, resend_ms=1),
        buyer=Address(bytes(20)),
        seats=len(NODES),
        nodes=tuple(map(a_member, NODES)),
        verifiers=tuple(map(a_member, verifiers)),
    )
    check_spec(spec)
    return spec


def a_commit(round_id: int, node: PeerId, **changes: object) -> Commit:
    def mark(what: str) -> Digest:
        return Digest(hashlib.sha256(f"{what} {round_id} {node.hex()}".encode()).digest())

    commit = Commit(
        run_id=RUN_ID,
        round=RoundId(round_id),
        node=node,
        parent=Digest(bytes(32)),
        state=mark("state"),
        batch_root=mark("batch"),
        update=mark("update"),
        update_bytes=10,
        base=0,
        momentum_before=mark("before"),
        momentum_after=mark("after"),
        inner=(),
        commitment=commitment_of(NODE_SALT, [mark("sketch")]),
        exec_class=Digest(bytes(32)),
        tokens=16,
        loss_micro=5_000_000,
    )
    return replace(commit, **changes)


def sketch_of(commit: Commit) -> Digest:
    """What the commit of `a_commit` sealed, and every honest auditor recomputes."""
    return Digest(hashlib.sha256(f"sketch {commit.round} {commit.node.hex()}".encode()).digest())


def a_word(audit: Audit, verifier: PeerId, outcome: Outcome, **changes: object) -> Verdict:
    """What this verifier finds, and by `changes` what a liar makes up. The same whenever it is made."""
    step = audit.pattern + verifier + audit.round.to_bytes(8, "big") + audit.node
    has_worked = outcome in RECOMPUTED
    verdict = Verdict(
        run_id=RUN_ID,
        round=audit.round,
        node=audit.node,
        verifier=verifier,
        salt=Digest(hashlib.sha256(b"salt" + step).digest()),
        outcome=outcome,
        exec_class=audit.commit.exec_class if has_worked else NO_DIGEST,
        recomputed=sketch_of(audit.commit) if has_worked else NO_DIGEST,
        witness=Digest(hashlib.sha256(b"witness" + audit.pattern).digest())
        if has_worked and audit.pattern != NO_DIGEST
        else NO_DIGEST,
        opening=Digest(bytes(32)),
        opening_bytes=0,
        is_biased=False,
        distance_ppb=0,
        block=0,
    )
    return replace(verdict, **changes)


def a_verdict(audit: Audit, verifier: PeerId, outcome: Outcome, **changes: object) -> SignedVerdict:
    return SignedVerdict(verdict=a_word(audit, verifier, outcome, **changes), signature=Signature(bytes(64)))


def a_commitment(verdict: Verdict, pattern: Digest = NO_DIGEST) -> SignedVerdictCommitment:
    """The seal over a verdict."""
    commitment = VerdictCommitment(
        run_id=verdict.run_id,
        round=verdict.round,
        node=verdict.node,
        verifier=verdict.verifier,
        pattern=pattern,
        verdict=digest(verdict),
    )
    return SignedVerdictCommitment(commitment=commitment, signature=Signature(bytes(64)))


def an_unsealing(audit: Audit) -> SketchOpening:
    """How the node of `a_commit` opens its seal."""
    return open_commitment(audit.commit, NODE_SALT, [sketch_of(audit.commit)], audit.segment)


def a_funding_report(verifier: PeerId, **changes: object) -> SignedFundingReport:
    """A verifier's report that any number of epochs is paid for."""
    report = FundingReport(run_id=RUN_ID, verifier=verifier, block=1, epochs=1000, closing=Closing.NO)
    return SignedFundingReport(funding_report=replace(report, **changes), signature=Signature(bytes(64)))


def funding(run_state: RunState) -> tuple[SignedFundingReport, ...]:
    """Every verifier's report that the run is paid for."""
    return tuple(map(a_funding_report, run_state.spec.verifier_peers))


def inclusion_lists(run_state: RunState, nodes: Collection[PeerId]) -> tuple[SignedInclusionList, ...]:
    """Every verifier's list of these nodes' commits, with signatures that are none."""
    lists = (
        InclusionList(
            run_id=run_state.run_id,
            round=run_state.round,
            parent=run_state.parent,
            verifier=verifier,
            nodes=nodes_bitmap(tuple(run_state.nodes), nodes),
        )
        for verifier in run_state.spec.verifier_peers
    )
    return tuple(SignedInclusionList(inclusion_list=one, signature=Signature(bytes(64))) for one in lists)


def a_manifest(
    run_state: RunState,
    *,
    nodes: Iterable[PeerId] | None = None,
    beacon_shares: tuple[BeaconShare, ...] = (),
    commitments: Iterable[SignedVerdictCommitment] = (),
    verdicts: Iterable[SignedVerdict] = (),
    sketch_openings: Iterable[SketchOpening] = (),
    known_answers: Iterable[KnownAnswer] = (),
) -> Manifest:
    """The next manifest: commits of `nodes` (all active ones if left out), and these words."""
    commits = tuple(a_commit(int(run_state.round), node) for node in (nodes or run_state.active))
    aggregate = Digest(hashlib.sha256(b"aggregate %d" % run_state.round).digest())
    return Manifest(
        run_id=RUN_ID,
        round=run_state.round,
        time_s=0,
        attendance=(),
        admissions=(),
        parent=run_state.parent,
        commits=tuple(
            SignedCommit(commit=c, signature=Signature(bytes(64)), statement=HotSignature(bytes(65)))
            for c in commits
        ),
        inclusion_lists=inclusion_lists(run_state, {c.node for c in commits}),
        beacon_shares=beacon_shares,
        drand=b"",
        drand_next=0,
        is_partial=False,
        commitments=tuple(
            sorted(commitments, key=lambda s: (s.commitment.round, s.commitment.node, s.commitment.verifier))
        ),
        verdicts=tuple(sorted(verdicts, key=lambda s: (s.verdict.round, s.verdict.node, s.verdict.verifier))),
        sketch_openings=tuple(sorted(sketch_openings, key=lambda one: (one.round, one.node))),
        known_answers=tuple(sorted(known_answers, key=lambda one: (one.round, one.node))),
        contradictions=(),
        double_votes=(),
        appraised=(),
        stake_reports=(),
        funding_reports=() if run_state.funding_reports else funding(run_state),
        disqualified=run_state.disqualified,
        aggregate=aggregate,
        chain=next_chain(run_state.chain, commits, aggregate),
    )


Votes = Mapping[tuple[int, PeerId], Mapping[PeerId, Outcome | tuple[Outcome, Mapping[str, object]]]]


def words(run_state: RunState, votes: Votes, mute: Iterable[PeerId] = ()) -> dict[str, list]:
    """What verifiers with these votes say in the next manifest, and what drawn nodes show.

    Args:
        history: Before the manifest.
        votes: An outcome by step and verifier; with a table, what of the verdict is made up.
        mute: Who does not say what it would: verifiers do not open, nodes do not unseal.
    """
    said: dict[str, list] = {"commitments": [], "verdicts": [], "sketch_openings": []}
    for step, audit in run_state.audits.items():
        for verifier, vote in votes.get(step, {}).items():
            outcome, lies = vote if isinstance(vote, tuple) else (vote, {})
            signed = a_verdict(audit, verifier, outcome, **lies)
            if may_commit_verdict(run_state, audit, verifier):
                said["commitments"].append(a_commitment(signed.verdict, audit.pattern))
            elif may_open_verdict(run_state, audit, signed.verdict) and verifier not in mute:
                said["verdicts"].append(signed)
        if may_open_sketch(audit, int(run_state.round)) and audit.node not in mute:
            said["sketch_openings"].append(an_unsealing(audit))
    return said


def grow(
    run_state: RunState, rounds: int, votes: Votes | None = None, mute: Iterable[PeerId] = ()
) -> RunState:
    """`rounds` more manifests, every word of `words` as soon as it is allowed."""
    for _ in range(rounds):
        run_state = advance(run_state, a_manifest(run_state, **words(run_state, votes or {}, mute)))
    return run_state


def a_history(**changes) -> RunState:
    return start(a_spec(**changes), RUN_ID)
