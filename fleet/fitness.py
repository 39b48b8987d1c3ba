"""Fitness: for how long a run pays, which disk it asks for, and why a machine cannot serve it.

Room: fleet (pure). Everything is computed from the sizes in the spec, and nothing from what its buyer says
about them. Disk is an estimate from above; time is what this machine needed for a step of a small model,
scaled by the operations of the run's (participant/market/work.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from assay.chain.commit_statement import evm_address
from assay.chain.state import EscrowState
from assay.participant.following.pruning import kept_bytes_max
from assay.participant.market.work import ROUND_MS, chosen_ms, step_ms
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST
from assay.training.layout import layout_of
from assay.training.model.initial import BASE
from assay.training.optimiser.public_state import kept_rounds, snapshot_bytes_max
from assay.verifier.audit.limits import agreed_limits
from assay.verifier.audit.messages import OPENING_BYTES_PER_S, longest_opening
from assay.verifier.audit.upload import uploaded_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What decides whether and how fast runs can be served here."""

    flop_per_s: int  # of training, measured
    blob_bytes: int  # that a node is allowed for blobs at least
    replicas: int = 1  # groups of a batch that a node computes side by side in main memory
    is_checkpointing: bool = False  # whether it computes layers again in backward passes


def funded_hours(spec: RunSpec, escrow: EscrowState, pay: int) -> int:
    """Hours for which an escrow's free part pays all seats as much as this, until the run's last step.

    Neither what a budget holds beyond the work that is left counts nor what depends on milestones: both may
    return to the buyer.
    """
    payable = min(escrow.free, max(spec.price - escrow.paid - escrow.reserved, 0))
    sure = payable * spec.money.sure_operator_price // max(spec.money.price_per_mtoken, 1)
    return sure // max(pay * spec.seats, 1)


def disk_bytes(spec: RunSpec, machine: Machine) -> int:
    """Disk that a node's folder takes at most: blobs, states of rounds that may be audited, checkpoints."""
    kept, arrays = kept_rounds(spec), 4 * layout_of(spec.model).parameters
    blobs = max(machine.blob_bytes, kept_bytes_max(spec, kept))
    ends = 3 * (1 + spec.rule.local.steps)  # parameters and two moments, by segment
    return blobs + kept * (2 + (0 if spec.rule.is_gradient else ends)) * arrays + 3 * snapshot_bytes_max(spec)


def upload_bytes_s(spec: RunSpec, machine: Machine) -> int:
    """What a node uploads a second in the mean, once it is audited at the floor's rate."""
    layout, rate_ppm = layout_of(spec.model), spec.audit.floor_ppm
    sent = uploaded_bytes(spec.rule, spec.audit, layout, len(spec.verifiers), rate_ppm)
    return int(1000 * sent) // (chosen_ms(spec, machine.flop_per_s) + ROUND_MS)


def spec_fault(spec: RunSpec, deployment_id: bytes, data: Path | None, machine: Machine) -> str | None:
    """Why a run of this spec cannot be served here; None if it can.

    Args:
        spec: As its buyer signed it.
        deployment_id: Of the network.
        data: The folder of its data, if this machine has them.
        machine: This one.
    """
    if spec.deployment_id != deployment_id:
        return "is of another network"
    if data is None:
        return "its data are not here"
    if not spec.takes_newcomers:
        return "all its seats are of nodes that bring data of their own"
    if spec.model.base != NO_DIGEST and not (data / BASE).is_file():
        return "the parameters that it starts from are not here"
    try:
        if agreed_limits(spec) is None:
            return "judges its auditors' own execution class alone"
    except ConfigError:
        return "judges by limits that this release does not have"
    if step_ms(spec, machine.flop_per_s) > spec.timing.collect_ms:
        return "its steps take longer here than its rounds wait"
    if longest_opening(spec) * 1000 > spec.timing.opening_ms * OPENING_BYTES_PER_S:
        return "its openings do not arrive in time over a line of 100 Mbit/s"
    return None


def escrow_fault(spec: RunSpec, escrow: EscrowState, judges: Collection[str]) -> str | None:
    """Why an escrow cannot pay what its spec promises; None if it can.

    Args:
        spec: The run.
        escrow: As the contract has it.
        judges: Accounts of the verifier set that the run was opened with.
    """
    if (escrow.spec_hash, escrow.epochs) != (digest(spec), spec.epochs):
        return "its escrow is for another spec"
    if escrow.epoch_cap < spec.epoch_price(0):
        return "its escrow pays no whole epoch"
    if {evm_address(one.account) for one in spec.judges} != set(judges):
        return "its verifiers are not those who can settle it"
    return None


def is_lapsed(spec: RunSpec, seats_taken: int, now_s: int) -> bool:
    """Whether a run that waits for nodes can have started no more: too few had locked a lot in time."""
    return bool(spec.start_by_s) and now_s > spec.start_by_s and seats_taken < spec.least_nodes
