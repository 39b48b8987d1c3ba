"""One operator's process takes the better of two open runs, then the other, and never the one that pays less.

It is killed in the middle and started again: no lot is locked twice, none is lost. Asked to end, it leaves.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from assay import contracts
from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.deployment.anvil import Anvil, find_anvil
from assay.chain.deployment.parameters import LOCALNET, UNIT
from assay.chain.statements import OPERATOR, VERIFIER, term_of
from assay.cli.operator import fleet_config
from assay.devnet.machines import free_ports
from assay.fleet.config import read_state
from assay.fleet.fitness import Machine
from assay.fleet.market import read_candidates, read_library
from assay.fleet.status import read_status
from assay.orders.data.tokenise import make_data
from assay.orders.load import load_order
from assay.orders.place import described, new_run
from assay.orders.spec import order_closing_s
from assay.participant.directory.find import announce_run
from assay.participant.directory.listing import Known
from assay.participant.files.invitation import write_invitation
from assay.participant.files.record import Role, SignedRecord, renew_own
from assay.participant.files.run_file import RunFile, write_run_file
from assay.participant.keys.keyring import QUICK, Keys, create_keys
from assay.participant.keys.private_files import write_private
from assay.participant.wallet.delegation import delegate
from assay.participant.wallet.founding import found_network
from assay.protocol.encoding.codec import digest
from assay.protocol.types import Digest
from tests.e2e.nets import WAIT_S, need_anvil
from tests.forked_commands import command, running

pytestmark = pytest.mark.slow

ORDER = """
[run]
name = "{name}"
seed = {seed}
rounds = {rounds}
nodes = 0
seats = 1
least_nodes = 1
start_within_s = 3600
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
absence_s = 0
[budget]
epoch_rounds = 4
price_per_mtoken = {price}
[timing]
collect_s = 8
iteration_s = 20
"""
PURSE = 200_000 * UNIT
BEST, NEXT, POOR = "best", "next", "poor"
PRICES = {BEST: 4_000_000, NEXT: 2_000_000, POOR: 100_000}
ROUNDS = {BEST: 4, NEXT: 400, POOR: 4}


@dataclass(frozen=True)
class Member:
    """Somebody with keys and a folder."""

    folder: Path
    keys: Keys

    @property
    def account(self) -> str:
        return evm_address(self.keys.account_address)

    def record(self, role: Role, port: int) -> SignedRecord:
        return renew_own(self.folder / "keys", self.keys, role, "127.0.0.1", port, int(time.time()))

    def configure(self, name: str, **lines: Any) -> Path:
        """A configuration file, for a process with a folder of its own."""
        given = {"keys": "keys", "network": "../network.txt", "password_file": "../password", **lines}
        path = self.folder / name
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
        return path


class Place:
    """A network of one verifier, a buyer, a ledger service and an operator; and what they do in it."""

    def __init__(self, root: Path, anvil: Anvil) -> None:
        self.root, self.anvil = root, anvil
        write_private(root / "password", b"a password of nobody")
        self.people = {name: self._member(name) for name in ("vera", "leo", "bea", "olga")}
        (root / "text.txt").write_text("".join(f"{n % 97} bottles on the wall; " for n in range(3000)))
        for name, price in PRICES.items():
            text = ORDER.format(name=name, seed=len(name) + price % 97, rounds=ROUNDS[name], price=price)
            (root / f"{name}.toml").write_text(text)
        order = load_order(root / f"{BEST}.toml")
        make_data(root / f"{BEST}.toml", root / "library" / "bottles")
        (self.own_port,) = free_ports(1)
        vera = self.people["vera"].record(Role.VERIFIER, self.own_port)
        delay_s = order_closing_s(order) + 15
        windows = replace(LOCALNET, close_delay_s=delay_s, claim_period_s=600 + delay_s)
        self.invitation = found_network(
            anvil.rpc_url, anvil.keys[0], windows, "operators", [anvil.rpc_url], [vera]
        )
        write_invitation(root / "network.txt", self.invitation)
        bank = self.chain(anvil.keys[0])
        accounts = [one.account for one in self.people.values()]
        bank.fund_many(accounts, token_amount=PURSE, amount_wei=10**18)
        self.deadline = bank.timestamp() + 20 * 86_400
        self._stake("vera", VERIFIER, LOCALNET.min_verifier_stake)
        self.of("vera").ensure_lot(VERIFIER, term_of(1), LOCALNET.min_verifier_stake, self.deadline)
        self._stake("olga", OPERATOR, 2 * order.lot_units)
        self.lot = order.lot_units
        self.bank = bank

    def _member(self, name: str) -> Member:
        return Member(self.root / name, create_keys(self.root / name / "keys", "a password of nobody", QUICK))

    def chain(self, key: Any) -> Chain:
        return Chain(self.anvil.rpc_url, self.invitation.deployment, key)

    def of(self, name: str) -> Chain:
        return self.chain(self.people[name].keys.signer)

    def _stake(self, name: str, role: int, amount: int) -> None:
        chain = self.of(name)
        chain.stake(role, amount)
        delegate(chain, self.people[name].keys, 366, chain.timestamp())

    def place(self, name: str) -> tuple[RunFile, Path, Path]:
        """Open and announce a run; its file, and the configurations of its verifier and ledger service."""
        order = load_order(self.root / f"{name}.toml")
        vera_port, leo_port = free_ports(2)
        data, base = described(order)
        people = self.people
        records = [
            people["vera"].record(Role.VERIFIER, vera_port),
            people["leo"].record(Role.LEDGER, leo_port),
            people["bea"].record(Role.BUYER, 4001),
        ]
        made = new_run(
            order, records, deployment_id=Digest(self.invitation.deployment_id), data=data, base=base,
            buyer_key=people["bea"].keys.account_key, now_s=int(time.time()),
        )  # fmt: skip
        write_run_file(self.root / f"{name}.assay", made)
        spec, bea = made.spec, self.of("bea")
        bea.open_run(
            digest(spec), budget=order.budget_units(), epoch_cap=order.epoch_units_max(), epochs=spec.epochs,
            deadline=self.deadline, lot=order.lot_units,
        )  # fmt: skip
        announce_run(bea, made)
        shared = {"run": f"../{name}.assay", "folder": name, "ip": "127.0.0.1", "data": "../library/bottles"}
        return (
            made,
            people["vera"].configure(f"{name}.toml", port=vera_port, **shared),
            people["leo"].configure(f"{name}.toml", port=leo_port, **shared),
        )

    def operator(self, reserve: float) -> Path:
        """Olga's configuration: room for one run at a time."""
        (port,) = free_ports(1)
        olga = self.people["olga"]
        olga.record(Role.NODE, port)
        path = olga.configure("config.toml", ip="127.0.0.1", blob_gb=0.1)
        table = {
            "reserve": reserve, "lots": 2 * self.lot // UNIT, "data": ["../library"], "runs": 1,
            "memory_gb": 4, "disk_gb": 10, "hours": 0, "absence_s": 0, "look_s": 1,
        }  # fmt: skip
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        path.write_text(path.read_text() + f"[operator]\n{lines}")
        return path

    def locked(self, run: RunFile) -> list[int]:
        """The amounts of all lots that were ever locked for a run."""
        return [one.amount for one in self.bank.lots_locked({run.run_id}, 0, self.bank.block_number())]

    def open_to(self, config: Path, reserve: int | None) -> list[Digest]:
        """The runs that suit the operator now, with its own reserve or with another."""
        allowed = fleet_config(config)
        bounds = allowed.bounds if reserve is None else replace(allowed.bounds, reserve=reserve)
        machine = Machine(flop_per_s=10**10, blob_bytes=10**8)
        state, library = read_state(allowed.folder), read_library(allowed.data)
        found = read_candidates(
            self.of("olga"), self.bank.timestamp(), Known(), machine, library, state, bounds
        )
        return [one.run_id for one in found]

    def lot_of(self, run: RunFile) -> int:
        return self.bank.lot_of(self.people["olga"].account, OPERATOR, run.run_id).amount


