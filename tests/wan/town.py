"""Town: strangers on lines of their own found a network, come, go and pay, with documented commands alone.

    python -m tests.wan.town [FOLDER]

Room: tests (edge: network namespaces, nftables; needs root). The founder with the chain, three verifiers, the
ledger service and the buyer have a namespace with an address each; five operators share two homes behind
routers that let nobody in. Nobody is on this machine's own stack. One operator joins in round 20, one leaves
in round 30, one of two verifiers resigns then and the third takes over its seat; the buyer orders twice,
cancels the second order and takes its money back. The run that it is delivered has to verify.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from assay.bundle.read import read
from tests.e2e.nets import TINY, write_order
from tests.e2e.people import STARTS, Founding, Person, each, until
from tests.wan.routers import Routers, missing

HOMES = {"home-a": ("ann", "bob"), "home-b": ("cem", "dan", "eve")}
HOUSES = ("founder", "vera", "viktor", "vito", "ledger", "buyer")
ROLES = {"vera": "verifier", "viktor": "verifier", "vito": "verifier", "ledger": "ledger", "buyer": "buyer"}
ROLES |= dict.fromkeys((name for names in HOMES.values() for name in names), "node")
JOINS, LEAVES, RESIGNS = "dan", "bob", "vera"
WAITED_FOR = ("ann", "bob", "cem", "eve")
ROUNDS, JOIN_AT, LEAVE_AT = 120, 20, 30
CHAIN_PORT, FIRST_PORT = 8545, 4001
FORWARD = str(Path(__file__).with_name("forward.py"))


def main() -> None:
    if (lacking := missing()) is not None:
        sys.exit(f"town: {lacking}")
    with ExitStack() as stack:
        given = sys.argv[1:]
        root = Path(given[0]) if given else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root.mkdir(parents=True, exist_ok=True)
        live(root, stack)


def live(root: Path, stack: ExitStack) -> None:
    """The town's life, from the first key to the delivered run."""
    machines = stack.enter_context(Routers(root, tuple(HOMES), houses=HOUSES))
    address, home_of = {}, {name: home for home, names in HOMES.items() for name in names}
    for name in ROLES:
        host = machines.router(home_of[name]) if name in home_of else machines.house(name)
        address[name] = f"{host}:{FIRST_PORT + (HOMES[home_of[name]].index(name) if name in home_of else 0)}"
    founder = Person(root, "founder", machines.within("founder"))
    people = {name: Person(root, name, machines.within(home_of.get(name, name))) for name in ROLES}
    town, buyer = Founding(founder, people, ROLES), people["buyer"]

    tell("keys and records of everybody")
    account = town.introduce(address)
    chain = stack.enter_context(founder.runs("chain", "dev", "--port", str(CHAIN_PORT), "--fund", account))
    until(lambda: founder.says("chain at"), [chain])
    endpoint = machines.house("founder")
    stack.enter_context(forwarding(machines.within("founder"), endpoint, CHAIN_PORT))
    tell("contracts, and everybody joins")
    town.found(f"http://{endpoint}:{CHAIN_PORT}")
    town.join()
    for name in home_of:
        config = people[name].folder / "config.toml"
        config.write_text(f'ip = "0.0.0.0"\n{config.read_text()}')

    tell("an order, which four operators are waited for")
    place_order(town, buyer)
    processes = start(stack, town, [name for name in ROLES if ROLES[name] != "node"])
    alive = [processes[name] for name in ("vera", "viktor", "vito")]
    each(town.of_role("node"), enter)
    processes |= start(stack, town, WAITED_FOR)
    until(lambda: round_of(people["viktor"]) >= 0, alive)

    tell("a second order, which is cancelled")
    second = Person(buyer.folder, "second", machines.within("buyer"))
    order_again(buyer, second)
    second.assay("order", "cancel", "config.toml")

    until(lambda: round_of(people["viktor"]) >= JOIN_AT, alive)
    tell(f"{JOINS} joins in round {round_of(people['viktor'])}")
    processes |= start(stack, town, (JOINS,))
    until(lambda: round_of(people["viktor"]) >= LEAVE_AT, alive)
    tell(f"{LEAVES} leaves and {RESIGNS} resigns in round {round_of(people['viktor'])}")
    people[LEAVES].assay("node", "leave", "config.toml")
    people[RESIGNS].assay("verifier", "resign", "config.toml")
    until(lambda: processes["buyer"].poll() is not None and processes["ledger"].poll() is not None, alive)
    assert processes["buyer"].returncode == processes["ledger"].returncode == 0, buyer.log.read_text()[-2000:]

    tell("the delivered run is verified")
    print(buyer.assay("run", "verify", "delivered"))
    delivered = read(buyer.folder / "delivered")
    last, peer = delivered.run_states[-1], {name: people[name].peer() for name in ROLES}
    accepted = {name: last.nodes[peer[name]].accepted for name in (*WAITED_FOR, JOINS)}
    (given,) = last.rotation.configuration.hand_overs
    paid = {row.peer for one in delivered.settled.values() for row in one.settlement.rows}
    assert last.nodes[peer[JOINS]].joined_round >= JOIN_AT and accepted[JOINS] > 0
    assert last.nodes[peer[LEAVES]].has_left and accepted[LEAVES] < accepted["ann"]
    assert given.seat == peer[RESIGNS]
    assert {given.holder, *(peer[name] for name in accepted)} <= paid
    seat = last.rotation.handed[0]
    tell(f"accepted steps {accepted}; {RESIGNS}'s seat was handed over in round {seat}; all were paid")

    tell("the second order's money comes back once its close delay is over")
    while " returned to " not in (said := second.assay("order", "refund", "config.toml", status=None)):
        tell(said.strip())
        time.sleep(30.0)
    tell(said.strip())


