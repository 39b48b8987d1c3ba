"""Unsigned: an account signs through files, so that its key can be on a machine without network.

Room: chain (edge: one folder). For each transaction there is a file to sign, and beside it one with the
signed bytes in hexadecimal, as wallets print them:

    0xACCOUNT-CHAIN-NONCE.json      written here; `assay key sign`, or a wallet that signs EIP-1559, reads it
    0xACCOUNT-CHAIN-NONCE.signed    put here by a person; both are removed once it is mined

Who asks for a transaction gets `NotYet` until it is signed, and asks again. What an earlier process sent, and
did not see mined, is not asked for again. What was signed is compared with what is asked: gas and fees
may be those of the file to sign, or less; all else is equal, or nothing is sent.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.address import is_checksum_address, to_checksum_address
from eth_utils.crypto import keccak
from hexbytes import HexBytes

from assay.chain.statements import Address
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError, MalformedMessage, NotYet, Unavailable

SCHEMA = "assay/unsigned-transaction/1"
FILE_BYTES_MAX = 1 << 20
ACTION_CHARS_MAX = 60
SIGNED = ".signed"
# As JSON-RPC names the numbers, and as this file does.
_NUMBERS = {
    "chainId": "chain_id",
    "nonce": "nonce",
    "value": "value_wei",
    "gas": "gas",
    "maxFeePerGas": "fee_wei",
    "maxPriorityFeePerGas": "priority_fee_wei",
}
_OTHERS = ("type", "from", "to", "data", "accessList")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """An EIP-1559 transaction of an account: a call, or a transfer of the chain's coin; no access list."""

    account: Address  # whose it is
    chain_id: int
    nonce: int
    to: Address
    value_wei: int
    data: bytes
    gas: int
    fee_wei: int  # the highest fee per gas, of which the priority fee is a part
    priority_fee_wei: int

    @property
    def fee_wei_max(self) -> int:
        """The most that it costs beside its value."""
        return self.gas * self.fee_wei

    @property
    def call(self) -> tuple[int, int, str, int, bytes]:
        """All that must be equal in what is asked and what was signed."""
        return (self.chain_id, self.nonce, self.to, self.value_wei, self.data)

    @property
    def fields(self) -> dict[str, Any]:
        """As eth_account takes it."""
        numbers = {name: getattr(self, own) for name, own in _NUMBERS.items()}
        return {**numbers, "type": 2, "to": self.to, "data": self.data}

    def plain(self) -> dict[str, Any]:
        """As browsers' wallets take it, in JSON."""
        return {**self.fields, "data": f"0x{self.data.hex()}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsigned:
    """A transaction to sign, and what it is for, in the words of who wrote the file."""

    action: str
    transaction: Transaction

    def to_json(self) -> str:
        """One JSON object; its `transaction` is as JSON-RPC spells it, for any wallet."""
        one = self.transaction
        spelt = {
            "type": "0x2",
            "from": one.account,
            "to": one.to,
            **{name: hex(getattr(one, own)) for name, own in _NUMBERS.items()},
            "data": f"0x{one.data.hex()}",
            "accessList": [],
        }
        return json.dumps({"schema": SCHEMA, "action": self.action, "transaction": spelt}, indent=2) + "\n"


def read_unsigned(path: Path) -> Unsigned:
    """The transaction in a file to sign.

    Raises:
        ConfigError: it cannot be read, or is no such file.
    """
    try:
        found = parse_json(_read(path))
        spelt = found["transaction"]
        if found["schema"] != SCHEMA or set(found) != {"schema", "action", "transaction"}:
            raise ValueError(f"expected schema {SCHEMA}, action and transaction")
        if set(spelt) != {*_NUMBERS, *_OTHERS} or (spelt["type"], spelt["accessList"]) != ("0x2", []):
            raise ValueError("expected the fields of type 0x2, without access list")
        if not isinstance(found["action"], str) or len(found["action"]) > ACTION_CHARS_MAX:
            raise ValueError("action")
        transaction = Transaction(
            account=_address("from", spelt["from"]),
            to=_address("to", spelt["to"]),
            data=bytes.fromhex(_matching("data", spelt["data"], "0x((?:[0-9a-f]{2})*)")),
            **{own: _number(name, spelt[name]) for name, own in _NUMBERS.items()},
        )
        return Unsigned(action=found["action"], transaction=transaction)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: no transaction to sign ({type(error).__name__}: {error})") from None


def read_signed(path: Path) -> tuple[Transaction, bytes]:
    """The transaction in a file of signed bytes, of whoever signed it, and the bytes.

    Raises:
        ConfigError: it cannot be read, or holds no signed EIP-1559 transaction to an address.
    """
    text = _read(path)
    try:
        raw = bytes.fromhex(text.decode().strip().removeprefix("0x"))
    except ValueError as error:
        raise ConfigError(f"{path}: expected a signed transaction in hexadecimal ({error})") from None
    try:
        return parse_signed(raw), raw
    except MalformedMessage as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_signed(raw: bytes) -> Transaction:
    """The transaction in signed bytes, of whoever signed it.

    Raises:
        MalformedMessage: they are no signed EIP-1559 transaction to an address, without access list.
    """
    try:
        found = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        if found["type"] != 2 or found["accessList"] or not found["to"]:
            raise ValueError("expected type 2, to an address, without access list")
        numbers: dict[str, Any] = {own: found[name] for name, own in _NUMBERS.items()}
        return Transaction(
            account=Address(Account.recover_transaction(raw)),
            to=Address(to_checksum_address(bytes(found["to"]))),
            data=bytes(found["data"]),
            **numbers,
        )
    except Exception as error:  # whatever decoders make of a stranger's bytes
        raise MalformedMessage(f"expected a signed transaction ({type(error).__name__}: {error})") from None


def signed_path(unsigned: Path) -> Path:
    """Where the signed bytes of a file to sign go."""
    return unsigned.with_suffix(SIGNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSigner:
    """A key that signs files which people carry.

    account: Whose transactions it signs. folder: Of the files; made when the first is written.
    """

    account: Address
    folder: Path

    @property
    def address(self) -> Address:
        """The account."""
        return self.account

    @property
    def secret(self) -> bytes:
        """There is none: see `Signer`.

        Raises:
            ConfigError: always. What is derived from it has to be the same when the command runs again.
        """
        raise ConfigError(
            f"{self.account} signs by files in {self.folder}, so it has no secret to report an offence with: "
            "that takes an account whose key is in its folder, or at a signer"
        )

    def sign(self, action: str, transaction: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """What was signed for this transaction; see `Signer`.

        Raises:
            NotYet: nothing was; the file to sign is there now, and the text says what to do with it.
            ConfigError: something else was signed, or by another key, or at a higher fee. Or it has no
                receiver: contracts are deployed by a key that is here.
            Unavailable: the folder cannot be written.
        """
        if "to" not in transaction:
            raise ConfigError(
                f"{action}: {self.account} signs by files, and a deployment needs a key in its folder"
            )
        asked = self._asked(transaction)
        signed, unsigned = self.files(asked.chain_id, asked.nonce)
        written = _written(unsigned)
        is_kept = written is not None and written.transaction.call == asked.call
        if not signed.exists():
            # Not written again at each try: a person may be carrying it. But what can be mined no more is.
            if written is None or not is_kept or not _covers(written.transaction, asked):
                _replace(unsigned, Unsigned(action=action[:ACTION_CHARS_MAX], transaction=asked).to_json())
            raise NotYet(
                f"{action}: not signed yet. Where the key is, sign {unsigned} (`assay key sign FILE --keys "
                f"FOLDER`, or a wallet that signs EIP-1559). Put the result at {signed}, and run this again. "
                "An account that is a contract makes the file's call (to, data, value) itself instead"
            )
        found, raw = read_signed(signed)
        self._check(action, signed, found, asked)
        limit = written.transaction if written is not None and is_kept else asked
        for name, own in _NUMBERS.items():
            if getattr(found, own) > getattr(limit, own):
                raise ConfigError(
                    f"{action}: {signed} was signed with {name} {getattr(found, own)}, "
                    f"above the {getattr(limit, own)} that was asked for: remove it, and sign again"
                )
        if not _covers(found, asked):
            raise NotYet(
                f"{action}: {signed} pays at most {found.fee_wei} wei per gas, less than the chain takes: "
                "run this later; or remove the file, run this now, and sign again"
            )
        return raw, keccak(raw)

    def sign_digest(self, digest: bytes) -> None:
        """Sign nothing: a file holds a transaction."""

    def sent_before(
        self, action: str, transaction: Mapping[str, Any], chain_id: int, nonce: int
    ) -> tuple[bytes, int] | None:
        """Hash and nonce of the account's last transaction, if it is this call, and its file is still here.

        Then it was sent by a process that ended before it saw it mined.

        Args:
            action: For error texts.
            transaction: `to`, `data`, `value`, as asked for.
            chain_id: The chain's.
            nonce: The account's next.

        Raises:
            ConfigError: the call was to be signed with the last nonce, which is used, and did not come back.
        """
        if "to" not in transaction or not nonce:
            return None
        asked = self._asked({**transaction, "chainId": chain_id, "nonce": nonce - 1})
        signed, unsigned = self.files(chain_id, nonce - 1)
        if not signed.exists():
            written = _written(unsigned)
            if written is not None and written.transaction.call == asked.call:
                raise ConfigError(
                    f"{action}: {unsigned} was not brought back signed, and its nonce is used: if a wallet "
                    "has sent it, it is done; if not, remove it, and run this again"
                )
            return None
        try:
            found, raw = read_signed(signed)
        except ConfigError:
            return None
        return (keccak(raw), nonce - 1) if (found.account, found.call) == (self.account, asked.call) else None

    def remove(self, chain_id: int, nonce: int) -> None:
        """Remove the files of a transaction that is mined."""
        for path in self.files(chain_id, nonce):
            with suppress(OSError):  # what stays is found as sent before
                path.unlink()

    def files(self, chain_id: int, nonce: int) -> tuple[Path, Path]:
        """The signed and the unsigned file of a nonce."""
        unsigned = self.folder / f"{self.account.lower()}-{chain_id}-{nonce}.json"
        return signed_path(unsigned), unsigned

    def _asked(self, given: Mapping[str, Any]) -> Transaction:
        data = given.get("data", b"")
        numbers: dict[str, Any] = {own: given.get(name, 0) for name, own in _NUMBERS.items()}
        return Transaction(
            account=self.account,
            to=Address(to_checksum_address(given["to"])),
            data=bytes.fromhex(data.removeprefix("0x")) if isinstance(data, str) else bytes(data),
            **numbers,
        )

    def _check(self, action: str, path: Path, found: Transaction, asked: Transaction) -> None:
        """Do nothing if a signed transaction is the account's, and the one that is asked for.

        Raises:
            ConfigError: it is not; with both.
        """
        if found.account != self.account:
            raise ConfigError(f"{action}: {path} was signed by {found.account}, expected {self.account}")
        for name in ("chain_id", "nonce", "to", "value_wei", "data"):
            there, wanted = (_shown(getattr(one, name)) for one in (found, asked))
            if getattr(found, name) != getattr(asked, name):
                raise ConfigError(
                    f"{action}: {path} was signed for another transaction: {name} {there}, not "
                    f"{wanted}: finish the command that it was signed for, or remove it and sign again"
                )


def _covers(offered: Transaction, asked: Transaction) -> bool:
    """Whether a highest fee pays the present base fee and tip; what is asked pays for twice the base fee."""
    return 2 * offered.fee_wei >= asked.fee_wei + asked.priority_fee_wei


def _written(path: Path) -> Unsigned | None:
    try:
        return read_unsigned(path)
    except ConfigError:  # missing, or of no use: it is written again
        return None


def _replace(path: Path, text: str) -> None:
    """Write a file of mode 0600 in place of an earlier one; a crash leaves the one or the other."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")  # mode 0600
        try:
            with open(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Unavailable(f"{path} cannot be written ({error.strerror})") from None


def _read(path: Path) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return text


def _address(name: str, given: Any) -> Address:
    if not isinstance(given, str) or not is_checksum_address(given):
        raise ValueError(f"{name}: {given!r:.60}, expected a checksummed address")
    return Address(given)


def _number(name: str, given: Any) -> int:
    return int(_matching(name, given, "0x([0-9a-f]{1,64})"), 16)


def _matching(name: str, given: Any, pattern: str) -> str:
    found = re.fullmatch(pattern, given) if isinstance(given, str) else None
    if found is None:
        raise ValueError(f"{name}: {given!r:.60}, expected {pattern}")
    return found[1]


def _shown(value: object) -> str:
    text = f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text if len(text) <= 90 else f"{text[:87]}..."
