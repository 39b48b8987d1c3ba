"""Settler on a real chain: a jury fells a theft, and every state of the contracts is ended by somebody."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from assay.chain.client import UNIT, CasePhase, Chain, EpochPhase
from assay.chain.proofs.payout_tree import Payout, payout_tree
from assay.chain.proposals import CertifiedResult
from assay.chain.rpc import ChainRefused
from assay.chain.statements import CERT_ECDSA, OPERATOR, VERIFIER, EpochResult, Veto, values
from assay.chain.views import view_call
from assay.ledger.settlement.duties import (
    Challenge,
    ClearOrphan,
    CollectBond,
    CollectReward,
    CollectShare,
    DrawJury,
    Enlist,
    Execute,
    Expire,
    Finalize,
    PayOut,
    Propose,
    Refund,
    Release,
    ReportDouble,
    Sweep,
    TimeOut,
    Vote,
)
from assay.ledger.settlement.duties import Veto as VetoCase
from assay.ledger.settlement.payouts import Row, Settlement
from assay.ledger.settlement.results import epoch_result
from assay.participant.telemetry.readings import Readings
from assay.participant.wallet import settler
from assay.participant.wallet.settler import Settler
from assay.protocol.run_state import start
from assay.protocol.types import NO_DIGEST, Address, Digest, PeerId
from assay.testing.members import a_digest
from assay.testing.signed import a_spec
from tests.contracts.chain_world import BUDGET, MODEL, PURSE, Person, World, a_person

pytestmark = pytest.mark.slow

EPOCHS = 2
FORWARDER = "0x" + "11" * 20
# Calls the address in its data's first 32 bytes with the rest, as accounts that are contracts do.
FORWARDS = "0x365f5f375f5f6020360360205f5f515af16017575f5ffd5b00"


class Town:
    """Watchtowers of several people on one run, whose manifests they all have; time is moved by hand."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.kinds, self.clock = world, set[type](), trio.testing.MockClock()
        self.spec = replace(a_spec(), deployment_id=Digest(world.deployment.deployment_id))
        self.implied: dict[bytes, Any] = {}
        rows = [
            Row(
                role="operator", peer=PeerId(bytes([at]) * 32), account=bytes.fromhex(p.account[2:]), amount=9
            )
            for at, p in enumerate(world.operators)
        ]
        self.settlements = {
            epoch: Settlement(
                run_id=Digest(world.run_id),
                epoch=epoch,
                rows=tuple(rows),
                unpaid=(),
                tokens_paid=1,
                table_hash=a_digest(f"table {epoch}"),
            )
            for epoch in range(EPOCHS)
        }
        monkeypatch.setattr(settler, "certified_result", self._certified)
        monkeypatch.setattr(settler, "certified_veto", self._vetoed)
        monkeypatch.setattr(settler, "implied_orders", lambda _me, _follower: self.implied)
        self.towers: dict[Person, Settler] = {}

    async def _certified(
        self, _me: Any, _host: Any, _judges: Any, table: Settlement, previous: Digest, _own: Any
    ) -> Any:
        result = epoch_result(self.spec, table, Digest(MODEL), previous, 1)
        return CertifiedResult(result=result, certificate=self.world.cert(result))

    async def _vetoed(
        self, _me: Any, _host: Any, _judges: Any, case_id: bytes, reason: bytes, _own: Any
    ) -> bytes:
        found = Veto(deployment_id=self.world.deployment.deployment_id, case_id=case_id, reason_hash=reason)
        return self.world.cert(found)

    def post(self, epoch: int, previous: bytes = NO_DIGEST, **changes: Any) -> bytes:
        """A quorum's result, right but for the changes; its digest."""
        result: EpochResult = epoch_result(
            self.spec, self.settlements[epoch], Digest(MODEL), Digest(previous), 1
        )
        result = replace(result, **changes)
        self.world.bank.propose(result, self.world.cert(result))
        return self.world.deployment.digest(result)

    def turn(self, *people: Person) -> None:
        """Each of them looks once, in this order; a block and some seconds pass before."""
        self.world.rpc("evm_mine")
        self.clock.jump(10)
        for person in people:
            tower = self.towers.get(person)
            if tower is None:
                me: Any = SimpleNamespace(
                    spec=self.spec,
                    deployment=self.world.deployment,
                    run_id=Digest(self.world.run_id),
                    readings=Readings(),
                )
                follower: Any = SimpleNamespace(
                    run_state=start(self.spec, Digest(self.world.run_id)), settlements=self.settlements
                )
                tower = self.towers[person] = Settler(me, follower)
                tower._host = None  # type: ignore[assignment]
            _, done = trio.run(tower.turn, self.world.as_(person), clock=self.clock)
            self.kinds |= {type(effect) for effect in done}

    def phase(self, epoch: int) -> EpochPhase:
        return self.world.bank.epoch_state(self.world.run_id, epoch).phase


