"""`order continue` ends a run that stopped and opens its successor; repeating it does what is left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from assay.bundle.read import Delivered
from assay.bundle.successor import Stop
from assay.chain.statements import OPERATOR
from assay.participant.files.record import Role, write_record
from assay.participant.files.run_file import RunFile, read_run_file
from assay.protocol.encoding.codec import digest
from assay.protocol.params import Predecessor
from assay.protocol.types import NO_DIGEST
from assay.testing.signed import NODES
from assay.training.layout import layout_of
from assay.training.model.initial import BASE
from tests.a_network import NOW, a_record, records_of
from tests.cli.market import PURSE, Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow

DAY = 86_400
CERTIFIED = 3  # rounds of six


def a_stop(copies: Sequence[Delivered], round_id: int | None) -> Stop:
    """Where the market's chain ends, with made-up parameters: nobody has its aggregates."""
    delivered = max(copies, key=lambda one: len(one.links))
    at = len(delivered.links) - 1 if round_id is None else round_id
    return Stop(
        spec=delivered.spec,
        round=at,
        predecessor=Predecessor(
            run_id=delivered.run_id,
            manifest=digest(delivered.links[at].manifest),
            rounds=at + 1,
            outer=NO_DIGEST,
        ),
        theta_P=np.full(layout_of(delivered.spec.model).parameters, at, np.float32),
        buffers=(),
    )


@pytest.fixture
def stopped(market: Market, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The buyer's configuration of an open run of which no more than three rounds were certified."""
    monkeypatch.setattr("assay.cli.orders.successor.stop_of", a_stop)
    market.join_nodes()
    for name in NODES:
        market.lock(name)
    market.open_run()
    market.fill_store("buyer", CERTIFIED)
    return market.config_of("buyer")


@pytest.fixture
def words(market: Market, stopped: Path) -> list[object]:
    """The command, for a buyer with another folder and all members' records."""
    folder, members = market.folder / "next", market.folder / "members"
    folder.mkdir()
    text = stopped.read_text().replace('"keys"', '"../buyer/keys"').replace('"../run.assay"', '"run.assay"')
    (folder / "config.toml").write_text(text)
    for at, signed in enumerate([*records_of(), a_record("leo", Role.LEDGER), a_record("buyer", Role.BUYER)]):
        write_record(members / f"{at}.record", signed)
    return ["order", "continue", folder / "config.toml", stopped, "--members", members]


def successor(market: Market) -> RunFile:
    return read_run_file(market.folder / "next" / "run.assay", NOW)


def test_a_stopped_run_is_closed_and_its_successor_opened_and_then_refunded(
    assay: Assay, market: Market, words: list[object]
):
    code, out, err = assay(*words)
    assert code == 2 and "assay stake lock" in err and "after round 2 of 6" in out
    old = market.bank.run(market.run_id)
    assert old is not None and old.closes_at < old.deadline  # it closes whatever else is lacking
    run = successor(market)
    assert run.spec.predecessor.run_id == market.run_id and run.spec.rounds == 3
    theta_P = np.load(market.folder / "next" / "data" / BASE)
    assert (theta_P == CERTIFIED - 1).all()

    for name in NODES:
        chain = market.as_(name)
        chain.stake(OPERATOR, old.lot)
        chain.ensure_lot(OPERATOR, run.run_id, old.lot, market.bank.timestamp() + 390 * DAY)
    code, out, err = assay(*words)
    assert code == 0, err
    opened = market.bank.run(run.run_id)
    assert opened is not None and opened.spec_hash == digest(run.spec)
    price = sum(run.spec.epoch_price(epoch) for epoch in range(run.spec.epochs))
    assert (opened.budget, opened.lot, opened.epochs) == (price, old.lot, run.spec.epochs)
    assert market.bank.token_balance(wallet("buyer")) == PURSE - old.budget - price

    market.advance(market.params.close_delay_s)
    code, out, err = assay(*words)
    assert code == 0 and "already open" in out and "returned to" in out, err
    assert market.bank.token_balance(wallet("buyer")) == PURSE - price
    code, out, _ = assay("order", "show", words[2])
    assert code == 0 and f"continues {market.run_id.hex()}" in out


def test_a_dry_run_closes_writes_and_opens_nothing(assay: Assay, market: Market, words: list[object]):
    code, out, err = assay(*words, "--dry-run")
    assert code == 2 and "assay stake lock" in err and "requestClose" in out
    old = market.bank.run(market.run_id)
    assert old is not None and old.closes_at == old.deadline
    assert not (market.folder / "next" / "run.assay").exists()
    assert not (market.folder / "next" / "data").exists()


def test_the_longest_copy_counts_and_a_buyer_may_go_back(assay: Assay, market: Market, words: list[object]):
    market.fill_store("victor", CERTIFIED + 1)
    copy = market.config_of("victor").parent
    _, out, _ = assay(*words, "--copy", copy, "--dry-run")
    assert "after round 3 of 6" in out
    _, out, _ = assay(*words, "--round", 1, "--dry-run", "--json")
    told = {one["name"]: one["text"] for one in json.loads(out)["steps"]}
    assert "after round 1 of 6" in told["continue"]


def test_the_run_file_of_another_run_is_no_successors(assay: Assay, market: Market, words: list[object]):
    (market.folder / "next" / "run.assay").write_bytes((market.folder / "run.assay").read_bytes())
    code, _, err = assay(*words)
    assert code == 2 and "does not continue" in err
    old = market.bank.run(market.run_id)
    assert old is not None and old.closes_at == old.deadline


def test_only_the_buyer_ends_a_run(assay: Assay, market: Market, words: list[object]):
    market.fill_store("stranger", CERTIFIED)
    code, _, err = assay("order", "continue", words[2], market.config_of("stranger"), *words[4:])
    assert code == 2 and "only the buyer" in err
