"""Settlement file: the JSON of one settled epoch in a bundle, written and read.

Room: bundle (pure). The certified chain determines every field but three: the digest of the parameters,
which a reader without torch takes from the file, the number of the run's verifier set, and the quorum's
signatures, which bind both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.bundle.finished import Settled
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.event_proof import EventProof
from assay.chain.proofs.result_anchor import check_result_anchor
from assay.chain.statements import EpochResult, verify_certificate
from assay.ledger.settlement.payouts import Settlement, Unpaid
from assay.ledger.settlement.results import epoch_result, result_digest
from assay.protocol.encoding.json_text import plain
from assay.protocol.errors import AssayError
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId

SETTLEMENTS = "settlements"  # folder of a bundle with one file an epoch


def epoch_name(folder: str, epoch: int) -> str:
    """The path of an epoch's file in a bundle: of its settlement, or of the proof that this is final."""
    return f"{folder}/epoch-{epoch:03d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutRow:
    """One row of the payout table, with its index in the Merkle tree."""

    index: int
    role: str
    peer: PeerId
    account: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementFile:
    """The file's content."""

    epoch: int
    tokens_paid: int
    rows: tuple[PayoutRow, ...]
    unpaid: tuple[Unpaid, ...]
    result: EpochResult
    digest: bytes
    certificate: bytes


def settlement_file(settled: Settled) -> SettlementFile:
    """The content of a settled epoch's file."""
    table = settled.settlement
    return SettlementFile(
        epoch=table.epoch,
        tokens_paid=table.tokens_paid,
        rows=tuple(
            PayoutRow(
                index=index,
                role=row.role,
                peer=row.peer,
                account=evm_address(row.account),
                amount=row.amount,
            )
            for index, row in enumerate(table.rows)
        ),
        unpaid=table.unpaid,
        result=settled.result,
        digest=settled.digest,
        certificate=settled.certificate,
    )


def read_settlement(
    given: SettlementFile,
    spec: RunSpec,
    deployment: Deployment,
    table: Settlement,
    previous: Digest,
    anchor: EventProof | None,
) -> Settled:
    """The settled epoch that a file states, if the certified chain gives the same and a quorum signed it.

    Args:
        given: The file.
        spec: The run.
        deployment: Its contracts.
        table: The epoch's payout table, recomputed from the chain.
        previous: Digest of the result before, zero for epoch 0.
        anchor: The bundle's proof that the result is final on chain, if it has one.

    Raises:
        ValueError, AssayError: what differs first, and what the chain gives.
    """
    model, set_version = Digest(given.result.model_hash), given.result.set_version
    if not 0 < set_version < 1 << 32:
        raise ValueError(f"set_version {_short(set_version)}, expected the number of a verifier set")
    result = epoch_result(spec, table, model, previous, set_version)
    digest = result_digest(deployment, result)
    settled = Settled(
        settlement=table, result=result, digest=digest, certificate=given.certificate, anchor=anchor
    )
    _compare("", plain(given), plain(settlement_file(settled)))
    verify_certificate(digest, given.certificate, [evm_address(member.hot) for member in spec.judges])
    if anchor is not None:
        try:
            check_result_anchor(anchor, deployment, result)
        except AssayError as error:
            raise ValueError(f"its proof of finality: {error}") from None
    return settled


def _compare(name: str, given: Any, made: Any) -> None:
    """Raise ValueError for the first part in which the file differs."""
    if isinstance(made, dict) and isinstance(given, dict) and made.keys() == given.keys():
        for key in made:
            _compare(f"{name}.{key}".lstrip("."), given[key], made[key])
    elif isinstance(made, list) and isinstance(given, list) and len(made) == len(given):
        for index, (there, here) in enumerate(zip(given, made, strict=True)):
            _compare(f"{name}[{index}]", there, here)
    elif type(given) is not type(made) or given != made:
        raise ValueError(f"{name or 'file'}: {_short(given)}, the certified chain gives {_short(made)}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:100] + "..."