def forward(world: World, contract: str, call: bytes) -> None:
    """Has the forwarder make a call."""
    target = bytes.fromhex(world.deployment.address(contract)[2:])
    world.bank._rpc.send("forward", {"to": FORWARDER, "data": target.rjust(32, b"\0") + call})


@pytest.fixture
def town(world: World, monkeypatch: pytest.MonkeyPatch) -> Town:
    world.__dict__.pop("run_id", None)
    world.run_id = world.a_run(epochs=EPOCHS)
    return Town(world, monkeypatch)


def test_a_theft_by_a_quorum_is_felled_by_a_jury_and_the_right_result_is_paid(town: Town):
    world, watcher = town.world, town.world.bystander
    town.post(0, total=1_000 * UNIT, root=b"a thief's table".ljust(32, b"\0"))

    town.turn(watcher)  # challenges
    assert town.phase(0) is EpochPhase.CHALLENGED
    while world.bank.epoch_state(world.run_id, 0).draw_from:
        town.turn(watcher)
    for juror in world.jurors:
        if town.phase(0) is EpochPhase.CHALLENGED:
            town.turn(juror)
    assert town.phase(0) is EpochPhase.NONE
    for _ in range(2):
        town.turn(watcher)  # proposes what is right, one after the other
    world.advance(world.params.challenge_window_s)
    for _ in range(2):
        town.turn(watcher)  # final, in order; the last one closes the run
    world.bank.claim_all(world.run_id, 0, town.settlements[0].tree())
    town.turn(watcher, *world.jurors)
    world.advance(world.params.claim_period_s)
    for _ in range(2):
        town.turn(watcher, *world.jurors)

    expected = {Challenge, DrawJury, Vote, Propose, Finalize, Sweep, Refund, CollectBond}
    assert town.kinds == expected | {ReportDouble, CollectReward}
    thieves = world.verifiers[:3]  # who signed the right result as well
    assert [world.bank.is_banned(p.account) for p in world.verifiers] == [True] * 3 + [False]
    assert [world.bank.stake_of(p.account, VERIFIER).active for p in thieves] == [0] * 3
    assert [world.bank.token_balance(p.account) for p in world.operators] == [PURSE + 9] * 3
    assert world.bank.token_balance(world.buyer.account) == PURSE - 27
    assert world.held("RunEscrow") == 0
    run = world.bank.run(world.run_id)
    assert run is not None and not run.holds
    right = world.bank.token_balance(watcher.account) - PURSE
    fees = sum(world.bank.rewards_of(p.account) for p in world.jurors) + 3 * world.params.accuser_fee
    assert right == world.params.challenge_bond // 2 + fees  # the thief's loss, less what the jury had of it


