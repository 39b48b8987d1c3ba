"""Finished runs of real processes, each made once for all tests that only read it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from assay.bundle.read import read as read_run
from assay.participant.keys.keyring import load_keys
from assay.protocol.identity import peer_of
from assay.training.compiled import compile_all
from tests.a_drand import a_network, info, serving
from tests.e2e.nets import SCORED, SPARSELOCO, need_anvil, write_order
from tests.e2e.scraped import scraping
from tests.wan.campaign import broken_promises, play
from tests.wan.scenario import Fault, read

SCENARIOS = Path(__file__).parents[1] / "wan" / "scenarios"
KILLS, PARTED = read(SCENARIOS / "kills.toml"), read(SCENARIOS / "partition.toml")
KILLED = [fault.whom for fault in KILLS.faults if fault.kind == "kill"]


@dataclass(frozen=True)
class Finished:
    """A run that ended: its folder, which tests copy before they alter it, and what was printed."""

    run: Path
    summary: dict[str, Any]
    status: int
    metrics: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # of who was told to answer
    spans: set[tuple[int, str, str]] = field(default_factory=set)

    def broken_promises(self) -> list[str]:
        """What the faults of its scenario broke; see `tests.wan.campaign`."""
        return broken_promises(self.summary, self.run)

    def rounds_of(self, name: str) -> list[int]:
        """The rounds in which a node's step was accepted."""
        people = self.run / "participants"
        node = peer_of(load_keys(people / name / "keys", (people / "password").read_text()).peer)
        return [
            int(link.manifest.round)
            for link in read_run(self.run).links
            if any(signed.commit.node == node for signed in link.manifest.commits)
        ]

    def peer(self, behaviour: str) -> str:
        """The first node with this behaviour."""
        nodes: list[dict[str, Any]] = self.summary["nodes"]
        return next(str(node["peer"]) for node in nodes if node["behaviour"] == behaviour)


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compiles before a network starts: in a fresh checkout each of its workers would compile everything."""
    import_module("assay.verifier.audit.worker")
    import_module("assay.training.reference.gradient")
    compile_all()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Of the demo's method, with items; one node trains on stale parameters, most others are killed once.

    Nodes are killed from round 6 on: tests look at steps before it.
    """
    need_anvil()
    folder = tmp_path_factory.mktemp("finished")
    order = write_order(folder, rounds=13)
    order.write_text(order.read_text() + SCORED)
    with scraping(folder / "run" / "participants") as scraped:

        def before(fault: Fault) -> None:
            if fault.kind == "kill":
                scraped.tell(fault.whom)

        played = play(KILLS, folder, order, before=before)
        assert not played.missed
        return Finished(played.run, played.summary, played.status, scraped.found(), scraped.spans)


@pytest.fixture(scope="session")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Of a method with inner steps and a lie in them, and draws that a drand network has a part in.

    Each round waits five seconds for drand, so its rounds are few. Some are cut off meanwhile, one floods.
    """
    need_anvil()
    folder = tmp_path_factory.mktemp("inner")
    order = write_order(folder, rounds=PARTED.rounds, train=SPARSELOCO)
    network = a_network(period_s=1)
    (folder / "info.json").write_text(json.dumps(info(network)))
    with serving(network) as url:
        drand = f'[verify]\ndrand = "info.json"\ndrand_urls = ["{url}"]\n'
        order.write_text(order.read_text().replace("[verify]\n", drand))
        played = play(PARTED, folder, order)
    assert not played.missed
    return Finished(played.run, played.summary, played.status)
