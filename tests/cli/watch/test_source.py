"""Source: `assay watch` reads a participant's store and the chain, and disturbs neither."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from assay.cli.watch.source import Source
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.participant.store import Store
from assay.participant.telemetry.round_trips import FILE, FORMAT, STALE_S
from assay.protocol.errors import ConfigError
from assay.testing.members import peer
from assay.testing.signed import NODES
from tests.a_network import a_record
from tests.cli.market import Market

pytestmark = pytest.mark.slow
LINKS = 5


@pytest.fixture
def node(market: Market) -> Path:
    """A node's configuration, in a run that is open, with some manifests in its store."""
    market.join_nodes()
    for name in NODES:
        market.lock(name)
    market.open_run()
    market.fill_store(NODES[0], LINKS)
    file = market.config_of(NODES[0])
    write_record(file.parent / "keys" / OWN_RECORD, a_record(NODES[0], Role.NODE))
    return file


def test_a_node_sees_its_run_its_stake_and_the_escrow(node: Path, market: Market):
    found = Source(node).read()

    assert (found.me, found.round, found.rounds) == (peer(NODES[0]), LINKS, 6)
    own = market.as_(NODES[0])
    escrow = market.bank.run(market.run_id)
    assert escrow is not None
    assert (found.stake, found.budget) == (own.stake_of(own.address, 0).active, escrow.budget)
    assert found.note == ""


def test_it_follows_a_store_that_another_process_has_open(node: Path, market: Market):
    source = Source(node)
    assert source.read().round == LINKS
    writer = Store(node.parent / "store.db")
    try:
        writer.add_link(market.links[LINKS])
        assert source.read().round == LINKS + 1
    finally:
        writer.close()


def test_round_trips_are_those_that_the_process_measured_lately(node: Path, market: Market):
    assert Source(node).read().round_trip_us is None
    own, other = peer(NODES[1]), market.spec.verifier_peers[0]
    us = {own.hex(): 2000, other.hex(): 30_000}
    file = node.parent / FILE
    file.write_text(json.dumps({"format": FORMAT, "at_s": int(time.time()), "us": us}))

    found = Source(node).read()

    assert (found.round_trip_us, found.longest_round_trip_us) == (16_000, 30_000)
    assert {one.peer: one.round_trip_us for one in found.nodes}[own] == 2000
    assert {one.peer: one.round_trip_us for one in found.verifiers}[other] == 30_000
    file.write_text(json.dumps({"format": FORMAT, "at_s": int(time.time()) - STALE_S - 60, "us": us}))
    assert Source(node).read().round_trip_us is None


def test_without_a_chain_the_rest_is_still_shown(node: Path, market: Market):
    file = market.config_of(NODES[0], rpc_url="http://127.0.0.1:1")

    found = Source(file).read()

    assert (found.note, found.stake, found.budget) == ("the chain does not answer", None, None)
    assert found.round == LINKS and len(found.losses) == LINKS


def test_before_the_first_manifest_it_waits(market: Market):
    file = market.config_of(NODES[1])
    write_record(file.parent / "keys" / OWN_RECORD, a_record(NODES[1], Role.NODE))

    assert Source(file).read().state == "waiting"


def test_a_folder_that_is_no_network_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no local network here"):
        Source(tmp_path)
