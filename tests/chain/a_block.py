"""Blocks of no chain, with headers and receipts as Ethereum encodes them."""

from __future__ import annotations

import rlp
from trie.hexary import HexaryTrie

from assay.chain.addresses import Deployment
from assay.chain.proofs.event_proof import EventProof
from assay.chain.proofs.result_anchor import FINALIZED
from assay.chain.statements import EpochResult

ADDRESS, TOPIC = b"\xaa" * 20, b"\x01" * 32


def a_receipt(number: int, status: int = 1, kind: int = 2, logs: int = 2) -> bytes:
    """The encoding of a receipt whose events say its number and theirs."""
    told = [[ADDRESS, [TOPIC], bytes([n]) * 40 + number.to_bytes(4, "big")] for n in range(logs)]
    body = rlp.encode([status, 21_000 * (number + 1), bytes(256), told])
    return body if kind == 0 else bytes([kind]) + body


def a_header(root: bytes, **changes: bytes) -> bytes:
    fields = [bytes(32)] * 5 + [root, bytes(256), b"", b"\x07", b"\x01", b"\x01", b"\x65", b"", bytes(32)]
    return rlp.encode([changes.get(str(n), one) for n, one in enumerate(fields)])


def a_block(count: int, **receipt: int) -> tuple[bytes, HexaryTrie]:
    tree = HexaryTrie({})
    for number in range(count):
        tree[rlp.encode(number)] = a_receipt(number, **receipt)
    return a_header(tree.root_hash), tree


def a_proof(count: int = 40, index: int = 3, log: int = 1, **receipt: int) -> EventProof:
    header, tree = a_block(count, **receipt)
    nodes = tuple(rlp.encode(node) for node in tree.get_proof(rlp.encode(index)))
    return EventProof(header=header, index=index, nodes=nodes, log=log)


def a_final_result(deployment: Deployment, result: EpochResult) -> EventProof:
    """That this result is final, in a block of three transactions."""
    topics = [FINALIZED, result.run_id, result.epoch.to_bytes(32, "big")]
    data = deployment.digest(result) + result.total.to_bytes(32, "big") + bytes(32)
    logs = [[bytes.fromhex(deployment.epoch_settlement[2:]), topics, data]]
    tree = HexaryTrie({})
    for number in range(3):
        tree[rlp.encode(number)] = a_receipt(number)
    tree[rlp.encode(1)] = b"\x02" + rlp.encode([1, 50_000, bytes(256), logs])
    nodes = tuple(rlp.encode(node) for node in tree.get_proof(rlp.encode(1)))
    return EventProof(header=a_header(tree.root_hash), index=1, nodes=nodes, log=0)
