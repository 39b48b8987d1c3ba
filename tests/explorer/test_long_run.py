"""However long a run: no page is over 200 kB, and none takes more than a tenth of a second of one core."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from assay.bundle.read import Delivered
from assay.bundle.report.charts import medians_of
from assay.explorer.drawings import audit_map
from assay.explorer.explored import Explored, explore
from assay.explorer.losses import node_losses
from assay.explorer.pages.methods import RUNS_DRAWN
from assay.ledger.settlement.payouts import Settlement
from assay.protocol.messages import CertifiedManifest
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId, RoundId
from tests.explorer.an_explorer import addresses, asking, golden

ROUNDS = 10_000
BYTES_MAX, SECONDS_MAX = 200_000, 0.25


def made_up() -> Delivered:
    """The recorded run's ten rounds of training, a thousand times over, each under its own number.

    Its signatures do not hold; what is measured is the size of a run.
    """
    run = golden()
    spec = replace(run.spec, rounds=ROUNDS)
    links = [renumbered(run.links[at % 10], at) for at in range(ROUNDS)]
    states = [
        replace(at_round(run.run_states[at % 10], at), spec=spec, training_rounds=ROUNDS)
        for at in range(ROUNDS)
    ]
    last = replace(run.run_states[-1], spec=spec, training_rounds=ROUNDS)
    settled = {
        epoch: replace(run.settled[epoch % 2], settlement=of_epoch(run.tables[epoch % 2], epoch))
        for epoch in range(ROUNDS // 5)
    }
    tables = {epoch: one.settlement for epoch, one in settled.items()}
    return replace(
        run, spec=spec, links=tuple(links), run_states=(*states, last), settled=settled, tables=tables
    )


def of_epoch(table: Settlement, epoch: int) -> Settlement:
    """The table as that of another epoch."""
    shift = 5 * (epoch - table.epoch)
    unpaid = tuple(replace(one, round=one.round + shift) for one in table.unpaid)
    return replace(table, epoch=epoch, unpaid=unpaid)


def renumbered(link: CertifiedManifest, at: int) -> CertifiedManifest:
    """The link as that of another round, with what is in it."""
    shift = at - int(link.manifest.round)
    commits = tuple(
        replace(one, commit=replace(one.commit, round=RoundId(at))) for one in link.manifest.commits
    )
    verdicts = tuple(
        replace(one, verdict=replace(one.verdict, round=RoundId(one.verdict.round + shift)))
        for one in link.manifest.verdicts
    )
    manifest = replace(link.manifest, round=RoundId(at), commits=commits, verdicts=verdicts)
    return replace(link, manifest=manifest, block=replace(link.block, round=RoundId(at)))


def at_round(state: RunState, at: int) -> RunState:
    """The state as that of another round."""
    shift = at - int(state.round)
    audits = {
        (RoundId(audit.round + shift), audit.node): replace(audit, round=RoundId(audit.round + shift))
        for audit in state.audits.values()
    }
    return replace(state, round=RoundId(at), audits=audits)


@pytest.fixture(scope="module")
def long_run() -> Explored:
    return explore("golden", made_up())


def every_address(run: Explored) -> Iterable[str]:
    yield from addresses(run).values()
    yield from (f"{addresses(run)['operator']}?page=100", "/runs/golden/order?page=20")
    yield from ("/runs/golden/rounds?page=200", "/runs/golden/rounds/9999", "/runs/golden/epochs?page=20")
    yield from (f"{addresses(run)['node']}?page=200", "/runs/golden/audits?page=100&status=passed")
    yield from (address + ".json" for address in addresses(run).values() if address != "/")


def with_nodes(run: Explored, count: int) -> Explored:
    """The run as the page of one that so many nodes took part in, each audited in every other round."""
    peers = [PeerId(bytes([at]) * 32) for at in range(count)]
    commits = {peer: run.commits[list(run.commits)[at % 4]] for at, peer in enumerate(peers)}
    audits = list(run.audits.values())[:200]
    drawn = {(RoundId(at), peer): audits[at % 200] for peer in peers for at in range(0, ROUNDS, 2)}
    return replace(
        run,
        losses=node_losses(run.charts[0], medians_of(run.report.rounds), commits),
        map=audit_map(ROUNDS, commits, drawn),
    )


def measured(client: TestClient, address: str) -> tuple[int, float]:
    """Bytes of a page, and the seconds of one core that it takes."""
    client.get(address)  # templates are compiled once
    seconds = []
    for _ in range(3):
        start = time.process_time()
        page = client.get(address)
        seconds.append(time.process_time() - start)
    assert page.status_code == 200, address
    return len(page.content), min(seconds)


@pytest.mark.slow
def test_the_page_of_a_long_run_of_sixty_four_nodes_is_small_and_quick(long_run: Explored):
    client = asking(with_nodes(long_run, 64))
    for address in ("/runs/golden", "/runs/golden.json"):
        size, seconds = measured(client, address)
        assert (size <= BYTES_MAX, seconds <= SECONDS_MAX) == (True, True), (address, size, seconds)


@pytest.mark.slow
def test_the_page_of_many_long_runs_is_small_and_quick(long_run: Explored):
    client = asking(*(replace(long_run, name=f"run-{at}") for at in range(3 * RUNS_DRAWN)))
    for address in ("/methods?x=bytes", "/methods.json"):
        size, seconds = measured(client, address)
        assert (size <= BYTES_MAX, seconds <= SECONDS_MAX) == (True, True), (address, size, seconds)


@pytest.mark.slow
def test_every_page_of_ten_thousand_rounds_is_small_and_quick(long_run: Explored):
    client = asking(long_run)
    assert len(long_run.audits) > 20_000 and long_run.report.totals.rounds == ROUNDS
    found = {address: measured(client, address) for address in every_address(long_run)}

    assert {address for address, (size, _) in found.items() if size > BYTES_MAX} == set()
    assert {address: s for address, (_, s) in found.items() if s > SECONDS_MAX} == {}
