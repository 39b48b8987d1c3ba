"""Finished runs of real processes, each made once for all tests that only read it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from assay.training.compiled import compile_all
from tests.a_drand import a_network, info, serving
from tests.e2e.nets import (
    SCORED,
    SPARSELOCO,
    kill,
    localnet,
    need_anvil,
    summary_of,
    wait_for_round,
    wait_for_start,
    write_order,
)
from tests.e2e.scraped import scraping

# By the round that is final when they are killed. Nodes go on until round 6: tests look at steps before it.
KILLED = {1: "verifier-1", 5: "verifier-2", 6: "node-1", 7: "ledger", 9: "node-2", 13: "buyer"}


@dataclass(frozen=True)
class Finished:
    """A run that ended: its folder, which tests copy before they alter it, and what was printed."""

    run: Path
    summary: dict[str, Any]
    status: int
    metrics: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # of who was told to answer
    spans: set[tuple[int, str, str]] = field(default_factory=set)

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
    """Of the demo's method, with items; one node trains on stale parameters, most others are killed once."""
    need_anvil()
    folder = tmp_path_factory.mktemp("finished")
    order = write_order(folder, rounds=13)
    order.write_text(order.read_text() + SCORED)
    with scraping(folder / "run" / "participants") as scraped, localnet(folder, order) as process:
        for round_id, victim in KILLED.items():
            wait_for_round(process, folder / "run", round_id)
            if victim == "verifier-2":  # without two verifiers there is no quorum
                wait_for_start(process, folder / "run", "verifier-1", 2)
            scraped.tell(victim)
            kill(folder / "run", victim)
        summary, found = summary_of(process), scraped.found()
        return Finished(folder / "run", summary, process.returncode, found, scraped.spans)


@pytest.fixture(scope="session")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Of a method with inner steps and a lie in them, and draws that a drand network has a part in.

    Each round waits five seconds for drand, so its rounds are few; two verifiers need the fewest.
    """
    need_anvil()
    folder = tmp_path_factory.mktemp("inner")
    order = write_order(folder, rounds=5, cheat="wrong-data@2", train=SPARSELOCO)
    few = order.read_text().replace("audit_rounds = 7", "audit_rounds = 5")
    order.write_text(few.replace("dispute_rounds = 4", "dispute_rounds = 3"))
    network = a_network(period_s=1)
    (folder / "info.json").write_text(json.dumps(info(network)))
    with serving(network) as url:
        drand = f'[verify]\ndrand = "info.json"\ndrand_urls = ["{url}"]\n'
        order.write_text(order.read_text().replace("[verify]\n", drand))
        with localnet(folder, order, "--verifiers", "2") as process:
            return Finished(folder / "run", summary_of(process), process.returncode)
