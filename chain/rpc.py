"""RPC: one JSON-RPC endpoint and one optional key; at most one transaction per call is mined despite retries.

Room: chain (edge). Nonces, gas and receipts are read from the chain each time, because a restarted local
chain may lose a few seconds and a process may be killed at any instant. Kept is only what was sent and not
seen mined: a transaction whose fee is too low for its block holds back all later ones of the account, so
it is signed again with the same nonce.

    read state -> sign with the pending nonce -> send -> wait for the receipt -- fee too low --.
                        ^                          |             ^                             |
                        '---- nonce taken ---------'             '---- same nonce, dearer -----'
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any, Literal, NoReturn, TypeVar, cast

import requests
from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_utils.abi import function_abi_to_4byte_selector
from web3 import HTTPProvider, Web3
from web3.exceptions import ContractLogicError, TransactionNotFound, Web3Exception, Web3RPCError
from web3.types import RPCResponse

from assay.chain.addresses import CONTRACTS
from assay.chain.signing.fees import (
    LATE_BLOCKS,
    RAISES_MAX,
    REFUSED_S,
    Pending,
    Stuck,
    first_fees,
    nothing,
    raised_fees,
)
from assay.chain.signing.signer import KeyHere, Signer
from assay.chain.signing.unsigned import FileSigner
from assay.chain.statements import Address
from assay.chain.text.reverts import revert_text
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import AssayError, ConfigError, Unavailable

T = TypeVar("T")

REQUEST_S_MAX = 20
NONCE_RETRIES_MAX = 8
# For less time, a used nonce without a receipt may be an endpoint whose machines are at different blocks.
REPLACED_S = 5
FEE_LOOK_S = 2.0  # between two looks whether what is not mined pays the present base fee
WORDS_MAX = 300  # characters of an endpoint's error that are repeated
# What web3 and the decoders raise when an endpoint's answer is malformed.
NUMBER_MAX = 2**63 - 1  # what SQLite holds
_NONSENSE = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError, DecodingError,
)  # fmt: skip
_NONCE_TAKEN = ("nonce too low", "replacement transaction underpriced", "already imported", "already known")


class ChainRefused(AssayError):
    """A contract reverted. `name` is its custom error, `arguments` the error's arguments."""

    def __init__(self, action: str, name: str, arguments: tuple[Any, ...] = ()) -> None:
        shown = ", ".join(f"0x{one.hex()}" if isinstance(one, bytes) else str(one) for one in arguments)
        plain, text = f"{name}({shown})" if shown else name, revert_text(name, arguments)
        super().__init__(f"{action}: {text} [{plain}]" if text else f"{action}: {plain}")
        self.name = name
        self.arguments = arguments


