"""Builders for the fold over the finalised chain: a small run and its manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from protocol.history import Audit, History, advance, may_judge, next_chain, start
from protocol.messages import Commit, Manifest, Outcome, Reveal, SignedCommit, SignedVerdict, Verdict
from protocol.params import (
    AuditSpec,
    Member,
    MoneySpec,
    RunSpec,
    TimingSpec,
    check_spec,
)
from protocol.types import Address, Digest, HotSignature, PeerId, RoundId, Signature
from tests.specs import FLOAT32_WHOLE, a_model, a_rule, some_data

RUN_ID = Digest(hashlib.sha256(b"a run").digest())


def a_peer(name: str) -> PeerId:
    return PeerId(hashlib.sha256(name.encode()).digest())


NODES = tuple(sorted(a_peer(f"node {n}") for n in range(3)))
VERIFIERS = tuple(sorted(a_peer(f"verifier {n}") for n in range(4)))


def a_member(peer: PeerId) -> Member:
    return Member(peer=peer, account=Address(peer[:20]), hot=Address(peer[12:]))


def a_spec(*, rounds: int = 8, verifiers=VERIFIERS, **audit: int) -> RunSpec:
    """A run in which every step is audited, unless `audit` says otherwise."""
    rules = {"probation": 100, "floor_ppm": 200_000, "blocks": 4, "turn_rounds": 1}
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
        audit=AuditSpec(**{**rules, "audit_rounds": 4, "dispute_rounds": 3, **audit}),
        money=MoneySpec(
            price_per_mtoken=10**6,
            operators_ppm=870_000,
            verifiers_ppm=80_000,
            treasury=Address(bytes(20)),
            slash_ppm=500_000,
            epoch_rounds=4,
        ),
        timing=TimingSpec(collect_ms=1, ready_ms=1, iteration_ms=1, resend_ms=1),
        buyer=Address(bytes(20)),
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
        seal=mark("seal"),
        exec_class=Digest(bytes(32)),
        tokens=16,
        loss_micro=5_000_000,
    )
    return replace(commit, **changes)


def a_verdict(audit: Audit, verifier: PeerId, outcome: Outcome) -> SignedVerdict:
    verdict = Verdict(
        run_id=RUN_ID,
        round=audit.round,
        node=audit.node,
        verifier=verifier,
        outcome=outcome,
        recomputed=Digest(bytes(32)),
        opening=Digest(bytes(32)),
        opening_bytes=0,
        distance_ppb=0,
        block=0,
    )
    return SignedVerdict(verdict=verdict, signature=Signature(bytes(64)))


def a_manifest(
    history: History,
    *,
    nodes: Iterable[PeerId] | None = None,
    reveals: tuple[Reveal, ...] = (),
    verdicts: Iterable[SignedVerdict] = (),
) -> Manifest:
    """The next manifest: commits of `nodes` (all active ones if left out), and these verdicts."""
    commits = tuple(a_commit(int(history.round), node) for node in (nodes or history.active))
    aggregate = Digest(hashlib.sha256(b"aggregate %d" % history.round).digest())
    return Manifest(
        run_id=RUN_ID,
        round=history.round,
        parent=history.parent,
        commits=tuple(
            SignedCommit(commit=c, signature=Signature(bytes(64)), statement=HotSignature(bytes(65)))
            for c in commits
        ),
        reveals=reveals,
        verdicts=tuple(sorted(verdicts, key=lambda s: (s.verdict.round, s.verdict.node, s.verdict.verifier))),
        aggregate=aggregate,
        chain=next_chain(history.chain, commits, aggregate),
    )


def grow(
    history: History, rounds: int, votes: Mapping[tuple[int, PeerId], Mapping[PeerId, Outcome]] | None = None
) -> History:
    """`rounds` more manifests; each verdict of `votes` (by step and verifier) as soon as it is allowed."""
    for _ in range(rounds):
        due = [
            a_verdict(audit, verifier, outcome)
            for step, audit in history.audits.items()
            for verifier, outcome in (votes or {}).get(step, {}).items()
            if may_judge(history, audit, verifier, int(history.round))
        ]
        history = advance(history, a_manifest(history, verdicts=due))
    return history


def a_history(**changes) -> History:
    return start(a_spec(**changes), RUN_ID)
