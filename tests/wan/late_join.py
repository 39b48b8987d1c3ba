"""Late join: how long a newcomer to a run of many rounds takes from its process's start to its first pay.

    python -m tests.wan.late_join --rounds 1000 [--preset gpt-15m] [--folder FOLDER]

Room: tests (edge). Strangers found a network on this machine, each with the product's own commands in a
folder of its own. After so many rounds another operator, who has keys, a lot and the data but no part in the
run yet, starts `assay node run`; once a manifest has a step of it, the next one does. Seconds from the start
of each one's process until each stage are printed. It ends once each has been paid on chain for an epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from assay.devnet.machines import free_ports
from assay.participant.store import read_link_bodies
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import Unavailable
from assay.protocol.messages import CertifiedManifest
from tests.e2e.nets import TINY, need_anvil, write_order
from tests.e2e.people import STARTS, Founding, Person, each, until

SEEN = "verifier-0"  # in whose store newcomers' steps are looked for
FIRST = "a manifest has its first step"
BEYOND = 2000  # rounds that are ordered and not waited for
LOOK_S = 0.1
STAGES = {  # what its log says, and what that means
    "node is up": "its host is open",
    "parameters restored": "a snapshot is loaded",
    "seat taken": "it has learnt that it has a seat",
}


def main() -> None:
    """Measure it; it ends once all newcomers are paid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000, help="before the newcomer starts")
    parser.add_argument("--preset", help="of the model; a tiny one if left out")
    parser.add_argument("--verifiers", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=4, help="beside newcomers")
    parser.add_argument("--newcomers", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="a new folder that the run stays in")
    given = parser.parse_args()
    need_anvil()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        root = given.folder or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        roles = {f"verifier-{i}": "verifier" for i in range(given.verifiers)}
        roles |= {f"node-{i}": "node" for i in range(given.nodes + given.newcomers)}
        roles |= {"ledger": "ledger", "buyer": "buyer"}
        late = [f"node-{i}" for i in range(given.nodes, given.nodes + given.newcomers)]
        live(stack, root.resolve(), roles, late, given.rounds, given.preset)


def live(
    stack: ExitStack,
    root: Path,
    roles: Mapping[str, str],
    newcomers: Sequence[str],
    rounds: int,
    preset: str | None,
) -> None:
    """The network's life, from the first key to the last newcomer's first pay."""
    founder = Person(root, "founder")
    # A newcomer's process is no fork of one that has its imports done: they count.
    people = {name: Person(root, name, ("env",) if name in newcomers else ()) for name in roles}
    town, buyer = Founding(founder, people, roles), people["buyer"]
    chain_port, *ports = free_ports(1 + len(roles))
    account = town.introduce({name: f"127.0.0.1:{port}" for name, port in zip(roles, ports, strict=True)})
    chain = stack.enter_context(founder.runs("chain", "dev", "--port", str(chain_port), "--fund", account))
    until(lambda: founder.says("chain at"), [chain])
    town.found(f"http://127.0.0.1:{chain_port}")
    town.join()
    write_order(buyer.folder)
    town.order(buyer, order_of(rounds + BEYOND, preset, roles, len(newcomers)))
    each(town.of_role("node"), lambda person: person.assay("stake", "lock", "config.toml", "1000"))

    def start(name: str) -> Any:
        return stack.enter_context(people[name].runs(*STARTS[roles[name]], "config.toml"))

    processes = {name: start(name) for name in roles if name not in newcomers}
    alive = [processes[name] for name, role in roles.items() if role == "verifier"]
    seen, began_s = Chain(people[SEEN]), time.time()
    while seen.length < rounds:
        time.sleep(LOOK_S if rounds - seen.length < 5 else 1.0)
        assert all(process.poll() is None for process in alive), "a verifier ended early"
        before = seen.length
        seen.news()
        if seen.length // 100 > before // 100:
            tell(f"round {seen.length} after {time.time() - began_s:.0f} s")
    took_s = (time.time() - began_s) / seen.length
    tell(f"newcomers start; a round took {took_s:.2f} s")
    for name in newcomers:
        seen.news()
        print(f"newcomer in round {seen.length}:", flush=True)
        started_s = time.time()
        alive.append(start(name))
        report(watch(people[name], seen, started_s, alive))
        own_s, trainer_s = processor_s(alive[-1].pid)
        print(f"by then {own_s:.1f} s of processor time, and its trainer {trainer_s:.1f} s", flush=True)
    claimed = dict.fromkeys(newcomers, 0)
    while not all(claimed.values()):
        assert all(one.poll() is None for one in alive), "a verifier or a newcomer ended early"
        time.sleep(1.0)
        for name in newcomers:
            lines = log_lines(people[name])
            claimed[name] = sum(one["amount"] for one in lines if one.get("event") == "claimed")
    print("newcomers claimed", ", ".join(f"{amount} units" for amount in claimed.values()))


