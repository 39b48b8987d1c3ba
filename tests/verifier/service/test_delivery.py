"""Delivery of aggregates: each node is served by one verifier, once, and only with what is here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import trio

from assay.network.blob_store import DiskBlobs
from assay.protocol.encoding.codec import decode
from assay.protocol.messages import BlobPiece
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import peer
from assay.testing.signed import NODES, VERIFIERS
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.verifier.service.delivery import Delivery, receivers
from tests.verifier.round.test_machine import grown

ME = peer(VERIFIERS[0])


def served(run_state):
    return {name: receivers(run_state, peer(name)) for name in VERIFIERS}


def test_every_node_has_one_server_and_another_one_in_the_next_round():
    run_state = grown(the_start(), 2, votes={})
    after = grown(run_state, 1, votes={})

    for state in (run_state, after):
        nodes = [node for found in served(state).values() for node in found]
        assert sorted(nodes) == sorted(peer(name) for name in NODES)
    server = {node: name for name, found in served(run_state).items() for node in found}
    later = {node: name for name, found in served(after).items() for node in found}
    assert all(server[node] != later[node] for node in server)


def test_a_verifier_whose_share_was_missing_serves_nobody_and_the_others_serve_all():
    run_state = grown(the_start(), 2, votes={})
    whole = the_next(run_state, NODES)
    run_state = advance(run_state, replace(whole, beacon_shares=whole.beacon_shares[:3]))
    absent = next(name for name in VERIFIERS if peer(name) not in run_state.beacon)

    found = served(run_state)
    assert found.pop(absent) == []
    assert sorted(node for nodes in found.values() for node in nodes) == sorted(run_state.active)


def test_a_node_that_left_is_served_by_nobody():
    run_state = grown(the_start(), 2, votes={})
    gone = peer(NODES[0])
    record = replace(run_state.nodes[gone], has_left=True)
    run_state = replace(run_state, nodes={**run_state.nodes, gone: record})

    assert gone not in [node for nodes in served(run_state).values() for node in nodes]


class Host:
    def __init__(self):
        self.sent = []

    async def send(self, to, payload):
        await trio.lowlevel.checkpoint()
        self.sent.append((to, decode(BlobPiece, payload)))


def test_an_aggregate_is_pushed_once_and_only_if_it_is_here(tmp_path):
    run_state = grown(the_start(), 2, votes={})
    blobs, host = DiskBlobs(tmp_path, bytes_max=1 << 20), Host()
    name = blobs.put(b"an aggregate")
    manifest = replace(the_next(run_state, NODES), aggregate=name)
    absent = replace(manifest, aggregate=Digest(b"?" * 32))
    none = replace(manifest, aggregate=NO_DIGEST)

    async def main():
        async with trio.open_nursery() as nursery:
            delivery = Delivery(SimpleNamespace(me=ME, blobs=blobs), host, nursery)
            for one in (absent, none, manifest, manifest):
                delivery.begin(run_state, one)

    trio.run(main)
    assert [node for node, _ in host.sent] == receivers(run_state, ME) != []
    assert {piece.piece for _, piece in host.sent} == {b"an aggregate"}


def test_who_does_not_take_an_aggregate_does_not_hold_up_the_next(tmp_path):
    run_state = grown(the_start(), 2, votes={})
    blobs, host = DiskBlobs(tmp_path, bytes_max=1 << 20), Host()
    names = [blobs.put(body) for body in (b"first", b"second")]
    manifest = the_next(run_state, NODES)

    async def stuck(to, payload):
        if decode(BlobPiece, payload).piece == b"first":
            await trio.sleep_forever()
        host.sent.append(to)

    host.send = stuck

    async def main():
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                delivery = Delivery(SimpleNamespace(me=ME, blobs=blobs), host, nursery)
                for name in names:
                    delivery.begin(run_state, replace(manifest, aggregate=name))
                    await trio.sleep(0.05)

    trio.run(main)
    assert host.sent == receivers(run_state, ME)


def test_a_damaged_aggregate_is_not_pushed_and_ends_nothing(tmp_path, caplog):
    run_state = grown(the_start(), 2, votes={})
    blobs, host = DiskBlobs(tmp_path, bytes_max=1 << 20), Host()
    name = blobs.put(b"an aggregate")
    (file,) = [one for one in tmp_path.rglob("*") if one.is_file()]
    file.write_bytes(b"an aggregatf")

    async def main():
        async with trio.open_nursery() as nursery:
            delivery = Delivery(SimpleNamespace(me=ME, blobs=blobs), host, nursery)
            delivery.begin(run_state, replace(the_next(run_state, NODES), aggregate=name))

    trio.run(main)
    assert host.sent == [] and "aggregate not pushed" in caplog.text
