"""Builders: small, whole and valid things for tests to begin with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from nacl.signing import SigningKey

from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address, sign_commit
from assay.chain.statements import address_of
from assay.protocol.audits import RECOMPUTED, Audit, may_open_sketch
from assay.protocol.commitments import commitment_of, open_commitment
from assay.protocol.draws import beacon_input
from assay.protocol.encoding.codec import digest
from assay.protocol.identity import Domain, peer_of, sign
from assay.protocol.inclusion import nodes_bitmap
from assay.protocol.messages import (
    BeaconShare,
    Block,
    CertifiedManifest,
    Closing,
    Commit,
    FundingReport,
    InclusionList,
    Manifest,
    Outcome,
    SignedCommit,
    SignedFundingReport,
    SignedInclusionList,
    SignedVerdict,
    SignedVerdictCommitment,
    SignedVote,
    SketchOpening,
    Verdict,
    VerdictCommitment,
    Vote,
    VoteKind,
)
from assay.protocol.params import (
    Member,
    MoneySpec,
    RunSpec,
    TimingSpec,
    check_spec,
)
from assay.protocol.quorum import assemble
from assay.protocol.randomness import vrf
from assay.protocol.state_transition import (
    RunState,
    advance,
    may_commit_verdict,
    may_open_verdict,
    next_chain,
    start,
)
from assay.protocol.types import NO_DIGEST, Address, Digest, Iteration, PeerId, RoundId
from assay.training.data.batches import batch_positions, batch_root
from assay.training.data.shards import write_tokens
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.round.beacon import is_partial
from tests.specs import FLOAT32_WHOLE, a_model, a_rule, an_audit_spec, data_of

DEPLOYMENT_ID = Digest(hashlib.sha256(b"deployment").digest())
NODE_SALT = Digest(b"n" * 32)
RUN_ID = Digest(hashlib.sha256(b"run").digest())
TEXT = np.frombuffer(hashlib.shake_256(b"text").digest(40_000), np.uint8) % 64 + 32
MANIFEST = write_tokens(None, [TEXT])


def a_data_folder(folder: Path) -> Path:
    """The data of `a_spec` on disk."""
    write_tokens(folder, [TEXT])
    return folder


def a_peer_key(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(b"peer" + name.encode()).digest())


def a_hot_key(name: str) -> bytes:
    return hashlib.sha256(b"hot" + name.encode()).digest()


def a_member(name: str) -> Member:
    account = hashlib.sha256(b"account" + name.encode()).digest()
    return Member(
        peer=peer_of(a_peer_key(name)),
        account=Address(bytes.fromhex(address_of(account)[2:])),
        hot=Address(bytes.fromhex(address_of(a_hot_key(name))[2:])),
    )


def by_peer(names: list[str]) -> list[str]:
    """Names in the order of their peers: the order of members."""
    return sorted(names, key=lambda name: peer_of(a_peer_key(name)))


NODES = by_peer(["nora", "nils", "mallory"])
VERIFIERS = by_peer(["vera", "viktor", "vito", "vlad"])


def a_deployment() -> Deployment:
    addresses = {
        name: evm_address(hashlib.sha256(name.encode()).digest()[:20])
        for name in (
            "token", "stake_vault", "verifier_set", "run_escrow",
            "epoch_settlement", "slash_court", "model_registry",
        )
    }  # fmt: skip
    return Deployment(chain_id=31337, deployment_id=DEPLOYMENT_ID, block=0, **addresses)


def a_spec(**changes: Any) -> RunSpec:
    spec = RunSpec(
        deployment_id=DEPLOYMENT_ID,
        name="tiny",
        seed=7,
        rounds=6,
        state_every=1,
        model=a_model(),
        compute=FLOAT32_WHOLE,
        data=data_of(TEXT),
        rule=a_rule(warmup_rounds=2),
        audit=an_audit_spec(probation=2, blocks=8),
        money=MoneySpec(
            price_per_mtoken=10**9, operators_ppm=870_000, verifiers_ppm=80_000,
            treasury=Address(bytes(19) + b"\x07"), slash_ppm=500_000, withheld_ppm=500_000,
            verifier_slash_ppm=100_000, epoch_rounds=3,
        ),
        timing=TimingSpec(collect_ms=5000, ready_ms=1000, iteration_ms=10_000, resend_ms=500),
        buyer=Address(bytes(19) + b"\x09"),
        seats=len(changes.get("nodes", NODES)),
        nodes=tuple(a_member(name) for name in NODES),
        verifiers=tuple(a_member(name) for name in VERIFIERS),
    )  # fmt: skip
    spec = replace(spec, **changes)
    check_spec(spec)
    return spec


DOMAIN = Domain(deployment_id=DEPLOYMENT_ID, run_id=RUN_ID)
STATE = Digest(hashlib.sha256(b"parameters").digest())  # what commits must have used, unless a test says so


def a_digest(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).digest())


def peer(name: str) -> PeerId:
    return peer_of(a_peer_key(name))


def a_history(**changes: Any) -> RunState:
    return start(a_spec(**changes), RUN_ID)


def a_commit(name: str, run_state: RunState, **changes: Any) -> Commit:
    """What this node would commit to in the next round, had it trained."""
    spec, node = run_state.spec, peer(name)
    commit = Commit(
        run_id=RUN_ID,
        round=run_state.round,
        node=node,
        parent=run_state.parent,
        state=STATE if int(run_state.round) % spec.state_every == 0 else NO_DIGEST,
        batch_root=batch_root(spec, batch_positions(spec, node, int(run_state.round))),
        update=a_digest(f"update of {name} in {run_state.round}"),
        update_bytes=100,
        base=run_state.nodes[node].base,
        momentum_before=_momentum_of(run_state, node),
        momentum_after=a_digest(f"momentum of {name} after {run_state.round}"),
        inner=(),
        commitment=commitment_of(NODE_SALT, [a_digest("sketch")]),
        exec_class=a_digest("class"),
        tokens=spec.tokens_per_step,
        loss_micro=2_500_000,
    )
    return replace(commit, **changes)


def a_signed_commit(
    name: str, run_state: RunState, *, peer_key: str = "", hot_key: str = "", **changes: Any
) -> SignedCommit:
    """The commit with both of the node's signatures, or with those of the names given."""
    commit = a_commit(name, run_state, **changes)
    return SignedCommit(
        commit=commit,
        signature=sign(a_peer_key(peer_key or name), DOMAIN, commit),
        statement=sign_commit(run_state.spec, a_deployment(), commit, a_hot_key(hot_key or name)),
    )


