"""Appeals on a real chain: a lying quorum does not take an honest node's stake; a cheat loses its bond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.chain.client import UNIT, CasePhase, ChainRefused
from assay.chain.commit_statement import commit_statement
from assay.chain.state import AppealPhase, DefencePhase
from assay.chain.statements import OPERATOR, SlashOrder
from assay.ledger.settlement.duties import (
    AppealView,
    Choose,
    ConcludeAppeal,
    Defend,
    DrawAppealJury,
    LapseDefence,
    VoteOnDefence,
)
from assay.participant.files.evidence import evidence_path
from assay.participant.telemetry.readings import Readings
from assay.participant.wallet import settler
from assay.participant.wallet.settler import Settler
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.errors import ConfigError
from assay.protocol.params import ComputeSpec, Precision
from assay.protocol.run_state import start
from assay.protocol.types import Digest
from assay.testing.signed import a_spec
from assay.training.frozen import ALL_TRAINED
from assay.training.model.loss import use_one_thread
from assay.training.reference.narrowing import PARTS, claimed, ends_of
from assay.verifier.appeal.accused import Step, conduct, step_of
from assay.verifier.appeal.answers import is_right, positions_of
from assay.verifier.audit.messages import question
from tests.contracts.chain_world import PURSE, Person, World
from tests.verifier.appeal.test_appeal import Party, a_party
from tests.verifier.appeal.test_inner_steps import a_node

pytestmark = pytest.mark.slow
STAKE = 1_000 * UNIT


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


class Hands:
    """What one verifier knows; a liar holds everything from the first wide part on for wrong."""

    def __init__(self, court: Court, *, is_honest: bool) -> None:
        self.court, self.is_honest = court, is_honest

    async def positions(self, _case_id: bytes) -> list[bytes] | None:
        known = self.court.positions
        if self.is_honest:
            return known or None  # who has no position has not traced the step
        ends = ends_of(0, len(self.court.party.program))
        wide = next(end for end, before in zip(ends[1:], ends, strict=False) if end - before > 1)
        return known[:wide]  # so that it names a part that has to be cut again

    def statement(self, _case_id: bytes) -> Any:
        return self.court.statement

    def heed(self, appeals: Sequence[AppealView]) -> None:
        """Nothing is passed on: each juror of these has the evidence at hand."""

    async def is_right(self, view: AppealView, defence: Any) -> bool | None:
        party = self.court.party
        path = evidence_path(self.court.folder, view.case_id, defence.state.first)
        if not path.exists():
            return None
        request = question(view.case_id, view.state.operators, defence.state, path)
        return is_right(party.spec, party.limits, request, party.tokens, ALL_TRAINED)


class Court:
    """A node's step, a case about it, and everybody's settlers; time is moved by hand."""

    def __init__(
        self, world: World, folder: Path, behaviour: str, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        """method: the run's; empty for the usual one, with a gradient a round."""
        self.world, self.folder, self.accused = world, folder, world.operators[0]
        deployment_id = Digest(world.deployment.deployment_id)
        changes: dict[str, Any] = {
            "run_id": Digest(world.run_id),
            "deployment_id": deployment_id,
            "compute": ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=1),
        }
        self.party: Party = (
            a_node(folder, behaviour, method, **changes) if method else a_party(folder, behaviour, **changes)
        )
        assert len(self.party.program) > PARTS  # so that there is a part to cut again
        statement = commit_statement(self.party.spec, self.party.commit)
        self.statement = statement, world.signed(statement, self.accused.hot)
        self.case_id = case_id_of(self.party.commit)
        world.join(self.accused, OPERATOR, STAKE)
        self.order = SlashOrder(
            deployment_id=world.deployment.deployment_id,
            run_id=world.run_id,
            epoch=0,
            offender=self.accused.account,
            role=OPERATOR,
            ppm=world.params.case_ppm_max,
            offence_id=self.case_id,
            evidence_hash=bytes(32),
            challenger=world.verifiers[0].account,
        )
        world.bank.open_case(self.order, world.cert(self.order))
        monkeypatch.setattr(settler, "implied_orders", lambda _me, _follower: {self.case_id: self.order})
        self.clock, self.done, self.towers = trio.testing.MockClock(), [], dict[Person, Settler]()

    @cached_property
    def positions(self) -> list[bytes]:
        """What whoever computes the step again finds; every verifier and juror finds the same."""
        party = self.party
        limits, theta_P = party.limits, party.sources.theta_P
        body = positions_of(party.spec, limits, party.commit, theta_P, party.tokens, ALL_TRAINED)
        return [body[at : at + 32] for at in range(0, len(body), 32)]

    def seat(self, person: Person, *, is_honest: bool) -> None:
        """Give somebody a settler with a verifier's hands."""
        spec = replace(a_spec(), deployment_id=Digest(self.world.deployment.deployment_id))
        me: Any = SimpleNamespace(
            spec=spec,
            deployment=self.world.deployment,
            run_id=Digest(self.world.run_id),
            readings=Readings(),
        )
        follower: Any = SimpleNamespace(run_state=start(spec, Digest(self.world.run_id)), settlements={})
        hands = Hands(self, is_honest=is_honest)
        self.towers[person] = Settler(me, follower, defender=hands, juror=hands)

    def turn(self) -> None:
        """Everybody looks once, and does what is due."""
        self.world.rpc("evm_mine")
        self.clock.jump(10)
        for person, tower in self.towers.items():
            _, effects = trio.run(tower.turn, self.world.as_(person), clock=self.clock)
            self.done += [(person, effect) for effect in effects]

    @property
    def kinds(self) -> set[type]:
        return {type(effect) for _, effect in self.done}

    def save(self, index: int, body: bytes) -> Path:
        path = evidence_path(self.folder, self.case_id, index)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
        return path

    def conduct(self, step: Step, save: Any = None) -> list[str]:
        """The accused appeals; the others move while it waits, and hours pass when nobody does."""

        def wait(_seconds: float) -> None:
            count = len(self.done)
            self.turn()
            if len(self.done) == count:
                self.world.advance(self.world.params.appeal_move_s // 4)

        return list(conduct(self.world.as_(self.accused), step, save or self.save, wait))

    def lied(self) -> Step:
        """What the node claims, which may not hold: no honest software makes it."""
        party = self.party
        return Step(party.commit, party.sources, party.program, lambda _: party.told, party.trace)

    @property
    def phase(self) -> CasePhase:
        return self.world.bank.case(self.case_id).phase

    def gain(self, person: Person) -> int:
        """What somebody has more than at first, collected or not; the accused's stake left out."""
        chain, staked = self.world.bank, STAKE if person is self.accused else 0
        return chain.rewards_of(person.account) + chain.token_balance(person.account) + staked - PURSE


@pytest.fixture
def court_of(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    return lambda behaviour, method="": Court(world, tmp_path, behaviour, monkeypatch, method)


@pytest.mark.parametrize("method", ["", "muloco"])
def test_an_honest_node_keeps_its_stake_against_three_lying_verifiers_of_four(court_of, method):
    court = court_of("honest", method)
    world, bond = court.world, court.world.params.appeal_bond
    party = court.party
    for liar in world.verifiers[:3]:  # the quorum that signed the order
        court.seat(liar, is_honest=False)
    for honest in (world.verifiers[3], *world.jurors):
        court.seat(honest, is_honest=True)
    step = step_of(party.spec, party.limits, party.commit, party.sources)

    told = court.conduct(step)

    assert told[-1] == "the appeal has ended: WON"
    assert court.phase is CasePhase.VETOED and world.lot_of(court.accused) == STAKE
    assert (
        world.bank.slash_cap_left(court.accused.account, OPERATOR, world.run_id) == world.params.case_ppm_max
    )
    assert court.gain(court.accused) == 3 * (bond // 2)
    assert [court.gain(liar) for liar in world.verifiers[:3]] == [-bond] * 3
    outside = (world.verifiers[3], *world.jurors)  # a member that did not sign enlists, and may be drawn
    assert sum(court.gain(juror) for juror in outside) > 3 * (bond // 2) - 15  # what no seat can have burns
    assert court.kinds >= {Defend, Choose, DrawAppealJury, VoteOnDefence}
    assert all(effect.is_right for _, effect in court.done if isinstance(effect, VoteOnDefence))


@pytest.mark.parametrize(("friends", "method"), [(0, ""), (2, ""), (2, "muloco")])
def test_a_cheats_appeal_fails_and_costs_its_bond(court_of, friends: int, method: str):
    """Even if all but one of the signers defend as badly as they can."""
    court = court_of("random-update", method)
    world, bond = court.world, court.world.params.appeal_bond
    for at, verifier in enumerate(world.verifiers[:3]):
        court.seat(verifier, is_honest=at >= friends)
    for juror in world.jurors:
        court.seat(juror, is_honest=True)

    told = court.conduct(court.lied())
    for _ in range(4):
        court.turn()

    assert told[-1] == "the appeal has ended: LOST"
    ends = [world.bank.defence(court.case_id, p.account)[0].phase for p in world.verifiers[:3]]
    assert ends == [DefencePhase.ENDED] * 3 and (LapseDefence in court.kinds or friends)
    gains = [court.gain(p) for p in world.verifiers[:3]]
    assert max(gains) == bond // 2 and court.gain(court.accused) <= friends * (bond // 2) - bond
    assert sum(gains) + court.gain(court.accused) <= -(bond // 2)  # together with its friends it loses more
    case = world.bank.case(court.case_id)
    assert case.phase is CasePhase.OPEN
    world.advance(case.veto_ends_at - world.bank.timestamp())
    world.bank.execute_case(court.case_id)
    assert world.lot_of(court.accused) == STAKE - STAKE * world.params.case_ppm_max // 10**6
    with pytest.raises(ChainRefused, match="AlreadyAppealed"):
        world.raw(court.accused, "AppealCourt", "appeal", court.case_id, 1, [bytes(32)])


def test_a_cheats_appeal_fails_where_no_program_decides_its_step(court_of):
    court = court_of("random-update")
    world, spec = court.world, court.party.spec
    court.party.spec = replace(spec, rule=replace(spec.rule, read_lag=1))
    for person in (*world.verifiers[:3], *world.jurors):
        court.seat(person, is_honest=True)

    told = court.conduct(court.lied())

    assert told[-1] == "the appeal has ended: LOST" and court.gain(court.accused) < 0


def test_a_cheat_that_bends_its_trace_loses_where_it_bent_it(court_of):
    court = court_of("random-update")
    world, party, index = court.world, court.party, 20
    bent = [*party.told]
    bent[index] = bent[index] + bent[index].dtype.type(1)
    party.claims(bent)
    for person in (world.verifiers[0], *world.jurors):
        court.seat(person, is_honest=True)

    told = court.conduct(court.lied())

    assert any(f"operator {index}:" in line for line in told) and told[-1].endswith("LOST")


def test_where_nobody_defends_the_order_falls(court_of):
    court = court_of("honest")
    court.seat(court.world.bystander, is_honest=True)

    assert court.conduct(court.lied())[-1].endswith("WON")
    assert court.phase is CasePhase.VETOED


def appealed(court: Court) -> DefencePhase:
    """The accused appeals and then does nothing; returns at which move a lying verifier's defence waits."""
    world, party, count = court.world, court.party, len(court.party.program)
    court.seat(world.verifiers[0], is_honest=False)
    world.as_(court.accused).appeal_case(court.case_id, count, claimed(party.trace.positions, 0, count))
    court.turn()
    return world.bank.defence(court.case_id, world.verifiers[0].account)[0].phase


def test_an_accused_that_does_not_cut_in_time_loses(court_of):
    court = court_of("honest")
    world, bond = court.world, court.world.params.appeal_bond
    assert appealed(court) is DefencePhase.CUT
    world.advance(world.params.appeal_move_s)
    court.turn()

    assert world.bank.appeal(court.case_id).phase is AppealPhase.LOST
    assert court.gain(world.verifiers[0]) == bond // 2 == bond + court.gain(court.accused) + bond // 2


def test_a_defender_that_does_not_choose_in_time_loses_its_bond_and_the_appeal_goes_on(court_of):
    court = court_of("honest")
    world, bond, liar = court.world, court.world.params.appeal_bond, court.world.verifiers[0]
    assert appealed(court) is DefencePhase.CUT
    state, _ = world.bank.defence(court.case_id, liar.account)
    parts = claimed(court.party.trace.positions, state.first, state.last)
    world.as_(court.accused).cut_part(court.case_id, liar.account, parts)
    del court.towers[liar]
    court.seat(world.bystander, is_honest=True)
    world.advance(world.params.appeal_move_s)
    for _ in range(2):
        court.turn()

    assert court.phase is CasePhase.VETOED and court.gain(liar) == -bond
    assert court.gain(court.accused) == bond // 2 and {LapseDefence, ConcludeAppeal} <= court.kinds


def test_an_accused_that_shows_no_evidence_loses_to_the_jury(court_of):
    court = court_of("honest")
    for person, is_honest in (
        (court.world.verifiers[0], False),
        *((one, True) for one in court.world.jurors),
    ):
        court.seat(person, is_honest=is_honest)

    told = court.conduct(court.lied(), lambda index, _body: Path(f"nowhere-{index}"))

    assert told[-1].endswith("LOST")
    assert not any(effect.is_right for _, effect in court.done if isinstance(effect, VoteOnDefence))


def test_a_jury_that_does_not_answer_leaves_the_order_and_half_of_the_bond(court_of):
    court = court_of("honest")
    world, bond = court.world, court.world.params.appeal_bond
    court.seat(world.verifiers[0], is_honest=False)

    assert court.conduct(court.lied())[-1].endswith("LAPSED")
    assert (court.phase, court.gain(court.accused)) == (CasePhase.OPEN, bond // 2 - bond)
    assert LapseDefence in court.kinds


def test_honest_software_appeals_no_step_that_does_not_hold(court_of):
    party = court_of("random-update").party
    with pytest.raises(ConfigError, match="would be lost"):
        step_of(party.spec, party.limits, party.commit, party.sources)
    wrong = replace(party.sources, theta_P=party.sources.theta_P + 1)
    with pytest.raises(ConfigError, match="not on this disk"):
        step_of(party.spec, party.limits, party.commit, wrong)


def test_no_case_is_appealed_after_its_veto_window(court_of):
    court = court_of("honest")
    court.world.advance(court.world.params.veto_window_s)
    with pytest.raises(ConfigError, match="cannot be appealed any more"):
        court.conduct(court.lied())
