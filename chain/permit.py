"""Permit: an allowance that an account signs (EIP-2612), so that paying takes one transaction.

Room: chain (edge: asks the token). A permit is for the amount of one call and for some minutes. Which tokens
take one, their answers decide: a token whose domain is what its own name and version make of it, on this
chain and at its address, and which would take this very permit now. Dai's permit, for any amount, is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils.crypto import keccak
from web3.exceptions import Web3RPCError

from assay.chain.rpc import ChainRefused, Rpc
from assay.chain.statements import Address, Domain, EvmAddress, Uint256, struct_hash
from assay.protocol.errors import Unavailable

PERMIT_S = 600  # by the chain's clock; a transaction is mined within a minute or reported as lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """`spender` may take `value` token units of `owner` until `deadline` (Unix seconds)."""

    owner: EvmAddress
    spender: EvmAddress
    value: Uint256
    nonce: Uint256  # of the owner at the token
    deadline: Uint256


def permit_digest(permit: Permit, domain: Domain) -> bytes:
    """The 32-byte EIP-712 digest that the owner signs."""
    return keccak(b"\x19\x01" + domain.separator() + struct_hash(permit))


def signed_permit(
    rpc: Rpc, *, token: Address, chain_id: int, spender: Address, amount: int, now_s: int
) -> tuple[int, int, int, bytes, bytes] | None:
    """What `permitAndCall` takes before its call; None where the account has to send an approval.

    Args:
        rpc: Whose account pays.
        token: The deployment's.
        chain_id: The deployment's; with it nothing is signed for another chain.
        spender: The contract that will take the tokens.
        amount: Token units.
        now_s: Chain time.

    Returns:
        Value, deadline, v, r and s. None if the account's signer signs transactions alone, or the token takes
        no such permit.

    Raises:
        Unavailable: the endpoint is gone.
    """
    domain = _domain_of(rpc, token, chain_id)
    nonce = _told(rpc, token, "nonces(address)", "uint256", encode(["address"], [rpc.address]))
    if domain is None or nonce is None:
        return None
    permit = Permit(owner=rpc.address, spender=spender, value=amount, nonce=nonce, deadline=now_s + PERMIT_S)
    signature = rpc.sign_digest(permit_digest(permit, domain))
    if signature is None:
        return None
    given = (amount, permit.deadline, signature[64], signature[:32], signature[32:64])
    kinds = ["uint256", "uint256", "uint8", "bytes32", "bytes32"]
    question = encode(["address", "address", *kinds], [permit.owner, spender, *given])
    function = f"permit(address,address,{','.join(kinds)})"
    return None if _answer(rpc, token, function, question) is None else given


def _domain_of(rpc: Rpc, token: Address, chain_id: int) -> Domain | None:
    """The token's EIP-712 domain; None if it has none, or one that is not its own."""
    name = _told(rpc, token, "name()", "string")
    version = _told(rpc, token, "version()", "string")
    if name is None:
        return None
    # OpenZeppelin's tokens have no such function, and this version.
    domain = Domain(name=name, version=version or "1", chain_id=chain_id, verifying_contract=token)
    return domain if _told(rpc, token, "DOMAIN_SEPARATOR()", "bytes32") == domain.separator() else None


def _told(rpc: Rpc, token: Address, function: str, kind: str, arguments: bytes = b"") -> Any:
    """The value of this type that a function of the token returns; None if it returns no such."""
    answer = _answer(rpc, token, function, arguments)
    try:
        return None if answer is None else decode([kind], answer)[0]
    except (DecodingError, ValueError):  # no text, among others
        return None


def _answer(rpc: Rpc, token: Address, function: str, arguments: bytes) -> bytes | None:
    """What the token returns, in the pending block; None if it reverts."""
    call: Any = {"to": token, "data": keccak(text=function)[:4] + arguments}
    try:
        return rpc.read(function, lambda: bytes(rpc.web3.eth.call(call, "pending")))
    except ChainRefused:
        return None
    except Unavailable as error:
        if isinstance(error.__cause__, Web3RPCError):  # it ran out of gas, or worse
            return None
        raise
