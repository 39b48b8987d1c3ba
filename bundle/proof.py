"""Proof: checks a delivered run without its updates and weights, as far as certificates and signatures go.

Room: bundle (edge: reads a folder), without torch. What is shown is who agreed on what and who was paid; that
the weights follow from the updates is shown by `bundle/verify.py` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.bundle.read import Delivered
from assay.chain.commit_statement import evm_address
from assay.participant.files.index import check_index, signer_text
from assay.protocol.encoding.codec import digest
from assay.protocol.types import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """The figures of a run of which certificates, rules, payouts and results were checked, but no weights."""

    run_id: Digest
    spec_hash: Digest
    buyer: str
    signed_by: str  # as `Verified.signed_by`
    files: int  # that are there, as the buyer signed them
    manifests: int
    accepted: int  # contributions
    epochs: int
    paid: int  # token units
    final_epochs: int  # whose results are proved final on chain


def verify_proof(delivered: Delivered) -> Proved:
    """Check the files of a run that are there against the index, beside what `read` has checked.

    Raises:
        IntegrityError: one is not as the buyer signed it.
    """
    spec, settled = delivered.spec, delivered.settled.values()
    files = check_index(delivered.root, spec.signer, is_whole=False)
    return Proved(
        run_id=delivered.run_id,
        spec_hash=digest(spec),
        buyer=evm_address(spec.buyer),
        signed_by=evm_address(spec.signer),
        files=files,
        manifests=len(delivered.links),
        accepted=sum(len(link.manifest.commits) for link in delivered.links),
        epochs=len(settled),
        paid=sum(one.settlement.total for one in settled),
        final_epochs=sum(one.anchor is not None for one in settled),
    )


def proof_lines(found: Proved) -> Iterator[str]:
    """The figures, one line each."""
    yield f"run {found.run_id.hex()}, spec hash {found.spec_hash.hex()}: compare them with the chain's"
    yield f"index: {found.files} files as {signer_text(found.buyer, found.signed_by)} signed them"
    yield f"chain: {found.manifests} manifests certified by quorums, {found.accepted} signed contributions"
    yield f"settlements: {found.epochs} epochs, {found.paid} units, recomputed and signed by a quorum"
    yield f"finality: {found.final_epochs} of {found.epochs} results are proved final on chain"
    yield "weights: not recomputed; that takes all of the run, and `assay run verify` without --only"
