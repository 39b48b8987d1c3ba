"""Strangers who share only a chain and small files found a network and finish a run, by commands.

The order names one node of three: the run starts once the others have come. One finds it on chain by its id
alone, one leaves again, and the named one moves to another address and says so on chain alone. One of two
verifiers gives up its seat, which the third takes over.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from assay.bundle.read import read
from assay.devnet.machines import free_ports
from assay.protocol.known_answers import false_rounds
from tests.e2e.nets import TINY, need_anvil, write_order
from tests.e2e.people import STARTS, Founding, Person, each, until

pytestmark = pytest.mark.slow

ROLES = {f"verifier-{i}": "verifier" for i in range(3)} | {f"node-{i}": "node" for i in range(2)}
ROLES |= {"ledger": "ledger", "buyer": "buyer"}
GUEST, LEAVER, MOVER, RESIGNED, RESERVE = "guest", "node-1", "node-0", "verifier-0", "verifier-2"
EVERYBODY = {**ROLES, GUEST: "node"}
ROUNDS = 36  # long enough for a seat to change hands, on a machine that does much else, too


def test_strangers_found_a_network_join_it_come_and_go_and_finish_a_run(tmp_path: Path) -> None:
    need_anvil()
    founder, host = Person(tmp_path, "founder"), Person(tmp_path, "chain-host")
    people = {name: Person(tmp_path, name) for name in EVERYBODY}
    everyone, town = list(people.values()), Founding(founder, people, EVERYBODY)
    chain_port, new_port, *own_ports = free_ports(2 + len(EVERYBODY))
    address = {name: f"127.0.0.1:{port}" for name, port in zip(EVERYBODY, own_ports, strict=True)}
    buyer, account = people["buyer"], town.introduce(address)

    with ExitStack() as open_processes:
        chain = open_processes.enter_context(
            host.runs("chain", "dev", "--port", str(chain_port), "--fund", account)
        )
        until(lambda: host.says("chain at"), [chain])
        town.found(f"http://127.0.0.1:{chain_port}")
        town.join()
        assert json.loads(people["node-0"].assay("doctor", "config.toml", "--json"))["is_ready"]

        # The run.
        write_order(buyer.folder, rounds=ROUNDS)
        order = TINY.format(rounds=ROUNDS, data="text.txt", train="warmup = 2")
        counts = "nodes = 1\nleast_nodes = 3\nstart_within_s = 3600\nverifiers = 2\nreserves = 1"
        order = order.replace("nodes = 4", counts)
        order = order.replace("epoch_rounds = 5", "epoch_rounds = 12")
        order = order.replace("[verify]", "[verify]\nknown_answers = 1")
        order = order.replace("absence_s = 20", "absence_s = 10")  # half of the court's evidence window
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
        until(lambda: people[GUEST].says("seat taken"), alive)
        asking = {LEAVER: ("node", "leave"), RESIGNED: ("verifier", "resign")}
        each([people[name] for name in asking], lambda one: one.assay(*asking[one.name], "config.toml"))
        until(lambda: running["buyer"].poll() is not None and running["ledger"].poll() is not None, verifiers)
        logs = {name: people[name].log.read_text()[-2000:] for name in ("buyer", "ledger")}
        assert (running["buyer"].returncode, running["ledger"].returncode) == (0, 0), logs
        until(
            lambda: all(node.poll() is not None for node in nodes), verifiers
        )  # what they had to do is done
        assert {node.returncode for node in nodes} == {0}

    assert "as the buyer" in buyer.assay("run", "verify", "delivered")
    assert people["verifier-0"].says("peer moved")
    assert people["node-0"].says("claimed")
    delivered, peer = read(buyer.folder / "delivered"), {name: people[name].peer() for name in EVERYBODY}
    nodes = delivered.run_states[-1].nodes
    assert set(nodes) == {peer[name] for name, role in EVERYBODY.items() if role == "node"}
    assert {member.peer for member in delivered.spec.nodes} == {peer["node-0"]}
    assert len(delivered.run_states[1].active) == 3 and not delivered.links[0].manifest.commits
    assert nodes[peer[GUEST]].joined_round > 0 < nodes[peer[GUEST]].accepted
    paid = {row.peer for one in delivered.settled.values() for row in one.settlement.rows}
    assert {peer[GUEST], peer[RESIGNED], peer[RESERVE]} <= paid
    seats = delivered.run_states[-1].rotation
    (given,) = seats.configuration.hand_overs
    assert (given.seat, given.holder) == (peer[RESIGNED], peer[RESERVE])
    assert people[RESIGNED].says("seat handed over")
    assert nodes[peer[LEAVER]].has_left
    assert '"lot": "free from ' in people[LEAVER].log.read_text().splitlines()[-1]
    assert nodes[peer[LEAVER]].accepted < nodes[peer["node-0"]].accepted
    commits = (signed.commit for link in delivered.links for signed in link.manifest.commits)
    last = max(int(commit.round) for commit in commits if commit.node == peer[GUEST])
    assert last > seats.handed[0]
    # Whoever trained to the end has shown which of its steps were false on order; nobody takes one for a lie.
    tasks = [
        (at, node.hex())
        for node in nodes
        if (shown := delivered.task_list(node)) is not None
        for at in false_rounds(shown.secret, delivered.spec, nodes[node].tasks_from)
        if any(one.commit.node == node for one in delivered.links[at].manifest.commits)
    ]
    assert {peer["node-0"], peer[GUEST]} <= {node for node in nodes if delivered.task_list(node)}
    shutil.copytree(buyer.folder / "data", buyer.folder / "delivered" / "data")
    for at, node in tasks[-1:]:
        said = buyer.assay("audit", "replay", f"delivered:{at}:{node}", "--from-start")
        assert "a known-answer task, false on order" in said and "verdict     MATCH" in said
    buyer.assay("receipt", "make", "delivered", last, peer[GUEST].hex()[:8], "--out", "receipt.json")
    assert "to 0x" in buyer.assay("receipt", "verify", "receipt.json")
