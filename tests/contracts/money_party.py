"""A party on a real chain: people with clients, a clock of a second a block, and ways back in time.

What the state machine moves and looks at (test_state_machine.py): every move and its outcome by name, every
balance as the contracts tell it beside what the model expects, and the ways back.
"""

from __future__ import annotations

import os
import shutil
import signal
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import requests
from eth_abi.abi import decode, encode
from eth_utils.abi import collapse_if_tuple, function_abi_to_4byte_selector

from assay.chain.client import EpochPhase
from assay.chain.deployment.anvil import Anvil
from assay.chain.deployment.coin import SINK
from assay.chain.proofs.payout_tree import Payout, PayoutTree, payout_tree
from assay.chain.rpc import artefact
from assay.chain.statements import (
    CERT_ECDSA,
    Discharge,
    EpochResult,
    SlashOrder,
    Statement,
    Veto,
    term_of,
)
from tests.contracts.chain_world import MODEL, Person, World
from tests.contracts.money_model import ROLES, TERM, Model

DAY = 86_400
RUNS = {"red": "buyer", "blue": "ann"}  # who opens it; ann is staked and buys as well
STAKERS = ("ann", "ben")
EVERYBODY = ("ann", "ben", "buyer", "eve")
EPOCHS = 3
LOTS = ((0, "red"), (0, "blue"), (1, TERM))
Move = tuple[str, tuple[Any, ...]]


