"""Money on a real chain, against plain integers: any moves in any order, and a chain that goes back.

Every move is made twice: by the client through web3.py on anvil, and on the model (money_model.py). After
each the two must agree on whether it was done, had been done, or was refused and with which word, and on
every balance, stake, ticket, run, result, case and bond. In the end everybody leaves with everything.

Going back: the chain is put back to an earlier moment, and then every client repeats all it did since, as the
same bytes. By snapshot, or by killing anvil and starting it on an older state file.

    python -m tests.contracts.test_state_machine 500    500 random examples, and what was reached
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from assay.chain.client import UNIT, ChainRefused, EpochPhase
from assay.chain.deployment.anvil import Anvil, find_anvil
from assay.chain.state import CasePhase
from assay.chain.statements import VERIFIER, term_of
from assay.protocol.offences import offence_id
from assay.protocol.types import NO_DIGEST
from tests.contracts.chain_world import BUDGET, PURSE, WINDOWS, World
from tests.contracts.money_model import ANYTHING, ROLES, Model, Refused
from tests.contracts.money_party import (
    DAY,
    EPOCHS,
    EVERYBODY,
    LOTS,
    RUNS,
    STAKERS,
    Move,
    Party,
    Restarted,
    expected,
)

people = st.sampled_from(EVERYBODY)
stakers = st.sampled_from(STAKERS)
roles = st.sampled_from(ROLES)
runs = st.sampled_from(tuple(RUNS))
lots = st.sampled_from(LOTS)
epochs = st.integers(0, EPOCHS - 1)
dice = st.integers(0, 10**6)


class Money(RuleBasedStateMachine):
    """Any move by anybody at any time."""

    party: Party  # set by whoever runs the machine
    reached: Counter[str]
    start: Any = None

    def __init__(self) -> None:
        super().__init__()
        type(self).start = self.party.go_back(self.start) if self.start is not None else self.party.mark()
        self.party.steady()
        self.sunk = self.party.world.sunk()
        world = self.party.world
        term = world.bank.lot_of(world.verifiers[0].account, VERIFIER, term_of(1))
        self.model = Model(WINDOWS, dict.fromkeys(EVERYBODY, PURSE), term.until)
        self.told: list[Move] = []  # since the mark
        self.done: list[Move] = []  # what did something, ever
        self.mark: Any = None
        self.memory = self.model
        self.salt = 0

    # ---- one move, twice

    def do(self, name: str, *given: Any) -> None:
        """Makes a move on both sides, and compares what became of it."""
        self.told.append((name, given))
        try:
            on_chain = "sent" if self.party.send((name, given)) else "already"
            now = self.party.now()
        except ChainRefused as refused:
            on_chain, now = refused.name, self.party.now() + 1
        try:
            by_rule = "sent" if getattr(self.model, name)(now, *given) else "already"
        except Refused as refused_:
            by_rule = refused_.name
        if by_rule == ANYTHING and on_chain not in ("sent", "already"):
            by_rule = on_chain
        assert on_chain == by_rule, f"{name}{given}: {on_chain} on chain, {by_rule} by the rules at {now}"
        self.reached[f"{name}: {on_chain}"] += 1
        if on_chain == "sent":
            self.done.append((name, given))

    @initialize(
        both=st.booleans(), settled=st.sampled_from([2, 1, 0]), accused=st.sampled_from([True, False])
    )
    def begin(self, both: bool, settled: int, accused: bool) -> None:
        """Two who have staked and can be held to their word, a run or two, and some work done on one."""
        for who in STAKERS:
            self.do("stake", who, 0, 1_000 * UNIT + 333_337)  # no share of it is whole
            self.do("lock", who, 0, "red", 400 * UNIT + 1, self.party.now() + 60 * DAY)
            self.do("delegate", who)
        deadline = self.party.now() + 60 * DAY
        for run, buyer in list(RUNS.items())[: 1 + both]:
            self.do("open_run", buyer, run, BUDGET, 1_000 * UNIT, EPOCHS, deadline)
        for at in range(settled):
            self._put_forward("red", at, (("ann", 70 * UNIT), ("ben", 5), ("eve", 30 * UNIT)), 100 * UNIT + 5)
            self.party.wait_until(self.party.now() + WINDOWS.challenge_window_s)
            self.do("finalize", "red", at)
        if accused:  # with a ticket that is ripe, and leaves in spite of the case
            self.do("unstake", "ann", 0, 500 * UNIT)
            self.party.wait_until(self.party.now() + WINDOWS.unbonding_s)
            self.open_case("buyer", "ann", 0, "red", "eve", 300_000, False)

    @invariant()
    def chain_and_model_agree(self) -> None:
        seen, told = self.party.seen(self.model), expected(self.model, self.sunk)
        assert seen == told, {name: (seen[name], told[name]) for name in told if seen[name] != told[name]}
        held = sum(seen[f"{who} has"] for who in EVERYBODY)
        held += sum(seen[one] for one in ("StakeVault", "RunEscrow", "EpochSettlement", "SlashCourt"))
        assert held + self.model.burnt == len(EVERYBODY) * PURSE, "tokens were made or lost"
        for name in RUNS:
            _, _, budget, reserved, paid, returned = seen[name]
            assert budget >= reserved + paid + returned, "a run owes more than its budget"
            pending = [self.model.results.get((name, epoch)) for epoch in range(EPOCHS)]
            owed = sum(r.total - r.claimed for r in pending if r and r.phase is not EpochPhase.SWEPT)
            assert reserved == owed, "what is reserved is not what results can still cost"

    # ---- stake

    @rule(who=stakers, role=roles, amount=st.sampled_from([1, 100, 101, 333, 12_345]), dust=st.integers(0, 9))
    def stake(self, who: str, role: int, amount: int, dust: int) -> None:
        self.do("stake", who, role, amount * UNIT + dust if amount > 1 else dust)

    @rule(who=stakers, role=roles, part=st.sampled_from([10**6, 10**6, 500_000, 333_333, 1]))
    def unstake(self, who: str, role: int, part: int) -> None:
        self.do("unstake", who, role, self.model.stake_of(who, role).free * part // 10**6)

    @rule(
        who=stakers,
        lot=lots,
        part=st.sampled_from([10**6, 10**6, 500_000, 333_333, 0]),
        days=st.integers(-1, 61),
    )
    def lock(self, who: str, lot: tuple[int, str], part: int, days: int) -> None:
        role, of = lot
        amount = self.model.stake_of(who, role).free * part // 10**6 + (days == 7)
        self.do("lock", who, role, of, amount, self.party.now() + (days if days < 61 else 401) * DAY + 9)

    @rule(sender=people, who=stakers, lot=lots)
    def release(self, sender: str, who: str, lot: tuple[int, str]) -> None:
        self.do("release", sender, who, *lot)

    @rule(sender=people, who=stakers, run=runs)
    def discharge(self, sender: str, who: str, run: str) -> None:
        self.do("discharge", sender, who, run)

    @precondition(lambda self: self.model.tickets)
    @rule(at=dice, name=st.sampled_from(["withdraw", "cancel", "withdraw"]))
    def use_ticket(self, at: int, name: str) -> None:
        number = at % len(self.model.tickets) + 1
        self.do(name, self.model.tickets[number - 1].who if at % 5 != 4 else "eve", number)

    @rule(who=people, name=st.sampled_from(["collect", "collect_bond"]))
    def fetch(self, who: str, name: str) -> None:
        waiting = self.model.rewards if name == "collect" else self.model.owed
        self.do(name, next(iter(waiting), who))

    # ---- runs

    @rule(
        run=runs, name=st.sampled_from(["open_run", "top_up", "request_close", "refund"]), who=people, at=dice
    )
    def buy(self, run: str, name: str, who: str, at: int) -> None:
        match name:
            case "open_run":
                deadline, cap = self.party.now() + 40 * DAY, (1_000 - at % 2) * UNIT
                self.do("open_run", RUNS[run], run, 1_500 * UNIT, cap, EPOCHS, deadline)
            case "top_up":
                self.do("top_up", who, run, at + 1)
            case "request_close" | "refund":
                self.do(name, run)

    # ---- results

    @precondition(lambda self: self.model.runs)
    @rule(run=runs, amounts=st.lists(st.integers(0, 300 * UNIT), min_size=1, max_size=3), at=dice)
    def propose(self, run: str, amounts: list[int], at: int) -> None:
        """The next epoch without a result, now and then any; now and then for less than the rows' sum."""
        ahead = [epoch for epoch in range(EPOCHS) if (run, epoch) not in self.model.results]
        epoch = ahead[0] if ahead and at % 5 != 4 else at % (EPOCHS + 1)
        self.salt += 1
        rows = (*zip((*STAKERS, "eve"), amounts, strict=False), ("buyer", self.salt))
        total = sum(amount for _, amount in rows)
        total = total * 2 // 3 if at % 7 == 6 else total + 1_000 * UNIT if at % 11 == 10 else total
        self._put_forward(run, epoch, rows, total)

    def _put_forward(self, run: str, epoch: int, rows: tuple[Any, ...], total: int) -> None:
        before = self.model.results.get((run, epoch - 1))
        previous = before.digest if before else bytes(32)
        result = self.party.result(run, epoch, previous, rows, total)
        digest = self.party.world.deployment.digest(result)
        self.do("propose", run, epoch, previous, digest, rows, total)

    @precondition(lambda self: self.model.results)
    @rule(at=dice, who=people)
    def challenge(self, at: int, who: str) -> None:
        self.do("challenge", who, *self._a_result(at, EpochPhase.PROPOSED))

    @precondition(lambda self: self.model.results)
    @rule(at=dice, is_right=st.booleans())
    def judge(self, at: int, is_right: bool) -> None:
        run, epoch = self._a_result(at, EpochPhase.CHALLENGED)
        self._end("judge", run, epoch, self.model.results[run, epoch].digest, is_right)

    @precondition(lambda self: self.model.results)
    @rule(at=dice, name=st.sampled_from(["time_out", "clear_orphan", "sweep"]))
    def end_result(self, at: int, name: str) -> None:
        wanted = EpochPhase.FINAL if name == "sweep" else EpochPhase.CHALLENGED
        self._end(name, *self._a_result(at, wanted))

    def _end(self, name: str, *given: Any) -> None:
        """If the result falls by it, the same bytes are put forward again, at twice the price."""
        before = self.model.results[given[:2]]
        self.do(name, *given)
        if self.model.results.get(given[:2]) is not before:
            again = next(g for n, g in self.done if n == "propose" and g[3] == before.digest)
            self.do("propose", *again)

    @precondition(lambda self: self.model.results)
    @rule(at=dice)
    def finalize(self, at: int) -> None:
        self.do("finalize", *self._a_result(at, EpochPhase.PROPOSED))

    @precondition(lambda self: any(r.phase >= EpochPhase.FINAL for r in self.model.results.values()))
    @rule(at=dice, index=st.integers(0, 3), others=st.booleans())
    def claim(self, at: int, index: int, others: bool) -> None:
        run, epoch = self._a_result(at, EpochPhase.FINAL)
        rows = self.model.results[run, epoch].rows
        if others and at % 4 == 3:  # a row of a table that nobody signed
            rows = tuple((who, amount + 1) for who, amount in rows)
        self.do("claim", run, epoch, index % len(rows), rows)

    # ---- the court

    @rule(who=people, offender=stakers, run=runs, for_reward=st.booleans(), chance=st.booleans())
    def report(self, who: str, offender: str, run: str, for_reward: bool, chance: bool) -> None:
        if chance or self.model.banned:  # else nobody is left to do anything
            self.do("report", who, offender, run, for_reward)

    @rule(
        opener=people, offender=stakers, role=roles, run=runs, finder=people,
        ppm=st.sampled_from([1, 123_457, 300_000, 300_000, 300_001]), again=st.booleans(),
    )  # fmt: skip
    def open_case(
        self, opener: str, offender: str, role: int, run: str, finder: str, ppm: int, again: bool
    ) -> None:
        at = len(self.model.cases) - (again and ppm == 1)
        case = offence_id(self.party.run_ids[run], f"case {at}".encode())
        self.do("open_case", opener, case, offender, role, ppm, run, finder)

    @precondition(lambda self: self.model.cases)
    @rule(at=dice, name=st.sampled_from(["veto", "execute", "execute", "pay_out", "pay_out", "expire"]))
    def move_case(self, at: int, name: str) -> None:
        wanted = CasePhase.EXECUTED if name == "pay_out" else CasePhase.OPEN
        found = [case for case, one in self.model.cases.items() if one.phase is wanted] if at % 6 != 5 else []
        cases = found or list(self.model.cases)
        self.do(name, cases[at % len(cases)])

    @rule(back=st.integers(1, 9))
    def somebody_does_it_again(self, back: int) -> None:
        """The same bytes once more, after they did something: nothing is paid, slashed or returned twice."""
        name, given = self.done[-min(back, len(self.done))]
        self.do(name, *given)

    # ---- time

    @rule(days=st.sampled_from([0, 1, 5]))
    def wait(self, days: int) -> None:
        self.party.wait_until(self.party.now() + days * DAY + 3_600)

    @rule(at=dice, which=st.integers(0, 3), seconds=st.sampled_from([0, 0, 1, -1]))
    def be_punctual(self, at: int, which: int, seconds: int) -> None:
        """A move in the last second before its time, in the first of it, or in the next."""
        now = self.party.now()
        due = sorted((when + seconds, moves) for when, moves in self._deadlines() if when + seconds > now + 1)
        if due:
            when, moves = due[at % len(due)]
            self.party.wait_until(when - 1)
            name, given = moves[which % len(moves)]
            self.do(name, *given)

    def _deadlines(self) -> Iterator[tuple[int, list[Move]]]:
        """Every moment at which something becomes possible or impossible, with the moves it is about."""
        for number, ticket in enumerate(self.model.tickets, 1):
            if ticket.amount:
                yield ticket.ready_at, [("withdraw", (ticket.who, number))]
        for (who, role, of), lot in self.model.lots.items():
            end = self.model._end_of(role, of)
            at = min(end or lot.until, lot.until) + WINDOWS.evidence_window_s
            late = offence_id(self.party.run_ids.get(of, NO_DIGEST), b"late")
            case: Move = ("open_case", ("buyer", late, who, role, 5, of, "eve"))
            yield (
                at,
                [
                    ("release", ("eve", who, role, of)),
                    case if of in RUNS else ("release", (who, who, role, of)),
                ],
            )
        for name, run in self.model.runs.items():
            yield run.closes_at, [("refund", (name,)), ("top_up", ("eve", name, 5)), ("refund", (name,))]
        for (name, epoch), one in self.model.results.items():
            claim: Move = ("claim", (name, epoch, 0, one.rows))
            moves: dict[EpochPhase, list[Move]] = {
                EpochPhase.PROPOSED: [("finalize", (name, epoch)), ("challenge", ("eve", name, epoch))],
                EpochPhase.CHALLENGED: [("time_out", (name, epoch)), ("time_out", (name, epoch))],
                EpochPhase.FINAL: [("sweep", (name, epoch)), claim],
            }
            if one.phase in moves:
                yield one.until, moves[one.phase]
        for case, found in self.model.cases.items():
            if found.phase is CasePhase.OPEN:
                yield found.veto_ends_at, [("execute", (case,)), ("execute", (case,)), ("veto", (case,))]
                yield found.execute_by, [(name, (case,)) for name in ("expire", "execute", "veto")]
            elif found.phase is CasePhase.EXECUTED:
                yield found.payable_at, [("pay_out", (case,)), ("pay_out", (case,)), ("veto", (case,))]

    @precondition(lambda self: self.mark is None)
    @rule()
    def remember(self) -> None:
        self.mark, self.memory, self.told = self.party.mark(), deepcopy(self.model), []

    @precondition(lambda self: self.mark is not None and len(self.told) > 2)
    @rule()
    def the_chain_goes_back(self) -> None:
        """It forgets; everybody does again what they did, as the same bytes, refused moves too."""
        self.party.go_back(self.mark)
        self.mark, self.model = None, self.memory
        repeated, self.told = self.told, []
        for name, given in repeated:
            self.do(name, *given)
        self.reached["the chain went back"] += 1

    # ---- the end

    def teardown(self) -> None:
        """By time alone, with nobody's leave: every unit leaves the contracts."""
        model = self.model
        self.party.wait_until(self.party.now() + 70 * DAY)
        for case, one in model.cases.items():
            if not one.phase.is_over:
                self.do("expire" if one.phase is CasePhase.OPEN else "pay_out", case)
        for run, epoch in sorted(model.results):
            if model.results[run, epoch].phase is EpochPhase.CHALLENGED:
                self.do("time_out", run, epoch)
        self.party.wait_until(self.party.now() + WINDOWS.challenge_window_s)
        for run, epoch in sorted(model.results):
            one_ = model.results[run, epoch]
            if one_.lost and one_.phase < EpochPhase.FINAL:
                self.do("clear_orphan", run, epoch)
            elif one_.phase < EpochPhase.FINAL:
                self.do("finalize", run, epoch)
        for who, role, of in list(model.lots):
            self.do("release", "eve", who, role, of)
        for (who, role), stake in list(model.stakes.items()):
            if stake.active:
                self.do("unstake", who, role, stake.active)
        self.party.wait_until(self.party.now() + WINDOWS.claim_period_s)
        for run, epoch in sorted(model.results):
            self.do("sweep", run, epoch)
            self.do("claim", run, epoch, 0, model.results[run, epoch].rows)  # too late, or told again
        for run in model.runs:
            self.do("refund", run)
        for number, ticket in enumerate(model.tickets, 1):
            self.do("withdraw", ticket.who, number)
        for who in EVERYBODY:
            self.do("collect", who)
            self.do("collect_bond", who)
        self.chain_and_model_agree()
        left = self.party.seen(model)
        left["EpochSettlement"] -= model.jurors_owed
        assert {left[one] for one in ("StakeVault", "RunEscrow", "EpochSettlement", "SlashCourt")} == {0}

    # ---- picking

    def _a_result(self, at: int, wanted: EpochPhase) -> tuple[str, int]:
        """Mostly one in the wanted phase, so that moves lead somewhere."""
        found = (
            [place for place, one in self.model.results.items() if one.phase is wanted] if at % 6 != 5 else []
        )
        places = found or list(self.model.results)
        return places[at % len(places)]


