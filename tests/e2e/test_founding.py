"""Strangers who share only a chain and small files found a network and finish a run, by commands.

The order names one node of three: the run starts once the others have come. One finds it on chain by its id
alone, one leaves again, and the named one moves to another address and says so on chain alone.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from assay.bundle.read import read
from assay.devnet.fork_server import ForkedProcess
from assay.participant.files.record import OWN_RECORD, read_record
from assay.protocol.types import PeerId
from tests.e2e.nets import TINY, WAIT_S, need_anvil, write_order
from tests.forked_commands import command, running

pytestmark = pytest.mark.slow

ROLES = {f"verifier-{i}": "verifier" for i in range(2)} | {f"node-{i}": "node" for i in range(2)}
ROLES |= {"ledger": "ledger", "buyer": "buyer"}
GUEST, LEAVER, MOVER = "guest", "node-1", "node-0"
EVERYBODY = {**ROLES, GUEST: "node"}
ROUNDS = 60
STARTS = {"node": ("node", "run"), "verifier": ("verifier", "run"), "ledger": ("ledger", "serve")}
STARTS |= {"buyer": ("buyer", "run")}


class Person:
    """Somebody with a folder of their own, who does nothing but call `assay` in it."""

    def __init__(self, root: Path, name: str) -> None:
        self.name, self.folder = name, root / name
        self.folder.mkdir()

    def assay(self, *words: object, status: int = 0) -> str:
        """Call one command, and wait for it."""
        code, out, err = command(self.folder, *words, timeout_s=WAIT_S)
        assert code == status, f"{self.name}: assay {words}: {out}{err}"
        return out + err

    def peer(self) -> PeerId:
        """Its peer id."""
        return read_record(self.folder / "keys" / OWN_RECORD, int(time.time())).record.peer

    def gives(self, name: str, to: Person, place: str = "") -> None:
        """Copy a file, as a mail would."""
        target = to.folder / (place or name)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(self.folder / name, target)

    def runs(self, *words: str) -> AbstractContextManager[ForkedProcess]:
        """A command that goes on, with its output in `log`; it is ended with the block."""
        (self.folder / "log").unlink(missing_ok=True)
        return running(self.folder / "log", *words)


def ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return found


def each(people: Sequence[Person], step) -> None:
    """The same step by several people at once."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(step, people))


