"""Finished: all values of a finished run from which its bundle is computed.

Room: bundle (pure: values). The buyer has them from the run, a checker recomputes them; the bundle is a
function of them.
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
from assay.ledger.settlement.ending import Ending
from assay.ledger.settlement.payouts import Settlement
from assay.participant.declarations import Declarations
from assay.protocol.messages import CertifiedManifest, Member, TaskList
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """One final epoch: the table, the result on chain, and its signers."""

    settlement: Settlement
    result: EpochResult
    digest: bytes  # the final result's on chain
    certificate: bytes  # empty if no quorum would sign it again
    anchor: EventProof | None = None  # proof that it is final; None if the chain gives none


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """The last ledger root that was anchored on chain, and the event that proves it."""

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
    """A checkpoint of the ledger that a quorum of verifiers cosigned."""

    note: str  # with the ledger service's signature and the cosignatures
    ledger_service: PeerId
    size: int
    root: bytes
    cosigners: tuple[PeerId, ...]  # ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Items of the run's choices that are answered right, and all items, in the reference class.

    first: by the parameters that the training started from. last: by the delivered ones.
    """

    items: int
    acc_first: int
    acc_last: int
    acc_norm_first: int
    acc_norm_last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What the buyer's process measured of the model: loss on tokens that nobody trained on, and accuracy.

    Losses are in 10^-6 nats per token.
    """

    first_micro: int  # of the parameters that the training started from
    last_micro: int  # of the delivered ones
    tokens: int  # it was measured on
    accuracy: Accuracy | None = None  # None: the run has no choices, or too many for the buyer's process


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy by a declared efficiency, not measured."""

    kind: str = "estimate"
    is_measured: bool = False
    joules: int
    kwh: str
    method: str = "FLOP of training and verification, divided by FLOP per joule"
    flop_per_joule: int
    flop_per_joule_source: str
    nodes_metered: int = 0
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The release key, which signs the provenance. A checker's `sign` returns the signature it read."""

    public_key: bytes  # ECDSA P-256, PEM
    sign: Callable[[bytes], bytes]  # a DER signature, of SHA-256


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished run."""

    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    links: tuple[CertifiedManifest, ...]
    ending: Ending
    settled: Mapping[int, Settled]
    theta: NDArray[np.float32]
    inputs: RunInputs
    state: Digest  # of these parameters and the outer optimiser's buffers
    load: Callable[[Digest], bytes]  # a blob by its digest
    release: Release
    registered: Registered | None  # None: no quorum signed, or nobody requested it
    declarations: Declarations
    log_point: LogPoint | None = None
    anchor: Anchored | None = None
    held_out: HeldOut | None = None  # None: the buyer has not the data
    task_lists: tuple[TaskList, ...] = ()  # of the nodes that have shown theirs

    @property
    def nodes(self) -> tuple[Member, ...]:
        """Every node that took part, ascending by peer."""
        joined = (signed.admission.member for link in self.links for signed in link.manifest.admissions)
        found = {member.peer: member for member in (*self.spec.nodes, *joined)}
        return tuple(member for _, member in sorted(found.items()))
