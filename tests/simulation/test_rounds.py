"""Whole networks of production processes keep their promises, and breaking a rule breaks a promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from assay.ledger.settlement import payouts
from assay.participant import follower, links
from assay.protocol import state_transition
from assay.protocol.audits import AuditStatus
from assay.protocol.messages import Outcome
from assay.verifier.audit import worker
from assay.verifier.round import machine as rounds
from assay.verifier.service.audit_runner import AuditRunner
from assay.verifier.service.driver import Driver
from assay.node.service import Service as Node
from tests.simulation.promises import Violation
from tests.simulation.whole_network import Plan, planned, simulate

CALM = planned(0, faults=False)


def violation(seed: int = 0, **changes: Any) -> str:
    """The promise that a network breaks, in words; empty if it keeps all."""
    try:
        simulate(seed, replace(CALM, rounds=2, **changes))
    except Violation as broken:
        return str(broken)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whole_rounds_end_and_every_promise_holds_under_kills_cuts_and_liars(seed):
    simulate(seed)


def test_a_calm_network_trains_audits_settles_and_pays():
    world = simulate(1, CALM)
    commits = [len(link.manifest.commits) for link in world.promises.chain.values()]
    assert commits[:3] == [4, 4, 4] and not any(commits[3:])
    assert set(world.promises.judged.values()) == {AuditStatus.PASSED} and not world.promises.unpaid
    assert set(world.contracts.results) == {0, 1} and not world.contracts.cases


def test_the_same_seed_gives_the_same_frames():
    plan = replace(CALM, rounds=2, storm_s=5.0, kills=2, breaks=3)
    first, again, other = (simulate(seed, plan).network.trace.digest() for seed in (3, 3, 4))
    assert first == again != other


def test_a_lying_node_is_convicted_and_taken_to_court():
    world = simulate(2, replace(CALM, rounds=3, lying_node="random-update"))
    (order,) = world.contracts.cases
    assert AuditStatus.CONFIRMED in world.promises.judged.values()


@pytest.mark.slow
def test_a_last_manifest_that_is_not_final_is_closed():
    """Before there were closing blocks at a run's end, this network stood still with round 14 of 15."""
    plan = Plan(
        rounds=4, lying_node="no-feedback", lying_verifier="never-open", storm_s=30.0, kills=5, cuts=1,
        breaks=16, late_s=15.0, slow=14,
    )  # fmt: skip
    simulate(3, plan)


# ---- every promise is one that can be broken


