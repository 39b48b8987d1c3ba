"""A node that comes late finds its way into the run by the chain alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from assay import contracts
from assay.chain.deployment.anvil import Anvil, find_anvil
from assay.devnet.provision import establish
from assay.devnet.supervisor import Supervisor
from assay.orders.data import collect_data
from assay.orders.load import load_order
from assay.orders.spec import data_spec
from assay.participant.links import extend
from assay.participant.store import Store
from assay.protocol.identity import peer_of
from assay.protocol.messages import CertifiedManifest
from assay.protocol.state_transition import start
from tests.e2e.nets import WAIT_S, need_anvil, write_order

pytestmark = pytest.mark.slow


def links_of(folder: Path) -> list[CertifiedManifest]:
    """What a running verifier has made durable."""
    if not (folder / "store.db").exists():
        return []
    store = Store(folder / "store.db")
    try:
        return list(store.links())
    finally:
        store.close()


ROUNDS = 150  # as many as may pass while a process starts


def test_a_node_that_joins_late_catches_up_and_contributes(tmp_path: Path) -> None:
    need_anvil()
    order = load_order(write_order(tmp_path, rounds=ROUNDS, cheat="honest"))
    root = tmp_path / "run"
    root.mkdir()
    manifest = collect_data(order, root / "data")
    binary = find_anvil(Path(contracts.__file__).parent)
    with Anvil(binary=binary, state_dir=root / "chain") as anvil, Supervisor(root / "logs") as supervisor:
        network = establish(order, {}, root, anvil, data_spec(order, manifest), lambda _: None)
        late = network.member("node-1")
        for member in network.seats:
            if member.role in ("node", "verifier") and member is not late:
                supervisor.start(member)
        # Two rounds wait for the absent node, the others do not.
        witness = network.member("verifier-0").folder
        deadline, is_in = time.monotonic() + WAIT_S, False
        joined_at = None
        while not is_in:
            assert time.monotonic() < deadline, "the late node never contributed"
            supervisor.check()
            links = links_of(witness)
            if joined_at is None and len(links) >= 1:
                joined_at = len(links)
                supervisor.start(late)
            me = peer_of(late.keys.peer)
            is_in = any(s.commit.node == me for link in links for s in link.manifest.commits)
            time.sleep(0.5)
        first = next(
            link.manifest.round for link in links if any(s.commit.node == me for s in link.manifest.commits)
        )
        assert joined_at is not None
        assert first >= joined_at
        run_state = start(network.spec, network.run_id)
        for link in links:
            run_state = extend(run_state, link)  # every link it joined through is certified