class Party:
    """A deployment with four people on it, as clients, and a clock that moves by one second a block."""

    def __init__(self, world: World) -> None:
        self.world = world
        ann, ben = world.operators[:2]
        self.people: dict[str, Person] = {
            "ann": ann, "ben": ben, "buyer": world.buyer, "eve": world.bystander,
        }  # fmt: skip
        self.clients = {name: world.as_(person) for name, person in self.people.items()}
        self.bank_holds = world.bank.token_balance()
        self.run_ids = {
            run: world.bank.run_id_of(self.people[buyer].account, self.spec(run))
            for run, buyer in RUNS.items()
        }
        self.steady()

    def spec(self, run: str) -> bytes:
        return sha256(run.encode()).digest()

    def steady(self) -> None:
        """Each block one second after the one before, however long anything takes."""
        self.world.rpc("anvil_setBlockTimestampInterval", 1)

    def now(self) -> int:
        return int(self.world.rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)

    def wait_until(self, second: int) -> None:
        self.world.rpc("evm_setNextBlockTimestamp", second)
        self.world.rpc("evm_mine")

    # ---- marks to go back to

    def mark(self) -> Any:
        return self.world.rpc("evm_snapshot")

    def go_back(self, mark: Any) -> Any:
        """Back at the mark, which may be used again."""
        assert self.world.rpc("evm_revert", mark)
        return self.mark()

    # ---- moves, by name, as the clients make them

    def send(self, move: Move) -> bool:
        """Whether it did something. Raises `ChainRefused` as the client does."""
        name, given = move
        sent = getattr(self, f"_{name}")(*given)
        return sent is None or sent.tx_hash is not None

    def _stake(self, who: str, role: int, amount: int) -> Any:
        return self.clients[who].stake(role, amount)

    def _delegate(self, who: str) -> Any:
        person, already = self.people[who], self.world.bank.hot_key(self.people[who].hot_key)
        self.world.delegate(person)
        return Was(already is not None)

    def _lock(self, who: str, role: int, of: str, amount: int, until: int) -> Any:
        self.clients[who]._move("lock", "StakeVault", "lock", role, self.commitment(of), amount, until)

    def _release(self, sender: str, who: str, role: int, of: str) -> Any:
        return self.clients[sender].release_lot(self.people[who].account, role, self.commitment(of))

    def _discharge(self, sender: str, who: str, of: str) -> Any:
        there, run_id = self.world.deployment.deployment_id, self.run_ids[of]
        said = Discharge(deployment_id=there, run_id=run_id, account=self.people[who].account)
        told = (run_id, said.account, CERT_ECDSA, self.world.cert(said))
        self.clients[sender]._move("discharge", "SlashCourt", "discharge", *told)

    def commitment(self, of: str) -> bytes:
        return term_of(1) if of == TERM else self.run_ids[of]

    def _unstake(self, who: str, role: int, amount: int) -> Any:
        self.clients[who].request_unstake(role, amount)

    def _cancel(self, who: str, number: int) -> Any:
        return self.clients[who].cancel_unstake(number)

    def _withdraw(self, who: str, number: int) -> Any:
        return self.clients[who].withdraw(number)

    def _collect(self, who: str) -> Any:
        return self.clients["eve"].collect(self.people[who].account)

    def _open_run(self, buyer: str, run: str, budget: int, cap: int, count: int, deadline: int) -> Any:
        chain = self.clients[buyer]
        already = chain.run(self.run_ids[run])
        terms = {"budget": budget, "epoch_cap": cap, "epochs": count, "deadline": deadline}
        assert chain.open_run(self.spec(run), **terms) == self.run_ids[run]
        return Was(already is not None)

    def _top_up(self, payer: str, run: str, amount: int) -> Any:
        return self.clients[payer].top_up(self.run_ids[run], amount)

    def _request_close(self, run: str) -> Any:
        return self.clients[RUNS[run]].request_close(self.run_ids[run])

    def _refund(self, run: str) -> Any:
        return self.clients["eve"].refund(self.run_ids[run])

    def _propose(
        self, run: str, epoch: int, previous: bytes, digest: bytes, rows: tuple[Any, ...], total: int
    ) -> Any:
        result = self.result(run, epoch, previous, rows, total)
        assert self.world.deployment.digest(result) == digest
        return self.clients["eve"].propose(result, self.world.cert(result))

    def _challenge(self, who: str, run: str, epoch: int) -> Any:
        return self.clients[who].challenge(self.run_ids[run], epoch, bytes(32))

    def _judge(self, run: str, epoch: int, digest: bytes, is_right: bool) -> Any:
        self.world.judge(self.run_ids[run], epoch, is_right)

    def _time_out(self, run: str, epoch: int) -> Any:
        return self.clients["eve"].timeout_challenge(self.run_ids[run], epoch)

    def _clear_orphan(self, run: str, epoch: int) -> Any:
        return self.clients["eve"].clear_orphan(self.run_ids[run], epoch)

    def _finalize(self, run: str, epoch: int) -> Any:
        return self.clients["eve"].finalize(self.run_ids[run], epoch)

    def _claim(self, run: str, epoch: int, index: int, rows: tuple[Any, ...]) -> Any:
        return self.clients["eve"].claim(self.run_ids[run], epoch, self.tree(run, epoch, rows), index)

    def _sweep(self, run: str, epoch: int) -> Any:
        return self.clients["eve"].sweep_unclaimed(self.run_ids[run], epoch)

    def _collect_bond(self, who: str) -> Any:
        return self.clients["eve"].collect_bond(self.people[who].account)

    def _report(self, who: str, offender: str, run: str, for_reward: bool) -> Any:
        told: list[Any] = []
        for value in (b"one", b"two"):
            said = Statement(
                deployment_id=self.world.deployment.deployment_id,
                run_id=self.run_ids[run],
                epoch=0,
                kind=1,
                slot=bytes(32),
                value=value.ljust(32, b"\0"),
            )
            told += [said, self.world.signed(said, self.people[offender].hot)]
        return self.clients[who].report_equivocation(*told, for_reward=for_reward)

    def _open_case(
        self, opener: str, case: bytes, offender: str, role: int, ppm: int, run: str, finder: str
    ) -> Any:
        slash_order = SlashOrder(
            deployment_id=self.world.deployment.deployment_id,
            run_id=self.run_ids[run],
            epoch=0,
            offender=self.people[offender].account,
            role=role,
            ppm=ppm,
            offence_id=case,
            evidence_hash=bytes(32),
            challenger=self.people[finder].account,
        )
        return self.clients[opener].open_case(slash_order, self.world.cert(slash_order))

    def _veto(self, case: bytes) -> Any:
        said = Veto(deployment_id=self.world.deployment.deployment_id, case_id=case, reason_hash=bytes(32))
        return self.clients["eve"].veto_case(case, bytes(32), self.world.cert(said))

    def _execute(self, case: bytes) -> Any:
        return self.clients["eve"].execute_case(case)

    def _pay_out(self, case: bytes) -> Any:
        return self.clients["eve"].pay_out_case(case)

    def _expire(self, case: bytes) -> Any:
        return self.clients["eve"].expire_case(case)

    # ---- papers

    def tree(self, run: str, epoch: int, rows: tuple[Any, ...]) -> PayoutTree:
        payouts = [Payout(account=self.people[who].account, amount=amount) for who, amount in rows]
        return payout_tree(self.run_ids[run], epoch, payouts)

    def result(self, run: str, epoch: int, previous: bytes, rows: tuple[Any, ...], total: int) -> EpochResult:
        return EpochResult(
            deployment_id=self.world.deployment.deployment_id,
            run_id=self.run_ids[run],
            epoch=epoch,
            set_version=1,
            prev_result=previous,
            root=self.tree(run, epoch, rows).root,
            table_hash=bytes(32),
            model_hash=MODEL,
            total=total,
        )

    # ---- everything the contracts hold, in one question

    def seen(self, model: Model) -> dict[str, Any]:
        """By the same names as `expected`."""
        asked: dict[str, tuple[str, str, list[Any]]] = {"sunk": ("AssayToken", "balanceOf", [SINK])}
        for contract in ("StakeVault", "RunEscrow", "EpochSettlement", "SlashCourt"):
            asked[contract] = ("AssayToken", "balanceOf", [self.world.deployment.address(contract)])
        for who in EVERYBODY:
            account = self.people[who].account
            asked[f"{who} has"] = ("AssayToken", "balanceOf", [account])
            asked[f"{who} is owed"] = ("StakeVault", "rewards", [account])
            asked[f"{who} bonds"] = ("EpochSettlement", "bondsOwed", [account])
            asked[f"{who} barred"] = ("StakeVault", "banned", [account])
        for who in STAKERS:
            for role, of in LOTS:
                lot = [self.people[who].account, role, self.commitment(of)]
                asked[f"{who} {role} {of}"] = ("StakeVault", "lotOf", lot)
            for role in ROLES:
                asked[f"{who} {role}"] = ("StakeVault", "stakeOf", [self.people[who].account, role])
        for number in range(1, len(model.tickets) + 1):
            asked[f"ticket {number}"] = ("StakeVault", "ticketValue", [number])
        for run in RUNS:
            asked[run] = ("RunEscrow", "getRun", [self.run_ids[run]])
            for epoch in range(EPOCHS):
                asked[f"{run} {epoch}"] = ("EpochSettlement", "getEpoch", [self.run_ids[run], epoch])
        for (run, epoch), result in model.results.items():
            for index in range(len(result.rows)):
                row = [self.run_ids[run], epoch, index]
                asked[f"paid {run} {epoch} {index}"] = ("EpochSettlement", "isClaimed", row)
        for case in model.cases:
            asked[f"case {case.hex()[-4:]}"] = ("SlashCourt", "getCase", [case])
            asked[f"pot {case.hex()[-4:]}"] = ("StakeVault", "pots", [case])
            asked[f"bond {case.hex()[-4:]}"] = ("StakeVault", "bonds", [case])
        answers = self._ask(list(asked.values()))
        found = {name: _plain(name, answer) for name, answer in zip(asked, answers, strict=True)}
        found["StakeVault"] -= self.world.judges_stake  # verifiers and jurors make no move of stake
        return found

    def _ask(self, questions: list[tuple[str, str, list[Any]]]) -> list[Any]:
        calls = [
            {
                "jsonrpc": "2.0",
                "id": at,
                "method": "eth_call",
                "params": [
                    {"to": self.world.deployment.address(contract), "data": _data(contract, function, given)},
                    "latest",
                ],
            }
            for at, (contract, function, given) in enumerate(questions)
        ]
        told = requests.post(self.world.rpc_url, json=calls, timeout=30, proxies={"http": ""}).json()
        refused = [(questions[one["id"]], one["error"]) for one in told if "error" in one]
        assert not refused, refused
        answers = {one["id"]: bytes.fromhex(one["result"][2:]) for one in told}
        return [
            decode(_shape(contract, function)[2], answers[at])
            for at, (contract, function, _) in enumerate(questions)
        ]


