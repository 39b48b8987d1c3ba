"""Withdrawal: takes a model's record back, or puts another in its place, by the present set's signatures.

Room: participant (edge: the chain). Each member signs for itself; whoever has a quorum's signatures sends
it. The record stays readable: it says by what it was replaced, and the hash of the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eth_utils.crypto import keccak

from assay.chain.statements import Supersession, certificate, sign_digest
from assay.participant.wallet.account import Account
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.client import Sent
    from assay.chain.reader import ChainReader

WITHDRAWN = bytes(32)  # the successor of a record that has none


def sign_withdrawal(account: Account, record_id: bytes, successor: bytes, reason: str) -> bytes:
    """This verifier's signature on superseding a record.

    Args:
        account: Of a verifier of the present set.
        record_id: The record's, on chain.
        successor: The record that takes its place, or `WITHDRAWN`.
        reason: Text; the chain gets its hash.

    Raises:
        ConfigError: a record is not on chain or does not stand, or both are one.
        Unavailable: the endpoint is gone.
    """
    chain = account.chain
    statement = _statement(chain, record_id, successor, reason)
    for one in (record_id, successor):
        if one != WITHDRAWN and (instead := chain.successor_of(one)) is not None:
            raise ConfigError(f"record {one.hex()} {standing_text(instead)}")
    return sign_digest(chain.deployment.digest(statement), account.keys.hot)


def withdraw(
    account: Account, record_id: bytes, successor: bytes, reason: str, signatures: Sequence[bytes]
) -> Sent:
    """Supersede a record; idempotent. Arguments as of `sign_withdrawal`.

    Raises:
        ConfigError: a record is not on chain, or both are one.
        ChainRefused: no quorum of the present set signed it, or a record does not stand.
    """
    statement = _statement(account.chain, record_id, successor, reason)
    cert = certificate(account.chain.deployment.digest(statement), signatures)
    return account.chain.supersede_model(statement, cert)


def _statement(chain: ChainReader, record_id: bytes, successor: bytes, reason: str) -> Supersession:
    if record_id == successor:
        raise ConfigError(f"record {record_id.hex()} cannot take its own place")
    for one in (record_id, successor):
        if one != WITHDRAWN and chain.model_of(one) is None:
            raise ConfigError(f"no record {one.hex()} on this chain")
    return Supersession(
        deployment_id=chain.deployment.deployment_id,
        record_id=record_id,
        new_record_id=successor,
        reason_hash=keccak(text=reason),
    )


def standing_text(successor: bytes | None) -> str:
    """What the chain says of a record, as text: `ChainReader.successor_of`."""
    if successor is None:
        return "stands"
    return "was withdrawn" if successor == WITHDRAWN else f"was replaced by {successor.hex()}"
