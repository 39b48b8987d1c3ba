"""Consensus check: the validity of a consensus message that needs no state.

Room: verifier (pure). The driver calls `heard` and `heard_links` before `step`, so the state machine takes
signatures, sizes and internal consistency for granted.

Fault attribution: for what a signature covers, the signer (`PeerFault`); for the rest, the sender
(`MalformedMessage`), because anybody can wrap a leader's signed block in other certificates and forward it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from assay.protocol.agreement.configurations import before_first, number_of
from assay.protocol.agreement.finality import SETTLED, check_certified
from assay.protocol.agreement.quorum import check_certificate
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import (
    Block,
    CertifiedManifest,
    Proposal,
    QuorumCertificate,
    SignedBlock,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.types import NO_DIGEST, PeerId, Signature
from assay.verifier.consensus.chain import is_pass
from assay.verifier.consensus.types import ConsensusConfig, Overtaken, Received, Synced

DUMMIES_MAX = 64  # as in `Proposal.dummies`; the receiver must hold older ones already


def heard(
    config: ConsensusConfig,
    domain: Domain,
    message: SignedVote | SignedBlock | Proposal | QuorumCertificate,
    now_ms: int,
) -> Received | Overtaken | None:
    """What a peer's message tells the machine; None if it belongs to a configuration that has ended.

    Args:
        config: With the present configuration: that of the round after the last final one.
        domain: The run's.
        message: Not checked before.
        now_ms: The driver's clock.

    Raises:
        PeerFault, MalformedMessage: as `authenticate`, or a configuration that this run cannot reach.
    """
    present, number = config.configuration.number, _number_in(message)
    if number is not None and number < present:
        return None
    if number is not None and present < number <= len(config.reserves):
        return Overtaken()
    try:
        authenticate(config, domain, message)
    except OutOfPhase:
        return None
    return Received(message, now_ms)


def heard_links(
    config: ConsensusConfig, domain: Domain, links: tuple[CertifiedManifest, ...], now_ms: int
) -> Synced | Overtaken:
    """What a peer's certified manifests tell the machine: them, or that some before them are missing here.

    Args:
        config: As for `heard`.
        domain: The run's.
        links: Consecutive rounds, ascending, none of them final here; at least one.
        now_ms: The driver's clock.

    Raises:
        MalformedMessage: one is not final, by the keys to which those before it lead.
    """
    if config.configuration.number < number_of(links[0].block.iteration) <= len(config.reserves):
        return Overtaken()
    for one in links:
        authenticate(config, domain, one)
        config = replace(config, configuration=config.configuration.after(one.manifest.hand_over))
    return Synced(links, now_ms)


def authenticate(
    config: ConsensusConfig,
    domain: Domain,
    message: SignedVote | SignedBlock | Proposal | QuorumCertificate | CertifiedManifest,
) -> None:
    """Do nothing if `message` is well formed, of this run, and every signature in it holds.

    Args:
        config: With the present configuration: that of the round after the last final one.
        domain: The run's.
        message: Of this configuration, if it says one.

    Raises:
        OutOfPhase: it settles a block, perhaps of another configuration, and not by this one's keys.
        PeerFault: a verifier signed an invalid statement, or a signature is not the claimed signer's.
        MalformedMessage: the sender combined parts that their signer did not sign together.
    """
    match message:
        case SignedVote(vote=vote) | QuorumCertificate(vote=vote) if (
            config.reserves and vote.iteration == SETTLED
        ):
            signer = message.verifier if isinstance(message, SignedVote) else config.verifiers[0]
            try:
                authenticate(replace(config, reserves=()), domain, message)
            except AssayError as fault:
                raise OutOfPhase(signer, str(fault)) from None
        case SignedVote():
            _check_signed_vote(config, domain, message)
        case SignedBlock():
            _check_pass(config, domain, message)
        case QuorumCertificate():
            _check_quorum(config, domain, message)
        case Proposal():
            _check_proposal(config, domain, message)
        case CertifiedManifest():
            try:
                check_certified(message, domain, config.verifiers, config.configuration)
            except PeerFault as fault:
                raise MalformedMessage(f"certified manifest: {fault}") from None


def _number_in(message: SignedVote | SignedBlock | Proposal | QuorumCertificate) -> int | None:
    """The configuration that a message says it belongs to; None if it settles a block, and says nothing."""
    stated = message.block if isinstance(message, Proposal | SignedBlock) else message.vote
    return None if stated.iteration == SETTLED else number_of(stated.iteration)


def _verify(
    config: ConsensusConfig, seat: PeerId, domain: Domain, statement: Vote | Block, signature: Signature
) -> None:
    """Do nothing if the seat's present holder signed this; a fault is the seat's."""
    try:
        verify(config.configuration.key(seat), domain, statement, signature)
    except PeerFault as fault:
        raise PeerFault(seat, fault.reason) from None


def _check_signed_vote(config: ConsensusConfig, domain: Domain, signed: SignedVote) -> None:
    if signed.verifier not in config.verifiers:
        raise PeerFault(signed.verifier, "vote by a stranger; expected a verifier of this run")
    _verify(config, signed.verifier, domain, signed.vote, signed.signature)
    flaw = _flaw(config, signed.vote)
    if flaw:
        raise PeerFault(signed.verifier, flaw)


def _check_quorum(config: ConsensusConfig, domain: Domain, certificate: QuorumCertificate) -> None:
    flaw = _flaw(config, certificate.vote)
    if flaw:
        raise MalformedMessage(f"certificate: {flaw}")
    try:
        check_certificate(certificate, domain, config.verifiers, config.configuration)
    except PeerFault as fault:
        raise MalformedMessage(f"certificate: {fault}") from None


def _flaw(config: ConsensusConfig, vote: Vote) -> str | None:
    if vote.run_id != config.run_id:
        return "vote for another run"
    if vote.iteration != SETTLED and number_of(vote.iteration) != config.configuration.number:
        return f"vote in iteration {vote.iteration}, expected configuration {config.configuration.number}"
    if vote.iteration == SETTLED and vote.kind is not VoteKind.FINALISE:
        return "vote in iteration 0, where blocks can only be settled"
    if (vote.block == NO_DIGEST) != (vote.kind is VoteKind.DUMMY):
        return "a DUMMY vote names no block, every other vote does"
    return None


def _check_pass(config: ConsensusConfig, domain: Domain, signed: SignedBlock) -> None:
    if not is_pass(signed.block):
        raise MalformedMessage("a block without its manifest")
    _check_block(config, domain, signed.block, signed.verifier, signed.signature)


def _check_block(
    config: ConsensusConfig, domain: Domain, block: Block, leader: PeerId, signature: Signature
) -> None:
    """Do nothing if this run's leader of the block's iteration signed it."""
    if leader not in config.verifiers:
        raise PeerFault(leader, "proposal by a stranger; expected a verifier of this run")
    _verify(config, leader, domain, block, signature)
    if block.run_id != config.run_id:
        raise PeerFault(leader, "proposal for another run")
    number = config.configuration.number
    if number_of(block.iteration) != number or block.iteration == before_first(number):
        raise PeerFault(leader, f"proposal for iteration {block.iteration}, expected configuration {number}")
    if config.leader(block.iteration) != leader:
        raise PeerFault(leader, f"proposal for iteration {block.iteration}, which it does not lead")


def _check_proposal(config: ConsensusConfig, domain: Domain, proposal: Proposal) -> None:
    block, leader = proposal.block, proposal.proposer
    _check_block(config, domain, block, leader, proposal.signature)
    if (block.parent == NO_DIGEST) != (block.round == 0 and not block.is_closing):
        raise PeerFault(leader, "round 0, and only round 0, has no parent block")
    manifest = proposal.manifest
    if digest(manifest) != block.manifest:
        raise MalformedMessage("proposal: the block is about another manifest")
    if manifest.run_id != block.run_id or manifest.round != block.round:
        raise PeerFault(leader, "manifest of another run or round than its block")
    for one in manifest.hand_over:
        if not config.may_hand_over(one):
            named = f"seat {one.seat.hex()[:8]} to {one.holder.hex()[:8]}"
            raise PeerFault(leader, f"manifest hands {named}, expected a verifier's to a reserve without one")
    _check_proof(config, domain, proposal)


def _check_proof(config: ConsensusConfig, domain: Domain, proposal: Proposal) -> None:
    """Check that the certificates cover every iteration from the parent's to the one before this."""
    block = proposal.block
    number = config.configuration.number
    covered = before_first(number)  # the parent's iteration, or where its configuration begins
    if block.parent == NO_DIGEST:
        if proposal.parent:
            raise MalformedMessage("proposal: a certificate for the parent of round 0")
    elif proposal.parent or not number:  # whether the parent begins the configuration, `chain.flaw` knows
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