class _Endpoint(HTTPProvider):
    """web3's provider with bounded JSON nesting; see protocol/encoding/json_text.py."""

    # By EIP-3668 any contract could have this process ask addresses by HTTP.
    global_ccip_read_enabled = False

    @staticmethod
    def decode_rpc_response(raw_response: bytes) -> RPCResponse:
        """The answer as web3 expects it.

        Raises:
            ValueError: it is not a JSON-RPC response.
        """
        answer = parse_json(raw_response)
        if not isinstance(answer, dict):
            raise ValueError("not a JSON object")
        return cast(RPCResponse, answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A completed write. `tx_hash` is None if its effect was already there and nothing was sent."""

    tx_hash: bytes | None
    block_number: int | None
    gas_used: int


ALREADY_DONE = Sent(tx_hash=None, block_number=None, gas_used=0)


@cache
def artefact(contract: str) -> dict[str, Any]:
    """The committed compilation of a contract: ABI, bytecode and compiler settings."""
    text = (files("assay.contracts") / "artefacts" / f"{contract}.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def whole(number: Any) -> int:
    """A block's number or time, or a place in a block, as an endpoint gives it.

    Raises:
        ValueError: no message and no store could hold it.
    """
    found = int(number)
    if not 0 <= found <= NUMBER_MAX:
        raise ValueError(f"number {str(found)[:40]}, expected 0 to {NUMBER_MAX}")
    return found


class Rpc:
    """One endpoint and at most one key. Thread-safe; writes are serialised.

    Args:
        url: HTTP JSON-RPC endpoint.
        key: What signs writes, or the 32-byte secp256k1 private key itself; None reads only.
        receipt_s_max: Seconds that a write waits to be mined.
    """

    def __init__(self, url: str, key: Signer | bytes | None = None, *, receipt_s_max: float = 60.0) -> None:
        session = requests.Session()
        session.trust_env = False  # packages do not read the environment; requests would, at every call
        # No middleware: the default one asks for the chain id before every call.
        self.web3 = Web3(
            _Endpoint(url, request_kwargs={"timeout": REQUEST_S_MAX}, session=session), middleware=[]
        )
        self.url = url
        self._signer = KeyHere(key) if isinstance(key, bytes) else key
        self._files = key if isinstance(key, FileSigner) else None
        self._receipt_s_max = receipt_s_max
        self._lock = Lock()
        self._chain_id: int | None = None
        self._pending: dict[int, Pending] = {}  # by nonce; of an account that signs by files nothing
        self._stuck: Stuck | None = None

    @property
    def address(self) -> Address:
        """The key's address.

        Raises:
            ConfigError: there is no key.
        """
        if self._signer is None:
            raise ConfigError("this chain client holds no key: it can only read")
        return self._signer.address

    def secret(self, purpose: bytes) -> bytes:
        """32 bytes derived from the key, which they do not reveal: the same each time.

        With a remote signer they are the same until this process ends.

        Raises:
            ConfigError: there is no key, or it signs by files.
        """
        if self._signer is None:
            raise ConfigError("this chain client holds no key: it has no secrets")
        return hmac.digest(self._signer.secret, b"assay/chain-secret/1" + purpose, "sha256")

    def sign_digest(self, digest: bytes) -> bytes | None:
        """The account's signature of an EIP-712 digest; None if its signer signs transactions alone."""
        return None if self._signer is None else self._signer.sign_digest(digest)

    def check_can_repeat(self, action: str) -> None:
        """Do nothing unless the account signs by files: what sends several then runs several times.

        Raises:
            ConfigError: it does, and `action` would send again what an earlier run has sent.
        """
        if self._files is not None:
            raise ConfigError(
                f"{action}: {self.address} signs by files, one transaction after the other, and running this "
                "again would repeat those that are mined: it takes an account whose key is in its folder, or "
                "at a signer"
            )

    def read(self, action: str, question: Callable[[], T]) -> T:
        """Runs one web3 call and maps its failure to an error class.

        Raises:
            ChainRefused: a contract reverted.
            Unavailable: no usable answer from the endpoint.
        """
        try:
            return question()
        except ContractLogicError as error:
            raise refusal(action, error.data) from error
        except Web3RPCError as error:
            # A revert that web3 did not recognise, such as one from eth_estimateGas.
            answer: Any = error.rpc_response or {}
            failure = answer.get("error")
            data = failure.get("data") if isinstance(failure, dict) else None
            if isinstance(data, str) and data.startswith("0x"):
                raise refusal(action, data) from error
            if "insufficient funds" in str(error).lower():
                raise ChainRefused(action, "InsufficientFunds") from error
            raise Unavailable(f"{action}: {self.url} answered {str(error.message)[:WORDS_MAX]}") from error
        except requests.ConnectionError as error:
            raise Unavailable(f"{action}: no chain answers at {self.url}; is `rpc_url` right?") from error
        except (requests.RequestException, OSError, Web3Exception) as error:
            raise Unavailable(f"{action}: {self.url}: {_short(error)}") from error
        except _NONSENSE as error:
            raise Unavailable(f"{action}: {self.url} malformed answer: {_short(error)}") from error

    def send(self, action: str, transaction: dict[str, Any], *, wait: bool = True) -> Sent:
        """Signs, sends and waits until mined. At most one transaction of this call is ever mined.

        Args:
            action: Name for error texts, such as "stake".
            transaction: `to`, `data`, `value` as needed; the rest is filled in. A given `gas` is kept.
            wait: False returns as soon as the endpoint took it. An account that signs by files waits all
                the same: its process ends with the next transaction that is not signed.

        Raises:
            NotYet, ConfigError: the account signs by files, see `FileSigner.sign`.
            ChainRefused: it would revert, or did.
            Unavailable: the endpoint is gone, or nothing was mined in time. Whether it will be mined
                is then unknown: read the state before sending again.
        """
        with self._lock:
            tx_hash, nonce = self._sent_before(action, transaction) or self._submit(action, transaction)
        if not wait and self._files is None:
            return Sent(tx_hash=tx_hash, block_number=None, gas_used=0)
        try:
            return self._mined(action, tx_hash, nonce)
        except _NonceTaken:
            # It is not sent again: the endpoint may lie about nonce and receipt, and have it sent for ever.
            taken = f"another transaction of {self.address} has taken its nonce {nonce}"
            if self._files is not None:
                signed, _ = self._files.files(self._chain(action), nonce)
                taken += f"; if you know of that one, remove {signed} and the .json beside it, and sign again"
            raise Unavailable(f"{action}: {taken}") from None

    def was_sent(self, action: str, transaction: dict[str, Any]) -> bool:
        """Whether `send` would wait for the same call of an earlier process, and send nothing.

        Raises:
            ConfigError: a wallet may have sent it, see `FileSigner.sent_before`.
        """
        return self._sent_before(action, transaction) is not None

    def _sent_before(self, action: str, transaction: dict[str, Any]) -> tuple[bytes, int] | None:
        """Hash and nonce of the same call, if a process that signed by files sent it and then ended."""
        if self._files is None:
            return None
        nonce = self._nonce(action, "pending")
        return self._files.sent_before(action, transaction, self._chain(action), nonce)

    def _submit(self, action: str, transaction: dict[str, Any]) -> tuple[bytes, int]:
        sender = self.address
        draft = {"from": sender, **transaction}
        if "gas" not in draft:
            # The pending block sees our own earlier transactions and the next block's time.
            estimate = self.read(action, lambda: int(self.web3.eth.estimate_gas(draft, "pending")))  # type: ignore[arg-type]
            draft["gas"] = estimate * 13 // 10 + 20_000
        for _ in range(NONCE_RETRIES_MAX):
            fields = self._fields(action, draft)
            raw, tx_hash = self._sign(action, fields)
            try:
                self._offer(action, raw)
            except _NonceTaken:
                if self.found(action, self.web3.eth.get_transaction, tx_hash) is None:
                    continue
                # else our own bytes arrived in an earlier try
            if self._files is None:
                self._pending[fields["nonce"]] = Pending(fields=fields, hashes=[tx_hash])
            return tx_hash, fields["nonce"]
        raise Unavailable(
            f"{action}: {NONCE_RETRIES_MAX} nonces of {self.address} were used by other transactions"
        )

    def _fields(self, action: str, draft: dict[str, Any]) -> dict[str, Any]:
        """All that is signed."""
        nonce = self._nonce(action, "pending")
        base_fee, _ = self._newest(action)
        return {
            **{name: value for name, value in draft.items() if name != "from"},
            "nonce": nonce,
            "chainId": self._chain(action),
            **first_fees(base_fee),
            "value": draft.get("value", 0),
        }

    def _sign(self, action: str, fields: dict[str, Any]) -> tuple[bytes, bytes]:
        assert self._signer is not None
        return self._signer.sign(action, fields)

    def _newest(self, action: str) -> tuple[int, int]:
        """Base fee in wei and number of the newest block."""
        block = self.read(action, lambda: self.web3.eth.get_block("latest"))
        return self.read(action, lambda: (int(block["baseFeePerGas"]), whole(block["number"])))

    # ---- what holds later transactions back

    def _unstick(self, action: str) -> None:
        """Sends again what blocks leave out, dearer, and clears the nonce that all others wait for.

        Raises:
            ChainRefused: the account cannot pay the higher fee.
            Unavailable: the endpoint is gone, or the account's signer declines.
        """
        if not self._pending or not self._lock.acquire(blocking=False):  # else somebody is signing
            return
        try:
            next_nonce, (base_fee, block) = self._nonce(action, "latest"), self._newest(action)
            try:
                for nonce, one in sorted(self._pending.items()):
                    if nonce >= next_nonce:
                        if one.since_block < 0 or nonce > next_nonce:
                            one.since_block = block
                        is_late = block >= one.since_block + LATE_BLOCKS
                        self._raise(action, one, raised_fees(one, base_fee, is_late=is_late))
                    elif len(one.hashes) == 1:  # whoever asks for its receipt needs no other hash
                        self._pending.pop(nonce, None)
            finally:  # a refused raise holds nobody up
                self._clear(action, next_nonce, base_fee, block)
        finally:
            self._lock.release()

    def _clear(self, action: str, next_nonce: int, base_fee: int, block: int) -> None:
        """Cancels what has the account's next nonce, once it has had it for long enough."""
        ours = self._pending.get(next_nonce)
        if next_nonce > max(self._pending, default=-1) or (ours is not None and not ours.is_given_up):
            self._stuck = None
        elif self._stuck is None or self._stuck.nonce != next_nonce:
            self._stuck = Stuck(nonce=next_nonce, since_s=time.monotonic(), block=block)
        elif self._stuck.is_over(time.monotonic(), block):
            self._stuck = None
            self._cancel(action, next_nonce, base_fee)

    def _raise(self, action: str, one: Pending, fees: Mapping[str, int] | None) -> None:
        """Sends the same call with the same nonce again, with these fees, if it needs any."""
        if fees is None or time.monotonic() < one.retry_s:
            return
        one.retry_s = time.monotonic() + REFUSED_S  # unless it is taken
        fields = {**one.fields, **fees}
        raw, tx_hash = self._sign(action, fields)
        one.hashes.append(tx_hash)  # first: an endpoint that is lost now may have it
        with suppress(_NonceTaken):  # mined meanwhile, or there already
            self._offer(action, raw)
        one.raised += 1
        one.fields, one.since_block, one.retry_s = fields, -1, 0.0

    def _cancel(self, action: str, nonce: int, base_fee: int) -> None:
        """Uses a nonce for nothing, in place of a transaction that nobody mines.

        Not for the call that waits: that one was sent with a nonce already, and could be mined twice.
        """
        for one in nothing(self.address, base_fee, self._pending.get(nonce)):
            fields = {**one, "nonce": nonce, "chainId": self._chain(action)}
            raw, tx_hash = self._sign(f"{action}: in place of one that is stuck", fields)
            with suppress(_NonceTaken):  # the one that is there is dearer, or mined meanwhile
                self._offer(action, raw)
                self._pending[nonce] = Pending(fields=fields, hashes=[tx_hash], raised=RAISES_MAX)
                return

    def _chain(self, action: str) -> int:
        """The chain's id."""
        if self._chain_id is None:
            self._chain_id = self.read(action, lambda: int(self.web3.eth.chain_id))
        return self._chain_id

    def in_flight(self) -> int:
        """Transactions of this client's account that the endpoint knows and has not seen mined."""
        return max(self._nonce("transactions", "pending") - self._nonce("transactions", "latest"), 0)

    def _nonce(self, action: str, block: Literal["latest", "pending"]) -> int:
        return self.read(action, lambda: int(self.web3.eth.get_transaction_count(self.address, block)))  # type: ignore[arg-type]

    def _offer(self, action: str, raw: bytes) -> None:
        """Submits the same bytes until the endpoint has accepted or refused them."""
        for attempt in (1, 2, 3):
            try:
                self.read(action, lambda: self.web3.eth.send_raw_transaction(raw))
                return
            except Unavailable as error:
                if any(phrase in str(error).lower() for phrase in _NONCE_TAKEN):
                    raise _NonceTaken from error
                if attempt == 3 or isinstance(error.__cause__, Web3RPCError):
                    raise
                time.sleep(0.2 * attempt)

    def found(self, action: str, ask: Callable[[Any], Any], tx_hash: bytes) -> Any:
        """What a call such as `get_transaction` answers; None for a transaction that is not known (yet)."""

        def known() -> Any:
            try:
                return ask(tx_hash)
            except TransactionNotFound:
                return None

        return self.read(action, known)

    def receipt(self, action: str, tx_hash: bytes, nonce: int | None = None) -> Any:
        """The receipt of a transaction, once it is mined; its hash is another one if its fee was raised.

        Args:
            action: Name for error texts.
            tx_hash: The transaction.
            nonce: Its nonce, to learn that another transaction of the account was mined with it.

        Raises:
            Unavailable: it was not mined within the client's limit.
        """
        deadline, look_at = time.monotonic() + self._receipt_s_max, time.monotonic() + FEE_LOOK_S
        pause_s, used_since, why = 0.01, None, ""
        sent = {at: one for at, one in list(self._pending.items()) if tx_hash in one.hashes}
        hashes = next((one.hashes for one in sent.values()), [tx_hash])  # grows while its fee is raised
        while True:
            for one in list(hashes):
                found = self.found(action, self.web3.eth.get_transaction_receipt, one)
                if found is not None:
                    for at in sent:
                        self._pending.pop(at, None)
                    return found
            if used_since is not None and time.monotonic() - used_since > REPLACED_S:
                raise _NonceTaken
            if time.monotonic() > deadline:
                raise Unavailable(f"{action}: not mined within {self._receipt_s_max:.0f} s{why}")
            if nonce is not None and used_since is None and nonce < self._nonce(action, "latest"):
                used_since = time.monotonic()
            if time.monotonic() > look_at:
                try:
                    self._unstick(action)
                except (ChainRefused, Unavailable) as error:  # what was sent before may be mined as it is
                    why = f"; a higher fee: {error}"
                look_at = time.monotonic() + FEE_LOOK_S
            time.sleep(pause_s)
            pause_s = min(0.2, pause_s * 1.5)

    def settled(self, action: str, sent: Sent) -> Sent:
        """Waits until a transaction that was sent without waiting is mined.

        Raises:
            ChainRefused: it was mined and reverted.
            Unavailable: it was not mined within the client's limit.
        """
        return self._mined(action, sent.tx_hash) if sent.tx_hash is not None else sent

    def _mined(self, action: str, tx_hash: bytes, nonce: int | None = None) -> Sent:
        receipt = self.receipt(action, tx_hash, nonce)
        tx_hash = bytes(receipt["transactionHash"])
        if self._files is not None and nonce is not None:
            self._files.remove(self._chain(action), nonce)
        number = receipt["blockNumber"]
        if receipt["status"] != 1:
            self._explain(action, tx_hash, number)
        return Sent(tx_hash=tx_hash, block_number=number, gas_used=receipt["gasUsed"])

    def wait_for_pending(self) -> None:
        """Waits until the transactions pending at the call are mined, within the client's limit."""
        eth = self.web3.eth
        # The number first: a block mined between the two calls then ends the wait at once.
        start = self.read("pending block", lambda: eth.block_number)
        if self.read("pending block", lambda: eth.get_block_transaction_count("pending")) == 0:
            return
        deadline = time.monotonic() + self._receipt_s_max
        while self.read("pending block", lambda: eth.block_number) == start and time.monotonic() < deadline:
            time.sleep(0.1)

    def _explain(self, action: str, tx_hash: bytes, block_number: int) -> NoReturn:
        """Repeats a reverted transaction as an `eth_call` to learn the revert reason."""
        mined = self.read(action, lambda: self.web3.eth.get_transaction(tx_hash))
        replay: Any = {
            "from": mined["from"],
            "to": mined["to"],
            "data": mined["input"],
            "value": mined["value"],
        }
        self.read(action, lambda: self.web3.eth.call(replay, block_number))
        raise ChainRefused(action, "RevertedInBlock", (block_number,))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:WORDS_MAX]