def test_signers_of_two_results_are_slashed_whoever_posted_them_and_in_whichever_bytes(town: Town):
    world, watcher = town.world, town.world.bystander
    town.post(0, total=7)
    world.as_(world.buyer).challenge(world.run_id, 0, bytes(32))
    world.judge(world.run_id, 0, False)
    right = epoch_result(town.spec, town.settlements[0], Digest(MODEL), NO_DIGEST, 1)
    proposal = view_call("EpochSettlement", "propose", (values(right), CERT_ECDSA, world.cert(right)))
    world.rpc("anvil_setCode", FORWARDER, FORWARDS)
    world.bank.fund_many([FORWARDER], token_amount=PURSE, amount_wei=0)
    settlement = world.deployment.epoch_settlement
    forward(world, "AssayToken", view_call("AssayToken", "approve", (settlement, PURSE)))

    odd = proposal[:-1] + b"\1"  # in the certificate's padding, which the contract does not read
    forward(world, "EpochSettlement", odd)
    for _ in range(2):
        town.turn(watcher)

    assert world.bank.epoch_state(world.run_id, 0).proposer == FORWARDER
    assert [world.bank.is_banned(p.account) for p in world.verifiers] == [True] * 3 + [False]


def test_a_challenge_that_nobody_answers_is_timed_out_and_everything_is_paid(town: Town):
    world, watcher = town.world, town.world.bystander
    first = town.post(0)
    town.post(1, first)
    world.as_(world.buyer).challenge(world.run_id, 0, bytes(32))
    world.advance(world.params.resolve_window_s)

    town.turn(watcher)
    assert town.phase(0) is EpochPhase.PROPOSED
    world.advance(world.params.challenge_window_s)
    for _ in range(2):
        town.turn(watcher)

    assert town.phase(0) is town.phase(1) is EpochPhase.FINAL
    assert town.kinds >= {TimeOut, Finalize}


def test_an_orphan_of_a_felled_theft_is_cleared_and_replaced(town: Town):
    world, watcher = town.world, town.world.bystander
    wrong = town.post(0, total=7)
    town.post(1, wrong)
    world.as_(world.buyer).challenge(world.run_id, 0, bytes(32))
    world.judge(world.run_id, 0, False)

    for _ in range(4):
        town.turn(watcher)
    world.advance(world.params.challenge_window_s)
    for _ in range(2):
        town.turn(watcher)

    assert town.phase(0) is town.phase(1) is EpochPhase.FINAL
    assert town.kinds >= {ClearOrphan, ReportDouble}
    town.kinds.clear()
    town.turn(watcher)
    assert ReportDouble not in town.kinds  # they signed two results for each epoch, and are banned once


