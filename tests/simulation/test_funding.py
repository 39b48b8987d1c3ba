"""Money in a network whose verifiers read blocks of different age, lose messages, and one of which lies.

The rounds are production's: `step`, `missing`, `manifest_of`, `examine` and `advance`. Clock, chain and
network are the test's own, from one seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from assay.protocol.errors import AssayError
from assay.protocol.messages import Closing, Manifest, SignedFundingReport
from assay.protocol.permitted import may_report_funding
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.testing.members import a_digest, peer
from assay.testing.signed import (
    NODES,
    STATE,
    VERIFIERS,
    a_funding_report,
    a_reveal,
    a_signed_commit,
    audit_messages,
    inclusion_lists,
    match_all,
)
from assay.testing.signed import a_history as the_start
from assay.verifier.round.examination import examine
from assay.verifier.round.leader import awaits_funding, manifest_of, missing
from assay.verifier.round.machine import Advanced, Round, step
from tests.verifier.round.test_machine import RULES

pytestmark = pytest.mark.slow

LAG_MAX, DROP, TICKS_MAX = 6, 0.4, 400
NO, BY_BUYER = Closing.NO, Closing.BY_BUYER


@dataclass
class World:
    """Four verifiers, the last of which lies. The escrow's history is a figure by block, one block a tick."""

    seed: int
    budget_epochs: list[tuple[int, int]]  # (block, epochs funded from then on), ascending
    closes_at: int  # the block of the cancellation
    rng: random.Random = field(init=False)
    run_state: RunState = field(init=False)
    rounds: dict[str, Round] = field(init=False)
    seen: dict[str, int] = field(default_factory=dict)  # the newest block that each has read
    tick: int = 0
    trained: list[tuple[int, int]] = field(default_factory=list)  # (round, tick) of rounds with commits

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.run_state = the_start(rounds=9)
        self.rounds = {name: self._opened(name) for name in VERIFIERS[:3]}

    def funded(self, block: int) -> int:
        return max((epochs for since, epochs in self.budget_epochs if since <= block), default=0)

    def run(self, ticks: int = TICKS_MAX) -> World:
        for _ in range(ticks):
            self.tick += 1
            for name in VERIFIERS:
                self._report(name)
            self._lead(VERIFIERS[self.tick % 4])
            if not self.run_state.is_training:
                break
        return self

    def _opened(self, name: str) -> Round:
        state = Round(rules=RULES, run_state=self.run_state, state=STATE, opened_ms=0)
        return self._filled(state)

    def _filled(self, state: Round) -> Round:
        """The round with all that is not about money."""
        run_state = state.run_state
        active = [name for name in NODES if peer(name) in run_state.active]
        events = [a_signed_commit(name, run_state) for name in active] + [*inclusion_lists(run_state, active)]
        shares = [a_reveal(name, run_state) for name in VERIFIERS] if run_state.round else []
        for event in (*events, *shares):
            state, _ = step(state, event)
        return state

    def _report(self, name: str) -> None:
        for signed in self._said(name):
            for other in self.rounds:
                if other == name or self.rng.random() > DROP:
                    try:
                        self.rounds[other], _ = step(self.rounds[other], signed)
                    except AssayError:
                        continue

    def _said(self, name: str) -> list[SignedFundingReport]:
        if name not in self.rounds:  # the liar says the one extreme or the other, again and again
            extreme = self.rng.choice([(0, BY_BUYER), (99, NO), (0, NO), (99, BY_BUYER)])
            return [a_funding_report(name, block=self.tick, epochs=extreme[0], closing=extreme[1])]
        block = max(self.seen.get(name, 0), self.tick - self.rng.randrange(LAG_MAX))
        self.seen[name] = block
        closing = BY_BUYER if block >= self.closes_at else NO
        signed = a_funding_report(name, block=block, epochs=self.funded(block), closing=closing)
        return [signed] if may_report_funding(self.run_state, signed.funding_report) else []

    def _lead(self, leader: str) -> None:
        """One iteration: the leader's manifest, if it makes one and every honest verifier accepts it."""
        if leader in self.rounds:
            state = self.rounds[leader]
            if awaits_funding(state):
                return
            assert set(missing(state)) <= {"verdicts"}  # which `_made` adds
            manifest = self._made(state)
        else:
            manifest = self._lied()
        for name, state in self.rounds.items():
            try:
                examine(state, (), manifest, follows=True)
            except AssayError:
                assert leader not in self.rounds, f"{name} refuses what honest {leader} proposed"
                return
        self._final(manifest)

    def _made(self, state: Round) -> Manifest:
        aggregate = a_digest("aggregate")
        made = manifest_of(state, (), aggregate)
        made = made if made.commits else manifest_of(state, (), made.aggregate[:0] or bytes(32))
        due = audit_messages(state.run_state, match_all(state.run_state))
        return replace(made, **due)

    def _lied(self) -> Manifest:
        """Of what an honest verifier holds, with some of the reports, or with none."""
        state = self.rounds[self.rng.choice(VERIFIERS[:3])]
        kept = {k: one for k, one in state.funding_reports.items() if self.rng.random() < 0.5}
        return self._made(replace(state, funding_reports=kept))

    def _final(self, manifest: Manifest) -> None:
        if manifest.commits:
            self.trained.append((int(manifest.round), self.tick))
        self.run_state = advance(self.run_state, manifest)
        for name, state in self.rounds.items():
            moved, _ = step(state, Advanced(self.run_state, STATE, 0))
            self.rounds[name] = self._filled(moved)


@pytest.mark.parametrize("seed", range(6))
def test_no_round_is_trained_that_no_honest_verifier_could_have_found_funded(seed):
    topped_up = [(5, 1), (90, 2), (150, 3)]
    world = World(seed=seed, budget_epochs=topped_up, closes_at=1 << 40).run()

    assert [number for number, _ in world.trained] == list(range(9))  # waiting took up no round
    for number, tick in world.trained:
        since = next(block for block, epochs in topped_up if epochs > number // 3)
        assert tick >= since, f"round {number} at {tick}"
        if number % 3 == 0:
            assert tick <= since + LAG_MAX + 30, f"round {number} waited from {since} to {tick}"
    assert world.run_state.calendar == world.run_state.spec.ordered


@pytest.mark.parametrize("seed", range(6))
def test_a_cancelled_run_ends_soon_after_and_not_before(seed):
    cancelled = 7
    world = World(seed=seed, budget_epochs=[(1, 3)], closes_at=cancelled).run()

    assert not world.run_state.is_training and world.run_state.closing is not NO
    assert cancelled <= world.tick <= cancelled + LAG_MAX + 30
    assert world.run_state.training_rounds == len(world.trained)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_nobody_funds_never_begins(seed):
    world = World(seed=seed, budget_epochs=[], closes_at=1 << 40).run(60)

    assert world.run_state.round == 0 and world.trained == []
