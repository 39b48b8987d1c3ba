"""Quorum: quorum and committee sizes for n verifiers, and the check of a quorum certificate.

Room: protocol (pure). n = 3f + 1 verifiers tolerate f Byzantine ones; every certificate
carries floor(2n/3) + 1 signatures (2f + 1 when n = 3f + 1), so any two share an honest one.
"""

from __future__ import annotations

from collections.abc import Collection

from assay.protocol.agreement.configurations import FIRST, Configuration
from assay.protocol.errors import MalformedMessage
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import QuorumCertificate, SignedVote
from assay.protocol.types import PeerId

FIRST_COMMITTEE = 5


def quorum(verifier_count: int) -> int:
    """Number of signatures of a quorum: floor(2n/3) + 1."""
    return 2 * verifier_count // 3 + 1


def faults_tolerated(verifier_count: int) -> int:
    """The largest f with 3f + 1 <= n."""
    return (verifier_count - 1) // 3


def committee_size(verifier_count: int, dispute_round: int) -> int:
    """Number of verifiers that decide a dispute: 5, or all if fewer; all in the second round.

    Never so few that f Byzantine verifiers are a quorum of the committee.
    """
    if dispute_round:
        return verifier_count
    size = FIRST_COMMITTEE
    while quorum(size) <= faults_tolerated(verifier_count):
        size += 1
    return min(size, verifier_count)


def least_audit_rounds(verifier_count: int) -> int:
    """The fewest rounds from a step to its last verdict in which f lying leaders in a row hide nothing.

    From the second round on, f + 1 manifests for each of a commitment, a second one, and the verdicts.
    """
    return 4 + 3 * faults_tolerated(verifier_count)


def least_dispute_rounds(verifier_count: int) -> int:
    """Likewise for a dispute: f + 1 manifests for its commitments and as many for its verdicts."""
    needed, rounds = faults_tolerated(verifier_count) + 1, 2
    while min(commitment_rounds(rounds), rounds - commitment_rounds(rounds)) < needed:
        rounds += 1
    return rounds


def opening_rounds(verifier_count: int) -> int:
    """The manifests in which verifiers open their evaluations of an epoch, the last before it is settled.

    f + 1 for an honest leader, and as many for openings to arrive: a verifier opens once the last manifest
    that may carry a commitment is final for it, when leaders propose the next ones already. All other
    manifests since the epoch's end are left to measure in: three fifths or more of those that an order names.
    """
    return 2 * (faults_tolerated(verifier_count) + 1)


def commitment_rounds(dispute_rounds: int) -> int:
    """Rounds of a dispute in which its committee commits to verdicts; they open them in the others."""
    return max(dispute_rounds * 2 // 3, 1)


def check_certificate(
    certificate: QuorumCertificate,
    domain: Domain,
    verifiers: Collection[PeerId],
    configuration: Configuration = FIRST,
) -> None:
    """Do nothing if a quorum of the seats `verifiers` signed the certificate's vote with this one's keys.

    A vote in iteration `SETTLED` names no configuration: the caller knows that of the block.

    Raises:
        MalformedMessage: too few, repeated, unsorted or unknown signers, or another run.
        PeerFault: a signature does not verify.
    """
    signers = certificate.verifiers
    if certificate.vote.run_id != domain.run_id:
        raise MalformedMessage("certificate is for another run")
    if len(signers) != len(certificate.signatures) or list(signers) != sorted(set(signers)):
        raise MalformedMessage("certificate: signers must ascend, one signature each")
    if len(signers) < quorum(len(verifiers)):
        raise MalformedMessage(f"certificate: {len(signers)} signatures, expected {quorum(len(verifiers))}")
    known = set(verifiers)
    for signer, signature in zip(signers, certificate.signatures, strict=True):
        if signer not in known:
            raise MalformedMessage(f"certificate: {signer.hex()[:8]} is not a verifier of this run")
        verify(configuration.key(signer), domain, certificate.vote, signature)


def assemble(votes: Collection[SignedVote]) -> QuorumCertificate:
    """A certificate from equal, already checked votes of distinct verifiers."""
    ordered = sorted(votes, key=lambda signed: signed.verifier)
    assert ordered and all(signed.vote == ordered[0].vote for signed in ordered)
    return QuorumCertificate(
        vote=ordered[0].vote,
        verifiers=tuple(signed.verifier for signed in ordered),
        signatures=tuple(signed.signature for signed in ordered),
    )