def place_order(town: Founding, buyer: Person) -> None:
    """The buyer orders a run of two verifiers and a reserve, which starts once four nodes have come."""
    write_order(buyer.folder, rounds=ROUNDS)
    order = TINY.format(rounds=ROUNDS, data="text.txt", train="warmup = 2")
    counts = "nodes = 0\nleast_nodes = 4\nseats = 5\nstart_within_s = 3600\nverifiers = 2\nreserves = 1"
    order = order.replace("nodes = 4", counts).replace("epoch_rounds = 5", "epoch_rounds = 20")
    town.order(buyer, order)


def order_again(buyer: Person, second: Person) -> None:
    """The same order under another name, in a folder of its own."""
    for name in ("text.txt", "items.jsonl", "run.toml"):
        if (buyer.folder / name).exists():
            buyer.gives(name, second)
    text = (second.folder / "run.toml").read_text()
    (second.folder / "run.toml").write_text(text.replace('name = "tiny"', 'name = "second"'))
    shutil.copytree(buyer.folder / "members", second.folder / "members")
    shutil.copytree(buyer.folder / "data", second.folder / "data")
    (second.folder / "config.toml").write_text('keys = "../keys"\nnetwork = "../invitation.txt"\n')
    second.assay("order", "place", "config.toml", "run.toml", "--members", "members")


def enter(person: Person) -> None:
    """An operator takes up a run: it locks a lot for it."""
    person.assay("stake", "lock", "config.toml", "1000")


def start(stack: ExitStack, town: Founding, names: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Start the processes of these people."""
    return {
        name: stack.enter_context(town.people[name].runs(*STARTS[town.roles[name]], "config.toml"))
        for name in names
    }


def round_of(verifier: Person) -> int:
    """The last round that is final at a verifier, by its log; -1 before the first."""
    found = re.findall(r'"event": "round finalised", "round": (\d+)', verifier.log.read_text())
    return int(found[-1]) if found else -1


@contextmanager
def forwarding(prefix: Sequence[str], host: str, port: int) -> Iterator[None]:
    """The founder's chain, which listens on loopback alone, at an address that others reach."""
    process = subprocess.Popen([*prefix, sys.executable, FORWARD, host, str(port)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def tell(text: str) -> None:
    print(f"town: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
