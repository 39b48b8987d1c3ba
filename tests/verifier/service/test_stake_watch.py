"""Backers: what a verifier says of stakes that it sees, and what of its words a leader carries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.chain.state import StakeState
from assay.participant.store import Store
from assay.protocol.errors import OutOfPhase, PeerFault
from assay.protocol.identity import sign
from assay.protocol.messages import STAKE_REPORTS_MAX, SignedStakeReport, StakeReport
from assay.protocol.state_transition import RunState, advance
from assay.protocol.types import NO_DIGEST, RoundId
from assay.verifier.round.machine import examine, manifest_of, step
from assay.verifier.service.stake_watch import StakeWatch
from tests.builders import DOMAIN, NODES, RUN_ID, VERIFIERS, a_peer_key, peer
from tests.builders import a_history as the_start
from tests.builders import a_manifest as the_next
from tests.verifier.round.test_machine import a_round

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
        return StakeWatch(me, follower, lambda _: None).words({NORA: a_stake(active, minimum)})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, advance(the_start(), the_next(the_start(), NODES)))


def a_word(
    run_state: RunState, name: str = "vera", node: str = "nora", key: str | None = None
) -> SignedStakeReport:
    word = StakeReport(
        run_id=RUN_ID, round=RoundId(int(run_state.round) - 1), node=peer(node), verifier=peer(name),
        is_whole=False,
    )  # fmt: skip
    return SignedStakeReport(stake_report=word, signature=sign(a_peer_key(key or name), DOMAIN, word))


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
    heard = replace(the_next(desk.run_state, NODES), stake_reports=(a_word(desk.run_state),))
    desk.run_state = advance(desk.run_state, heard)
    assert desk.sees(0) == []


def test_a_leader_carries_words_and_every_verifier_checks_whose_they_are():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    state, _ = step(a_round(run_state), a_word(run_state))

    carried = manifest_of(state, (), NO_DIGEST).stake_reports

    assert carried == (a_word(run_state),)
    examine(a_round(run_state), (), the_next(run_state, NODES, stake_reports=carried))
    forged = a_word(run_state, key="vito")
    with pytest.raises(PeerFault):
        step(a_round(run_state), forged)
    with pytest.raises(PeerFault):
        examine(a_round(run_state), (), the_next(run_state, NODES, stake_reports=(forged,)))
    with pytest.raises(OutOfPhase):
        step(
            a_round(advance(run_state, the_next(run_state, NODES, stake_reports=carried))),
            a_word(run_state),
        )


def test_a_manifest_takes_so_many_and_the_oldest_first():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    later = advance(run_state, the_next(run_state, NODES))
    words = [a_word(later, verifier, node) for verifier in VERIFIERS for node in NODES]
    old = a_word(run_state, VERIFIERS[-1], NODES[-1])
    state = a_round(later)
    for word in [*words, old]:
        state, _ = step(state, word)
    assert len(words) > STAKE_REPORTS_MAX

    carried = manifest_of(state, (), NO_DIGEST).stake_reports

    assert len(carried) == STAKE_REPORTS_MAX and old in carried
    examine(a_round(later), (), the_next(later, NODES, stake_reports=carried))
