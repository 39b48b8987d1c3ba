"""Event proof: checks offline that a contract's event is in the block with a given hash.

Room: chain (pure). A block's hash binds its header, the header its receipts trie, a receipt its
events. The reader needs only the block's hash from a source it trusts:

    block hash = keccak(header);  header -> receipts root -> (trie nodes) -> receipt -> event

Reference:
    Ethereum yellow paper, 4.3 and appendices B and D; EIP-2718 for typed receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rlp
from eth_utils.crypto import keccak
from rlp.exceptions import RLPException

from assay.protocol.errors import MalformedMessage

HEADER_BYTES_MAX = 4096
NODES_MAX, NODE_BYTES_MAX = 16, 1 << 17  # of a trie whose leaf is the receipt
_RECEIPTS_ROOT, _NUMBER, _TIME = 5, 8, 11  # positions in a header
_TIME_MAX = 253_402_300_799  # the last second of the year 9999: later times cannot be formatted
_DEPTH_MAX = 8  # nesting of RLP lists: more than a header, trie node or receipt has


@dataclass(frozen=True, slots=True, kw_only=True)
class EventProof:
    """Proof that an event is in a block.

    header: RLP. index: of its transaction in the block. nodes: of the receipts' trie, from the root down.
    log: position among the receipt's events.
    """

    header: bytes
    index: int
    nodes: tuple[bytes, ...]
    log: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPoint:
    """The block that an event is in."""

    number: int
    hash: bytes
    time_s: int  # Unix time in the block's header


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenEvent:
    """A proven event and its block."""

    address: bytes  # of the contract, 20 bytes
    topics: tuple[bytes, ...]
    data: bytes
    block: BlockPoint


def read_event(proof: EventProof) -> ProvenEvent:
    """The event that a proof proves.

    Raises:
        MalformedMessage: the proof is invalid: sizes, encoding, a wrong hash, or a reverted transaction.
    """
    if len(proof.header) > HEADER_BYTES_MAX or len(proof.nodes) > NODES_MAX:
        raise MalformedMessage(f"event proof: {len(proof.header)} bytes of header, {len(proof.nodes)} nodes")
    if any(len(node) > NODE_BYTES_MAX for node in proof.nodes):
        raise MalformedMessage(f"event proof: a node of more than {NODE_BYTES_MAX} bytes")
    if not 0 <= proof.index < 1 << 32:
        raise MalformedMessage("event proof: no index of a transaction")
    header = _list(proof.header, "header")
    if len(header) <= _TIME or not all(isinstance(one, bytes) for one in header):
        raise MalformedMessage(f"event proof: a header of {len(header)} fields")
    block = BlockPoint(
        number=_number(header[_NUMBER]), hash=keccak(proof.header), time_s=_number(header[_TIME])
    )
    if block.time_s > _TIME_MAX:
        raise MalformedMessage(f"event proof: a block at second {block.time_s}, expected a date")
    receipt = _leaf(header[_RECEIPTS_ROOT], rlp.encode(proof.index), proof.nodes)
    address, topics, data = _log(receipt, proof.log)
    return ProvenEvent(address=address, topics=topics, data=data, block=block)


def _leaf(root: bytes, key: bytes, nodes: Sequence[bytes]) -> bytes:
    """The value of a key in the Merkle Patricia trie with this root."""
    nibbles = [half for byte in key for half in (byte >> 4, byte & 15)]
    expected: Any = root
    for node in nodes:
        if keccak(node) != expected:
            raise MalformedMessage("event proof: a node does not have the hash in its parent")
        item = _list(node, "node")
        while True:  # a node shorter than its hash is embedded in its parent
            expected, nibbles, value = _descend(item, nibbles)
            if value is not None:
                if node is not nodes[-1]:
                    raise MalformedMessage("event proof: nodes after the leaf")
                return value
            if isinstance(expected, bytes):
                break
            item = expected
    raise MalformedMessage("event proof: no leaf")


def _descend(item: Any, nibbles: list[int]) -> tuple[Any, list[int], bytes | None]:
    """One trie node further: the child, the rest of the key, and the value if the key ends here."""
    if isinstance(item, list) and len(item) == 17:
        if not nibbles:
            return b"", [], _value(item[16])
        return item[nibbles[0]], nibbles[1:], None
    if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], bytes) or not item[0]:
        raise MalformedMessage("event proof: not a trie node")
    path = [half for byte in item[0] for half in (byte >> 4, byte & 15)]
    flag = path[0]
    if flag > 3 or (flag & 1 == 0 and path[1]):
        raise MalformedMessage("event proof: a trie path with an invalid prefix")
    rest = path[1:] if flag & 1 else path[2:]
    if nibbles[: len(rest)] != rest:
        raise MalformedMessage("event proof: the path leads to another receipt than its index")
    left = nibbles[len(rest) :]
    if flag < 2:
        return item[1], left, None
    if left:
        raise MalformedMessage("event proof: the path leads to another receipt than its index")
    return b"", [], _value(item[1])


def _value(item: Any) -> bytes:
    if not isinstance(item, bytes) or not item:
        raise MalformedMessage("event proof: not a receipt")
    return item


def _log(receipt: bytes, position: int) -> tuple[bytes, tuple[bytes, ...], bytes]:
    fields = _list(receipt[1:] if receipt[0] < 0x80 else receipt, "receipt")
    if len(fields) < 4 or fields[0] != b"\x01" or not isinstance(fields[3], list):
        raise MalformedMessage("event proof: not the receipt of a transaction that succeeded")
    if not 0 <= position < len(fields[3]):
        raise MalformedMessage(f"event proof: event {position} of {len(fields[3])}")
    event = fields[3][position]
    if (
        not isinstance(event, list)
        or len(event) != 3
        or not isinstance(event[0], bytes)
        or not isinstance(event[1], list)
        or not all(isinstance(one, bytes) for one in event[1])
        or not isinstance(event[2], bytes)
    ):
        raise MalformedMessage("event proof: not an event")
    return event[0], tuple(event[1]), event[2]


def _number(field: Any) -> int:
    if not isinstance(field, bytes) or len(field) > 8 or field[:1] == b"\0":
        raise MalformedMessage("event proof: a header field that is not a number")
    return int.from_bytes(field, "big")


def _list(data: bytes, what: str) -> list[Any]:
    """The list that an RLP encoding holds.

    Raises:
        MalformedMessage: it is no list, or nests deeper than `_DEPTH_MAX`: the library's decoder recurses.
    """
    try:
        _check_depth(data)
        found = rlp.decode(data)
    except (RLPException, ValueError, TypeError, IndexError) as error:
        raise MalformedMessage(f"event proof: a {what} that is not RLP ({str(error)[:100]})") from None
    if not isinstance(found, list):
        raise MalformedMessage(f"event proof: a {what} that is not a list")
    return found


def _check_depth(data: bytes) -> None:
    ends, at = [len(data)], 0
    while at < len(data):
        first = data[at]
        if first < 0xC0:
            short, wide = first - 0x80, first - 0xB7
            size = 0 if first < 0x80 else short if wide <= 0 else wide + _length(data, at + 1, wide)
            at += 1 + size
        else:
            wide = max(0, first - 0xF7)
            size = _length(data, at + 1, wide) if wide else first - 0xC0
            ends.append(at + 1 + wide + size)
            at += 1 + wide
        while ends and at >= ends[-1]:
            ends.pop()
        if len(ends) > _DEPTH_MAX:
            raise ValueError(f"lists nested more than {_DEPTH_MAX} deep")


def _length(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "big")
