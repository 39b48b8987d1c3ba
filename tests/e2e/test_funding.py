"""Buyers that cancel at every round, pay too little, top up late, or set a deadline in the middle of a run.

Runs of one network, side by side, each with processes of its own: a verifier, two nodes and a ledger service.
No node works unpaid for more than the round in flight, the books and the chain say so, and each log says why
its node waits or stops.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay import contracts
from assay.chain.client import Chain
from assay.chain.deployment.anvil import Anvil, find_anvil
from assay.chain.deployment.parameters import LOCALNET, UNIT
from assay.chain.statements import OPERATOR, VERIFIER, term_of
from assay.devnet.machines import free_ports
from assay.orders.data.tokenise import make_data
from assay.orders.load import load_order
from assay.orders.place import described, new_run
from assay.orders.spec import order_closing_s
from assay.participant.files.invitation import write_invitation
from assay.participant.files.record import Role, SignedRecord, renew_own
from assay.participant.files.run_file import RunFile, write_run_file
from assay.participant.keys.keyring import QUICK, create_keys
from assay.participant.keys.private_files import write_private
from assay.participant.wallet.delegation import delegate
from assay.participant.wallet.founding import found_network
from assay.protocol.encoding.codec import digest
from assay.protocol.identity import peer_of
from assay.protocol.types import Digest
from tests.e2e.nets import WAIT_S, need_anvil
from tests.e2e.test_operator import Member, until
from tests.forked_commands import command, running

pytestmark = pytest.mark.slow

ORDER = """
[run]
name = "{name}"
seed = {seed}
rounds = {rounds}
nodes = 2
verifiers = 1
[model]
layers = 1
width = 64
heads = 2
context = 32
[[data]]
source = "text.txt"
licence = "none"
[train]
sequences = 2
warmup = 2
[comm]
f = 0
[verify]
probation = 2
blocks = 8
audit_rounds = 5
dispute_rounds = 2
replicated = 0
absence_s = 120
[budget]
epoch_rounds = {epoch}
price_per_mtoken = 900_000_000
[timing]
collect_s = 60
iteration_s = 120
"""
STEP = 2 * 32 * 900  # what a step costs, in token units
NODES = ("nina", "nils")
ROLES = {"vera": Role.VERIFIER, "leo": Role.LEDGER, "nina": Role.NODE, "nils": Role.NODE, "bea": Role.BUYER}
STARTS = {Role.VERIFIER: ("verifier", "run"), Role.LEDGER: ("ledger", "serve"), Role.NODE: ("node", "run")}
MANY = 600  # rounds: more than there is time for
CANCELLED = {f"cancelled-{rounds}": rounds for rounds in range(3)}  # once so many rounds are final
LATE, MIDDLE = "late", "middle"  # paid for by halves, and late; with a deadline in the middle
CASES = (*CANCELLED, LATE, MIDDLE)
WAITS = "waiting: no quorum of verifiers finds the epoch funded in the escrow"
ENDED = "ended: no step of ours can be drawn any more"
DAY = 86_400


class Network:
    """Five people, and what they do in each of their runs."""

    def __init__(self, root: Path, anvil: Anvil) -> None:
        self.root, self.anvil = root, anvil
        self.taken_before = dict[str, int]()  # while the top-up is late
        write_private(root / "password", b"a password of nobody")
        (root / "text.txt").write_text("".join(f"{n % 97} bottles on the wall; " for n in range(3000)))
        self.people = {
            name: Member(root / name, create_keys(root / name / "keys", "a password of nobody", QUICK))
            for name in ROLES
        }
        self.orders = {}
        for seed, name in enumerate(CASES):
            rounds, epoch = (6, 2) if name == LATE else (MANY, 4)
            text = ORDER.format(name=name, seed=seed, rounds=rounds, epoch=epoch)
            (root / f"{name}.toml").write_text(text)
            self.orders[name] = load_order(root / f"{name}.toml")
        order = self.orders[LATE]
        make_data(root / f"{LATE}.toml", root / "data")
        self.close_delay = order_closing_s(order) + 15
        windows = replace(
            LOCALNET,
            close_delay_s=self.close_delay,
            claim_period_s=60 * DAY,  # the clock is moved by days
            evidence_window_s=LOCALNET.evidence_window_s + order.verify.absence_s,
            unbonding_s=LOCALNET.unbonding_s + order.verify.absence_s,
        )
        vera = self._record("vera", 4001)
        self.invitation = found_network(
            anvil.rpc_url, anvil.keys[0], windows, "buyers", [anvil.rpc_url], [vera]
        )
        write_invitation(root / "network.txt", self.invitation)
        self.bank = Chain(anvil.rpc_url, self.invitation.deployment, anvil.keys[0])
        accounts = [one.account for one in self.people.values()]
        self.bank.fund_many(accounts, token_amount=100_000 * UNIT, amount_wei=10**18)
        self.began = self.bank.timestamp()
        self.deadlines = dict.fromkeys(CASES, self.began + 20 * DAY) | {
            MIDDLE: self.began + DAY,
            LATE: self.began + 2 * DAY,
        }
        self._stake("vera", VERIFIER, LOCALNET.min_verifier_stake)
        self.of("vera").ensure_lot(VERIFIER, term_of(1), LOCALNET.min_verifier_stake, self.began + 30 * DAY)
        for name in NODES:
            self._stake(name, OPERATOR, len(CASES) * order.lot_units)
        self.runs = {name: self._open(name) for name in CASES}

    def of(self, name: str) -> Chain:
        return Chain(self.anvil.rpc_url, self.invitation.deployment, self.people[name].keys.signer)

    def _record(self, who: str, port: int) -> SignedRecord:
        keys, now_s = self.people[who].keys, int(time.time())
        return renew_own(self.root / who / "keys", keys, ROLES[who], "127.0.0.1", port, now_s)

    def _stake(self, name: str, role: int, amount: int) -> None:
        self.of(name).stake(role, amount)
        delegate(self.of(name), self.people[name].keys, 366, self.began)

    def _open(self, name: str) -> RunFile:
        """Make everybody's files for a run, and open it with what its buyer pays at first."""
        order, bea = self.orders[name], self.of("bea")
        ports = dict(zip(ROLES, free_ports(len(ROLES)), strict=True))
        records = [self._record(who, ports[who]) for who in ROLES]
        data, base = described(order)
        made = new_run(
            order, records, deployment_id=Digest(self.invitation.deployment_id), data=data, base=base,
            buyer_key=self.people["bea"].keys.account_key, now_s=int(time.time()),
        )  # fmt: skip
        write_run_file(self.root / f"{name}.assay", made)
        for who in NODES:
            self.of(who).ensure_lot(OPERATOR, made.run_id, order.lot_units, self.deadlines[name])
        bea.open_run(
            digest(made.spec), budget=4 * STEP if name == LATE else order.budget_units(),
            epoch_cap=order.epoch_units_max(), epochs=made.spec.epochs, deadline=self.deadlines[name],
            lot=order.lot_units, operators=[self.people[who].account for who in NODES],
        )  # fmt: skip
        for who in ROLES:
            shared = {"run": f"../{name}.assay", "folder": name, "ip": "127.0.0.1", "data": "../data"}
            own = {"status": f"{name}.jsonl"} if who == "leo" else {}
            self.people[who].configure(f"{name}.toml", port=ports[who], **shared, **own)
        return made

    def start(self, name: str, stack: ExitStack) -> None:
        """All processes of one run, until the stack is closed."""
        for who, role in ROLES.items():
            if role in STARTS:
                config = self.people[who].folder / f"{name}.toml"
                stack.enter_context(running(self.log(who, name), *STARTS[role], config))

    def log(self, who: str, name: str) -> Path:
        return self.root / f"{who}-{name}.log"

    def assay(self, *words: object) -> str:
        """A command, which must succeed."""
        code, out, err = command(self.root, *words, timeout_s=WAIT_S)
        assert code == 0, out + err
        return out

    def reports(self, name: str, kind: str) -> list[dict[str, Any]]:
        """What the run's ledger service has reported so far."""
        path = self.root / "leo" / f"{name}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [one for one in map(json.loads, lines) if one["kind"] == kind]

    def peer(self, who: str) -> str:
        return peer_of(self.people[who].keys.peer).hex()

    def taken(self, name: str) -> dict[str, int]:
        """How many steps each node's trainer took."""
        logs = {who: self.root / who / name / "trainer.log" for who in NODES}
        return {who: log.read_text().count('"TakeStep"') if log.exists() else 0 for who, log in logs.items()}

    def share(self, name: str) -> float:
        """Of a step's price, what its node gets."""
        return self.runs[name].spec.money.operator_price / 900_000_000

    def statement(self, name: str, account: str) -> int:
        """What the run's books say that an account has earned."""
        books = self.root / "leo" / name / "ledger.db"
        found = json.loads(self.assay("ledger", "statement", books, account, "--json"))
        return sum(one["amount"] for one in found["lines"] if one["movement"] == "income")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """After all of its runs are settled."""
    need_anvil()
    root = tmp_path_factory.mktemp("funding")
    binary = find_anvil(Path(contracts.__file__).parent)
    with Anvil(binary=binary, state_dir=root / "chain") as anvil:
        found = Network(root, anvil)
        with_deadlines(found)
        with_cancels(found)
        yield found


