"""A run for which too few nodes are ready in time never starts, and everybody ends with its money back."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.bundle.read import read
from tests.e2e.nets import broken_invariants, localnet, need_anvil, summary_of, write_order

pytestmark = pytest.mark.slow


def test_a_run_that_nobody_is_in_time_for_never_starts_and_all_its_money_returns(tmp_path: Path) -> None:
    need_anvil()
    order = write_order(tmp_path, rounds=2)
    order.with_suffix(".scenario.toml").unlink()
    in_vain = "nodes = 0\nleast_nodes = 1\nstart_within_s = 1\nverifiers = 1"
    order.write_text(order.read_text().replace("nodes = 4", in_vain))

    with localnet(tmp_path, order) as process:
        summary = summary_of(process)

    assert process.returncode == 0 and broken_invariants(summary) == []
    assert (summary["ending"]["rounds"], summary["ending"]["closed_by"]) == (0, "start")
    money = summary["money"]
    assert money["refunded"] == money["funded"] > 0
    state = read(tmp_path / "run").run_states[-1]
    assert state.has_lapsed and not state.nodes
