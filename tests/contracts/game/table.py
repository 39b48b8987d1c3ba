"""Table: one deployment on a local chain at which agents play lives of runs, one game after another.

Contracts, settlement (`ledger/settlement`), state transition and settlers are the product's; a settler is
here called *tower*. The table holds what lies between them: the clock, which goes half a day a step, and the
verifiers' answers. Between two games the chain goes back to the morning of the first day.

What honest play must leave everybody with is in `losses`: it is compared after all stake was withdrawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import trio
import trio.testing

from assay.chain.client import UNIT, ChainRefused, EpochPhase
from assay.chain.state import AppealPhase, CasePhase, DefencePhase, FinalEscrow
from assay.chain.statements import (
    OPERATOR,
    VERIFIER,
    EpochResult,
    SlashOrder,
    Statement,
    Veto,
    sign_digest,
    term_of,
)
from assay.ledger.settlement.duties import NEWS_S, AppealView, DefenceView, Look
from assay.ledger.settlement.funding import reading_of
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result
from assay.participant.follower import Follower
from assay.participant.telemetry.readings import Readings
from assay.participant.wallet.cases import implied_orders, is_implied
from assay.participant.wallet.settler import Settler
from assay.protocol.encoding.codec import decode, digest, encode, encode_list
from assay.protocol.errors import Unavailable
from assay.protocol.messages import ManifestRange, ResultSignature, StepRequest
from assay.protocol.offences import offence_id
from assay.protocol.params import RunSpec
from assay.protocol.permitted import with_reports
from assay.protocol.run_state import start
from assay.protocol.types import Address, Digest, HotSignature, PeerId
from assay.testing import run as testing_run
from assay.testing import specs
from assay.testing.members import NODES, VERIFIERS, a_member
from assay.testing.members import peer as a_peer
from assay.testing.messages import a_funding_report
from assay.testing.run import Network
from assay.training.reference.narrowing import ends_of
from tests.contracts.chain_world import MODEL, PURSE, Person, World, a_person
from tests.contracts.game.wire import Client, Wire

STEP_S = 43_200
DAY = 86_400
ROUNDS_A_STEP = 4  # one epoch
EPOCHS = 3
LOT = 400 * UNIT
STAKE = 1_000 * UNIT  # of an operator, for all its runs
EPOCH_CAP = 1_000 * UNIT
CORRUPT = 3  # verifiers of a quorum that lies: exactly a quorum of the four
RUNS = ("red", "blue")  # bought by the buyer, and by an operator
SIDES = ("buyer", "mallory", "friend", "keeper", "second keeper", "treasury")
VAULTS = ("StakeVault", "RunEscrow", "EpochSettlement", "SlashCourt", "AppealCourt")
Life = Iterator[None]  # of an agent: it moves, then waits for the next step
Agent = Callable[["Table", Random], Life]


@dataclass
class Run:
    """A run as its members have it: its manifests so far, and what is settled by them."""

    name: str
    buyer: Person
    spec: RunSpec
    run_id: Digest
    network: Network
    follower: Follower
    signs: bool = True  # whether a quorum of its verifiers signs what is right
    block: int = 0  # of the last funding report

    def table(self, epoch: int) -> Settlement | None:
        """What the product's settlement computes for an epoch; None before it is ripe."""
        return self.follower.settlements.get(epoch)

    def right(self, epoch: int, previous: bytes) -> EpochResult | None:
        """The right result of an epoch."""
        table = self.table(epoch)
        return None if table is None else epoch_result(self.spec, table, Digest(MODEL), Digest(previous), 1)


@dataclass
class Framed:
    """A case that a lying quorum made up about a step that an operator did commit to."""

    case_id: bytes
    accused: Person
    statement: Statement
    signature: bytes
    operators: int

    def position(self, end: int) -> bytes:
        """The true digest of all operators' outputs so far."""
        return sha256(self.case_id + end.to_bytes(4, "big")).digest()

    def cut(self, first: int, last: int) -> list[bytes]:
        """The true positions of the parts between two operators."""
        return [self.position(end) for end in ends_of(first, last)]