def a_reveal(name: str, run_state: RunState, **changes: Any) -> BeaconShare:
    """This verifier's share of the beacon for the manifest that `run_state` ends with."""
    before = RoundId(int(run_state.round) - 1)
    alpha = beacon_input(run_state.spec.deployment_id, RUN_ID, before, run_state.parent)
    proof = vrf.prove(bytes(a_peer_key(name)), alpha)
    return replace(BeaconShare(run_id=RUN_ID, round=before, verifier=peer(name), proof=proof), **changes)


def a_verdict(name: str, audit: Audit, outcome: Outcome = Outcome.MATCH, **changes: Any) -> SignedVerdict:
    """This verifier's signed word on an audit, the same whenever it is made in one hearing."""
    has_worked = outcome in RECOMPUTED
    salt = hashlib.sha256(b"salt" + audit.pattern + name.encode() + audit.node).digest()
    verdict = Verdict(
        run_id=RUN_ID, round=audit.round, node=audit.node, verifier=peer(name), salt=Digest(salt),
        outcome=outcome, exec_class=audit.commit.exec_class if has_worked else NO_DIGEST,
        recomputed=a_digest("sketch") if has_worked else NO_DIGEST,
        witness=a_digest("witness") if has_worked and audit.pattern != NO_DIGEST else NO_DIGEST,
        opening=NO_DIGEST, opening_bytes=0, is_biased=False, distance_ppb=0, block=0,
    )  # fmt: skip
    verdict = replace(verdict, **changes)
    return SignedVerdict(verdict=verdict, signature=sign(a_peer_key(name), DOMAIN, verdict))


