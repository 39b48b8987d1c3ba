"""Nodes at home, behind routers that let nobody in, train and are paid: they dial, nobody dials them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from assay.devnet.run import run_localnet
from assay.devnet.summary import read_summary
from tests.e2e.nets import need_anvil, write_order
from tests.wan.routers import PORT, Routers, missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
HOMES, ROUNDS = ("node-0", "node-1"), 4


def test_nodes_behind_different_routers_train_beside_others_and_are_paid(tmp_path: Path):
    need_anvil()
    order, out = write_order(tmp_path, rounds=ROUNDS), tmp_path / "run"
    with Routers(out, HOMES) as machines:
        assert run_localnet(order, {}, (), out, as_json=True, machines=machines)
        for name in HOMES:
            with pytest.raises(OSError, match="timed out"):
                socket.create_connection((machines.router(name), PORT), timeout=1.0)

    nodes = read_summary((out / "summary.json").read_text()).nodes
    honest = [node for node in nodes if node.behaviour == "honest"]
    assert len(honest) == 3  # two of them at home
    assert [node.accepted for node in honest] == [ROUNDS] * 3
    assert len({node.paid for node in honest}) == 1 and honest[0].paid > 0