@dataclass
class Cheat(Framed):
    """A right case, which the operator that it accuses, by name, appeals all the same."""

    name: str

    def claim(self, first: int, last: int, dice: Random) -> list[bytes]:
        """Positions that are false from somewhere between two operators on."""
        wrong = dice.randrange(first, last)
        return [self.position(end) if end <= wrong else dice.randbytes(32) for end in ends_of(first, last)]


class Knowing:
    """What honest signers and jurors know of the steps that appeals are about."""

    def __init__(self, table: Table) -> None:
        self.table = table

    async def positions(self, case_id: bytes) -> Sequence[bytes] | None:
        case = self._signed(case_id)
        return None if case is None else [case.position(end) for end in range(case.operators + 1)]

    def statement(self, case_id: bytes) -> tuple[Statement, bytes] | None:
        case = self._signed(case_id)
        return None if case is None else (case.statement, case.signature)

    def _signed(self, case_id: bytes) -> Cheat | None:
        """A case whose order somebody honest signed, who does not forget it."""
        found = (one for one in self.table.cheats if one.case_id == case_id)
        return next(found, None) if "who signed an order defends it" in self.table.rules else None

    def heed(self, appeals: Sequence[AppealView]) -> None:
        """Nothing is passed on: each juror of these has the evidence at hand."""

    async def is_right(self, view: AppealView, defence: DefenceView) -> bool | None:
        (framed,) = [one for one in self.table.appealed() if one.case_id == view.case_id]
        return defence.state.end == framed.position(defence.state.last)


class Verifiers:
    """The members of one run in place of a network: verifiers sign what their own manifests imply."""

    def __init__(self, table: Table, run: Run) -> None:
        self.table, self.run = table, run

    def connected(self) -> Sequence[PeerId]:
        return (*self.run.spec.seat_peers, *self.run.follower.run_state.nodes)

    async def request(self, peer: PeerId, method: str, body: bytes, **_: Any) -> bytes:
        if method == "links" and peer in self.run.follower.run_state.nodes:
            return encode_list(ManifestRange, [])
        hot = self._hot_key(peer)
        if method == "sign-result":
            return self._result(hot, decode(StepRequest, body).number)
        if method == "links":
            return encode_list(ManifestRange, [])
        assert method == "sign-veto"
        case = self.table.bank.case(body)
        if is_implied(case, implied_orders(self.table.member(self.run), self.run.follower).get(body)):
            raise Unavailable("the manifests imply the case")
        veto = Veto(deployment_id=self.run.spec.deployment_id, case_id=body, reason_hash=bytes(32))
        return self.table.world.signed(veto, hot)

    def _hot_key(self, peer: PeerId) -> bytes:
        """Of a verifier of the run, or of a member of the next set that watches it."""
        there = self.table.vetoers() if "the next set vetoes" in self.table.rules else []
        hot_keys = {a_peer(name): self.table.people[name].hot for name in there}
        for place, verifier in enumerate(self.run.spec.verifier_peers):
            if self.run.signs or place >= CORRUPT:
                hot_keys[verifier] = self.table.world.verifiers[place].hot
        if peer not in hot_keys:
            raise Unavailable("does not answer")
        return hot_keys[peer]

    def _result(self, hot: bytes, epoch: int) -> bytes:
        before = self.table.bank.epoch_state(self.run.run_id, epoch - 1).digest if epoch else bytes(32)
        ours = self.run.right(epoch, before)
        if ours is None:
            raise Unavailable(f"epoch {epoch} is not ripe")
        answer = {
            name: Digest(getattr(ours, name)) for name in ("prev_result", "root", "table_hash", "model_hash")
        }
        signature = HotSignature(sign_digest(self.table.world.deployment.digest(ours), hot))
        return encode(ResultSignature(epoch=epoch, total=ours.total, signature=signature, **answer))