def a_commitment(signed: SignedVerdict, **changes: Any) -> SignedVerdictCommitment:
    """The seal over a verdict, signed by the same verifier."""
    verdict = signed.verdict
    commitment = VerdictCommitment(
        run_id=verdict.run_id, round=verdict.round, node=verdict.node, verifier=verdict.verifier,
        pattern=NO_DIGEST, verdict=digest(verdict),
    )  # fmt: skip
    commitment = replace(commitment, **changes)
    return SignedVerdictCommitment(
        commitment=commitment, signature=sign(a_peer_key(name_of(verdict.verifier)), DOMAIN, commitment)
    )


def an_unsealing(audit: Audit) -> SketchOpening:
    """How the node of `a_commit` opens its seal."""
    return open_commitment(audit.commit, NODE_SALT, [a_digest("sketch")], audit.segment)


Votes = Mapping[tuple[int, PeerId], Mapping[str, Outcome]]


def match_all(run_state: RunState) -> Votes:
    """Whoever is asked first says MATCH of every open audit."""
    return {s: {name_of(a.order[0]): Outcome.MATCH} for s, a in run_state.audits.items() if a.is_open}


def words(run_state: RunState, votes: Votes) -> dict[str, tuple[Any, ...]]:
    """What the next manifest may carry of verifiers with these votes, and of nodes that are drawn."""
    commitments, verdicts, sketch_openings = [], [], []
    for step, audit in sorted(run_state.audits.items()):
        for name, outcome in sorted(votes.get(step, {}).items(), key=lambda vote: peer(vote[0])):
            signed = a_verdict(name, audit, outcome)
            if may_commit_verdict(run_state, audit, peer(name)):
                commitments.append(a_commitment(signed, pattern=audit.pattern))
            elif may_open_verdict(run_state, audit, signed.verdict):
                verdicts.append(signed)
        if may_open_sketch(audit, int(run_state.round)):
            sketch_openings.append(an_unsealing(audit))
    return {
        "commitments": tuple(commitments),
        "verdicts": tuple(verdicts),
        "sketch_openings": tuple(sketch_openings),
    }


def name_of(member: PeerId) -> str:
    """The name whose peer this is."""
    return next(name for name in NODES + VERIFIERS if peer(name) == member)


def a_funding_report(name: str, **changes: Any) -> SignedFundingReport:
    """This verifier's report that any number of epochs is paid for."""
    report = FundingReport(run_id=RUN_ID, verifier=peer(name), block=1, epochs=1000, closing=Closing.NO)
    report = replace(report, **changes)
    return SignedFundingReport(funding_report=report, signature=sign(a_peer_key(name), DOMAIN, report))


def funding() -> tuple[SignedFundingReport, ...]:
    """Every verifier's report that the run is paid for."""
    return tuple(a_funding_report(name) for name in by_peer(list(VERIFIERS)))


def funded() -> dict[PeerId, SignedFundingReport]:
    """What a round holds once every verifier has reported that the run is paid for."""
    return {one.funding_report.verifier: one for one in funding()}


def an_inclusion_list(
    name: str, run_state: RunState, held: Iterable[str], **changes: Any
) -> SignedInclusionList:
    """This verifier's list of these nodes' commits for the next manifest."""
    peers = {peer(node) for node in held}
    bitmap = nodes_bitmap(tuple(run_state.nodes), peers)
    one = InclusionList(
        run_id=RUN_ID, round=run_state.round, parent=run_state.parent, verifier=peer(name), nodes=bitmap
    )
    one = replace(one, **changes)
    return SignedInclusionList(inclusion_list=one, signature=sign(a_peer_key(name), DOMAIN, one))


