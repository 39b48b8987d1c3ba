"""`assay ledger rebuild` on a real chain: the same books again, whatever became of the old ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from assay.bundle.books import find_books, opened
from assay.ledger.queries.lookup import add_up
from tests.cli.market import Market
from tests.conftest import Assay
from tests.ledger.a_database import edit

pytestmark = pytest.mark.slow


@pytest.fixture
def run(market: Market) -> Path:
    """A participant's folder with the run's whole chain, and the books of a run that is half settled."""
    market.open_run()
    market.config_of("buyer")
    tables = market.fill_store("buyer")
    market.settle(tables, 0)
    folder = market.folder / "buyer"
    shutil.copy(market.ledger(tables) / "ledger.db", folder)
    return folder


def test_the_same_books_are_made_again(assay: Assay, market: Market, run: Path) -> None:
    out = market.folder / "rebuilt.db"
    status, said, err = assay("ledger", "rebuild", run, "--rpc", market.rpc_url, "--out", out)

    assert status == 0, err
    assert "has the same in every account" in said and f"{len(market.links)} rounds" in said
    with opened(find_books(out)) as new, opened(find_books(run)) as old:
        assert add_up(new).balances == add_up(old).balances and len(add_up(new).balances) > 3


def test_what_was_altered_is_named_and_what_cannot_be_read_is_not_needed(
    assay: Assay, market: Market, run: Path
) -> None:
    first = "(entry, line) IN (SELECT min(entry), 0 FROM posting)"
    edit(run / "ledger.db", f"UPDATE posting SET amount = amount + 1 WHERE {first}")
    command = "ledger", "rebuild", run, "--rpc", market.rpc_url, "--json", "--out"
    status, said, _ = assay(*command, market.folder / "one.db")

    found = json.loads(said)
    (wrong,) = found["differences"]
    assert status == 1 and wrong["present"] == wrong["rebuilt"] + 1 and found["trial_balance"] == 0

    (run / "ledger.db").write_bytes(b"not a database" * 100)
    status, said, _ = assay(*command, market.folder / "two.db")
    assert status == 0 and "is damaged" in json.loads(said)["reason"]


def test_nothing_is_overwritten_and_nothing_unfinished_is_left(
    assay: Assay, market: Market, run: Path
) -> None:
    before = (run / "ledger.db").read_bytes()
    status, _, err = assay("ledger", "rebuild", run, "--rpc", market.rpc_url, "--out", run / "ledger.db")
    assert (status, (run / "ledger.db").read_bytes()) == (2, before) and "there already" in err

    status, _, err = assay("ledger", "rebuild", run, "--rpc", "http://127.0.0.1:1", "--out", run / "ledger")
    assert status != 0 and err
    assert [path.name for path in run.glob("ledger*")] == ["ledger.db"]  # not what begins with the same name
