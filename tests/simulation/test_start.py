"""The start of a run in a network with late and fickle applicants, lost messages, wrong clocks and a liar.

The rounds are production's: `step`, `missing`, `awaits_nodes`, `manifest_of`, `examine` and `advance`.
Clocks, network and applicants are the test's own, from one seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from assay.protocol.errors import AssayError
from assay.protocol.identity import sign
from assay.protocol.messages import Admission, Manifest, SignedAdmission
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST
from assay.testing.members import DOMAIN, RUN_ID, a_peer_key, peer
from assay.testing.signed import STATE, VERIFIERS, a_history, a_member, funded
from assay.verifier.round.examination import examine
from assay.verifier.round.leader import awaits_nodes, manifest_of, missing
from assay.verifier.round.machine import Round, step
from tests.verifier.round.test_machine import RULES

BY, LEAST, DROP, SKEW_S, ASK_S = 400, 4, 0.4, 3, 10
HONEST, LIAR = VERIFIERS[:3], VERIFIERS[3]
NAMES = [f"applicant {i}" for i in range(7)]


@dataclass
class World:
    """Four verifiers, the last of which lies; an applicant asks from one second to another."""

    seed: int
    there: dict[str, tuple[int, int]]
    rng: random.Random = field(init=False)
    run_state: RunState = field(init=False)
    rounds: dict[str, Round] = field(init=False)
    skew: dict[str, int] = field(init=False)
    said: list[SignedAdmission] = field(default_factory=list)  # by anybody at any time: the liar kept all
    now_s: int = 0
    decided_s: int = -1

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.run_state = a_history(nodes=(), seats=len(NAMES), least_nodes=LEAST, start_by_s=BY)
        fresh = Round(
            rules=RULES, run_state=self.run_state, state=STATE, opened_ms=0, funding_reports=funded()
        )
        self.rounds = dict.fromkeys(HONEST, fresh)
        self.skew = {name: self.rng.randint(-SKEW_S, SKEW_S) for name in HONEST}

    def run(self, seconds: int = BY + 60) -> World:
        while self.decided_s < 0 and self.now_s < seconds:
            self.now_s += 1
            for name, (since, until) in self.there.items():
                if since <= self.now_s <= until and (self.now_s - since) % ASK_S == 0:
                    self._asks(name)
            self._lead(VERIFIERS[self.now_s % 4])
        return self

    def clock(self, name: str) -> int:
        return self.now_s + self.skew.get(name, 0)

    def _asks(self, applicant: str) -> None:
        for name in VERIFIERS:
            one = Admission(
                run_id=RUN_ID, time_s=self.clock(name), member=a_member(applicant), verifier=peer(name)
            )
            signed = SignedAdmission(admission=one, signature=sign(a_peer_key(name), DOMAIN, one))
            self.said.append(signed)
            for other in self.rounds:
                if other == name or self.rng.random() > DROP:
                    try:
                        self.rounds[other], _ = step(self.rounds[other], signed)
                    except AssayError:
                        continue

    def _lead(self, leader: str) -> None:
        """One iteration: the leader's manifest, final if it makes one that every honest verifier accepts."""
        if leader == LIAR:
            manifest = self._lied()
        else:
            state, wall_s = self.rounds[leader], self.clock(leader)
            if awaits_nodes(state, (), wall_s):
                return
            assert missing(state, wall_s=wall_s) == ()
            manifest = manifest_of(state, (), NO_DIGEST, wall_s=wall_s)
        for name, state in self.rounds.items():
            try:
                examine(state, (), manifest, follows=True, wall_s=self.clock(name))
            except AssayError:
                assert leader == LIAR, f"{name} refuses what honest {leader} proposed"
                return
        self.run_state, self.decided_s = advance(self.run_state, manifest), self.now_s

    def _lied(self) -> Manifest:
        """The start or the end at any time at all, with whatever votes were ever cast."""
        state = replace(self.rounds[HONEST[0]], admissions={})
        when = self.rng.choice((self.rng.randrange(1, BY + 90), self.now_s, BY, BY + 1))
        for signed in self.said:
            if abs(signed.admission.time_s - when) <= 60 and self.rng.random() < 0.95:
                key = (signed.admission.member.peer, signed.admission.verifier)
                state = replace(state, admissions={**state.admissions, key: signed})
        return manifest_of(state, (), NO_DIGEST, wall_s=when)


def there(seed: int, count: int) -> dict[str, tuple[int, int]]:
    """So many applicants, each of which comes at some time and stays."""
    rng = random.Random(seed)
    return {name: (rng.randrange(1, BY - 60), 1 << 30) for name in NAMES[:count]}


@pytest.mark.parametrize("seed", range(4))
def test_a_run_starts_soon_after_the_last_node_that_it_needs_is_there_and_not_before(seed):
    applicants = there(seed, LEAST + seed % 3)
    world = World(seed, applicants).run()

    enough = sorted(since for since, _ in applicants.values())[LEAST - 1]
    assert not world.run_state.has_lapsed and len(world.run_state.nodes) >= LEAST
    assert enough <= world.decided_s <= enough + 60, f"replay: World({seed})"


@pytest.mark.parametrize("seed", range(4))
def test_a_run_with_too_few_nodes_lapses_when_its_time_is_over_whatever_a_liar_proposes(seed):
    world = World(seed, there(seed, LEAST - 1)).run()

    assert world.run_state.has_lapsed, f"replay: World({seed})"
    assert abs(world.decided_s - BY) <= 2 * SKEW_S + 10 + 4


@pytest.mark.parametrize("seed", range(4))
def test_nodes_that_gave_up_do_not_start_a_run_with_those_that_came_after(seed):
    half = LEAST // 2
    gone = dict.fromkeys(NAMES[:half], (10, 90))
    late = dict.fromkeys(NAMES[half:LEAST], (200, 1 << 30))
    world = World(seed, gone | late).run()

    assert world.run_state.has_lapsed, f"replay: World({seed})"