def test_strangers_found_a_network_join_it_come_and_go_and_finish_a_run(tmp_path: Path) -> None:
    need_anvil()
    founder, host = Person(tmp_path, "founder"), Person(tmp_path, "chain-host")
    people = {name: Person(tmp_path, name) for name in EVERYBODY}
    everyone = list(people.values())
    staked = [people[name] for name, role in EVERYBODY.items() if role in ("node", "verifier")]
    chain_port, new_port, *own_ports = ports(2 + len(EVERYBODY))
    address = {name: f"127.0.0.1:{port}" for name, port in zip(EVERYBODY, own_ports, strict=True)}
    buyer = people["buyer"]

    # Keys and records.
    def introduce(person: Person) -> None:
        person.assay("key", "new", "keys")
        if person is not founder:
            role, at = EVERYBODY[person.name], address[person.name]
            person.assay("key", "card", "keys", "--role", role, "--address", at)
            person.gives("keys/own.record", founder, f"{person.name}.record")

    each([founder, *everyone], introduce)
    account = json.loads(founder.assay("key", "show", "keys", "--json"))["account"]

    with ExitStack() as open_processes:
        chain = open_processes.enter_context(
            host.runs("chain", "dev", "--port", str(chain_port), "--fund", account)
        )
        until(lambda: b"chain at" in (host.folder / "log").read_bytes(), [chain])

        # The network.
        verifiers = [f"{name}.record" for name, role in ROLES.items() if role == "verifier"]
        (founder.folder / "network.toml").write_text(
            f'name = "strangers"\nrpc_url = "http://127.0.0.1:{chain_port}"\npreset = "localnet"\n'
            f"verifiers = {json.dumps(verifiers)}\n[parameters]\nclose_delay_s = 600\n"
            "evidence_window_s = 30\nunbonding_s = 65\n"
        )
        founder.assay("network", "create", "network.toml", "--keys", "keys")
        records = [f"{name}.record" for name in EVERYBODY]
        pay = ("--keys", "keys", "--tokens", "20000", "--gas", "1")
        founder.assay("network", "fund", "network.txt", *records, *pay)

        # Joining it.
        def join(person: Person) -> None:
            founder.gives("network.txt", person, "invitation.txt")
            found = person.assay("join", "invitation.txt", "--keys", "keys")
            if person in staked:
                assert "MISSING  stake" in found
                assert "MISSING  delegation" in found
                person.assay("stake", "add", "config.toml", "--to", "1000")
                person.assay("key", "delegate", "config.toml")
            if EVERYBODY[person.name] == "verifier":
                person.assay("stake", "lock", "config.toml", "1000")

        each(everyone, join)
        assert json.loads(people["node-0"].assay("doctor", "config.toml", "--json"))["is_ready"]

        # The run.
        write_order(buyer.folder, rounds=ROUNDS)
        order = TINY.format(rounds=ROUNDS, data="text.txt", train="warmup = 2")
        counts = "nodes = 1\nleast_nodes = 3\nstart_within_s = 3600\nverifiers = 2"
        order = order.replace("nodes = 4", counts)
        order = order.replace("epoch_rounds = 5", "epoch_rounds = 20")
        (buyer.folder / "run.toml").write_text(order)
        for name in set(ROLES) - {LEAVER}:
            founder.gives(f"{name}.record", buyer, f"members/{name}.record")
        buyer.assay("order", "data", "run.toml", "data")
        refused = buyer.assay("order", "place", "config.toml", "run.toml", "--members", "members", status=2)
        assert "has locked 0" in refused

        def take_seat(person: Person) -> None:
            buyer.gives("run.assay", person)
            person.assay("stake", "lock", "config.toml", "1000")

        each([people[name] for name, role in ROLES.items() if role == "node"], take_seat)
        buyer.assay("order", "place", "config.toml", "run.toml")

        def meet(person: Person) -> None:
            if person is buyer:
                assert "already open" in buyer.assay("order", "place", "config.toml", "run.toml")
            elif person.name == MOVER:
                at = ("--role", "node", "--address", f"127.0.0.1:{new_port}")
                person.assay("key", "card", "keys", *at)
                person.assay("network", "announce", "config.toml")
            else:  # nobody gives the guest the run's file
                listed = person.assay("run", "list", "invitation.txt", "--open", "--json")
                (found,) = json.loads(listed)["runs"]
                with open(person.folder / "config.toml", "a") as file:
                    file.write(f'run = "{found["run_id"]}"\n')
                person.assay("stake", "lock", "config.toml", "1000")

        each([people[GUEST], people[MOVER], buyer], meet)
        for person in everyone:
            if person is not buyer:
                if person.name != GUEST:
                    buyer.gives("run.assay", person)
                shutil.copytree(buyer.folder / "data", person.folder / "data")
        running = {
            name: open_processes.enter_context(people[name].runs(*STARTS[role], "config.toml"))
            for name, role in EVERYBODY.items()
        }
        nodes = [running[name] for name, role in EVERYBODY.items() if role == "node"]
        verifiers = [running[name] for name, role in EVERYBODY.items() if role == "verifier"]
        alive = [*nodes, *verifiers]
        until(lambda: b"seat taken" in (people[GUEST].folder / "log").read_bytes(), alive)
        people[LEAVER].assay("node", "leave", "config.toml")
        until(lambda: running["buyer"].poll() is not None and running["ledger"].poll() is not None, verifiers)
        logs = {name: (people[name].folder / "log").read_text()[-2000:] for name in ("buyer", "ledger")}
        assert (running["buyer"].returncode, running["ledger"].returncode) == (0, 0), logs
        until(
            lambda: all(node.poll() is not None for node in nodes), verifiers
        )  # what they had to do is done
        assert {node.returncode for node in nodes} == {0}

    assert "as the buyer" in buyer.assay("run", "verify", "delivered")
    assert "peer moved" in people["verifier-0"].folder.joinpath("log").read_text()
    assert "claimed" in people["node-0"].folder.joinpath("log").read_text()
    delivered, peer = read(buyer.folder / "delivered"), {name: people[name].peer() for name in EVERYBODY}
    nodes = delivered.run_states[-1].nodes
    assert set(nodes) == {peer[name] for name, role in EVERYBODY.items() if role == "node"}
    assert {member.peer for member in delivered.spec.nodes} == {peer["node-0"]}
    assert len(delivered.run_states[1].active) == 3 and not delivered.links[0].manifest.commits
    assert nodes[peer[GUEST]].joined_round > 0 < nodes[peer[GUEST]].accepted
    paid = {row.peer for one in delivered.settled.values() for row in one.settlement.rows}
    assert peer[GUEST] in paid
    assert nodes[peer[LEAVER]].has_left
    assert '"lot": "free from ' in people[LEAVER].folder.joinpath("log").read_text().splitlines()[-1]
    assert nodes[peer[LEAVER]].accepted < nodes[peer["node-0"]].accepted
    commits = (signed.commit for link in delivered.links for signed in link.manifest.commits)
    last = max(int(commit.round) for commit in commits if commit.node == peer[GUEST])
    buyer.assay("receipt", "make", "delivered", last, peer[GUEST].hex()[:8], "--out", "receipt.json")
    assert "to 0x" in buyer.assay("receipt", "verify", "receipt.json")


def until(is_so, alive: Sequence[ForkedProcess]) -> None:
    """Wait for something that must happen, while these processes go on."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert all(process.poll() is None for process in alive), "a process ended early"
        assert time.monotonic() < deadline
        time.sleep(0.2)
