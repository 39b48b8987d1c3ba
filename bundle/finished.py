"""Finished: a finished run as the buyer holds it, and as whoever checks a bundle makes it again.

Room: bundle (pure: values). The bundle and everything in it are functions of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.bundle.inputs import RunInputs
from assay.chain.addresses import Deployment
from assay.chain.proofs.event_proof import EventProof
from assay.chain.statements import EpochResult, ModelRecord
from assay.ledger.settlement.payouts import Settlement
from assay.participant.declarations import Declarations
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """One final epoch: the table, the result on chain, and who signed it."""

    settlement: Settlement
    result: EpochResult
    digest: bytes  # the final result's on chain
    certificate: bytes  # empty if no quorum would sign it again
    anchor: EventProof | None = None  # that it is final; None where the chain gives no proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """The last ledger root that was anchored on chain, and the event that says so."""

    ledger_service: str  # account
    size: int
    root: bytes
    block_number: int
    block_hash: bytes
    tx_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The model's record on chain, with the signatures that put it there."""

    record: ModelRecord
    record_id: bytes  # its digest
    certificate: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPoint:
    """A checkpoint of the keeper's books that a quorum of verifiers cosigned."""

    note: str  # with the keeper's signature and the cosignatures
    ledger_service: PeerId
    size: int
    root: bytes
    cosigners: tuple[PeerId, ...]  # ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The key that signs how the model was made. Who only checks has no key: its `sign` reads a signature."""

    public_key: bytes  # ECDSA P-256, PEM
    sign: Callable[[bytes], bytes]  # a DER signature, of SHA-256


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished run."""

    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    links: tuple[CertifiedManifest, ...]
    settled: Mapping[int, Settled]
    theta: NDArray[np.float32]
    inputs: RunInputs
    state: Digest  # of these parameters and the outer optimiser's buffers
    load: Callable[[Digest], bytes]  # a blob by its digest
    release: Release
    registered: Registered | None  # None: no quorum signed, or nobody asked
    declarations: Declarations
    log_point: LogPoint | None = None
    anchor: Anchored | None = None
