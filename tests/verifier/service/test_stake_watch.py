"""Stake watch: what a verifier reports of the stakes that it sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.chain.state import StakeState
from assay.participant.store import Store
from assay.protocol.messages import StakeReport
from assay.protocol.state_transition import RunState, advance
from assay.verifier.service.stake_watch import StakeWatch
from tests.builders import NODES, RUN_ID, peer
from tests.builders import a_history as the_start
from tests.builders import a_manifest as the_next
from tests.verifier.round.test_stake_reports import a_report

NORA = peer("nora")


def a_stake(active: int, minimum: int = 100) -> StakeState:
    return StakeState(active=active, unbonding=0, minimum=minimum, frozen_until=0)


@dataclass
class Desk:
    """A verifier's watch with a chain of manifests and a store."""

    folder: Path
    run_state: RunState

    def sees(self, active: int, minimum: int = 100) -> list[StakeReport]:
        me: Any = SimpleNamespace(run_id=RUN_ID, me=peer("vera"), store=Store(self.folder / "store.db"))
        follower: Any = SimpleNamespace(run_state=self.run_state)
        return StakeWatch(me, follower, lambda _: None).due_reports({NORA: a_stake(active, minimum)})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, advance(the_start(), the_next(the_start(), NODES)))


def test_stake_that_stays_or_grows_is_nothing_to_say(desk: Desk):
    assert [desk.sees(active) for active in (1000, 1000, 2000, 1000)] == [[], [], [], []]


def test_stake_that_left_is_said_after_a_restart_too(desk: Desk):
    assert desk.sees(1000) == []
    (word,) = desk.sees(999)
    assert (word.node, word.verifier, word.is_whole) == (NORA, peer("vera"), False)
    assert word.round == int(desk.run_state.round) - 1


def test_less_than_the_vaults_least_is_said_whatever_it_was(desk: Desk):
    assert len(desk.sees(99)) == 1
    assert len(desk.sees(0)) == 1


def test_nothing_is_said_before_there_is_a_round(tmp_path: Path):
    assert Desk(tmp_path, the_start()).sees(0) == []


def test_what_the_chain_has_heard_is_not_said_again(desk: Desk):
    assert len(desk.sees(0)) == 1
    heard = replace(the_next(desk.run_state, NODES), stake_reports=(a_report(desk.run_state),))
    desk.run_state = advance(desk.run_state, heard)
    assert desk.sees(0) == []