@dataclass
class Table:
    """One game after another on one deployment.

    rules: those of the model that hold, by name (tests/contracts/game/play.py). reached: moves by outcome.
    excuses: what the model assumes and this game broke by chance; with one, only the books must agree.
    """

    world: World
    rules: frozenset[str] = frozenset()
    reached: Counter[str] = field(default_factory=Counter)
    runs: dict[str, Run] = field(default_factory=dict)
    framed: list[Framed] = field(default_factory=list)
    cheats: list[Cheat] = field(default_factory=list)
    invented: list[bytes] = field(default_factory=list)  # cases about a verifier
    next_set: list[str] = field(default_factory=list)  # names of the verifiers after a hand-over
    excuses: set[str] = field(default_factory=set)
    honest: set[str] = field(default_factory=set)  # names of people
    asleep: set[str] = field(default_factory=set)  # keepers and jurors that do nothing now
    bribed: set[str] = field(default_factory=set)  # jurors that vote against what they find

    def __post_init__(self) -> None:
        world = self.world
        world.rpc("anvil_setBlockTimestampInterval", 1)
        self.people = {name: a_person(f"game, {name}") for name in SIDES}
        world.bank.fund_many(
            [one.account for one in self.people.values()], token_amount=PURSE, amount_wei=10**18
        )
        for kind in ("operator", "verifier", "juror"):
            for at, person in enumerate(getattr(world, f"{kind}s")):
                self.people[f"{kind} {at}"] = person
        for operator in world.operators:
            world.as_(operator).stake(OPERATOR, STAKE)
            world.delegate(operator)
        wire = Wire(world.rpc_url)
        world.bank._rpc.web3.provider = wire  # which `World.rpc` sends with
        self.clients = {
            name: Client(wire, world.deployment, person.key) for name, person in self.people.items()
        }
        self.bank = self.clients["keeper"]
        self.hands, self.clock = Knowing(self), trio.testing.MockClock()
        self.morning, self.first_second = world.rpc("evm_snapshot"), world.bank.timestamp()
        self.begin_with = self._all_money()

    # ---- a game

    def sit_down(self) -> None:
        """Everything is as on the first morning."""
        assert self.world.rpc("evm_revert", self.morning)
        self.morning = self.world.rpc("evm_snapshot")
        self.runs, self.framed, self.cheats, self.excuses = {}, [], [], set()
        self.invented, self.next_set = [], []
        self.honest, self.asleep, self.bribed = set(self.people) - {"mallory", "friend"}, set(), set()
        self.towers: dict[tuple[str, str], Settler] = {}
        self.idle: dict[tuple[str, str], tuple[int, int]] = {}
        self.sunk = self.world.sunk()

    def open_run(self, name: str, budget: int, deadline_s: int) -> None:
        """A buyer's order is funded; the operators have locked their lots for it."""
        buyer = "buyer" if name == "red" else "operator 0"
        spec = self._spec(name, self.people[buyer])
        run_id = Digest(self.bank.run_id_of(self.people[buyer].account, digest(spec)))
        until = self.now() + 60 * DAY
        for at in range(len(self.world.operators)):
            self.clients[f"operator {at}"].ensure_lot(OPERATOR, run_id, LOT, until)
        opened = self.clients[buyer].open_run(
            digest(spec),
            budget=budget,
            epoch_cap=EPOCH_CAP,
            epochs=EPOCHS,
            deadline=self.now() + deadline_s,
            lot=LOT,
            operators=[one.account for one in self.world.operators],
        )
        assert opened == run_id
        nothing: Any = SimpleNamespace(links=lambda: ())
        self.runs[name] = Run(
            name=name,
            buyer=self.people[buyer],
            spec=spec,
            run_id=run_id,
            network=Network(start(spec, run_id)),
            follower=Follower(spec, run_id, nothing),
        )

    def _spec(self, name: str, buyer: Person) -> RunSpec:
        def members(peers: Iterable[PeerId], people: Sequence[Person]) -> Any:
            return tuple(
                replace(a_member(peer), account=_raw(person.account), hot=_raw(person.hot_key))
                for peer, person in zip(sorted(peers), people, strict=True)
            )

        plain = testing_run.a_spec(seed=len(name), rounds=EPOCHS * ROUNDS_A_STEP, nodes=sorted(NODES)[:3])
        money = specs.a_money_spec(
            epoch_rounds=ROUNDS_A_STEP,
            slash_ppm=self.world.params.case_ppm_max,
            withheld_ppm=self.world.params.case_ppm_max,
            treasury=_raw(self.people["treasury"].account),
        )
        spec = replace(
            plain,
            name=name,
            deployment_id=Digest(self.world.deployment.deployment_id),
            buyer=_raw(buyer.account),
            nodes=members(NODES, self.world.operators),
            verifiers=members(VERIFIERS, self.world.verifiers),
            money=money,
        )
        price = 600 * UNIT * 10**6 // (spec.epoch_price(0) * 10**6 // money.price_per_mtoken)
        return replace(spec, money=replace(money, price_per_mtoken=price))

    def step(self, lives: list[Life], seconds: int = STEP_S) -> None:
        """Time passes, the runs train, every agent moves, then the honest do what is due."""
        self._pass(seconds)
        self._train()
        for life in list(lives):
            try:
                next(life)
            except StopIteration:
                lives.remove(life)
        self.serve()

    def _pass(self, seconds: int) -> None:
        """Time passes; verifiers and keepers, who look every few seconds, do in between what cannot wait."""
        end = self.now() + seconds
        while moments := [at for at in self._moments() if self.now() < at < end]:
            self.wait(min(moments) - self.now())
            self._train()
            self.serve()
        self.wait(max(1, end - self.now()))

    def _moments(self) -> Iterator[int]:
        """When something becomes due for which there is a limited time."""
        for run in self.runs.values():
            escrow = self.bank.run(run.run_id)
            if escrow is not None and not run.network.run_state.is_complete:
                closing = escrow.closes_at - self.world.params.close_delay_s
                yield from range(closing, escrow.closes_at, STEP_S)
            for epoch in range(EPOCHS):
                state = self.bank.epoch_state(run.run_id, epoch)
                if state.phase is EpochPhase.CHALLENGED:
                    yield from self._late(state.until, self.world.params.resolve_window_s)
                    yield state.until
                elif state.phase is EpochPhase.PROPOSED and run.table(epoch) is None:
                    yield from self._late(state.until, self.world.params.challenge_window_s)
        for case_id in {case_id for tower in self.towers.values() for case_id in tower._case_ids}:
            case = self.bank.case(case_id)
            if case.phase is CasePhase.OPEN:
                yield case.veto_ends_at

    def _late(self, until: int, window_s: int) -> tuple[int, int]:
        """When a premature result is seen, and when nobody has had newer manifests for long enough."""
        seen = until - window_s // 8
        return seen, seen + int(NEWS_S)

    def wait(self, seconds: int) -> None:
        """The chain's clock goes on."""
        self.world.rpc("evm_mine", self.now() + seconds)

    def now(self) -> int:
        return self.bank.timestamp()

    def attempt(self, what: str, move: Callable[..., Any], *given: Any, **named: Any) -> bool:
        """A move that the contracts may refuse; whether it was taken."""
        try:
            move(*given, **named)
            outcome = "sent"
        except ChainRefused as refused:
            outcome = refused.name
        self.reached[f"{what}: {outcome}"] += 1
        return outcome == "sent"

    def _train(self) -> None:
        for run in self.runs.values():
            if not run.network.run_state.is_complete:
                self._grow(run)

    def _grow(self, run: Run) -> None:
        """Manifests as the verifiers would agree on them, by what they read of the escrow."""
        network, state = run.network, self.bank.run(run.run_id)
        judges = self.bank.verifier_set(1)
        seen = FinalEscrow(
            block=self.bank.block_number(),
            time_s=self.now(),
            newest_s=self.now(),
            escrow=state,
            judges=judges,
        )
        posted = self.bank.posted_epochs(run.run_id)
        reading = reading_of(run.spec, seen, self.world.params.close_delay_s, posted)
        reports = (
            a_funding_report(
                one, run_id=run.run_id, block=seen.block, epochs=reading.epochs, closing=reading.closing
            )
            for one in run.spec.verifier_peers
        )
        network.run_state = with_reports(network.run_state, reports)
        for _ in range(ROUNDS_A_STEP):
            if network.run_state.is_complete or network.run_state.awaits_funding:
                break
            present = network.absent
            if not network.run_state.is_funded:  # a run that closes: nobody trains for nothing
                network.absent = set(network.run_state.nodes)
            network.grow()
            network.absent = present
            run.follower._fold(network.run_state)

    # ---- the honest

    def member(self, run: Run) -> Any:
        """A participant of a run, as far as a settler asks."""
        return SimpleNamespace(
            spec=run.spec,
            deployment=self.world.deployment,
            run_id=run.run_id,
            readings=Readings(),
            watchtowers=tuple(a_peer(f"juror {at}") for at in range(len(self.world.jurors))),
        )

    def serve(self) -> None:
        """Keepers that are awake and jurors that were drawn act until nobody has anything to do."""
        for run in self.runs.values():
            for _ in range(16):
                moved = [
                    self._keep(run, one) for one in ("keeper", "second keeper") if one not in self.asleep
                ]
                if any(self._undrawn(run)):  # a draw that finds no jury is repeated in another block
                    self.wait(1)
                elif not any([self._judge(run), self._defend(run), *moved]):
                    break

    def _keep(self, run: Run, who: str) -> bool:
        """A keeper's turn, unless nothing is new since it found nothing to do."""
        seen = (self.bank.block_number(), int(run.network.run_state.round))
        if self.idle.get((who, run.name)) == seen:
            return False
        look, moved = self._turn(run, who)
        moved = self._pay(run, who, look) or moved
        if not moved:
            self.idle[who, run.name] = seen
        return moved

    def _turn(self, run: Run, who: str, patience_s: float = 0.0) -> tuple[Look, bool]:
        tower = self.towers.get((who, run.name))
        if tower is None:
            tower = Settler(
                self.member(run), run.follower, patience_s=patience_s, defender=self.hands, juror=self.hands
            )
            tower._host = Verifiers(self, run)  # type: ignore[assignment]
            self.towers[who, run.name] = tower
        self.clock.jump(NEWS_S)
        look, done = self._run(tower.turn, self.clients[who])
        for effect in done:
            self.reached[f"tower: {type(effect).__name__}"] += 1
        return look, bool(done)

    def _pay(self, run: Run, who: str, look: Look) -> bool:
        """Payees that stay away are paid, as by a settler with `pays_others`."""
        ready = tuple(
            one
            for one in look.epochs
            if one.state.phase is EpochPhase.FINAL and one.is_right and one.state.claimed < one.state.total
        )
        if ready:
            pay = self.towers[who, run.name]._claim_for_others
            self._run(pay, self.clients[who], replace(look, epochs=ready))
        return bool(ready)

    def _run(self, act: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """A settler's act, with the calls it makes in threads made in this one: they block nobody here."""

        async def at_once(call: Callable[..., Any], *arguments: Any) -> Any:
            return call(*arguments)

        with (
            patch.object(trio.to_thread, "run_sync", at_once),
            patch.object(trio.from_thread, "run_sync", lambda call: call()),
        ):
            return trio.run(act, *given, clock=self.clock)

    def _undrawn(self, run: Run) -> Iterator[bool]:
        for epoch in range(EPOCHS):
            state = self.bank.epoch_state(run.run_id, epoch)
            yield state.phase is EpochPhase.CHALLENGED and state.draw_from != 0 and self.now() < state.until
        for _, _, defence, jury in self.defences(run):
            yield defence.phase is DefencePhase.JURY and not jury.seats and self.now() < defence.until

    def appealed(self) -> list[Framed]:
        """The cases that their accused appeals, rightly and not."""
        return [*self.framed, *self.cheats]

    def defences(self, run: Run) -> Iterator[tuple[Framed, str, Any, Any]]:
        """The defences of the run's appeals, as (case, defender's name, defence, jury)."""
        for framed in self.appealed():
            appeal = self.bank.appeal(framed.case_id)
            if appeal.phase is AppealPhase.OPEN and appeal.run_id == run.run_id:
                for at, verifier in enumerate(self.world.verifiers):
                    defence, jury = self.bank.defence(framed.case_id, verifier.account)
                    if defence.phase not in (DefencePhase.NONE, DefencePhase.ENDED):
                        yield framed, f"verifier {at}", defence, jury

    def _judge(self, run: Run) -> bool:
        """Jurors that were drawn answer, each by its own settler; a bribed one says the opposite."""
        names = {person.account: name for name, person in self.people.items()}
        before = self.bank.block_number()
        for epoch in range(EPOCHS):
            state = self.bank.epoch_state(run.run_id, epoch)
            if state.phase is not EpochPhase.CHALLENGED or self.now() >= state.until or state.draw_from:
                continue
            right = run.right(epoch, state.prev_result)
            is_right = right is not None and self.world.deployment.digest(right) == state.digest
            for who in self._seated(names[one] for one in state.jury):
                if self.bank.epoch_state(run.run_id, epoch).phase is not EpochPhase.CHALLENGED:
                    break
                given = (run.run_id, epoch, state.digest, not is_right)
                self._vote(run, who, self.clients[who].vote, *given)
        for framed, defender, defence, jury in list(self.defences(run)):
            if defence.phase is DefencePhase.JURY and jury.seats and self.now() < defence.until:
                for who in self._seated(names[one] for one in jury.seats):
                    lie = defence.end != framed.position(defence.last)
                    given = (framed.case_id, self.people[defender].account, defence.end, lie)
                    self._vote(run, who, self.clients[who].vote_on_defence, *given)
        return self.bank.block_number() != before

    def _defend(self, run: Run) -> bool:
        """Honest verifiers defend right orders that they signed, each by its own settler."""
        before, signers = self.bank.block_number(), [f"verifier {at}" for at in range(CORRUPT)]
        for cheat in self.cheats:
            appeal = self.bank.appeal(cheat.case_id)
            if appeal.phase is AppealPhase.OPEN and appeal.run_id == run.run_id:
                for who in self.honest.intersection(signers):
                    self._turn(run, who, patience_s=1e12)
        return self.bank.block_number() != before

    def vetoers(self) -> list[str]:
        """Whose watchtowers can veto what the last verifiers made up: the present ones'; nobody's before."""
        return [one for one in self.next_set if one in self.honest - self.asleep]

    def _vote(self, run: Run, who: str, move: Callable[..., Any], *lie: Any) -> None:
        if who in self.bribed:
            self.attempt("bribed vote", move, *lie)
        elif who not in self.asleep:
            self._turn(run, who, patience_s=1e12)

    def _seated(self, seats: Iterable[str]) -> list[str]:
        """The accounts of a jury; the model assumes that most of its seats are honest and there."""
        found = list(seats)
        good = sum(who not in self.asleep | self.bribed for who in found)
        if 2 * good <= len(found) and "jurors are honest" in self.rules:
            self.excuses.add("a jury without a majority that is honest and there")
        return list(dict.fromkeys(found))

    # ---- the end

    def leave(self, lives: list[Life]) -> None:
        """By time alone everything ends, whatever agents still do, and everybody withdraws what is theirs."""
        for days in (1, 2, 3, 4, 8, 30, 100, 160):
            while any(self.bank.appeal(one.case_id).phase is AppealPhase.OPEN for one in self.appealed()):
                self.step(lives)  # its moves are due within a day
            self.step(lives, days * DAY)
        for name in self.next_set:
            self.clients[name].release_lot(self.people[name].account, VERIFIER, term_of(2))
        for name, role in self._stakers():
            free = int(self.bank._ask("StakeVault", "freeOf", self.people[name].account, role))
            if free:
                self.clients[name].request_unstake(role, free)
        self.wait(self.world.params.unbonding_s)
        for name, _ in self._stakers():
            for number, ticket in self.bank.tickets_of(self.people[name].account).items():
                if ticket.amount:
                    self.clients[name].withdraw(number)
        for person in self.people.values():
            self.bank.collect(person.account)
            self.bank.collect_bond(person.account)

    def losses(self) -> list[str]:
        """What the game found: money that is stuck, made or lost, and whoever honest has less than is due."""
        found = [
            f"{held} units are stuck in {vault}"
            for vault in VAULTS
            if (held := self.bank.token_balance(self.world.deployment.address(vault)))
        ]
        money = self._all_money()
        held = sum(self.bank.token_balance(self.world.deployment.address(vault)) for vault in VAULTS)
        held -= self.bank.token_balance(self.world.deployment.address("StakeVault"))  # counted as stake
        there = sum(money.values()) + held + self.world.sunk() - self.sunk
        if there != sum(self.begin_with.values()):
            found.append(f"{there} units are there, expected {sum(self.begin_with.values())}")
        if self.excuses:
            return found
        found += [
            f"{run.name} never ended" for run in self.runs.values() if not run.network.run_state.is_complete
        ]
        due = dict(self.begin_with)
        for run in self.runs.values():
            found += self._unpaid(run)
            for epoch in range(EPOCHS):
                state, table = self.bank.epoch_state(run.run_id, epoch), run.table(epoch)
                right = run.right(epoch, state.prev_result)
                if state.phase < EpochPhase.FINAL or table is None or right is None:
                    continue
                if self.world.deployment.digest(right) == state.digest:
                    names = {_raw(person.account): name for name, person in self.people.items()}
                    due[names[_raw(run.buyer.account)]] -= table.total
                    for row in table.rows:
                        due[names[Address(row.account)]] += row.amount
        found += [
            f"{name} has {money[name]}, {due[name] - money[name]} less than honest play must leave"
            for name in sorted(self.honest)
            if money[name] < due[name]
        ]
        return found

    def _unpaid(self, run: Run) -> Iterator[str]:
        """Work that an honest quorum's run has not paid."""
        for epoch in run.follower.settlements if run.signs else ():
            state = self.bank.epoch_state(run.run_id, epoch)
            if state.phase < EpochPhase.FINAL:
                yield f"epoch {epoch} of {run.name} was trained and is not paid ({state.phase.name})"

    def _all_money(self) -> dict[str, int]:
        """What each has in tokens, and in stake."""
        money = {name: self.bank.token_balance(person.account) for name, person in self.people.items()}
        for name, role in self._stakers():
            money[name] += sum(self.bank._ask("StakeVault", "stakeOf", self.people[name].account, role))
        return money

    def _stakers(self) -> Iterator[tuple[str, int]]:
        """Who has stake, and in which role."""
        for name in self.people:
            if name.startswith("operator"):
                yield name, OPERATOR
            elif name.startswith(("verifier", "juror")):
                yield name, VERIFIER

    # ---- what liars sign

    def certified(self, statement: Any) -> bytes:
        """The signatures of the corrupt quorum."""
        return self.world.cert(statement, CORRUPT)

    def frame(self, run: Run, operator: int, dice: Random) -> None:
        """The corrupt quorum convicts an honest step of an operator, which committed to it in public."""
        accused = self.world.operators[operator]
        value = dice.randbytes(32)
        said = Statement(
            deployment_id=run.spec.deployment_id,
            run_id=run.run_id,
            epoch=0,
            kind=1,
            slot=bytes(32),
            value=value,
        )
        case_id = offence_id(run.run_id, b"assay/offence/1" + value)
        order = SlashOrder(
            deployment_id=run.spec.deployment_id, run_id=run.run_id, epoch=0, offender=accused.account,
            role=OPERATOR, ppm=self.world.params.case_ppm_max, offence_id=case_id, evidence_hash=bytes(32),
            challenger=self.people["mallory"].account,
        )  # fmt: skip
        operators = dice.choice((1, 8, 64, 300))
        if self.attempt("frame", self.clients["mallory"].open_case, order, self.certified(order)):
            framed = Framed(case_id, accused, said, self.world.signed(said, accused.hot), operators)
            self.framed.append(framed)


def _raw(account: str) -> Address:
    return Address(bytes.fromhex(account[2:]))
