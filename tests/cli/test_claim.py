"""Claim: pay is taken once, by anybody, for whom the table names; and never on the word of a table alone."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from assay.bundle.finished import Finished, Settled
from assay.bundle.write import _write_settlements
from assay.chain.deployment.coin import address_given
from assay.chain.statements import certificate, sign_digest
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result
from assay.protocol.encoding.codec import encode
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import a_hot_key
from assay.testing.signed import NODES, STATE, VERIFIERS
from tests.cli.market import PURSE, Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow

NODE, OTHER = NODES[0], NODES[1]


@pytest.fixture
def tables(market: Market) -> dict[int, Settlement]:
    """The run is open, and every participant has its whole chain."""
    market.open_run()
    return market.fill_store(NODE)


def held(market: Market, name: str = NODE) -> int:
    return market.bank.token_balance(wallet(name))


def pay(tables: dict[int, Settlement], epoch: int, name: str = NODE) -> int:
    account = bytes.fromhex(wallet(name)[2:])
    return sum(tables[epoch].rows[index].amount for index in tables[epoch].rows_of(account))


def a_bundle(market: Market, tables: dict[int, Settlement]) -> Path:
    """What of a delivered run says who is paid."""
    folder = market.folder / "delivered"
    (folder / "bundle" / "links").mkdir(parents=True)
    settled, before = {}, NO_DIGEST
    for epoch, table in tables.items():
        result = epoch_result(market.spec, table, STATE, before, 1)
        before = Digest(market.deployment.digest(result))
        signed = certificate(before, [sign_digest(before, a_hot_key(name)) for name in VERIFIERS])
        settled[epoch] = Settled(settlement=table, result=result, digest=before, certificate=signed)
    _write_settlements(folder / "bundle", cast(Finished, SimpleNamespace(settled=settled)))
    (folder / "bundle" / "spec.cbor").write_bytes(encode(market.spec))
    (folder / "bundle" / "deployment.json").write_text(market.deployment.to_json())
    for link in market.links:
        name = f"{int(link.manifest.round):06d}.cbor"
        (folder / "bundle" / "links" / name).write_bytes(encode(link))
    return folder


def edit(path: Path, statement: str, *values: object) -> None:
    """What somebody with the file can do; triggers stop only honest mistakes."""
    with closing(sqlite3.connect(path)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement, values)
        db.commit()


def test_every_final_row_is_claimed_once(assay: Assay, market: Market, tables: dict[int, Settlement]):
    file = market.config_of(NODE)
    market.settle(tables, 0)

    code, out, _ = assay("claim", file)
    assert code == 0 and "operator:" in out and "claimed: block" in out
    assert held(market) == PURSE + pay(tables, 0)
    assert "epoch 1: no result on chain" in out

    code, out, _ = assay("claim", file)
    assert code == 0 and "claimed before" in out and "claimed now 0.000000" in out
    assert held(market) == PURSE + pay(tables, 0)
    market.settle(tables, 1)
    assay("claim", file, "--epoch", 1)
    assert held(market) == PURSE + pay(tables, 0) + pay(tables, 1)


def test_pay_goes_where_its_owner_wants_it(assay: Assay, market: Market, tables: dict[int, Settlement]):
    file, other = market.config_of(NODE), address_given("0x" + "5a" * 20)
    market.settle(tables, 0)
    code, _, err = assay("claim", file, "--to", other, "--account", wallet("stranger"))
    assert code == 2 and "your own pay" in err

    assert assay("claim", file, "--to", other).status == 0

    assert held(market) == PURSE and market.bank.token_balance(other) == pay(tables, 0)


def test_before_it_is_final_nothing_is_sent_and_the_time_is_told(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    file = market.config_of(NODE)
    market.propose(tables, 0)
    before = market.bank.block_number()

    code, out, _ = assay("claim", file)
    assert code == 0 and "not final: can be challenged until" in out and "not claimed" in out
    assert market.bank.block_number() == before

    market.advance(market.params.challenge_window_s)
    assert "anyone may make it final" in assay("claim", file)[1]
    assert "would send" in assay("claim", file, "--finalize", "--dry-run")[1]
    code, out, _ = assay("claim", file, "--finalize")
    assert code == 0 and "epoch 0: finalized" in out and held(market) == PURSE + pay(tables, 0)


def test_a_dry_run_names_each_row_and_sends_nothing(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    market.settle(tables, 0)
    file, before = market.config_of(NODE), market.bank.block_number()

    code, out, _ = assay("claim", file, "--dry-run")

    assert code == 0 and "would send to EpochSettlement" in out
    assert market.bank.block_number() == before


def test_anyone_claims_for_another_and_only_the_other_is_paid(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    market.settle(tables, 0)

    code, _, _ = assay("claim", market.config_of(NODE), "--account", wallet(OTHER).lower())

    assert code == 0
    assert (held(market), held(market, OTHER)) == (PURSE, PURSE + pay(tables, 0, OTHER))


def test_the_books_of_a_run_that_goes_on_will_do(assay: Assay, market: Market, tables: dict[int, Settlement]):
    market.settle(tables, 0)
    run, file = market.ledger(tables), market.config_of(OTHER)

    code, out, _ = assay("claim", run, "--config", file)
    assert code == 0 and held(market, OTHER) == PURSE + pay(tables, 0, OTHER), out
    code, out, _ = assay("claim", run / "ledger.db", "--config", file, "--account", wallet(NODE))
    assert code == 0 and held(market) == PURSE + pay(tables, 0)
    code, _, err = assay("claim", run)
    assert code == 2 and "expected also --config" in err


def test_a_delivered_run_will_do_and_an_altered_one_will_not(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    market.settle(tables, 0)
    run, file = a_bundle(market, tables), market.config_of(OTHER)

    code, out, _ = assay("claim", run, "--config", file)
    assert code == 0 and held(market, OTHER) == PURSE + pay(tables, 0, OTHER), out
    told = run / "bundle" / "settlements" / "epoch-001.json"
    told.write_text(told.read_text().replace('"total": ', '"total": 1'))
    code, _, err = assay("claim", run, "--config", file, "--account", wallet(NODE))
    assert code == 1 and "epoch-001.json" in err and held(market) == PURSE


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE payout SET amount = amount + 1 WHERE epoch = 0 AND row_index = 0", "nothing was sent"),
        (
            "UPDATE payout SET account = (SELECT account FROM payout WHERE epoch = 0 AND row_index = 1) "
            "WHERE epoch = 0 AND row_index = 0",
            "nothing was sent",
        ),
        ("DELETE FROM payout WHERE epoch = 0 AND row_index = 1", "lacks rows in epoch 0"),
        ("UPDATE payout SET account = 'somebody' WHERE epoch = 0 AND row_index = 0", "cannot be read"),
    ],
)
def test_altered_books_send_nothing(
    assay: Assay, market: Market, tables: dict[int, Settlement], statement: str, said: str
):
    market.settle(tables, 0)
    run, file = market.ledger(tables), market.config_of(NODE)
    edit(run / "ledger.db", statement)
    before = market.bank.block_number()

    code, _, err = assay("claim", run, "--config", file)

    assert code == 1 and said in err
    assert market.bank.block_number() == before


def test_a_result_with_another_table_is_told_and_never_made_final_by_us(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    row = replace(tables[0].rows[0], amount=tables[0].rows[0].amount - 1)
    wrong = {0: replace(tables[0], rows=(row, *tables[0].rows[1:]))}
    market.propose(wrong, 0)
    market.advance(market.params.challenge_window_s)

    code, out, _ = assay("claim", market.config_of(NODE), "--finalize")
    assert code == 0 and "ANOTHER table" in out and "finalized" not in out
    market.bank.finalize(market.run_id, 0)
    code, _, err = assay("claim", market.config_of(NODE))
    assert code == 1 and "nothing was sent" in err and held(market) == PURSE


def test_what_nobody_claimed_in_time_is_said_to_be_gone(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    market.settle(tables, 0)
    market.advance(market.params.claim_period_s)
    market.bank.sweep_unclaimed(market.run_id, 0)

    code, out, _ = assay("claim", market.config_of(NODE))

    assert code == 0 and "the rest went back to the buyer" in out and "not claimed" in out


def test_a_store_that_holds_less_or_lies_is_told(assay: Assay, market: Market, tables: dict[int, Settlement]):
    market.settle(tables, 0)
    file = market.config_of(OTHER)
    code, _, err = assay("claim", file)
    assert code == 2 and "keeps no chain yet" in err
    market.fill_store(OTHER, 2)
    assert "its payout table is not here yet" in assay("claim", file)[1]
    store = market.folder / OTHER / "store.db"
    shutil.copy(market.folder / NODE / "store.db", store)
    edit(store, "UPDATE link SET body = (SELECT body FROM link WHERE round = 1) WHERE round = 2")
    code, _, err = assay("claim", file)
    assert code == 1 and "Traceback" not in err
    store.write_bytes(b"not a database at all" * 100)
    code, _, err = assay("claim", file)
    assert code == 2 and "not a participant's store" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epoch", "2"], "there is no epoch 2"),
        (["--epoch", "-1"], "--epoch"),
        (["--account", "0x12"], "is no address"),
        (["--account", "0x52908400098527886E0F7030069857D2E4169Ee7"], "is no address"),  # one letter mistyped
        (["--account", "0x" + "g" * 40], "is no address"),
        (["--account", "\x1b[2J"], "is no address"),
        (["--config", "other.toml"], "--config goes with a run's folder"),
    ],
)
def test_what_makes_no_sense_is_refused(
    assay: Assay, market: Market, tables: dict[int, Settlement], words: list[str], said: str
):
    code, _, err = assay("claim", market.config_of(NODE), *words)

    assert code == 2 and said in err and "\x1b" not in err


def test_a_run_of_another_deployment_is_refused(assay: Assay, market: Market, tables: dict[int, Settlement]):
    run = market.ledger(tables)
    (run / "spec.cbor").write_bytes(encode(replace(market.spec, deployment_id=Digest(b"x" * 32))))

    code, _, err = assay("claim", run, "--config", market.config_of(NODE))

    assert code == 2 and "the configuration's is" in err
