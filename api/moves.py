"""Moves: checks that transactions sent through the API are those prepared, and signed by their account.

Room: api (pure). The server holds no account's key. Money is moved only by the account's own signed
transactions; with them the account signs one EIP-712 statement, `Move`, which describes them in plain
text, binds them, and is valid once and for minutes. A session or a token alone moves nothing.

    prepare -> Move + unsigned transactions -> signed by the account -> checked here -> the chain
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak

from assay.chain.addresses import Deployment
from assay.chain.signing.unsigned import Transaction, parse_signed
from assay.chain.statements import BadSignatureError, recover
from assay.protocol.errors import AssayError, MalformedMessage

MOVE_S = 600
RAW_BYTES_MAX = 16_384
MOVE_TYPE = [
    {"name": "action", "type": "string"},
    {"name": "summary", "type": "string"},
    {"name": "account", "type": "address"},
    {"name": "amount", "type": "uint256"},
    {"name": "parametersHash", "type": "bytes32"},
    {"name": "transactionsHash", "type": "bytes32"},
    {"name": "deploymentId", "type": "bytes32"},
    {"name": "nonce", "type": "bytes32"},
    {"name": "expiry", "type": "uint64"},
]
_DOMAIN_TYPE = [
    {"name": "name", "type": "string"},
    {"name": "version", "type": "string"},
    {"name": "chainId", "type": "uint256"},
    {"name": "verifyingContract", "type": "address"},
]


class MoveRefused(AssayError):
    """The sent transactions or statement differ from the prepared ones, or another key signed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One contract call of a move."""

    contract: str
    to: str
    data: str  # hexadecimal, 0x
    gas_fallback: int  # used if an earlier unmined call prevents estimation


def typed_data(
    deployment: Deployment,
    *,
    action: str,
    summary: str,
    account: str,
    amount: int,
    parameters: Mapping[str, Any],
    transactions: Sequence[Transaction],
    nonce: bytes,
    expiry: int,
) -> dict[str, Any]:
    """The `Move` statement in the form of `eth_signTypedData_v4`."""
    return {
        "types": {"EIP712Domain": _DOMAIN_TYPE, "Move": MOVE_TYPE},
        "primaryType": "Move",
        "domain": {
            "name": "Assay API",
            "version": "1",
            "chainId": deployment.chain_id,
            "verifyingContract": deployment.run_escrow,
        },
        "message": {
            "action": action,
            "summary": summary,
            "account": account,
            "amount": amount,
            "parametersHash": _hash(dict(parameters)),
            "transactionsHash": _hash([_fixed(one) for one in transactions]),
            "deploymentId": "0x" + deployment.deployment_id.hex(),
            "nonce": "0x" + nonce.hex(),
            "expiry": expiry,
        },
    }


def move_digest(typed: Mapping[str, Any]) -> bytes:
    """The EIP-712 digest that the account signs, 32 bytes."""
    signable = encode_typed_data(full_message=dict(typed))
    return keccak(b"\x19" + signable.version + signable.header + signable.body)


def check_move(typed: Mapping[str, Any], signature: bytes, account: str) -> None:
    """Do nothing if the account signed this `Move`.

    Raises:
        MoveRefused: the signature is missing or by another account.
    """
    try:
        signer = recover(move_digest(typed), signature)
    except BadSignatureError as error:
        raise MoveRefused(str(error)) from None
    if signer != account:
        raise MoveRefused(f"the move is signed by {signer}, {account} expected")


def check_transaction(raw: bytes, prepared: Transaction) -> None:
    """Do nothing if a signed transaction is exactly the prepared one, by its account.

    Args:
        raw: The signed transaction, encoded for the chain.
        prepared: The transaction expected; its account may choose the two fees.

    Raises:
        MoveRefused: it differs in any field but the fees, or has another signer.
    """
    try:
        if len(raw) > RAW_BYTES_MAX:
            raise MalformedMessage(f"{len(raw)} bytes, at most {RAW_BYTES_MAX} expected")
        found = parse_signed(raw)
    except MalformedMessage:
        raise MoveRefused("not a signed transaction of type 2 (EIP-1559) without access list") from None
    sent = found.plain()
    for name, value in _fixed(prepared).items():
        if sent[name] != value:
            raise MoveRefused(f"the transaction's {name} differs from the prepared one's")
    if found.account != prepared.account:
        raise MoveRefused(f"the transaction is signed by {found.account}, {prepared.account} expected")


def _fixed(one: Transaction) -> dict[str, Any]:
    """All that the account does not choose."""
    return {name: value for name, value in one.plain().items() if not name.startswith("max")}


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "0x" + keccak(text.encode()).hex()