class Was:
    """What a client's move returned, for moves that return something else: whether it was a fact."""

    def __init__(self, already: bool) -> None:
        self.tx_hash = None if already else b"sent"


@cache
def _shape(contract: str, function: str) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
    """Selector, types of the arguments, types of the answer."""
    entry = next(e for e in artefact(contract)["abi"] if e.get("name") == function)
    kinds = [tuple(collapse_if_tuple(one) for one in entry[side]) for side in ("inputs", "outputs")]
    return bytes(function_abi_to_4byte_selector(entry)), kinds[0], kinds[1]


def _data(contract: str, function: str, given: list[Any]) -> str:
    selector, kinds, _ = _shape(contract, function)
    return "0x" + (selector + encode(kinds, given)).hex()


def _plain(name: str, answer: tuple[Any, ...]) -> Any:
    """The part of an answer that the model speaks of."""
    kind, _, _ = name.partition(" ")
    if kind in RUNS:
        (told,) = answer
        if name in RUNS:  # pending, closes at, budget, reserved, paid, returned
            return (told[3], told[5], told[6], *told[8:11])
        return told[:4]  # state, until, total, claimed
    if kind == "case":
        return (answer[0][0], answer[0][5])  # state, payable at
    if kind == "pot":
        return answer[3] if answer[2] else 0
    if kind == "bond":
        return answer[1]
    return answer if len(answer) > 1 else answer[0]