def explore(kind: type[Money], party: Party, examples: int, steps: int, *, is_fixed: bool) -> Counter[str]:
    """Runs the machine and says what was reached, by move and outcome."""
    machine = type(kind.__name__, (kind,), {"party": party, "reached": Counter(), "start": None})
    run_machine(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=is_fixed,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(
                Phase.explicit,
                Phase.generate,
            ),  # shrinking takes minutes; leave it to whoever looks into a failure
        ),
    )
    found: Counter[str] = machine.reached  # type: ignore[attr-defined]
    return found


@pytest.fixture
def party(world: World) -> Iterator[Party]:
    yield Party(world)
    world.rpc("anvil_removeBlockTimestampInterval")


@pytest.mark.slow
def test_whatever_anybody_does_chain_and_integers_agree_and_everybody_can_leave(party: Party):
    is_deep = os.environ.get("FOUNDRY_PROFILE") == "deep"  # as for forge: `make contracts`
    reached = explore(Money, party, 32 if is_deep else 14, 80, is_fixed=True)

    done = {name for name in reached if name.endswith(": sent")}
    assert len(done) >= 20, sorted(done)  # it led somewhere; the clock decides what is in time
    assert reached["the chain went back"] >= 2 and reached["discharge: sent"] >= 1


@pytest.mark.slow
def test_a_chain_that_was_killed_and_started_on_an_older_state_is_answered_by_repeating(
    anvil_binary: Path, tmp_path: Path
):
    with Anvil(
        binary=anvil_binary, state_dir=tmp_path / "chain", block_time_s=None, state_interval_s=3_600
    ) as chain:
        party = Restarted(World(chain.rpc_url, chain.keys[0], WINDOWS), chain, tmp_path)
        reached = explore(Money, party, 3, 40, is_fixed=True)

    assert reached["the chain went back"] >= 2


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        Anvil(
            binary=find_anvil(Path(__file__).parents[2] / "contracts"),
            state_dir=Path(folder),
            block_time_s=None,
            state_interval_s=3_600,
        ) as local,
    ):
        everything = explore(
            Money,
            Party(World(local.rpc_url, local.keys[0], WINDOWS)),
            int(sys.argv[1]),
            60,
            is_fixed=False,
        )
    for told_, times in sorted(everything.items()):
        print(f"{times:6}  {told_}")