def test_a_theft_for_an_epoch_that_a_run_which_closed_early_never_had_is_felled(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    world.__dict__.pop("run_id", None)
    world.run_id = world.a_run(epochs=EPOCHS + 1)  # what was ordered
    town, watcher = Town(world, monkeypatch), world.bystander  # whose manifests end an epoch before
    second = town.post(1, town.post(0))
    table = payout_tree(world.run_id, EPOCHS, [Payout(account=world.buyer.account, amount=BUDGET // 3)])
    theft = world.a_result(table, EPOCHS, prev_result=second)
    world.bank.propose(theft, world.cert(theft))

    town.turn(watcher)
    assert town.phase(EPOCHS) is EpochPhase.CHALLENGED
    while world.bank.epoch_state(world.run_id, EPOCHS).draw_from:
        town.turn(watcher)
    for juror in world.jurors:
        if town.phase(EPOCHS) is EpochPhase.CHALLENGED:
            town.turn(juror)

    assert town.phase(EPOCHS) is EpochPhase.NONE


def test_orphans_are_cleared_also_where_the_run_has_not_reached_the_epoch_that_fell(town: Town):
    world, watcher = town.world, town.world.bystander
    wrong = town.post(0, total=7)
    town.post(1, wrong)
    world.as_(world.buyer).challenge(world.run_id, 0, bytes(32))
    world.judge(world.run_id, 0, False)
    town.settlements.clear()
    run = world.bank.run(world.run_id)
    assert run is not None
    world.advance(run.closes_at - world.bank.timestamp())

    for _ in range(2):  # a settler that starts now learns at first that there was a result
        town.turn(watcher)
    world.advance(world.params.challenge_window_s)  # for which a fall keeps the run open
    town.turn(watcher)

    assert town.phase(0) is town.phase(1) is EpochPhase.NONE
    assert town.kinds >= {ClearOrphan, Refund}


def test_a_case_that_no_manifest_implies_is_vetoed_and_one_that_is_implied_is_carried_out(town: Town):
    world, watcher, offender = town.world, town.world.bystander, town.world.operators[0]
    world.join(offender, OPERATOR, 400 * UNIT)
    true, false, late = (world.a_ruling(offender, ppm=ppm) for ppm in (100_000, 100_001, 1_000))
    town.implied = {order.offence_id: order for order in (true, late)}
    for order in (true, false):
        world.as_(watcher).open_case(order, world.cert(order))
    town.turn(watcher)
    assert world.bank.case(false.offence_id).phase is CasePhase.VETOED
    world.advance(world.params.veto_window_s)
    town.turn(watcher)
    world.advance(world.params.payout_delay_s)
    town.turn(watcher)
    world.bank.open_case(late, world.cert(late))
    world.advance(world.params.veto_window_s + world.params.execute_window_s)
    town.turn(watcher)
    town.turn(watcher)

    assert world.bank.case(true.offence_id).phase is CasePhase.PAID
    assert world.bank.case(late.offence_id).phase is CasePhase.EXPIRED
    assert world.bank.stake_of(offender.account, OPERATOR).active == 360 * UNIT
    assert town.kinds >= {VetoCase, Execute, PayOut, Expire, CollectReward, CollectShare}


def test_a_verifiers_stake_is_listed_for_juries_by_its_own_watchtower(town: Town):
    world, newcomer = town.world, a_person()
    world.bank.fund_many([newcomer.account], token_amount=250 * UNIT, amount_wei=10**18)
    world.as_(newcomer).stake(VERIFIER, 250 * UNIT)
    assert world.bank.entries_lacking(newcomer.account) == 2

    town.turn(newcomer)

    assert world.bank.entries_lacking(newcomer.account) == 0
    assert Enlist in town.kinds


def test_what_is_left_of_a_run_that_nobody_worked_in_goes_home(town: Town):
    world = town.world
    town.settlements = {}
    world.advance(31 * 86_400)

    town.turn(world.bystander)

    assert town.kinds == {Refund}
    assert world.bank.token_balance(world.buyer.account) == PURSE
    assert world.held("RunEscrow") == 0


@pytest.mark.parametrize("is_refused", [False, True], ids=["", "though the coin refuses the buyer"])
def test_every_members_lot_is_free_stake_again_once_nothing_can_be_disputed_by_anybodys_call(
    town: Town, is_refused: bool, monkeypatch: pytest.MonkeyPatch
):
    world, (one, two, _) = town.world, town.world.operators
    if is_refused:
        refused = ChainRefused("refund", "SafeERC20FailedOperation")
        monkeypatch.setattr(Chain, "refund", Mock(side_effect=refused))
    accounts = [Address(bytes.fromhex(person.account[2:])) for person in (one, two)]
    members = [replace(node, account=a) for node, a in zip(town.spec.nodes, accounts, strict=False)]
    town.spec, town.settlements = replace(town.spec, nodes=tuple(members)), {}
    for person in (one, two):
        world.join(person, OPERATOR, 400 * UNIT)
    run = world.bank.run(world.run_id)
    assert run is not None
    world.advance(run.closes_at + world.params.evidence_window_s - world.bank.timestamp() - 60)
    order = world.a_ruling(two)
    world.bank.open_case(order, world.cert(order))
    town.turn(world.bystander)
    assert town.kinds == {VetoCase} if is_refused else {Refund, VetoCase}
    assert world.lot_of(one) == 400 * UNIT
    world.advance(60)

    town.turn(world.bystander)

    for person in (one, two):
        assert world.bank.stake_of(person.account, OPERATOR).free == 400 * UNIT
    assert Release in town.kinds
    town.turn(world.bystander)
    monkeypatch.setattr(Chain, "can_release", Mock(side_effect=AssertionError("asked at every look")))
    town.turn(world.bystander)
