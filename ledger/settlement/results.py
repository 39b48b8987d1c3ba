"""Results: builds the EIP-712 statements that follow from a settlement or a confirmed audit.

Room: ledger (pure). Every verifier, the ledger service and any offline reader build
equal statements from the same finalised chain.
"""

from __future__ import annotations

import hashlib

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR, VERIFIER, EpochResult, ModelRecord, SlashOrder
from assay.ledger.settlement.payouts import Settlement
from assay.protocol.agreement.double_votes import double_vote_offence
from assay.protocol.auditing.audits import RECOMPUTED, Audit, Fault, case_id_of
from assay.protocol.calendar import Calendar
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Commit, Verdict
from assay.protocol.params import RunSpec
from assay.protocol.rotation import UNROTATED, Rotation
from assay.protocol.run_state import VerifierRecord
from assay.protocol.types import Address, Digest, PeerId

ACCUSED = b"accused/"  # with which the evidence's hash of such an order begins


def epoch_result(
    spec: RunSpec, settlement: Settlement, model: Digest, previous: Digest, set_version: int
) -> EpochResult:
    """The result that verifiers sign for an epoch.

    Args:
        spec: The run.
        settlement: The epoch's payout table.
        model: Digest of the parameters after the epoch's last round.
        previous: Digest of the result before, zero for epoch 0.
        set_version: Number of the verifier set that the run was opened with.
    """
    return EpochResult(
        deployment_id=spec.deployment_id,
        run_id=settlement.run_id,
        epoch=settlement.epoch,
        set_version=set_version,
        prev_result=previous,
        root=settlement.tree().root,
        table_hash=settlement.table_hash,
        model_hash=model,
        total=settlement.total,
    )


def result_digest(deployment: Deployment, result: EpochResult) -> Digest:
    """The 32 bytes that hot keys sign, and the next result's `prev_result`."""
    return Digest(deployment.digest(result))


def model_record(
    spec: RunSpec,
    calendar: Calendar,
    result: EpochResult,
    last_result: Digest,
    inventory: Digest,
    parent: Digest,
) -> ModelRecord:
    """The record that verifiers sign for the model of a whole run.

    Args:
        spec: The run.
        calendar: Its calendar, complete.
        result: Of its last epoch.
        last_result: That result's digest.
        inventory: SHA-256 of the training data's inventory; training/data/inventory.py.
        parent: Record of the model that the run started from; zero if none is registered.

    Raises:
        ValueError: the result is of an earlier epoch.
    """
    if result.epoch != calendar.epochs - 1:
        raise ValueError(f"the result of epoch {result.epoch}, expected the last, {calendar.epochs - 1}")
    return ModelRecord(
        deployment_id=spec.deployment_id,
        run_id=result.run_id,
        model_hash=result.model_hash,
        data_inventory_hash=inventory,
        config_hash=digest(spec),
        parent=parent,
        last_result=last_result,
    )


def run_id_of(spec: RunSpec) -> Digest:
    """The run's id in the escrow contract: keccak256(abi.encode(deploymentId, buyer, specHash))."""
    parts = [spec.deployment_id, evm_address(spec.buyer), digest(spec)]
    return Digest(keccak(encode(["bytes32", "address", "bytes32"], parts)))


def slash_ppm(spec: RunSpec, audit: Audit) -> int:
    """Slash of a confirmed audit, in millionths of stake: for a false step, or for one never opened."""
    return spec.money.slash_ppm if audit.is_false else spec.money.withheld_ppm


def slash_order_of(
    spec: RunSpec, run_id: Digest, audit: Audit, offender: Address, rotation: Rotation = UNROTATED
) -> SlashOrder:
    """The slash order of a confirmed audit of this account's node. The first accuser is the challenger.

    Args:
        spec, run_id: The run.
        audit: Confirmed.
        offender: The node's account.
        rotation: Of a state after the audit: who held the verifiers' seats.

    Raises:
        ValueError: the audit carries no adverse verdict.
    """
    if not audit.adverse:
        raise ValueError("the audit has no adverse verdict")
    return _ruling(
        spec,
        run_id,
        audit,
        offender=offender,
        role=OPERATOR,
        ppm=slash_ppm(spec, audit),
        offence_id=audit.offence_id,
        challenger=audit.adverse[0],
        rotation=rotation,
    )


