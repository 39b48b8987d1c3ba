"""Moves: transactions that the contracts take and no command of ours sends."""

from __future__ import annotations

from assay.chain.client import Chain, Sent
from assay.chain.statements import CERT_ECDSA


def transfer_token(chain: Chain, to: str, amount: int) -> Sent:
    """Sends token units. Repeating it sends again."""
    return chain._move("transfer token", "AssayToken", "transfer", to, amount)


def supersede_model(
    chain: Chain, record_id: bytes, new_record_id: bytes, reason_hash: bytes, cert: bytes
) -> Sent:
    """Supersedes a model record by another, or withdraws it (`new_record_id` all zero)."""
    said = (record_id, new_record_id, reason_hash, CERT_ECDSA, cert)
    return chain._once(
        lambda: chain.successor_of(record_id) == new_record_id,
        lambda: chain._move("supersede model", "ModelRegistry", "supersede", *said),
    )
