"""Event prover: builds the proof that an event is in its block, from an endpoint's block and receipts.

Room: chain (edge: a chain's endpoint). The block's header and all receipts are encoded again; a proof
exists only if their hashes equal the block's. For a chain with another block format, as some second
layers have, `prove_event` raises and says so.
"""

from __future__ import annotations

from typing import Any

import rlp
from eth_utils.conversions import to_bytes
from eth_utils.crypto import keccak
from trie.hexary import HexaryTrie

from assay.chain.events import ChainEvent
from assay.chain.proofs.event_proof import EventProof
from assay.chain.rpc import Rpc
from assay.protocol.errors import Unavailable

# In the order of the header; blocks of older forks lack the last fields.
_HEADER = (
    "parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom",
    "difficulty", "number", "gasLimit", "gasUsed", "timestamp", "extraData", "mixHash", "nonce",
    "baseFeePerGas", "withdrawalsRoot", "blobGasUsed", "excessBlobGas", "parentBeaconBlockRoot",
    "requestsHash",
)  # fmt: skip
_NUMBERS = frozenset(
    ("difficulty", "number", "gasLimit", "gasUsed", "timestamp", "baseFeePerGas", "blobGasUsed",
     "excessBlobGas")
)  # fmt: skip


def prove_event(rpc: Rpc, event: ChainEvent) -> EventProof:
    """The proof of an event that the endpoint knows.

    Raises:
        Unavailable: the endpoint does not answer, or the block's hashes cannot be recomputed.
    """
    what, name = "event proof", f"0x{event.block_hash.hex()}"
    block = _request(rpc, what, "eth_getBlockByHash", [name, False])
    header = _header(block)
    if keccak(header) != event.block_hash:
        raise Unavailable(
            f"{what}: block {event.block_number} has a header whose hash cannot be recomputed here"
        )
    receipts = [
        _request(rpc, what, "eth_getTransactionReceipt", [transaction])
        for transaction in block["transactions"]
    ]
    tree: Any = HexaryTrie({})
    for index, receipt in enumerate(receipts):
        tree[rlp.encode(index)] = _encoded(receipt)
    if tree.root_hash != to_bytes(hexstr=block["receiptsRoot"]):
        raise Unavailable(
            f"{what}: block {event.block_number} has receipts whose root cannot be recomputed here"
        )
    for index, receipt in enumerate(receipts):
        for position, log in enumerate(receipt["logs"]):
            if int(log["logIndex"], 16) == event.log_index:
                nodes = tuple(rlp.encode(node) for node in tree.get_proof(rlp.encode(index)))
                return EventProof(header=header, index=index, nodes=_own(nodes), log=position)
    raise Unavailable(f"{what}: block {event.block_number} has no event {event.log_index}")


def _own(nodes: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The trie nodes without those shorter than their hash, which are embedded in their parents."""
    return tuple(node for place, node in enumerate(nodes) if place == 0 or len(node) >= 32)


def _request(rpc: Rpc, what: str, method: str, parameters: list[Any]) -> Any:
    def question() -> Any:
        answer: Any = rpc.web3.provider.make_request(method, parameters)  # type: ignore[arg-type]
        if not isinstance(answer.get("result"), dict):
            raise ValueError(f"{method} has no answer")
        return answer["result"]

    return rpc.read(what, question)


def _header(block: dict[str, Any]) -> bytes:
    try:
        fields = [
            int(block[name], 16) if name in _NUMBERS else to_bytes(hexstr=block[name])
            for name in _HEADER
            if name in block
        ]
    except (ValueError, TypeError) as error:
        raise Unavailable(f"event proof: a malformed block ({error})") from None
    encoded: bytes = rlp.encode(fields)
    return encoded


def _encoded(receipt: dict[str, Any]) -> bytes:
    """A receipt as the receipts trie encodes it."""
    try:
        logs = [
            [
                to_bytes(hexstr=log["address"]),
                [to_bytes(hexstr=topic) for topic in log["topics"]],
                to_bytes(hexstr=log["data"]),
            ]
            for log in receipt["logs"]
        ]
        body: bytes = rlp.encode(
            [
                int(receipt["status"], 16),
                int(receipt["cumulativeGasUsed"], 16),
                to_bytes(hexstr=receipt["logsBloom"]),
                logs,
            ]
        )
        kind = int(receipt.get("type", "0x0"), 16)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unavailable(f"event proof: a malformed receipt ({error!r})") from None
    return body if kind == 0 else bytes([kind]) + body
