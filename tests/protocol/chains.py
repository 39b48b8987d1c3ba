"""Builders for the fold over the finalised chain: a small run and its manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from assay.protocol.audits import RECOMPUTED, Audit, may_unseal
from assay.protocol.commitments import seal_of, unseal
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import (
    Commit,
    Manifest,
    Outcome,
    Planted,
    Reveal,
    SignedCommit,
    SignedVerdict,
    SignedVerdictSeal,
    Unsealed,
    Verdict,
    VerdictSeal,
)
from assay.protocol.params import (
    Member,
    MoneySpec,
    RunSpec,
    TimingSpec,
    check_spec,
)
from assay.protocol.state_transition import History, advance, may_reveal, may_seal, next_chain, start
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
        seal=seal_of(NODE_SALT, [mark("sketch")]),
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
        leans=False,
        distance_ppb=0,
        block=0,
    )
    return replace(verdict, **changes)


def a_verdict(audit: Audit, verifier: PeerId, outcome: Outcome, **changes: object) -> SignedVerdict:
    return SignedVerdict(verdict=a_word(audit, verifier, outcome, **changes), signature=Signature(bytes(64)))


def a_seal(verdict: Verdict, pattern: Digest = NO_DIGEST) -> SignedVerdictSeal:
    """The seal over a verdict."""
    seal = VerdictSeal(
        run_id=verdict.run_id,
        round=verdict.round,
        node=verdict.node,
        verifier=verdict.verifier,
        pattern=pattern,
        verdict=digest(verdict),
    )
    return SignedVerdictSeal(seal=seal, signature=Signature(bytes(64)))


def an_unsealing(audit: Audit) -> Unsealed:
    """How the node of `a_commit` opens its seal."""
    return unseal(audit.commit, NODE_SALT, [sketch_of(audit.commit)], audit.segment)


def a_manifest(
    history: History,
    *,
    nodes: Iterable[PeerId] | None = None,
    reveals: tuple[Reveal, ...] = (),
    seals: Iterable[SignedVerdictSeal] = (),
    verdicts: Iterable[SignedVerdict] = (),
    unsealed: Iterable[Unsealed] = (),
    planted: Iterable[Planted] = (),
) -> Manifest:
    """The next manifest: commits of `nodes` (all active ones if left out), and these words."""
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
        drand=b"",
        drand_next=0,
        seals=tuple(sorted(seals, key=lambda s: (s.seal.round, s.seal.node, s.seal.verifier))),
        verdicts=tuple(sorted(verdicts, key=lambda s: (s.verdict.round, s.verdict.node, s.verdict.verifier))),
        unsealed=tuple(sorted(unsealed, key=lambda one: (one.round, one.node))),
        planted=tuple(sorted(planted, key=lambda one: (one.round, one.node))),
        contradictions=(),
        appraised=(),
        backings=(),
        excluded=history.excluded,
        aggregate=aggregate,
        chain=next_chain(history.chain, commits, aggregate),
    )


Votes = Mapping[tuple[int, PeerId], Mapping[PeerId, Outcome | tuple[Outcome, Mapping[str, object]]]]


def words(history: History, votes: Votes, mute: Iterable[PeerId] = ()) -> dict[str, list]:
    """What verifiers with these votes say in the next manifest, and what drawn nodes show.

    Args:
        history: Before the manifest.
        votes: An outcome by step and verifier; with a table, what of the verdict is made up.
        mute: Who does not say what it would: verifiers do not open, nodes do not unseal.
    """
    said: dict[str, list] = {"seals": [], "verdicts": [], "unsealed": []}
    for step, audit in history.audits.items():
        for verifier, vote in votes.get(step, {}).items():
            outcome, lies = vote if isinstance(vote, tuple) else (vote, {})
            signed = a_verdict(audit, verifier, outcome, **lies)
            if may_seal(history, audit, verifier):
                said["seals"].append(a_seal(signed.verdict, audit.pattern))
            elif may_reveal(history, audit, signed.verdict) and verifier not in mute:
                said["verdicts"].append(signed)
        if may_unseal(audit, int(history.round)) and audit.node not in mute:
            said["unsealed"].append(an_unsealing(audit))
    return said


def grow(history: History, rounds: int, votes: Votes | None = None, mute: Iterable[PeerId] = ()) -> History:
    """`rounds` more manifests, every word of `words` as soon as it is allowed."""
    for _ in range(rounds):
        history = advance(history, a_manifest(history, **words(history, votes or {}, mute)))
    return history


def a_history(**changes) -> History:
    return start(a_spec(**changes), RUN_ID)