def stages(config: Path) -> dict[str, str]:
    """The stage of each run that the operator has, by its name, and whether it had a seat there."""
    found = read_status(config.parent / "runs")
    return {one.name: one.stage.value + (" seated" if one.has_seat else "") for one in found.runs}


def until(is_so: Callable[[], bool], *logs: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "\n".join(log.read_text()[-3000:] for log in logs if log.exists())
        time.sleep(0.3)


def test_an_operators_process_takes_the_best_run_then_the_next_and_survives_being_killed(tmp_path: Path):
    need_anvil()
    binary = find_anvil(Path(contracts.__file__).parent)
    with Anvil(binary=binary, state_dir=tmp_path / "chain") as anvil, ExitStack() as open_processes:
        place = Place(tmp_path, anvil)
        runs = {name: place.place(name) for name in (POOR, NEXT, BEST)}
        config, log = place.operator(reserve=0.1), tmp_path / "olga.log"
        for name in (BEST, NEXT):
            _, vera, leo = runs[name]
            open_processes.enter_context(running(tmp_path / f"vera-{name}.log", "verifier", "run", vera))
            if name == BEST:  # the other run is left before it settles
                open_processes.enter_context(running(tmp_path / f"leo-{name}.log", "ledger", "serve", leo))

        with running(log, "operator", "up", config) as first:
            until(lambda: stages(config) == {BEST: "running seated"}, log)
            first.send_signal(signal.SIGKILL)  # and its node ends with it
            first.wait(WAIT_S)
        with running(log, "operator", "up", config) as second:
            until(lambda: stages(config).get(NEXT) == "running seated", log)
            until(lambda: stages(config) == {NEXT: "running seated"}, log)  # the lot of the best is free

            assert [place.lot_of(runs[name][0]) for name in (BEST, NEXT, POOR)] == [0, place.lot, 0]
            second.send_signal(
                signal.SIGTERM
            )  # it leaves the run that goes on, and ends once nothing there can be drawn
            until(lambda: second.poll() is not None, log)

        code, out, err = command(config.parent, "operator", "show", "config.toml", "--json", timeout_s=WAIT_S)
        found = json.loads(out)
        assert (second.returncode, code, found["is_running"], found["takes"]) == (0, 0, False, 2), err
        assert [(one["name"], one["stage"], one["why"]) for one in found["runs"]] == [
            (NEXT, "ended", "its work is done")
        ]
        assert '"lot": "free from ' in log_of(config, runs[NEXT][0])  # discharged while the run goes on
        assert [place.locked(runs[name][0]) for name in (BEST, NEXT, POOR)] == [
            [place.lot], [place.lot], [],
        ]  # fmt: skip
        # With room again, the reserve alone keeps the third one out.
        assert [place.open_to(config, reserve) for reserve in (None, 0)] == [[], [runs[POOR][0].run_id]]


def log_of(config: Path, run: RunFile) -> str:
    return (config.parent / "runs" / run.run_id.hex() / "node.log").read_text()