class _NonceTaken(Exception):
    """Another transaction of the same account has this nonce."""


def refusal(action: str, data: Any) -> ChainRefused:
    """The custom error in revert data, by name; by selector if none of our contracts declares it."""
    try:
        raw = bytes.fromhex(data[2:]) if isinstance(data, str) and data.startswith("0x") else b""
        known = _errors().get(raw[:4])
        if known is not None:
            name, types = known
            arguments = tuple(
                one[:WORDS_MAX] if isinstance(one, str) else one for one in decode(types, raw[4:])
            )
            return ChainRefused(action, name, arguments)
    except _NONSENSE:
        raw = b""
    return ChainRefused(action, f"Reverted 0x{raw[:4].hex()}" if raw else "Reverted")


@cache
def _errors() -> dict[bytes, tuple[str, tuple[str, ...]]]:
    found: dict[bytes, tuple[str, tuple[str, ...]]] = {
        bytes.fromhex("08c379a0"): ("Error", ("string",)),
        bytes.fromhex("4e487b71"): ("Panic", ("uint256",)),
    }
    for contract in CONTRACTS:
        for entry in artefact(contract)["abi"]:
            if entry["type"] == "error":
                types = tuple(one["type"] for one in entry["inputs"])
                found[bytes(function_abi_to_4byte_selector(entry))] = (entry["name"], types)
    return found
