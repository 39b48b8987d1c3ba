"""A machine that hangs in a real network: the others go on without it, and it comes back."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from assay.bundle.read import read
from assay.participant.keyring import load_keys
from assay.protocol.audits import AuditStatus
from assay.protocol.identity import peer_of
from tests.conftest import Assay
from tests.e2e.nets import (
    broken_invariants,
    localnet,
    need_anvil,
    pid_of,
    slashed,
    summary_of,
    wait_for_round,
    write_order,
)

pytestmark = pytest.mark.slow
FROZEN, WOKEN, ROUNDS = 2, 20, 80  # it needs some seconds to return, and rounds are short


def test_a_node_that_hangs_loses_the_pay_of_what_it_owed_and_no_stake(assay: Assay, tmp_path: Path) -> None:
    need_anvil()
    order = write_order(tmp_path, rounds=ROUNDS)
    order.write_text(order.read_text().replace("absence_s = 20", "absence_s = 900"))
    run = tmp_path / "run"
    with localnet(tmp_path, order) as process:
        wait_for_round(process, run, FROZEN)
        hung = pid_of(run, "node-0")
        os.kill(hung, signal.SIGSTOP)
        try:
            wait_for_round(process, run, WOKEN)
        finally:
            os.kill(hung, signal.SIGCONT)
        summary = summary_of(process)

    assert broken_invariants(summary) == []
    assert slashed(summary) == ["stale-parameters"]  # and not the one that hung
    delivered = read(run)
    people = run / "participants"
    node = peer_of(load_keys(people / "node-0" / "keys", (people / "password").read_text()).peer)
    found = Counter(
        audit.ruling
        for audit in {k: a for state in delivered.run_states for k, a in state.audits.items()}.values()
        if audit.node == node
    )
    assert found[AuditStatus.LATE] >= 1
    assert found[AuditStatus.CONFIRMED] == found[AuditStatus.OVERDUE] == 0
    rounds = [
        int(link.manifest.round)
        for link in delivered.links
        if any(signed.commit.node == node for signed in link.manifest.commits)
    ]
    assert max(rounds) > WOKEN  # it trains again
    assert assay("run", "verify", run)[0] == 0