def inclusion_lists(run_state: RunState, nodes: Iterable[str]) -> tuple[SignedInclusionList, ...]:
    """Every verifier's list of these nodes' commits."""
    nodes = list(nodes)
    return tuple(an_inclusion_list(name, run_state, nodes) for name in by_peer(list(VERIFIERS)))


def a_manifest(
    run_state: RunState,
    nodes: Iterable[str] = (),
    votes: Votes | None = None,
    aggregate: Digest | None = None,
    **changes: Any,
) -> Manifest:
    """The next manifest: these nodes' commits, all reveals that are due, what follows from these votes."""
    nodes = list(nodes)
    commits = tuple(a_signed_commit(name, run_state) for name in by_peer(nodes))
    named = (aggregate or a_digest("aggregate")) if commits else NO_DIGEST
    manifest = Manifest(
        run_id=RUN_ID,
        round=run_state.round,
        time_s=0,
        attendance=(),
        admissions=(),
        parent=run_state.parent,
        commits=commits,
        inclusion_lists=inclusion_lists(run_state, nodes),
        beacon_shares=tuple(a_reveal(name, run_state) for name in VERIFIERS) if run_state.round else (),
        drand=b"",
        drand_next=0,
        is_partial=False,
        **words(run_state, votes or {}),
        known_answers=(),
        contradictions=(),
        double_votes=(),
        appraised=(),
        stake_reports=(),
        funding_reports=() if run_state.funding_reports else funding(),
        disqualified=run_state.disqualified,
        aggregate=named,
        chain=next_chain(run_state.chain, tuple(signed.commit for signed in commits), named),
    )
    manifest = replace(manifest, **changes)
    partial = is_partial(run_state, manifest.beacon_shares, manifest.drand)
    return replace(manifest, is_partial=changes.get("is_partial", partial))


def a_certified(
    manifest: Manifest, parent: Digest = NO_DIGEST, signers: Iterable[str] = VERIFIERS[:3], **changes: Any
) -> CertifiedManifest:
    """The manifest as a link: the block after block `parent`, finalised by these verifiers."""
    block = Block(
        run_id=RUN_ID, iteration=Iteration(int(manifest.round) + 1), round=manifest.round, parent=parent,
        manifest=digest(manifest),
    )  # fmt: skip
    block = replace(block, **changes)
    vote = Vote(run_id=RUN_ID, iteration=block.iteration, kind=VoteKind.FINALISE, block=digest(block))
    votes = [
        SignedVote(vote=vote, verifier=peer(name), signature=sign(a_peer_key(name), DOMAIN, vote))
        for name in signers
    ]
    return CertifiedManifest(manifest=manifest, block=block, certificate=assemble(votes))


def a_chain(
    run_state: RunState, count: int, nodes: Iterable[str] = NODES, aggregate: Digest | None = None
) -> list[CertifiedManifest]:
    """So many links on top of `run_state`; nodes commit while the run trains, whoever is due says MATCH."""
    links: list[CertifiedManifest] = []
    for _ in range(count):
        committing = [name for name in nodes if peer(name) in run_state.active]
        manifest = a_manifest(run_state, committing, match_all(run_state), aggregate)
        links.append(a_certified(manifest, digest(links[-1].block) if links else NO_DIGEST))
        run_state = advance(run_state, manifest)
    return links


def _momentum_of(run_state: RunState, node: PeerId) -> Digest:
    known = run_state.nodes[node].momentum if node in run_state.nodes else NO_DIGEST
    if known != NO_DIGEST:
        return known
    return zero_root(RUN_ID, run_state.spec.rule, layout_of(run_state.spec.model).blocks)
