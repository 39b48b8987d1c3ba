"""Receipt pay: the part of a step receipt that proves the node's pay, and its offline checks.

Room: bundle (pure).

    row -> root of the epoch's table <- result <- a quorum's hot keys
                                          ^-- final on chain, in a block whose hash the reader compares
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.exceptions import EncodingError

from assay.bundle.finished import Settled
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.event_proof import BlockPoint
from assay.chain.proofs.payout_tree import leaf, root_of_proof
from assay.chain.proofs.result_anchor import check_result_anchor, read_anchor_json
from assay.chain.statements import EpochResult, verify_certificate
from assay.participant.index import IntegrityError
from assay.protocol.encoding.json_text import plain
from assay.protocol.errors import AssayError
from assay.protocol.params import RunSpec
from assay.protocol.types import Address, Digest, PeerId

_PAY = ("epoch", "result", "certificate", "anchor", "row", "proof")
_ROW = ("index", "account", "amount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What a receipt's pay part proves."""

    epoch: int
    amount: int | None  # the row's, token units; None without a row
    anchor: BlockPoint | None  # where the result became final; None without the proof


def pay_json(settled: Settled, node: PeerId) -> dict[str, Any]:
    """The JSON of a node's pay in a receipt."""
    rows, tree = settled.settlement.rows, settled.settlement.tree()
    index = next((i for i, r in enumerate(rows) if r.role == "operator" and r.peer == node), None)
    row = None
    if index is not None:
        row = {"index": index, "account": evm_address(rows[index].account), "amount": rows[index].amount}
    return {
        "epoch": settled.settlement.epoch,
        "result": plain(settled.result),
        "certificate": settled.certificate.hex(),
        "row": row,
        "anchor": plain(settled.anchor),
        "proof": [one.hex() for one in tree.proof(index)] if index is not None else [],
    }


def check_pay(
    claimed: Any, spec: RunSpec, run_id: Digest, deployment: Deployment, round_id: int, payee: Address
) -> Paid | None:
    """What a receipt's pay part proves of a node with this account; None if it has none.

    Raises:
        IntegrityError: the first check that fails.
    """
    if claimed is None:
        return None
    claimed = keys_of(claimed, _PAY, "pay")
    epoch = round_id // spec.money.epoch_rounds
    hot = [evm_address(member.hot) for member in spec.verifiers]
    try:
        result = read_result(claimed["result"])
        if (claimed["epoch"], result.epoch, result.run_id) != (epoch, epoch, run_id):
            raise IntegrityError(f"pay: not of epoch {epoch} of this run")
        verify_certificate(deployment.digest(result), bytes_of(claimed["certificate"], "pay"), hot)
    except IntegrityError:
        raise
    except (AssayError, ValueError, TypeError, OverflowError, EncodingError) as error:
        raise IntegrityError(f"pay: {error}") from None
    anchor = _anchored(claimed["anchor"], deployment, result)
    if claimed["row"] is None:
        return Paid(epoch=epoch, amount=None, anchor=anchor)
    row, proof = keys_of(claimed["row"], _ROW, "pay"), claimed["proof"]
    if any(type(row[name]) is not int or row[name] < 0 for name in ("index", "amount")):
        raise IntegrityError("pay: index and amount must be whole numbers")
    account = evm_address(payee)
    if row["account"] != account:
        raise IntegrityError(f"pay: a row of {row['account']}, the node's account is {account}")
    if not isinstance(proof, list) or len(proof) > 64:
        raise IntegrityError("pay: no Merkle proof")
    try:
        start = leaf(run_id, epoch, row["index"], account, row["amount"])
    except ValueError as error:  # an index or amount out of range
        raise IntegrityError(f"pay: {error}") from None
    if root_of_proof(start, [bytes_of(one, "pay", 32) for one in proof]) != result.root:
        raise IntegrityError("pay: the row is not under the signed root")
    return Paid(epoch=epoch, amount=row["amount"], anchor=anchor)


def _anchored(claimed: Any, deployment: Deployment, result: EpochResult) -> BlockPoint | None:
    if claimed is None:
        return None
    try:
        return check_result_anchor(read_anchor_json(claimed), deployment, result)
    except (AssayError, ValueError) as error:
        raise IntegrityError(f"pay: {error}") from None


def read_result(claimed: Any) -> EpochResult:
    """An epoch's result from JSON, bytes in hexadecimal.

    Raises:
        ValueError: other fields, or invalid hexadecimal.
    """
    names = {field.name for field in dataclasses.fields(EpochResult)}
    if not isinstance(claimed, dict) or set(claimed) != names:
        raise ValueError(f"a result has the fields {', '.join(sorted(names))}")
    fields: dict[str, Any] = {k: bytes.fromhex(v) if isinstance(v, str) else v for k, v in claimed.items()}
    return EpochResult(**fields)


def keys_of(claimed: Any, names: Sequence[str], part: str) -> dict[str, Any]:
    """A JSON object with exactly these fields. Raises IntegrityError."""
    if not isinstance(claimed, dict) or set(claimed) != set(names):
        raise IntegrityError(f"{part}: expected exactly the fields {', '.join(names)}")
    return claimed


def bytes_of(text: Any, part: str, size: int | None = None) -> bytes:
    """The bytes of canonical, lower-case hexadecimal. Raises IntegrityError."""
    try:
        found = bytes.fromhex(text)
    except (ValueError, TypeError):
        raise IntegrityError(f"{part}: not hexadecimal") from None
    if found.hex() != text or (size is not None and len(found) != size):
        raise IntegrityError(f"{part}: not the hexadecimal of {'its' if size is None else size} bytes")
    return found
