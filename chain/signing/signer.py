"""Signers: sign an account's transactions, with a key that is here or through a signer elsewhere.

Room: chain (edge). A remote signer is a process on another machine, or beside a hardware wallet, that keeps
the key: geth's clef (`account_signTransaction`, https://geth.ethereum.org/docs/tools/clef/apis) or whatever
answers `eth_signTransaction`, such as Web3Signer (https://docs.web3signer.consensys.io/reference/api/json-rpc).
What it signs is compared with what it was asked to sign: people can edit a transaction in clef.
A third signer is in unsigned.py: files that people carry to a machine without network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from hexbytes import HexBytes

from assay.chain.endpoint import call
from assay.chain.statements import Address, sign_digest
from assay.protocol.errors import Unavailable

CONFIRM_S_MAX = 300.0  # a person may have to confirm at the signer
_METHODS = ("account_signTransaction", "eth_signTransaction")
_NO_SUCH_METHOD = -32601
_QUANTITIES = ("gas", "nonce", "chainId", "maxFeePerGas", "maxPriorityFeePerGas", "value")


class Signer(Protocol):
    """Signs for one account."""

    @property
    def address(self) -> Address:
        """The account."""

    @property
    def secret(self) -> bytes:
        """Bytes that nobody else knows, to derive salts from; never sent."""

    def sign(self, action: str, transaction: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """A signed EIP-1559 transaction as bytes, and its hash; all fields are given but `from`."""

    def sign_digest(self, digest: bytes) -> bytes | None:
        """The signature of an EIP-712 digest, 65 bytes r, s, v; None from who signs transactions alone."""


class KeyHere:
    """A key in this process."""

    def __init__(self, key: bytes) -> None:
        """`key`: 32 bytes, secp256k1."""
        self._account: LocalAccount = Account.from_key(key)

    @property
    def address(self) -> Address:
        """The key's address."""
        return Address(self._account.address)

    @property
    def secret(self) -> bytes:
        """The key: salts are the same after a restart."""
        return bytes(self._account.key)

    def sign(self, action: str, transaction: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Sign; see `Signer`."""
        signed = self._account.sign_transaction(dict(transaction))
        return bytes(signed.raw_transaction), bytes(signed.hash)

    def sign_digest(self, digest: bytes) -> bytes:
        """Sign; see `Signer`."""
        return sign_digest(digest, self.secret)


@dataclass(kw_only=True)
class RemoteSigner:
    """A key at a signer that speaks JSON-RPC over HTTP.

    url: Of the signer. account: Whose transactions it signs.
    """

    url: str
    account: Address
    secret: bytes = field(default_factory=lambda: os.urandom(32), repr=False)  # of this process
    _method: str = _METHODS[0]

    @property
    def address(self) -> Address:
        """The account."""
        return self.account

    def sign(self, action: str, transaction: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Have it signed; see `Signer`.

        Raises:
            Unavailable: no signer answers, it declines, or it signed something else or for somebody else.
        """
        asked = {**transaction, "type": 2}
        raw = self._ask(action, _spelt(self.account, asked))
        try:
            found = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
            sent = {name: value for name, value in found.items() if name not in ("v", "r", "s")}
            signer = Account.recover_transaction(raw)
            is_same = TypedTransaction.from_dict(sent).hash() == TypedTransaction.from_dict(asked).hash()
        except Exception as error:  # whatever decoders make of a stranger's bytes
            raise Unavailable(f"{action}: the signer at {self.url} sent no transaction ({error})") from None
        if signer != to_checksum_address(self.account):
            raise Unavailable(
                f"{action}: the signer at {self.url} signed as {signer}, asked for {self.account}"
            )
        if not is_same:
            raise Unavailable(f"{action}: the signer at {self.url} signed another transaction than asked")
        return raw, keccak(raw)

    def sign_digest(self, digest: bytes) -> None:
        """Sign nothing: people are asked to confirm transactions, in which they read what is allowed."""

    def _ask(self, action: str, transaction: Mapping[str, str]) -> bytes:
        answer = self._call(action, self._method, transaction)
        error = answer.get("error")
        if isinstance(error, dict) and error.get("code") == _NO_SUCH_METHOD:
            (self._method,) = {*_METHODS} - {self._method}
            answer = self._call(action, self._method, transaction)
            error = answer.get("error")
        if error is not None:
            words = str(error.get("message") if isinstance(error, dict) else error)[:200]
            raise Unavailable(f"{action}: the signer at {self.url} declined: {words}")
        found = answer.get("result")
        raw = found.get("raw") if isinstance(found, dict) else found
        try:
            return bytes.fromhex(str(raw).removeprefix("0x"))
        except ValueError:
            raise Unavailable(f"{action}: the signer at {self.url} sent no transaction") from None

    def _call(self, action: str, method: str, transaction: Mapping[str, str]) -> dict[str, Any]:
        try:
            return call(self.url, method, [transaction], timeout_s=CONFIRM_S_MAX)
        except (OSError, ValueError) as error:
            raise Unavailable(f"{action}: no signer answers at {self.url} ({type(error).__name__})") from None


def _spelt(account: Address, transaction: Mapping[str, Any]) -> dict[str, str]:
    """A transaction as JSON-RPC spells it."""
    data = transaction.get("data", b"")
    spelt = {name: hex(transaction[name]) for name in _QUANTITIES}
    if "to" in transaction:
        spelt["to"] = str(transaction["to"])
    return {
        **spelt,
        "from": account,
        "data": data if isinstance(data, str) else f"0x{bytes(data).hex()}",
    }
