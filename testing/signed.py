"""Signed: messages and manifests of small runs by members' names, with the signatures of their keys.

Room: testing. For what checks signatures and contents: a verifier's round, the certified chain, followers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from assay.chain.commit_statement import sign_commit
from assay.protocol.agreement.quorum import assemble
from assay.protocol.auditing.audits import Audit
from assay.protocol.auditing.draws import beacon_input
from assay.protocol.encoding.codec import digest
from assay.protocol.identity import sign
from assay.protocol.messages import (
    BeaconShare,
    Block,
    CertifiedManifest,
    Commit,
    Manifest,
    Outcome,
    SignedCommit,
    SignedFundingReport,
    SignedInclusionList,
    SignedVerdict,
    SignedVerdictCommitment,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.params import Member, RunSpec
from assay.protocol.randomness import vrf
from assay.protocol.run_state import RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, Iteration, PeerId, RoundId
from assay.testing import members, messages, run, specs
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, name_of, peer
from assay.testing.messages import SIGNED, Signed
from assay.training.data.batches import batch_positions, batch_root
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.round.beacon import is_partial

Votes = Mapping[tuple[int, PeerId], Mapping[str, Outcome]]


def by_peer(names: Iterable[str]) -> list[str]:
    """Names in the order of their peers: the order of members."""
    return sorted(names, key=peer)


NODES = by_peer(["nora", "nils", "mallory"])
VERIFIERS = by_peer(["vera", "viktor", "vito", "vlad"])
STATE = a_digest("parameters")  # what commits must have used, unless a test says so


def a_member(name: str) -> Member:
    """The member of this name."""
    return members.a_member(peer(name))


def a_spec(**changes: Any) -> RunSpec:
    """A run of six rounds over `TEXT`, by NODES and VERIFIERS."""
    named = {"nodes": tuple(map(a_member, NODES)), "verifiers": tuple(map(a_member, VERIFIERS))}
    return specs.a_spec(**{**named, **changes})


def a_history(**changes: Any) -> RunState:
    """The state of such a run before its first manifest."""
    return start(a_spec(**changes), RUN_ID)


def a_commit(name: str, run_state: RunState, **changes: Any) -> Commit:
    """What this node would commit to in the next round, had it trained."""
    spec, node, at = run_state.spec, peer(name), int(run_state.round)
    tokens = changes.get("tokens", spec.tokens_per_step)
    try:
        spec.step_sequences(tokens)
    except ValueError:  # a false claim, on the batch of the least step
        tokens = spec.tokens_per_step
    seat = run_state.drawing_seat(node)
    facts = {
        "state": STATE if at % spec.state_every == 0 else NO_DIGEST,
        "batch_root": batch_root(spec, batch_positions(spec, node, at, tokens, seat=seat)),
        "seat": seat,
        "momentum_before": _momentum_of(run_state, node),
    }
    return messages.next_commit(run_state, node, **{**facts, **changes})


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
    alpha = beacon_input(run_state.spec.deployment_id, run_state.run_id, before, run_state.parent)
    proof = vrf.prove(bytes(a_peer_key(name)), alpha)
    share = BeaconShare(run_id=run_state.run_id, round=before, verifier=peer(name), proof=proof)
    return replace(share, **changes)


def a_verdict(name: str, audit: Audit, outcome: Outcome = Outcome.MATCH, **changes: Any) -> SignedVerdict:
    """This verifier's signed verdict, the same whenever it is made in one dispute round."""
    return SIGNED.verdict(messages.a_verdict(audit, peer(name), outcome, **changes))


def a_commitment(signed: SignedVerdict, **changes: Any) -> SignedVerdictCommitment:
    """The commitment to a verdict, signed by the same verifier."""
    return SIGNED.commitment(messages.a_verdict_commitment(signed.verdict, **changes))


def match_all(run_state: RunState) -> Votes:
    """Whoever is asked first says MATCH of every open audit."""
    return {s: {name_of(a.order[0]): Outcome.MATCH} for s, a in run_state.audits.items() if a.is_open}


def audit_messages(run_state: RunState, votes: Votes, signer: Signed = SIGNED) -> dict[str, Any]:
    """What the next manifest may carry of verifiers with these votes, and of nodes that are drawn."""
    by_member = {s: {peer(name): vote for name, vote in found.items()} for s, found in votes.items()}
    return run.audit_messages(run_state, run.voted(by_member), signer=signer)