def order_of(rounds: int, preset: str | None, roles: Mapping[str, str], newcomers: int) -> str:
    """An order that starts once all nodes but newcomers have come, and has seats for these."""
    order = TINY.format(rounds=rounds, data="text.txt", train="warmup = 2")
    nodes = sum(role == "node" for role in roles.values())
    verifiers = sum(role == "verifier" for role in roles.values())
    counts = f"nodes = 0\nleast_nodes = {nodes - newcomers}\nseats = {nodes}\nverifiers = {verifiers}"
    order = order.replace("nodes = 4", f"{counts}\nstart_within_s = 3600").replace(
        "epoch_rounds = 5", "epoch_rounds = 50"
    )
    if preset:
        tiny = order[order.index("[model]") : order.index("[[data]]")]
        order = order.replace(tiny, f'[model]\npreset = "{preset}"\n')
        order = order.replace("collect_s = 8\niteration_s = 20", "collect_s = 20\niteration_s = 60")
    return order


def watch(late: Person, seen: Chain, started_s: float, alive: Sequence[Any]) -> Mapping[str, float]:
    """Seconds from a newcomer's start to each stage, until a step of it is in a manifest.

    seen: The chain of a verifier.
    """
    found: dict[str, float] = {}
    own, peer = Chain(late), late.peer()
    while FIRST not in found:
        assert all(one.poll() is None for one in alive), late.log.read_text()[-3000:]
        time.sleep(LOOK_S)
        own.news()
        now = {"it has the first manifests": own.length > 0}
        for manifest in (decode(CertifiedManifest, body).manifest for body in seen.news()):
            for stage, is_reached in {
                "a manifest admits it": any(one.admission.member.peer == peer for one in manifest.admissions),
                FIRST: any(signed.commit.node == peer for signed in manifest.commits),
            }.items():
                now[stage] = now.get(stage, False) or is_reached
        now["it has all manifests"] = own.length >= seen.length
        for stage, is_reached in now.items():
            if is_reached:
                found.setdefault(stage, time.time() - started_s)
    for line in log_lines(late):
        if (stage := STAGES.get(line.get("event", ""))) is not None:
            found.setdefault(stage, datetime.fromisoformat(line["t"]).timestamp() - started_s)
    return found


class Chain:
    """The certified manifests that a participant has stored, as they come."""

    def __init__(self, person: Person) -> None:
        self._folder, self.length = person.folder, 0

    def news(self) -> list[bytes]:
        """The encodings of those that were not there at the last call."""
        found: list[bytes] = []
        with suppress(Unavailable):  # the participant may be making the file
            for path in self._folder.rglob("store.db"):
                found = read_link_bodies(path, self.length)
        self.length += len(found)
        return found


def processor_s(process: int) -> tuple[float, float]:
    """Seconds of processor time that a process took so far, and those that it started."""

    def of(name: int) -> float:
        fields = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    started = (path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children"))
    return of(process), sum(of(int(name)) for names in started for name in names.split())


def log_lines(person: Person) -> Iterator[dict[str, Any]]:
    for line in person.log.read_text().splitlines():
        with suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                yield found


def report(found: Mapping[str, float]) -> None:
    for stage, seconds in sorted(found.items(), key=lambda one: one[1]):
        print(f"{seconds:6.1f} s  {stage}", flush=True)


def tell(text: str) -> None:
    print(f"late_join: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
