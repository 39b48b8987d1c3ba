"""A buyer's process in a whole network delivers what was agreed, wherever it is killed; else it is found."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from assay.bundle import write
from assay.chain.commit_statement import evm_address
from assay.observer.buyer import service
from assay.protocol.params import RunSpec
from tests.simulation.contracts import Client
from tests.simulation.test_ledger import BOOKED
from tests.simulation.test_rounds import broken
from tests.simulation.whole_network import BUYER, WholeNetwork, simulate

pytestmark = pytest.mark.slow

BOUGHT = replace(BOOKED, has_buyer=True)
AWAY_S = 60.0
DEATHS, WRITES = 40, 25


def bought(seed: int = 1, network: type[WholeNetwork] = WholeNetwork, **changes: object) -> str:
    """The promise that a network with a buyer's process breaks."""
    return broken(seed, network, **{"rounds": 3, "has_ledger": True, "has_buyer": True, **changes})


class Restless(WholeNetwork):
    """A network whose buyer's process is killed again and again, in any write, to the end."""

    async def _storm(self) -> None:
        self._nursery.start_soon(self._keep_killing)

    async def _keep_killing(self) -> None:
        one, chances = self.processes[BUYER], random.Random(f"deaths {self.seed}")
        one.counts_files = True
        for death in range(DEATHS):
            while one.is_dead or one.service is None:
                if one.has_ended:
                    return
                await trio.sleep(0.05)
            one.fuse = 1 + int(chances.expovariate(1 / WRITES))
            while one.kills <= death:
                if one.has_ended:
                    return
                await trio.sleep(0.05)


class Away(WholeNetwork):
    """A network whose buyer's line is down for a while, from when the last result is final."""

    def is_time(self) -> bool:
        """Whether it is down now."""
        results = self.contracts.results
        return len(results) == 2 and all(one.is_final for one in results.values())

    async def _storm(self) -> None:
        while not self.is_time():
            await trio.sleep(0.01)
        self.network.partition(frozenset([BUYER]))
        self.troubled.add(BUYER)
        for path in sorted((self.processes[BUYER].folder / "blobs").glob("*.blob"))[:2]:
            path.write_bytes(b"damaged")
        await trio.sleep(AWAY_S)
        self.network.heal()
        self.promises.conduct.healed()


class LateAway(Away):
    """The same from when the model is on record, so that the disk is mended next."""

    def is_time(self) -> bool:
        return bool(self.contracts.records)


class Forgetful(WholeNetwork):
    """A network whose buyer's process starts again with files of its own, and with an older store."""

    async def _storm(self) -> None:
        one, kept = self.processes[BUYER], dict[Path, bytes]()
        while (run_state := one.run_state) is None or run_state.round < 6:
            if run_state is not None and run_state.round == 2:
                kept = {path: path.read_bytes() for path in one.folder.glob("store.db*")}
            await trio.sleep(0.01)
        await trio.sleep(1.0)
        one.die()
        await trio.sleep(0.05)
        for path in one.folder.glob("store.db*"):
            path.unlink()
        for path, body in kept.items():
            path.write_bytes(body)


class Strict(WholeNetwork):
    """A network that bears with an overdue opening for less long."""

    def the_spec(self) -> RunSpec:
        """What its members run."""
        spec = super().the_spec()
        return replace(spec, audit=replace(spec.audit, absence_s=45))


def test_a_buyer_that_cancels_has_back_what_was_not_earned_and_the_model_so_far():
    world = simulate(1, replace(BOUGHT, rounds=8, cancelled_s=3.0))
    contracts = world.contracts
    assert contracts.returned == contracts.paid_in - contracts.paid > 0
    assert world.promises.trained < 8 and contracts.records


def test_a_run_that_never_starts_costs_its_buyer_nothing():
    contracts = simulate(1, replace(BOUGHT, joins_s=5.0, start_s=3.0)).contracts
    assert contracts.returned == contracts.paid_in > 0 == contracts.paid


def test_a_buyers_process_that_is_killed_in_any_write_goes_on_where_it_was():
    world = simulate(0, replace(BOUGHT, storm_s=1.0), network=Restless)
    assert world.processes[BUYER].kills > 20


def test_a_buyer_that_lost_what_its_store_had_of_late_computes_the_parameters_again():
    assert bought(1, Forgetful, storm_s=1.0) == ""


def test_what_is_delivered_is_signed_by_a_quorum_if_chain_or_verifiers_are_reached(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(service, "CERTIFY_S_MAX", 5.0)
        assert bought(1, Away, storm_s=1.0) == ""

        patched.setattr(Client, "proposals_of", lambda *_: [])
        assert "0 signatures; 3 of 4 expected" in bought(1, Away, storm_s=1.0)
    monkeypatch.setattr(Client, "proposals_of", lambda *_: [])
    assert bought(1, Away, storm_s=1.0) == ""


def test_a_bundle_waits_for_what_the_disk_damaged_until_somebody_serves_it():
    assert bought(1, LateAway, storm_s=1.0) == ""


def test_a_share_of_a_slash_that_ends_after_the_process_is_sent_to_the_buyer():
    world = simulate(1, replace(BOUGHT, lying_node="withhold-opening"), network=Strict)
    assert world.contracts.collected[evm_address(world.spec.buyer)] > 0


def test_a_buyer_that_delivers_another_manifest_or_file_is_found(monkeypatch):
    sound = write._write_chain

    def lacking(folder, run):
        return sound(folder, replace(run, links=run.links[:-1]))

    monkeypatch.setattr(write, "_write_chain", lacking)
    assert "the buyer delivers" in bought()
