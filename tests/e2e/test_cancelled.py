"""A buyer cancels in the middle: training ends, every accepted step is paid, and exactly the rest returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Assay
from tests.e2e.conftest import Finished
from tests.e2e.nets import (
    broken_invariants,
    localnet,
    need_anvil,
    summary_of,
    wait_for_round,
    write_order,
)

pytestmark = pytest.mark.slow
ROUNDS, CANCELLED_AT = 300, 7  # more rounds than there is time for, however fast the machine is


@pytest.fixture(scope="module")
def cancelled(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A network of honest participants whose buyer cancels by the product's own command."""
    need_anvil()
    folder = tmp_path_factory.mktemp("cancelled")
    order = write_order(folder, rounds=ROUNDS)
    order.with_suffix(".scenario.toml").unlink()
    order.write_text(order.read_text().replace("collect_s = 8", "collect_s = 8\niteration_s = 10"))
    run = folder / "run"
    with localnet(folder, order) as process:
        wait_for_round(process, run, CANCELLED_AT)
        buyer = str(run / "participants" / "buyer" / "config.toml")
        command = [sys.executable, "-m", "assay.cli.main", "order", "cancel", buyer]
        assert "closing" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        summary = summary_of(process)
        return Finished(run, summary, process.returncode)


def test_training_ends_soon_after_and_everybody_knows_why(cancelled: Finished) -> None:
    ending = cancelled.summary["ending"]

    assert (ending["closed_by"], ending["rounds_ordered"]) == ("buyer", ROUNDS)
    assert CANCELLED_AT < ending["rounds"] < ROUNDS
    for log in sorted((cancelled.run / "logs").glob("node-*.log")):
        assert "training is over" in log.read_text()


def test_every_accepted_step_is_paid_and_exactly_the_rest_returns(cancelled: Finished) -> None:
    summary, money = cancelled.summary, cancelled.summary["money"]
    steps = sum(node["accepted"] for node in summary["nodes"])
    gross = steps * 2 * 32 * 900_000_000 // 10**6  # sequences, context, price of 10^6 tokens

    assert broken_invariants(summary) == [] and cancelled.status == 0
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
