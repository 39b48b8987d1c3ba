"""Books of a recorded run are compared with its chain, table by table; what they say otherwise is named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from assay.bundle.check.settlement import check_epoch
from assay.bundle.read import read
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.protocol.errors import ConfigError

VECTORS = Path(__file__).parents[2] / "vectors"


def rewrite(books: Path, statement: str) -> None:
    """Changes rows that are never changed, as somebody with another program can."""
    with sqlite3.connect(books) as db:
        triggers = db.execute("select name, sql from sqlite_master where type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"drop trigger {name}")
        assert db.execute(statement).rowcount
        for _, text in triggers:
            db.execute(text)
    db.close()


def test_books_that_say_what_the_chain_says_pass(recorded_run: Path) -> None:
    delivered = read(recorded_run)
    first, second = (check_epoch(delivered, epoch) for epoch in (0, 1))

    tables = json.loads((VECTORS / "golden_run.json").read_text())["payouts"]
    paid = [sum(amount for *_, amount in tables[str(epoch)]["rows"]) for epoch in (0, 1)]
    assert (first.rows, first.total, first.is_booked) == (8, paid[0], True)
    assert (second.epoch, second.total, second.is_booked) == (1, paid[1], True)
    assert len(first.lines) == 7


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("update settlement set total = total + 1 where epoch = 0", "table settlement differs in epoch 0"),
        ("delete from settlement where epoch = 0", "table settlement differs in epoch 0"),
        ("update payout set amount = 1 where epoch = 0 and row_index = 0", "differs in epoch 0, row 0"),
        ("update payout set account = '0x' where epoch = 0 and row_index = 1", "differs in epoch 0, row 1"),
        ("delete from payout where epoch = 0 and row_index = 7", "has 7 rows, 8 expected"),
        ("delete from payout where epoch = 0 and row_index = 3", "differs in epoch 0, row 4"),
        ("insert into payout select epoch, 8, role, peer, account, amount from payout where epoch = 0 and "
         "row_index = 7", "table payout differs in epoch 0, row 8"),
        ("update unpaid set reason = 'late' where epoch = 0", "table unpaid differs in epoch 0"),
        ("delete from unpaid where epoch = 0", "table unpaid differs in epoch 0"),
        ("delete from chain_event where kind = 'ResultFinalized'", "never made epoch 0 final"),
        ("delete from chain_event where kind = 'ResultProposed'", "never made epoch 0 final"),
    ],
)  # fmt: skip
def test_books_that_say_otherwise_are_refused_in_words(
    recorded_run: Path, tmp_path: Path, statement: str, words: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(recorded_run, run)
    rewrite(run / "ledger.db", statement)

    with pytest.raises(LedgerIntegrityError, match=words):
        check_epoch(read(run), 0)


def test_an_epoch_that_is_not_there_is_refused(recorded_run: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 epochs, counted from 0; there is no epoch 2"):
        check_epoch(read(recorded_run), 2)
