"""Two of four verifiers lose their machines: the run is closed, and another committee trains the rest.

The run trains an adapter on a base, so the successor trains another one on both merged.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.bundle.read import read
from assay.devnet.machines import free_ports
from assay.training.model.initial import BASE, state_digest
from assay.training.model.presets import llama_spec
from tests.e2e.nets import TINY, need_anvil, write_order
from tests.e2e.people import STARTS, Founding, Person, each, until
from tests.orders.test_model import a_base

pytestmark = pytest.mark.slow

ROLES = {f"verifier-{i}": "verifier" for i in range(4)} | {f"node-{i}": "node" for i in range(2)}
ROLES |= {"ledger": "ledger", "buyer": "buyer"}
LOST = ("verifier-2", "verifier-3")
ROUNDS, LOST_AFTER = 12, 5
NEXT = "next/config.toml"
SIZES = "layers = 1\nwidth = 64\nheads = 2\ncontext = 32"
ADAPTER = 'base = "base"\nlora_rank = 4'
BASE_SIZES = llama_spec(vocabulary=256, layers=1, width=64, heads=2, kv_heads=2, hidden=128, context=32)
KEPT = ("keys", "password", "config.toml", "network.txt", "invitation.txt", "run.assay")


@contextmanager
def together(people: dict[str, Person], file: str) -> Iterator[dict[str, Any]]:
    """Everybody's process for one run; all are ended with the block."""
    with ExitStack() as processes:
        yield {
            name: processes.enter_context(person.runs(*STARTS[ROLES[name]], file))
            for name, person in people.items()
        }


def finalised(verifier: Person) -> int:
    return verifier.log.read_text().count('"round finalised"') if verifier.log.exists() else 0


def test_a_run_whose_verifiers_are_gone_is_closed_and_its_successor_trains_the_rest(tmp_path: Path) -> None:
    need_anvil()
    founder, host = Person(tmp_path, "founder"), Person(tmp_path, "chain-host")
    people = {name: Person(tmp_path, name) for name in ROLES}
    town = Founding(founder, people, ROLES)
    chain_port, *ports = free_ports(1 + len(ROLES))
    address = {name: f"127.0.0.1:{port}" for name, port in zip(ROLES, ports, strict=True)}
    buyer, account = people["buyer"], town.introduce(address)
    nodes = town.of_role("node")

    with host.runs("chain", "dev", "--port", str(chain_port), "--fund", account) as chain:
        until(lambda: host.says("chain at"), [chain])
        town.found(f"http://127.0.0.1:{chain_port}")
        town.join()
        write_order(buyer.folder, rounds=ROUNDS)
        a_base(buyer.folder / "base", BASE_SIZES)
        order = TINY.format(rounds=ROUNDS, data="text.txt", train="warmup = 2")
        order = order.replace("nodes = 4", "nodes = 2\nverifiers = 4").replace(SIZES, ADAPTER)
        (buyer.folder / "run.toml").write_text(order)
        for name in ROLES:
            founder.gives(f"{name}.record", buyer, f"members/{name}.record")
        buyer.assay("order", "data", "run.toml", "data")
        place = ("order", "place", "config.toml", "run.toml")
        buyer.assay(*place, "--members", "members", status=2)

        def lock(node: Person, file: str = "config.toml", run: str = "run.assay", stake: int = 1000) -> None:
            buyer.gives(run, node)
            node.assay("stake", "add", file, "--to", str(stake))
            node.assay("stake", "lock", file, "1000")

        each(nodes, lock)
        buyer.assay(*place)
        for person in people.values():
            if person is not buyer:
                buyer.gives("run.assay", person)
                shutil.copytree(buyer.folder / "data", person.folder / "data")
        with together(people, "config.toml") as running:
            until(lambda: finalised(people["verifier-0"]) >= LOST_AFTER, list(running.values()))
            for name in LOST:
                running[name].send_signal(signal.SIGKILL)

        def move(person: Person) -> None:
            """The owner of a machine that is gone goes on with its account, and keys that are new."""
            for kept in person.folder.iterdir():
                if kept.name not in KEPT:
                    kept.unlink() if kept.is_file() else shutil.rmtree(kept)
            person.assay("key", "rotate", "keys")
            person.assay("key", "rotate", "keys", "--peer")
            person.assay("key", "card", "keys", "--role", "verifier", "--address", address[person.name])
            person.assay("key", "delegate", "config.toml")
            person.gives("keys/own.record", buyer, f"members/{person.name}.record")

        each([people[name] for name in LOST], move)
        for person in people.values():
            (person.folder / "next").mkdir()
            text = (person.folder / "config.toml").read_text()
            for name in ("keys", "network.txt"):
                text = text.replace(f'"{name}"', f'"../{name}"')
            (person.folder / NEXT).write_text(text)
        shutil.copytree(
            buyer.folder / "data", buyer.folder / "next" / "data", ignore=shutil.ignore_patterns(BASE)
        )
        copy = people["verifier-0"].folder  # of the chain: the buyer may have heard of less
        go_on = ("order", "continue", NEXT, "config.toml", "--members", "members", "--copy", copy)
        told = buyer.assay(*go_on, status=2)
        assert "assay stake lock" in told and f"of {ROUNDS}, manifest" in told
        each(nodes, lambda node: lock(node, NEXT, "next/run.assay", 2000))
        buyer.assay(*go_on)
        for person in people.values():
            if person is not buyer:
                buyer.gives("next/run.assay", person)
                shutil.copytree(buyer.folder / "next" / "data", person.folder / "next" / "data")
        with together(people, NEXT) as running:
            ends = [running[name] for name in ("buyer", "ledger")]
            verifiers = [running[name] for name, role in ROLES.items() if role == "verifier"]
            until(lambda: all(one.poll() is not None for one in ends), verifiers)
            assert [one.returncode for one in ends] == [0, 0], buyer.log.read_text()[-2000:]

    buyer.assay("run", "verify", "next/delivered", "--predecessor", copy)
    delivered = read(buyer.folder / "next" / "delivered")
    before, model = delivered.spec.predecessor.rounds, delivered.spec.model
    base, merged = (state_digest(np.load(buyer.folder / one / BASE)) for one in ("data", "next/data"))
    assert model.is_adapted and model.base == merged != base
    assert before >= LOST_AFTER and delivered.spec.rounds == ROUNDS - before
    paid = {row.peer for one in delivered.settled.values() for row in one.settlement.rows}
    assert {one.peer() for one in (*nodes, *town.of_role("verifier"))} <= paid
    trained = [len(link.manifest.commits) for link in delivered.links]
    assert trained[: delivered.spec.rounds] == [2] * delivered.spec.rounds and not any(trained[ROUNDS:])