def expected(model: Model, sunk: int) -> dict[str, Any]:
    """What `Party.seen` should say."""
    at_stake = sum(stake.active + stake.leaving for stake in model.stakes.values())
    waiting = sum(case.pot + case.bond for case in model.cases.values())
    bonded = sum(one.bond for one in model.results.values())
    bonded += sum(model.bond(*at) for at, one in model.results.items() if one.phase is EpochPhase.CHALLENGED)
    told: dict[str, Any] = {
        "sunk": sunk + model.burnt,
        "StakeVault": at_stake + waiting + sum(model.rewards.values()),
        "RunEscrow": sum(run.budget - run.paid - run.returned for run in model.runs.values()),
        "EpochSettlement": bonded + sum(model.owed.values()) + model.jurors_owed,
        "SlashCourt": 0,
    }
    for who in EVERYBODY:
        told[f"{who} has"] = model.balance[who]
        told[f"{who} is owed"] = model.rewards.get(who, 0)
        told[f"{who} bonds"] = model.owed.get(who, 0)
        told[f"{who} barred"] = who in model.banned
    for who in STAKERS:
        for role, of in LOTS:
            told[f"{who} {role} {of}"] = model.lot_worth(who, role, of)
        for role in ROLES:
            stake = model.stake_of(who, role)
            told[f"{who} {role}"] = (stake.active, stake.leaving)
    for number in range(1, len(model.tickets) + 1):
        told[f"ticket {number}"] = model.ticket_worth(number)
    for name in RUNS:
        run = model.runs.get(name)
        told[name] = (
            (run.pending, run.closes_at, run.budget, run.reserved, run.paid, run.returned)
            if run
            else (0,) * 6
        )
        for epoch in range(EPOCHS):
            one = model.results.get((name, epoch))
            told[f"{name} {epoch}"] = (one.phase, one.until, one.total, one.claimed) if one else (0,) * 4
    for (name, epoch), result in model.results.items():
        for index in range(len(result.rows)):
            told[f"paid {name} {epoch} {index}"] = (name, epoch, index) in model.paid_rows
    for name_, case in model.cases.items():
        told[f"case {name_.hex()[-4:]}"] = (case.phase, case.payable_at)
        told[f"pot {name_.hex()[-4:]}"] = case.pot
        told[f"bond {name_.hex()[-4:]}"] = case.bond
    return told


class Restarted(Party):
    """Marks are state files; going back is a kill and a start."""

    def __init__(self, world: World, chain: Anvil, files: Path) -> None:
        self.chain, self.files, self.marks = chain, files, 0
        super().__init__(world)
        self.wait_until(self.now() + DAY)  # ahead of the machine's clock, from which an anvil starts

    def mark(self) -> Any:
        """A polite end writes the state; the copy is the mark."""
        self.chain.stop()
        self.marks += 1
        copy = self.files / f"{self.marks}.json"
        shutil.copyfile(self.chain.state_dir / "chain.json", copy)
        self._start()
        return copy

    def go_back(self, mark: Any) -> Any:
        os.kill(self.chain.pid, signal.SIGKILL)
        self.chain.stop()
        shutil.copyfile(mark, self.chain.state_dir / "chain.json")
        self._start()
        return mark

    def _start(self) -> None:
        self.chain.start()
        self.steady()
        self.wait_until(self.now() + 1)  # a started anvil's clock is the machine's until the first block
