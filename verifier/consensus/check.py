"""Consensus check: the validity of a consensus message that needs no state.

Room: verifier (pure). The driver calls `authenticate` before `step`, so the state machine takes signatures,
sizes and internal consistency for granted.

Fault attribution: for what a signature covers, the signer (`PeerFault`); for the rest, the sender
(`MalformedMessage`), because anybody can wrap a leader's signed block in other certificates and forward it.
"""

from __future__ import annotations

from itertools import pairwise

from assay.protocol.agreement.finality import SETTLED, check_certified
from assay.protocol.agreement.quorum import check_certificate
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import CertifiedManifest, Proposal, QuorumCertificate, SignedVote, Vote, VoteKind
from assay.protocol.types import NO_DIGEST
from assay.verifier.consensus.types import ConsensusConfig

DUMMIES_MAX = 64  # as in `Proposal.dummies`; the receiver must hold older ones already


def authenticate(
    config: ConsensusConfig,
    domain: Domain,
    message: SignedVote | Proposal | QuorumCertificate | CertifiedManifest,
) -> None:
    """Do nothing if `message` is well formed, of this run, and every signature in it holds.

    Raises:
        PeerFault: a verifier signed an invalid statement, or a signature is not the claimed signer's.
        MalformedMessage: the sender combined parts that their signer did not sign together.
    """
    match message:
        case SignedVote():
            _check_signed_vote(config, domain, message)
        case QuorumCertificate():
            _check_quorum(config, domain, message)
        case Proposal():
            _check_proposal(config, domain, message)
        case CertifiedManifest():
            try:
                check_certified(message, domain, config.verifiers)
            except PeerFault as fault:
                raise MalformedMessage(f"certified manifest: {fault}") from None


def _check_signed_vote(config: ConsensusConfig, domain: Domain, signed: SignedVote) -> None:
    if signed.verifier not in config.verifiers:
        raise PeerFault(signed.verifier, "vote by a stranger; expected a verifier of this run")
    verify(signed.verifier, domain, signed.vote, signed.signature)
    flaw = _flaw(config, signed.vote)
    if flaw:
        raise PeerFault(signed.verifier, flaw)


def _check_quorum(config: ConsensusConfig, domain: Domain, certificate: QuorumCertificate) -> None:
    flaw = _flaw(config, certificate.vote)
    if flaw:
        raise MalformedMessage(f"certificate: {flaw}")
    try:
        check_certificate(certificate, domain, config.verifiers)
    except PeerFault as fault:
        raise MalformedMessage(f"certificate: {fault}") from None


def _flaw(config: ConsensusConfig, vote: Vote) -> str | None:
    if vote.run_id != config.run_id:
        return "vote for another run"
    if vote.iteration == SETTLED and vote.kind is not VoteKind.FINALISE:
        return "vote in iteration 0, where blocks can only be settled"
    if (vote.block == NO_DIGEST) != (vote.kind is VoteKind.DUMMY):
        return "a DUMMY vote names no block, every other vote does"
    return None


def _check_proposal(config: ConsensusConfig, domain: Domain, proposal: Proposal) -> None:
    block, leader = proposal.block, proposal.proposer
    if leader not in config.verifiers:
        raise PeerFault(leader, "proposal by a stranger; expected a verifier of this run")
    verify(leader, domain, block, proposal.signature)
    if block.run_id != config.run_id:
        raise PeerFault(leader, "proposal for another run")
    if block.iteration < 1 or config.leader(block.iteration) != leader:
        raise PeerFault(leader, f"proposal for iteration {block.iteration}, which it does not lead")
    if (block.parent == NO_DIGEST) != (block.round == 0):
        raise PeerFault(leader, "round 0, and only round 0, has no parent block")
    manifest = proposal.manifest
    if digest(manifest) != block.manifest:
        raise MalformedMessage("proposal: the block is about another manifest")
    if manifest.run_id != block.run_id or manifest.round != block.round:
        raise PeerFault(leader, "manifest of another run or round than its block")
    _check_proof(config, domain, proposal)


def _check_proof(config: ConsensusConfig, domain: Domain, proposal: Proposal) -> None:
    """Check that the certificates cover every iteration from the parent's to the one before this."""
    block = proposal.block
    covered = 0  # the parent's iteration
    if block.parent == NO_DIGEST:
        if proposal.parent:
            raise MalformedMessage("proposal: a certificate for the parent of round 0")
    else:
        if len(proposal.parent) != 1:
            raise MalformedMessage("proposal: no certificate for its parent")
        vote = proposal.parent[0].vote
        if vote.block != block.parent or vote.kind is VoteKind.DUMMY or vote.iteration == SETTLED:
            raise MalformedMessage("proposal: its parent's certificate is about something else")
        covered = vote.iteration
    iterations = [dummy.vote.iteration for dummy in proposal.dummies]
    if any(dummy.vote.kind is not VoteKind.DUMMY for dummy in proposal.dummies):
        raise MalformedMessage("proposal: a dummy certificate is about something else")
    if any(after != before + 1 for before, after in pairwise([*iterations, block.iteration])):
        raise MalformedMessage("proposal: a hole among its dummy certificates")
    first = iterations[0] if iterations else block.iteration
    if first <= covered or (first != covered + 1 and len(iterations) < DUMMIES_MAX):
        raise MalformedMessage("proposal: its certificates do not reach from the parent to it")
    for certificate in (*proposal.parent, *proposal.dummies):
        _check_quorum(config, domain, certificate)
