"""Gateway: builds a move's unsigned transactions, submits signed ones and reports their state.

Room: api (edge: one JSON-RPC endpoint, without a key). Blocking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.abi import encode
from eth_utils.address import to_checksum_address
from web3.exceptions import Web3RPCError

from assay.api.moves import Call
from assay.chain.reader import ChainReader
from assay.chain.rpc import ChainRefused, refusal
from assay.chain.signing.fees import first_fees
from assay.chain.signing.unsigned import Transaction
from assay.chain.statements import Address
from assay.protocol.errors import Unavailable

_MAGIC = bytes.fromhex("1626ba7e")  # isValidSignature(bytes32,bytes), EIP-1271
_ASKED_GAS = 500_000
_KNOWN = ("already known", "already imported", "nonce too low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mined:
    """State of a transaction on chain."""

    state: str  # "unknown", "pending", "mined", "reverted", "final"
    block: int | None = None


class Gateway(ChainReader):
    """Read access to one deployment's contracts, and submission of signed transactions."""

    def call_of(self, contract: str, function: str, *arguments: Any, gas: int = 300_000) -> Call:
        """A contract call as data."""
        where = self._contract(contract, function)
        return Call(
            contract=contract,
            to=self.deployment.address(contract),
            data=str(where.encode_abi(function, list(arguments))),
            gas_fallback=gas,
        )

    def allowance(self, account: str, contract: str) -> int:
        """Token units that a contract may pull from an account."""
        return int(self._ask("AssayToken", "allowance", account, self.deployment.address(contract)))

    def unsigned(self, account: str, calls: Sequence[Call]) -> list[Transaction]:
        """The calls as transactions of an account, in order.

        Raises:
            ChainRefused: one of them would revert; where the endpoint cannot rehearse several, the first.
        """
        eth = self._rpc.web3.eth
        sender: Any = account
        nonce = self._rpc.read("nonce", lambda: eth.get_transaction_count(sender, "pending"))
        fees = first_fees(self._rpc.read("fees", lambda: eth.get_block("latest")["baseFeePerGas"]))
        gas = self._gas(account, calls)
        made = []
        for at, call in enumerate(calls):
            made.append(
                Transaction(
                    account=Address(account),
                    chain_id=self.deployment.chain_id,
                    nonce=nonce + at,
                    to=Address(call.to),
                    value_wei=0,
                    data=bytes.fromhex(call.data[2:]),
                    gas=gas[at],
                    fee_wei=fees["maxFeePerGas"],
                    priority_fee_wei=fees["maxPriorityFeePerGas"],
                )
            )
        return made

    def _gas(self, account: str, calls: Sequence[Call]) -> list[int]:
        """Gas of each call, made after the ones before it."""
        drafts: list[Any] = [{"from": account, "to": call.to, "data": call.data} for call in calls]
        used, fallback = self._rehearsed(calls, drafts) if len(calls) > 1 else None, []
        if used is None:
            action, eth = calls[0].contract, self._rpc.web3.eth
            used = [self._rpc.read(action, lambda: int(eth.estimate_gas(drafts[0], "pending")))]
            fallback = [call.gas_fallback for call in calls[1:]]
        return [one * 13 // 10 + 20_000 for one in used] + fallback

    def _rehearsed(self, calls: Sequence[Call], drafts: Sequence[Any]) -> list[int] | None:
        """Gas that the calls use one after another; None of an endpoint without `eth_simulateV1`."""
        asked: Any = "eth_simulateV1", [{"blockStateCalls": [{"calls": drafts}]}, "pending"]
        answer: Any = self._rpc.read("rehearse", lambda: self._rpc.web3.provider.make_request(*asked))
        if "error" in answer:
            return None

        def read() -> list[int]:
            found = answer["result"][0]["calls"]
            for call, one in zip(calls, found, strict=True):
                if int(one["status"], 16) != 1:
                    raise refusal(call.contract, one.get("returnData"))
            return [int(one["gasUsed"], 16) for one in found]

        return self._rpc.read("rehearse", read)

    def offer(self, raw: bytes) -> str:
        """Submit a signed transaction; returns the endpoint's error text, empty if it was accepted.

        Raises:
            Unavailable: no answer; whether it was accepted is unknown.
        """
        try:
            self._rpc.read("send", lambda: self._rpc.web3.eth.send_raw_transaction(raw))
        except ChainRefused as refused:
            return str(refused)[:200]
        except Unavailable as error:
            message = str(error).lower()
            if any(phrase in message for phrase in _KNOWN):
                return ""
            if not isinstance(error.__cause__, Web3RPCError):
                raise
            return str(error.__cause__.message)[:200]
        return ""

    def mined(self, tx_hash: bytes) -> Mined:
        """State of a transaction on chain."""
        eth = self._rpc.web3.eth
        found = self._rpc.found("receipt", eth.get_transaction_receipt, tx_hash)
        if found is None:
            known = self._rpc.found("transaction", eth.get_transaction, tx_hash)
            return Mined(state="unknown" if known is None else "pending")
        block = int(found["blockNumber"])
        if found["status"] != 1:
            return Mined(state="reverted", block=block)
        final = self._rpc.read("final block", lambda: eth.get_block("finalized")["number"])
        return Mined(state="final" if block <= final else "mined", block=block)

    def is_valid_signature(self, account: str, digest: bytes, signature: bytes) -> bool:
        """Whether a contract wallet accepts the signature (EIP-1271)."""
        eth, wallet = self._rpc.web3.eth, to_checksum_address(account)
        if not self._rpc.read("wallet", lambda: eth.get_code(wallet)):
            return False
        data = _MAGIC + encode(["bytes32", "bytes"], [digest, signature])
        question: Any = {"to": wallet, "data": data, "gas": _ASKED_GAS}
        try:
            answer = bytes(self._rpc.read("wallet", lambda: eth.call(question)))
        except ChainRefused:
            return False
        except Unavailable as error:
            if isinstance(error.__cause__, Web3RPCError):  # it ran out of gas, or worse
                return False
            raise
        return len(answer) == 32 and answer[:4] == _MAGIC and not any(answer[4:])
