"""Receipt pay: the part of a step receipt that proves the node's pay, and its offline checks.

Room: bundle (pure).

    row -> root of the epoch's table <- result <- a quorum's hot keys
                                          ^-- final on chain, in a block whose hash the reader compares
"""

from __future__ import annotations

from dataclasses import dataclass

from eth_abi.exceptions import EncodingError

from assay.bundle.finished import Settled
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.event_proof import BlockPoint, EventProof
from assay.chain.proofs.payout_tree import leaf, root_of_proof
from assay.chain.proofs.result_anchor import check_result_anchor
from assay.chain.statements import EpochResult, verify_certificate
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import AssayError
from assay.protocol.params import RunSpec
from assay.protocol.types import Address, Digest, PeerId

PROOF_MAX = 64  # siblings of a leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidRow:
    """The node's row in the payout table, with its index in the Merkle tree."""

    index: int
    account: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pay:
    """The pay part of a step receipt."""

    epoch: int
    result: EpochResult
    certificate: bytes
    row: PaidRow | None  # None: the epoch pays the node nothing, or somebody dropped the row
    anchor: EventProof | None
    proof: tuple[bytes, ...]  # Merkle proof of the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What a receipt's pay part proves."""

    epoch: int
    amount: int | None  # the row's, token units; None without one, which proves nothing
    anchor: BlockPoint | None  # where the result became final; None without the proof


def pay_of(settled: Settled, node: PeerId) -> Pay:
    """A node's pay as its receipt states it."""
    rows, tree = settled.settlement.rows, settled.settlement.tree()
    index = next((i for i, r in enumerate(rows) if r.role == "operator" and r.peer == node), None)
    row = None
    if index is not None:
        row = PaidRow(index=index, account=evm_address(rows[index].account), amount=rows[index].amount)
    return Pay(
        epoch=settled.settlement.epoch,
        result=settled.result,
        certificate=settled.certificate,
        row=row,
        anchor=settled.anchor,
        proof=() if index is None else tree.proof(index),
    )


def check_pay(
    pay: Pay | None, spec: RunSpec, run_id: Digest, deployment: Deployment, round_id: int, payee: Address
) -> Paid | None:
    """What a receipt's pay part proves of a node with this account; None if it has none.

    Raises:
        IntegrityError: the first check that fails.
    """
    if pay is None:
        return None
    epoch, result, row = round_id // spec.money.epoch_rounds, pay.result, pay.row
    hot = [evm_address(member.hot) for member in spec.judges]
    if (pay.epoch, result.epoch, result.run_id) != (epoch, epoch, run_id):
        raise IntegrityError(f"pay: not of epoch {epoch} of this run")
    try:
        verify_certificate(deployment.digest(result), pay.certificate, hot)
        anchor = None if pay.anchor is None else check_result_anchor(pay.anchor, deployment, result)
        if row is None:
            return Paid(epoch=epoch, amount=None, anchor=anchor)
        account = evm_address(payee)
        if row.account != account:
            raise ValueError(f"a row of {row.account:.60}, the node's account is {account}")
        if payee == spec.money.treasury:  # of a node that joined: leaves name no role
            raise ValueError(f"a row of {account}, which receives the fee: it may be that")
        if len(pay.proof) > PROOF_MAX or any(len(sibling) != 32 for sibling in pay.proof):
            raise ValueError(f"proof: expected at most {PROOF_MAX} hashes of 32 bytes")
        if root_of_proof(leaf(run_id, epoch, row.index, account, row.amount), pay.proof) != result.root:
            raise ValueError("the row is not under the signed root")
    except (AssayError, ValueError, OverflowError, EncodingError) as error:
        raise IntegrityError(f"pay: {error}") from None
    return Paid(epoch=epoch, amount=row.amount, anchor=anchor)
