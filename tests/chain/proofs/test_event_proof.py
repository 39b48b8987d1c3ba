"""Event proof: an event is shown by its block's hash alone, and nothing else can be."""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from dataclasses import replace

import pytest
import rlp
from eth_utils.crypto import keccak
from trie.hexary import HexaryTrie

from assay.chain.proofs.event_proof import EventProof, read_event
from assay.protocol.encoding.json_text import plain, read_plain
from assay.protocol.errors import MalformedMessage
from tests.chain.a_block import ADDRESS, TOPIC, a_header, a_proof


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize("count", [1, 2, 17, 129, 300])
def test_every_event_of_a_block_of_any_size_can_be_shown(count, kind):
    for index in {0, count // 2, count - 1}:
        for log in range(2):
            proof = a_proof(count, index, log, kind=kind)

            found = read_event(proof)

            assert (found.address, found.topics) == (ADDRESS, (TOPIC,))
            assert found.data == bytes([log]) * 40 + index.to_bytes(4, "big")
            assert (found.block.number, found.block.time_s) == (7, 0x65)
            assert found.block.hash == keccak(proof.header)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"index": 4}, "event proof"),
        ({"index": -1}, "no index"),
        ({"index": 1 << 32}, "no index"),
        ({"log": 2}, "event 2 of 2"),
        ({"log": -1}, "event -1 of 2"),
        ({"nodes": ()}, "no leaf"),
        ({"nodes": a_proof().nodes[:-1]}, "no leaf"),
        ({"nodes": a_proof().nodes[1:]}, "does not have the hash in its parent"),
        ({"nodes": (*a_proof().nodes, b"\xc0")}, "after the leaf"),
        ({"nodes": (b"\xc0",) * 17}, "17 nodes"),
        ({"nodes": (bytes(1 << 18),)}, "more than"),
        ({"header": a_header(bytes(32))}, "does not have the hash in its parent"),
        ({"header": bytes(5000)}, "5000 bytes of header"),
        ({"header": rlp.encode([b""] * 3)}, "3 fields"),
        ({"header": b""}, "not RLP"),
        ({"header": b"\x80"}, "not a list"),
        ({"header": a_header(bytes(32), **{"8": bytes(9)})}, "not a number"),
        ({"header": a_header(bytes(32), **{"11": b"\xff" * 8})}, "expected a date"),
    ],
)
def test_a_proof_with_another_part_shows_nothing(changes, words):
    with pytest.raises(MalformedMessage, match=words):
        read_event(replace(a_proof(), **changes))


def test_a_transaction_that_was_reverted_shows_nothing():
    with pytest.raises(MalformedMessage, match="succeeded"):
        read_event(a_proof(status=0))


def test_lists_in_lists_do_not_end_the_process():
    deep = b"\xc0"
    for _ in range(2000):
        deep = rlp.codec.length_prefix(len(deep), 0xC0) + deep
    for proof in (replace(a_proof(), nodes=(deep,)), replace(a_proof(), header=deep[-4000:])):
        with pytest.raises(MalformedMessage):
            read_event(proof)
    root = HexaryTrie({})
    root[rlp.encode(3)] = b"\x02" + deep
    nodes = tuple(rlp.encode(node) for node in root.get_proof(rlp.encode(3)))
    with pytest.raises(MalformedMessage, match="nested more than"):
        read_event(EventProof(header=a_header(root.root_hash), index=3, nodes=nodes, log=0))


def test_no_bit_can_be_flipped_and_no_nonsense_ends_the_process():
    proof, rng = a_proof(), random.Random(1)
    whole = read_event(proof)
    for _ in range(600):
        place = rng.randrange(len(proof.nodes) + 1)
        body = bytearray(proof.nodes[place] if place < len(proof.nodes) else proof.header)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        if place < len(proof.nodes):
            changed = replace(proof, nodes=(*proof.nodes[:place], bytes(body), *proof.nodes[place + 1 :]))
            with pytest.raises(MalformedMessage):
                read_event(changed)
            continue
        with suppress(MalformedMessage):  # another header is another block, whose hash no chain has
            assert read_event(replace(proof, header=bytes(body))).block.hash != whole.block.hash
    for _ in range(600):
        junk = [rng.randbytes(rng.randrange(1, 80)) for _ in range(3)]
        tree_root = keccak(junk[0])
        with pytest.raises(MalformedMessage):
            read_event(EventProof(header=a_header(tree_root), index=0, nodes=tuple(junk), log=0))


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("log"),
        lambda told: told.update(index=True),
        lambda told: told.update(index=-1),
        lambda told: told.update(log=1 << 32),
        lambda told: told.update(log=1.0),
        lambda told: told.update(nodes="00"),
        lambda told: told.update(nodes=["00"] * 17),
        lambda told: told.update(nodes=[7]),
        lambda told: told.update(header=told["header"].upper()),
        lambda told: told.update(header="0g"),
    ],
)
def test_what_is_no_anchor_is_refused(change):
    told = copy.deepcopy(plain(a_proof()))
    change(told)
    with pytest.raises((ValueError, MalformedMessage)):
        read_event(read_plain(EventProof, told))
