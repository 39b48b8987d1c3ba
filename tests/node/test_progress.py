"""A node's operator reads from one line a round whether the node counts, and if not, why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.ledger.settlement.payouts import settle
from assay.node.progress import round_line
from assay.protocol.run_state import RunState
from assay.protocol.types import RoundId
from assay.testing.members import NODES, a_member
from assay.testing.run import a_start, grow

NODE = NODES[0]
ACCOUNT = bytes(a_member(NODE).account)


def line(run_state: RunState, settlements: dict[int, Any] | None = None) -> dict[str, Any]:
    return round_line(run_state, NODE, ACCOUNT, settlements or {})


def test_an_accepted_step_comes_with_its_loss_and_its_audits():
    run_state = grow(a_start(), 2)
    found = line(run_state)
    commit = next(one for one in run_state.last_commits if one.node == NODE)
    assert (found["round"], found["step"], found["loss"]) == (1, "accepted", commit.loss_micro / 10**6)
    assert found["accepted"] == 2
    assert found["audits_open"] == sum(a.node == NODE and a.is_open for a in run_state.audits.values()) > 0


def test_pay_so_far_is_the_sum_of_the_nodes_own_rows():
    run_state = a_start()
    while int(run_state.round) <= run_state.calendar.settled_at(0):
        run_state = grow(run_state, 1)
    settlement = settle(run_state, 0)
    rows = settlement.rows_of(ACCOUNT)
    assert line(run_state, {0: settlement})["paid"] == sum(settlement.rows[i].amount for i in rows)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"has_left": True}, "it has left, or was silent until another node took its seat"),
        ({"has_left": True, "borderline": 16}, "audits found too many of its steps neither"),
        ({"fault_round": 3}, "banned for a fault in round 3"),
        ({}, "did not reach enough verifiers"),
    ],
)
def test_a_round_without_our_step_says_why(change, why):
    run_state = grow(a_start(), 2)
    nodes = {**run_state.nodes, NODE: replace(run_state.nodes[NODE], **change)}
    others = tuple(one for one in run_state.last_commits if one.node != NODE)
    assert why in line(replace(run_state, nodes=nodes, last_commits=others))["step"]


def test_what_concerns_all_nodes_is_told_from_what_concerns_one():
    run_state = replace(grow(a_start(), 2), last_commits=())
    assert "no commits" in line(run_state)["step"]
    assert "overdue" in line(replace(run_state, late=frozenset([NODE])))["step"]
    over = replace(run_state, round=RoundId(run_state.training_rounds + 1))
    assert "training is over" in line(over)["step"]
