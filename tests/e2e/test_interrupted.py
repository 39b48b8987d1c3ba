"""A run that is interrupted twice: a node's machine hangs and comes back, then the buyer cancels.

All participants are honest. The others go on without the node, which loses pay and no stake. Then training
ends, every accepted step but the late and unjudged is paid, and exactly the rest returns.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from assay.bundle.read import Delivered, read
from assay.participant.keys.keyring import load_keys
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.identity import peer_of
from tests.conftest import Assay
from tests.e2e.conftest import SCENARIOS, Finished
from tests.e2e.nets import cancel, need_anvil, slashed, wait_for_contributions, write_order
from tests.wan.campaign import play
from tests.wan.scenario import read as read_scenario

pytestmark = pytest.mark.slow
SCENARIO = read_scenario(SCENARIOS / "frozen.toml")
WOKEN, ROUNDS = SCENARIO.faults[0].until, SCENARIO.rounds


@pytest.fixture(scope="module")
def cancelled(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    need_anvil()
    folder = tmp_path_factory.mktemp("cancelled")
    order = write_order(folder, rounds=ROUNDS)
    text = order.read_text().replace("absence_s = 20", "absence_s = 900")
    # Two verifiers, who need the fewest rounds: nothing here is about theirs.
    few = text.replace("audit_rounds = 7", "audit_rounds = 5")
    order.write_text(few.replace("dispute_rounds = 4", "dispute_rounds = 3"))

    def end_it(network: subprocess.Popen[str], run: Path) -> None:
        wait_for_contributions(network, run, WOKEN, SCENARIO.nodes)
        cancel(run)

    played = play(SCENARIO, folder, order, meanwhile=end_it)
    return Finished(played.run, played.summary, played.status)


def audits(delivered: Delivered) -> Collection[Audit]:
    """All of the run, as they ended."""
    return {step: audit for state in delivered.run_states for step, audit in state.audits.items()}.values()


def test_a_node_that_hangs_loses_the_pay_of_what_it_owed_and_no_stake(cancelled: Finished) -> None:
    run = cancelled.run

    assert slashed(cancelled.summary) == []
    delivered = read(run)
    people = run / "participants"
    node = peer_of(load_keys(people / "node-0" / "keys", (people / "password").read_text()).peer)
    found = Counter(audit.ruling for audit in audits(delivered) if audit.node == node)
    assert found[AuditStatus.LATE] >= 1
    assert found[AuditStatus.CONFIRMED] == found[AuditStatus.OVERDUE] == 0
    rounds = cancelled.rounds_of("node-0")
    assert WOKEN not in rounds
    assert max(rounds) > WOKEN  # it trains again


def test_training_ends_soon_after_and_everybody_knows_why(cancelled: Finished) -> None:
    ending = cancelled.summary["ending"]

    assert (ending["closed_by"], ending["rounds_ordered"]) == ("buyer", ROUNDS)
    assert WOKEN < ending["rounds"] < ROUNDS
    for log in sorted((cancelled.run / "logs").glob("node-*.log")):
        assert "training is over" in log.read_text()


def test_every_accepted_step_but_the_late_and_unjudged_is_paid_and_exactly_the_rest_returns(
    cancelled: Finished,
) -> None:
    summary, money = cancelled.summary, cancelled.summary["money"]
    unpaid = sum(
        audit.ruling is AuditStatus.LATE
        or (audit.ruling is AuditStatus.EXPIRED and audit.dispute_opened_round >= 0)  # nobody could judge
        for audit in audits(read(cancelled.run))
    )
    steps = sum(node["accepted"] for node in summary["nodes"]) - unpaid
    gross = steps * 2 * 32 * 900_000_000 // 10**6  # sequences, context, price of 10^6 tokens

    assert cancelled.broken_promises() == [] and cancelled.status == 0
    assert summary["unsettled_steps"] == 0
    assert money["paid_operators"] + money["paid_verifiers"] + money["fees"] == gross > 0
    assert money["refunded"] == money["funded"] - gross > 0
    assert all(node["paid"] > 0 for node in summary["nodes"])


def test_the_model_of_the_rounds_that_were_paid_is_delivered_and_verifies(
    assay: Assay, cancelled: Finished
) -> None:
    status, out, err = assay("run", "verify", cancelled.run)

    assert status == 0, err
    assert "the run was closed by the buyer" in out and "byte for byte" in out
    card = (Path(cancelled.run) / "bundle" / "model" / "README.md").read_text()
    assert f"{cancelled.summary['ending']['rounds']} of {ROUNDS} ordered" in card