def a_funding_report(name: str, **changes: Any) -> SignedFundingReport:
    """This verifier's report that any number of epochs is paid for."""
    return SIGNED.funding_report(messages.a_funding_report(peer(name), **changes))


def funding() -> tuple[SignedFundingReport, ...]:
    """Every verifier's report that the run is paid for."""
    return tuple(map(a_funding_report, VERIFIERS))


def funded() -> dict[PeerId, SignedFundingReport]:
    """What a round holds once every verifier has reported that the run is paid for."""
    return {one.funding_report.verifier: one for one in funding()}


def an_inclusion_list(
    name: str, run_state: RunState, held: Iterable[str], **changes: Any
) -> SignedInclusionList:
    """This verifier's list of these nodes' commits for the next manifest."""
    nodes = {peer(node) for node in held}
    return SIGNED.inclusion_list(messages.an_inclusion_list(run_state, peer(name), nodes, **changes))


def inclusion_lists(run_state: RunState, nodes: Iterable[str]) -> tuple[SignedInclusionList, ...]:
    """Every verifier's list of these nodes' commits."""
    nodes = list(nodes)
    return tuple(an_inclusion_list(name, run_state, nodes) for name in VERIFIERS)


def a_manifest(
    run_state: RunState,
    nodes: Iterable[str] = (),
    votes: Votes | None = None,
    aggregate: Digest | None = None,
    *,
    made: Iterable[Commit] = (),
    signer: Signed = SIGNED,
    **changes: Any,
) -> Manifest:
    """The next manifest: commits of these nodes and made ones, all reveals due, what follows from votes."""
    content = audit_messages(run_state, votes or {}, signer)
    names = VERIFIERS if run_state.round else ()
    holders = {name: name_of(run_state.key(peer(name))) for name in names}
    content["beacon_shares"] = tuple(
        a_reveal(holder, run_state, verifier=peer(name)) for name, holder in holders.items()
    )
    commits = [*(a_commit(name, run_state) for name in nodes), *made]
    if commits and aggregate is not None:
        content["aggregate"] = aggregate
    manifest = run.a_manifest(run_state, commits=commits, signer=signer, **{**content, **changes})
    partial = is_partial(run_state, manifest.beacon_shares, manifest.drand)
    return replace(manifest, is_partial=changes.get("is_partial", partial))


def a_certified(
    manifest: Manifest,
    parent: Digest = NO_DIGEST,
    signers: Iterable[str] = VERIFIERS[:3],
    *,
    signer: Signed = SIGNED,
    **changes: Any,
) -> CertifiedManifest:
    """The manifest as a link: the block after block `parent`, finalised by these verifiers."""
    iteration = manifest.iteration or Iteration(int(manifest.round) + 1)
    block = Block(
        run_id=manifest.run_id, iteration=iteration, round=manifest.round,
        parent=parent, manifest=digest(manifest),
    )  # fmt: skip
    block = replace(block, **changes)
    vote = Vote(run_id=block.run_id, iteration=block.iteration, kind=VoteKind.FINALISE, block=digest(block))
    votes = [
        SignedVote(vote=vote, verifier=peer(name), signature=signer.signature(peer(name), vote))
        for name in signers
    ]
    return CertifiedManifest(manifest=manifest, block=block, certificate=assemble(votes))


def a_chain(
    run_state: RunState,
    count: int,
    nodes: Iterable[str] = NODES,
    aggregate: Digest | None = None,
    signer: Signed = SIGNED,
) -> list[CertifiedManifest]:
    """This many links on top of `run_state`; nodes commit while the run trains, whoever is due says MATCH."""
    links: list[CertifiedManifest] = []
    for _ in range(count):
        signer = replace(signer, configuration=run_state.rotation.configuration)
        committing = [name for name in nodes if peer(name) in run_state.active]
        manifest = a_manifest(run_state, committing, match_all(run_state), aggregate, signer=signer)
        parent = digest(links[-1].block) if links else NO_DIGEST
        links.append(a_certified(manifest, parent, signer=signer))
        run_state = advance(run_state, manifest)
    return links


def _momentum_of(run_state: RunState, node: PeerId) -> Digest:
    known = run_state.nodes[node].momentum if node in run_state.nodes else NO_DIGEST
    if known != NO_DIGEST:
        return known
    return zero_root(run_state.run_id, run_state.spec.rule, layout_of(run_state.spec.model).blocks)