def fault_ruling_of(
    spec: RunSpec, run_id: Digest, audit: Audit, fault: Fault, rotation: Rotation = UNROTATED
) -> SlashOrder:
    """The slash order of a verifier's fault. The first verifier on the winning side is the challenger.

    Args:
        spec, run_id: The run.
        audit: Ended, with the fault.
        fault: The verdict that is wrong.
        rotation: Of a state after the audit: who held the seats.

    Raises:
        ValueError: no verifier is on the winning side.
    """
    right = _right(audit)
    if not right:
        raise ValueError("no verifier is on the winning side of this audit")
    return _ruling(
        spec,
        run_id,
        audit,
        offender=_account_of(spec, audit, fault.verdict, rotation),
        role=VERIFIER,
        ppm=spec.money.verifier_slash_ppm,
        offence_id=fault.offence_id,
        challenger=right[0],
        rotation=rotation,
    )


def double_vote_order_of(
    spec: RunSpec, run_id: Digest, verifier: PeerId, record: VerifierRecord
) -> SlashOrder:
    """The slash order of a verifier that double-signed; nobody earns by it but as the contract has it.

    Args:
        spec, run_id: The run.
        verifier: The key of the one at fault.
        record: What the chain records about it; `double_vote` names the evidence.
    """
    accounts = {member.peer: member.account for member in spec.judges}
    return SlashOrder(
        deployment_id=spec.deployment_id,
        run_id=run_id,
        epoch=record.fault_round // spec.money.epoch_rounds,
        offender=evm_address(accounts[verifier]),
        role=VERIFIER,
        ppm=spec.money.verifier_slash_ppm,
        offence_id=double_vote_offence(run_id, verifier),
        evidence_hash=record.double_vote,
        challenger=evm_address(spec.money.treasury),
    )


def accused_order_of(
    spec: RunSpec, run_id: Digest, commit: Commit, offender: Address, accuser: Address
) -> SlashOrder:
    """The slash order of a false step that this account found: it is the challenger.

    The evidence is the run itself: whoever makes the node's state again finds the same step false. Its hash
    names the round, so that whoever holds the run finds the step.
    """
    found = hashlib.sha256(b"assay/accused/1" + digest(commit) + accuser).digest()
    return SlashOrder(
        deployment_id=spec.deployment_id,
        run_id=run_id,
        epoch=int(commit.round) // spec.money.epoch_rounds,
        offender=evm_address(offender),
        role=OPERATOR,
        ppm=spec.money.slash_ppm,
        offence_id=case_id_of(commit),
        evidence_hash=ACCUSED + found[:16] + int(commit.round).to_bytes(8, "big"),
        challenger=evm_address(accuser),
    )


def accused_round(evidence_hash: bytes, rounds: int) -> int | None:
    """The round of the step that an `accused_order_of` is about.

    None of any other order, and of a round that is none of the run's first `rounds`: whoever signs an order
    writes any number there.
    """
    number = int.from_bytes(evidence_hash[-8:], "big")
    return number if evidence_hash.startswith(ACCUSED) and number < rounds else None


def accusers_of(audit: Audit, fault: Fault | None = None) -> tuple[PeerId, ...]:
    """Verifiers whose verdicts led to the status, against a node or a verifier, in the chain's order."""
    if fault is None:
        return tuple(verdict.verifier for verdict in audit.adverse)
    return tuple(verdict.verifier for verdict in _right(audit))


def _right(audit: Audit) -> tuple[Verdict, ...]:
    """The verdicts that a recompute led to, of verifiers that are not at fault in this audit."""
    failed = {other.verdict.verifier for other in audit.faults}
    return tuple(v for v in audit.verdicts if v.outcome in RECOMPUTED and v.verifier not in failed)


def _ruling(
    spec: RunSpec,
    run_id: Digest,
    audit: Audit,
    *,
    offender: bytes,
    role: int,
    ppm: int,
    offence_id: Digest,
    challenger: Verdict,
    rotation: Rotation,
) -> SlashOrder:
    evidence = hashlib.sha256(b"assay/evidence/1" + b"".join(digest(v) for v in audit.verdicts)).digest()
    return SlashOrder(
        deployment_id=spec.deployment_id,
        run_id=run_id,
        epoch=int(audit.round) // spec.money.epoch_rounds,
        offender=evm_address(offender),
        role=role,
        ppm=ppm,
        offence_id=offence_id,
        evidence_hash=evidence,
        challenger=evm_address(_account_of(spec, audit, challenger, rotation)),
    )


def _account_of(spec: RunSpec, audit: Audit, verdict: Verdict, rotation: Rotation) -> Address:
    """The account of the holder that gave this verdict."""
    accounts = {member.peer: member.account for member in spec.judges}
    return accounts[audit.author(verdict, rotation.at(audit.closed_round))]