class Watch:
    """Waits for what the runs of a network must come to."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def said(self, name: str, text: str) -> None:
        """Until both nodes have logged this."""
        logs = [self.network.log(who, name) for who in NODES]
        until(lambda: all(log.exists() and text in log.read_text() for log in logs), *self._logs(name))

    def reported(self, name: str, kind: str, count: int = 1, **fields: Any) -> None:
        """Until the ledger service has reported so many of this kind."""

        def found() -> int:
            reports = self.network.reports(name, kind)
            return sum(all(one[key] == value for key, value in fields.items()) for one in reports)

        until(lambda: found() >= count, *self._logs(name))

    def settle(self, *names: str) -> None:
        """Until these runs have ended and all results are final; then until the refunds, when due."""
        chain, closes = self.network.bank, 0
        for name in names:
            self.said(name, ENDED)
            self.reported(name, "closed")
            (ending,), order = self.network.reports(name, "closed"), self.network.orders[name]
            self.reported(name, "epoch", -(-ending["rounds"] // order.budget.epoch_rounds), phase="final")
            run = chain.run(self.network.runs[name].run_id)
            assert run is not None
            closes = max(closes, run.closes_at)
        self.network.anvil.pass_time(closes)
        for name in names:
            self.reported(name, "settled")

    def _logs(self, name: str) -> list[Path]:
        return [self.network.log(who, name) for who in ("vera", "leo", *NODES)]


def with_deadlines(network: Network) -> None:
    """A run with a deadline in the middle, and one that is paid for by halves, the second half late."""
    watch = Watch(network)
    with ExitStack() as stack:
        network.start(MIDDLE, stack)
        network.start(LATE, stack)
        watch.reported(MIDDLE, "round", 2)
        network.anvil.pass_time(network.deadlines[MIDDLE] - network.close_delay)
        watch.said(LATE, f'{WAITS}", "round": 2, "epoch": 1')
        network.taken_before = network.taken(LATE)
        network.assay("order", "topup", f"bea/{LATE}.toml", f"{4 * STEP / UNIT:f}")
        watch.said(LATE, f'{WAITS}", "round": 4, "epoch": 2')
        watch.settle(MIDDLE)
        network.anvil.pass_time(network.deadlines[LATE] - network.close_delay)
        watch.settle(LATE)


def with_cancels(network: Network) -> None:
    """Runs whose buyer cancels before the first round, after it, and so on."""
    watch = Watch(network)
    with ExitStack() as stack:
        for name, rounds in reversed(CANCELLED.items()):
            if rounds:
                network.start(name, stack)
        for name, rounds in CANCELLED.items():
            watch.reported(name, "round", rounds)
            network.assay("order", "cancel", f"bea/{name}.toml")
            if not rounds:
                network.start(name, stack)
        watch.settle(*CANCELLED)


@pytest.mark.parametrize("name", CASES)
def test_no_node_works_unpaid_for_more_than_the_round_in_flight(network: Network, name: str) -> None:
    (settled,) = network.reports(name, "settled")
    rounds = settled["ending"]["rounds"]
    assert CANCELLED.get(name, 2) <= rounds < MANY and (rounds == 4 or name != LATE)
    for who in NODES:
        taken, account = network.taken(name)[who], network.people[who].account
        node = next(one for one in settled["nodes"] if one["peer"] == network.peer(who))
        paid = network.statement(name, account)
        due = node["accepted"] * STEP * network.share(name)

        assert not node["unpaid"] and node["accepted"] <= taken <= node["accepted"] + 1
        assert abs(paid - due) <= rounds and paid == node["paid"]


@pytest.mark.parametrize("name", CASES)
def test_books_and_chain_agree_and_the_rest_returns_to_the_buyer(network: Network, name: str) -> None:
    (settled,) = network.reports(name, "settled")
    money, run = settled["money"], network.bank.run(network.runs[name].run_id)

    assert (settled["trial_balance"], settled["differences"], settled["unsettled_steps"]) == (0, [], 0)
    assert run is not None and (run.free, run.holds) == (0, 0)
    gross = sum(one["accepted"] for one in settled["nodes"]) * STEP
    assert money["refunded"] == money["funded"] - gross >= 0
    assert money["funded"] == (8 * STEP if name == LATE else network.orders[name].budget_units())


@pytest.mark.parametrize("name", CASES)
def test_each_node_says_why_it_waits_and_why_it_stops(network: Network, name: str) -> None:
    for who in NODES:
        log = [json.loads(line) for line in network.log(who, name).read_text().splitlines()]
        (over,) = [line for line in log if line["event"] == "training is over"]
        assert over["closed_by"] == ("buyer" if name in CANCELLED else "deadline")
        waits = [(line["epoch"], line["round"]) for line in log if line["event"] == WAITS]
        assert waits[-2:] == [(1, 2), (2, 4)] if name == LATE else len(waits) <= 1  # before the first report


def test_while_a_top_up_is_late_nobody_works(network: Network) -> None:
    """Each node has taken the steps of the one epoch that is paid for."""
    assert network.taken_before == dict.fromkeys(NODES, 2)
