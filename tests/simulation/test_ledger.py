"""A ledger service in a whole network settles it, with right books whatever kills it; else it is found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from assay.chain.events import Claimed, Refunded, Staked
from assay.ledger import books
from assay.ledger.log.signer import CheckpointSigner
from assay.observer.ledger_service import service
from assay.observer.ledger_service.status import StatusFile
from assay.participant.wallet.settler import Settler
from tests.simulation import whole_network
from tests.simulation.chain_log import BLOCKS_BACK
from tests.simulation.contracts import Client
from tests.simulation.test_rounds import CALM, broken
from tests.simulation.whole_network import LEDGER, WholeNetwork, simulate

pytestmark = pytest.mark.slow

COSIGNED_S = 1.0  # in which a checkpoint is anchored, and cosigned by all
BOOKED = replace(CALM, rounds=3, has_ledger=True)


def booked(seed: int = 1, **changes: object) -> str:
    """The promise that a network with a ledger service breaks."""
    return broken(seed, **{"rounds": 3, "has_ledger": True, **changes})


def test_a_ledger_service_settles_a_run_and_ends():
    contracts = simulate(1, BOOKED).contracts
    assert {posted.proposer for posted in contracts.results.values()} == set(contracts.anchors)
    assert contracts.returned == 0 < contracts.paid == contracts.paid_in


def test_whatever_a_buyer_cancels_is_his_but_for_what_was_earned():
    contracts = simulate(1, replace(BOOKED, rounds=8, cancelled_s=3.0)).contracts
    (refund,) = (one for one in contracts.log.told if isinstance(one, Refunded))
    assert refund.amount == contracts.returned == contracts.paid_in - contracts.paid > 0


@pytest.mark.parametrize("seed", range(4))
def test_books_are_right_wherever_their_process_is_killed_and_though_the_chain_goes_back(seed):
    assert booked(seed, storm_s=40.0, kills=60, reorgs=6, lying_node="random-update") == ""


def test_a_slash_is_carried_out_paid_and_booked():
    contracts = simulate(2, replace(BOOKED, lying_node="random-update")).contracts
    (case,) = contracts.court.values()
    assert case.phase.is_over and not case.pot


class LateFork(WholeNetwork):
    """A network whose chain goes back as soon as its ledger service has ended."""

    async def _storm(self) -> None:
        while not self.processes[LEDGER].has_ended:
            await trio.sleep(0.2)
        self.contracts.go_back(BLOCKS_BACK)


def test_a_ledger_service_ends_once_what_it_booked_is_final(monkeypatch):
    assert booked(network=LateFork, storm_s=1.0) == ""

    async def at_once(_chain):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(service, "until_final", at_once)
    assert "books and contracts differ" in booked(network=LateFork, storm_s=1.0)


# ---- every promise is one that can be broken


def test_books_that_have_other_amounts_are_found(monkeypatch):
    sound = books._lines

    def lines(found, event):
        lines = sound(found, event)
        return [(account, 2 * amount) for account, amount in lines] if isinstance(event, Staked) else lines

    monkeypatch.setattr(books, "_lines", lines)
    assert "books and contracts differ" in booked()


def test_a_row_that_is_paid_twice_is_found(monkeypatch):
    sound = Client.claim_all

    def claim_all(client, run_id, epoch, tree, indices=None):
        sound(client, run_id, epoch, tree, indices)
        index, log = (range(len(tree.payouts)) if indices is None else indices)[0], client._contracts.log
        row = tree.payouts[index]
        log.add(Claimed, run_id=run_id, epoch=epoch, index=index, account=row.account, amount=row.amount)

    monkeypatch.setattr(Client, "claim_all", claim_all)
    assert "paid twice" in booked()


def test_a_ledger_service_that_leaves_results_to_others_is_found(monkeypatch):
    sound = Settler.__init__

    def init(self, *given, **more):
        sound(self, *given, **{"patience_s": 60.0, **more})

    monkeypatch.setattr(Settler, "__init__", init)
    assert "others than the ledger service propose results" in booked()


def test_a_payee_that_stays_away_is_paid_by_the_ledger_service_and_else_by_nobody(monkeypatch):
    async def claim(_me, _follower):
        return

    monkeypatch.setattr("assay.node.service.claim_everything", claim)
    assert booked() == ""

    async def claim_for_others(_settler, _chain, _look):
        return

    monkeypatch.setattr(Settler, "_claim_for_others", claim_for_others)
    monkeypatch.setattr(whole_network, "CALM_S_MAX", 120.0)
    assert "the run did not end" in booked()


def test_a_ledger_service_that_forgets_what_it_told_is_found(monkeypatch):
    sound = StatusFile.__init__

    def init(file, path):
        sound(file, path)
        file._written.clear()

    monkeypatch.setattr(StatusFile, "__init__", init)
    plan = {"storm_s": 40.0, "kills": 60}
    assert any("tells twice" in booked(seed, **plan) for seed in range(4))


class Restored(WholeNetwork):
    """A network whose ledger service is killed once it has signed, and starts again from older books."""

    async def _storm(self) -> None:
        one, kept = self.processes[LEDGER], dict[Path, bytes]()
        while not any((one.folder / "checkpoints").glob("*")):
            kept = {path: path.read_bytes() for path in one.folder.glob("ledger.db*")}
            await trio.sleep(1)
        await trio.sleep(COSIGNED_S)
        one.die()
        await trio.sleep(0.05)
        for path in one.folder.glob("ledger.db*"):
            path.unlink()
        for path, body in kept.items():
            path.write_bytes(body)
        shutil.rmtree(one.folder / "checkpoints")


def test_books_that_were_rolled_back_are_noticed_by_what_others_have_of_them(monkeypatch):
    assert "LedgerRolledBack" in booked(network=Restored, storm_s=1.0)

    monkeypatch.setattr(CheckpointSigner, "check", lambda *_: None)
    assert "signs two histories" in booked(network=Restored, storm_s=1.0)
