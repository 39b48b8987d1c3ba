"""Finality: checks one certified manifest, from its quorum certificate alone, as a light client does.

Room: protocol (pure). The check needs the certified manifest, the run's domain, the set of
verifiers and the hand-overs of its seats so far; no other manifest and no state.

A FINALISE certificate names the block, and either the block's own iteration
(the verifiers saw it notarised in time) or `SETTLED` (they saw a descendant
finalised, which makes this block final too; see docs/decisions/0002-simplex.md).
"""

from __future__ import annotations

from collections.abc import Collection

from assay.protocol.agreement.configurations import FIRST, Configuration, number_of
from assay.protocol.agreement.quorum import check_certificate
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage
from assay.protocol.identity import Domain
from assay.protocol.messages import CertifiedManifest, VoteKind
from assay.protocol.types import Iteration, PeerId

SETTLED = Iteration(0)  # no iteration has this number: they start at 1


def check_certified(
    certified: CertifiedManifest,
    domain: Domain,
    verifiers: Collection[PeerId],
    configuration: Configuration = FIRST,
) -> None:
    """Do nothing if this manifest is final in this run. Its position is its `round` and `parent`.

    Args:
        certified: The manifest, its block and its certificate.
        domain: The run's.
        verifiers: The names of its seats.
        configuration: That of the round.

    Raises:
        MalformedMessage: the parts do not refer to each other, or the certificate lacks signatures.
        PeerFault: a signature is invalid.
    """
    manifest, block, vote = certified.manifest, certified.block, certified.certificate.vote
    if block.run_id != domain.run_id or manifest.run_id != domain.run_id:
        raise MalformedMessage("certified manifest is for another run")
    if digest(manifest) != block.manifest or manifest.round != block.round:
        raise MalformedMessage("certified manifest: the block is about another manifest")
    if vote.kind is not VoteKind.FINALISE or vote.block != digest(block):
        raise MalformedMessage("certified manifest: the certificate is not a finalisation of its block")
    if vote.iteration not in (block.iteration, SETTLED):
        raise MalformedMessage("certified manifest: the certificate is of another iteration")
    if block.is_closing:  # it is in no chain; the block that it closes has a certificate of its own
        raise MalformedMessage("certified manifest: its block is a closing one")
    # Holders of an earlier one are many in time, and some of their keys leak.
    if number_of(block.iteration) != configuration.number:
        raise MalformedMessage(
            f"certified manifest: its block is of configuration {number_of(block.iteration)}, "
            f"expected {configuration.number}"
        )
    check_certificate(certified.certificate, domain, verifiers, configuration)
