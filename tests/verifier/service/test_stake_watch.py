"""Stake watch: what a verifier reports of the lots that it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from assay.chain.state import HotKey, LotState
from assay.chain.statements import Address
from assay.protocol.messages import StakeReport
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.testing.members import RUN_ID, a_member, peer
from assay.testing.signed import NODES
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.verifier.service import stake_watch
from assay.verifier.service.stake_watch import StakeWatch
from tests.verifier.round.test_stake_reports import a_report

NORA = peer("nora")


@dataclass
class Rig:
    """A verifier's watch with a chain of manifests."""

    run_state: RunState

    def sees(self, is_whole: bool) -> list[StakeReport]:
        me: Any = SimpleNamespace(run_id=RUN_ID, me=peer("vera"))
        follower: Any = SimpleNamespace(run_state=self.run_state)
        return StakeWatch(me, follower, lambda _: None).due_reports({NORA: is_whole})


@pytest.fixture
def rig() -> Rig:
    return Rig(advance(the_start(), the_next(the_start(), NODES)))


def test_a_whole_lot_is_nothing_to_report(rig: Rig):
    assert rig.sees(True) == []


def test_a_lot_that_is_not_whole_is_reported(rig: Rig):
    (report,) = rig.sees(False)
    assert (report.node, report.verifier, report.is_whole) == (NORA, peer("vera"), False)
    assert report.round == int(rig.run_state.round) - 1


def test_nothing_is_reported_before_there_is_a_round():
    assert Rig(the_start()).sees(False) == []


def test_what_the_chain_has_heard_is_not_reported_again(rig: Rig):
    assert len(rig.sees(False)) == 1
    heard = replace(the_next(rig.run_state, NODES), stake_reports=(a_report(rig.run_state),))
    rig.run_state = advance(rig.run_state, heard)
    assert rig.sees(False) == []


@pytest.mark.parametrize(
    ("amount", "until", "is_whole"), [(7, 50, True), (6, 50, False), (7, 49, False), (0, 0, False)]
)
def test_a_lot_is_whole_that_has_the_runs_amount_and_binds_to_its_deadline(
    monkeypatch: pytest.MonkeyPatch, amount: int, until: int, is_whole: bool
):
    chain = SimpleNamespace(
        run=lambda _run_id: SimpleNamespace(lot=7, deadline=50),
        lot_of=lambda *_place: LotState(amount=amount, until=until, cases=0),
    )
    monkeypatch.setattr(stake_watch, "open_chain", lambda _me: chain)
    run_state = the_start()
    me: Any = SimpleNamespace(run_id=RUN_ID, spec=run_state.spec)
    follower: Any = SimpleNamespace(run_state=run_state)

    assert StakeWatch(me, follower, lambda _: None)._whole() == dict.fromkeys(map(peer, NODES), is_whole)


@pytest.mark.parametrize(
    ("amount", "expiry", "is_whole"), [(7, 41, True), (6, 41, False), (7, 40, False), (7, None, False)]
)
def test_a_seat_is_backed_by_the_sets_minimum_and_an_account_that_some_hot_key_speaks_for(
    monkeypatch: pytest.MonkeyPatch, amount: int, expiry: int | None, is_whole: bool
):
    def hot_key(_key: str) -> HotKey | None:
        return None if expiry is None else HotKey(account=Address("0x"), expiry=expiry)

    chain = SimpleNamespace(
        run=lambda _run_id: SimpleNamespace(lot=1, deadline=0),
        lot_of=lambda *_place: LotState(amount=amount, until=50, cases=0),
        set_version_of=lambda _run_id: 1, timestamp=lambda: 40, minimum_stake=lambda _role: 7,
        hot_key_of=lambda _account: "0x", hot_key=hot_key,
    )  # fmt: skip
    monkeypatch.setattr(stake_watch, "open_chain", lambda _me: chain)
    run_state = the_start(reserves=(a_member(peer("rosa")),))
    me: Any = SimpleNamespace(run_id=RUN_ID, spec=run_state.spec)
    follower: Any = SimpleNamespace(run_state=run_state)

    whole = StakeWatch(me, follower, lambda _: None)._whole()

    assert whole == dict.fromkeys(map(peer, NODES), True) | dict.fromkeys(run_state.spec.seat_peers, is_whole)
