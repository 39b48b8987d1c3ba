"""Appeal: whoever was not paid is told until when to object, by the chain or by the books."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.ledger.settlement.payouts import Settlement
from assay.testing.members import peer
from assay.testing.signed import NODES
from tests.cli.market import Market
from tests.conftest import Assay

pytestmark = pytest.mark.slow

NODE = NODES[0]


@pytest.fixture
def tables(market: Market) -> dict[int, Settlement]:
    market.open_run()
    return market.fill_store(NODE)


def appeals(assay: Assay, run: Path, *words: object) -> str:
    code, out, err = assay("earnings", run, "--node", peer(NODE).hex(), "--why", 0, *words)
    assert (code, err) == (0, "")
    return out.splitlines()[-1]


def test_the_way_to_object_is_told_in_every_state(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    config = ("--config", market.config_of(NODE))

    def both() -> tuple[str, str]:
        run = market.ledger(tables)
        return appeals(assay, run, *config), appeals(assay, run)

    for line in both():
        assert line.startswith("appeal: no result") and "can be challenged once it is proposed" in line
    market.propose(tables, 0)
    for line in both():
        assert line.startswith("appeal: can be challenged until")
    assert "with a bond of 500.000000 aUSD" in both()[0] and "this machine's clock" in both()[1]

    market.as_("stranger").challenge(market.run_id, 0, bytes(32))
    by_chain, by_books = both()
    assert "a jury answers until" in by_chain
    assert by_books == "appeal: challenged, and not answered yet"

    market.advance(market.params.resolve_window_s)
    market.bank.timeout_challenge(market.run_id, 0)
    for line in both():
        assert line.startswith("appeal: can be challenged until")
    assert "with a bond of 1,000.000000 aUSD" in both()[0]
    market.advance(market.params.challenge_window_s)
    market.bank.finalize(market.run_id, 0)
    for line in both():
        assert line.startswith("appeal: over") and line.endswith("the result is final")


def test_a_window_that_is_over_is_told_with_its_end(
    assay: Assay, market: Market, tables: dict[int, Settlement]
):
    market.propose(tables, 0)
    market.advance(market.params.challenge_window_s)
    config = ("--config", market.config_of(NODE))
    assert appeals(assay, market.ledger(tables), *config).startswith("appeal: over since")
    market.bank.finalize(market.run_id, 0)
    line = appeals(assay, market.ledger(tables), *config)
    assert line.startswith("appeal: over since") and line.endswith("the result is final")


def test_books_without_their_spec_say_so(assay: Assay, market: Market, tables: dict[int, Settlement]):
    market.propose(tables, 0)
    books = market.ledger(tables) / "ledger.db"

    assert "do not name their run" in appeals(assay, books)
    assert "can be challenged until" in appeals(assay, books, "--config", market.config_of(NODE))


def test_a_file_of_another_run_is_refused(assay: Assay, market: Market, tables: dict[int, Settlement]):
    run = market.ledger(tables)
    other = replace(market.spec, seed=market.spec.seed + 1)
    market.write_run(other)
    file = market.config_of(NODE)
    node = peer(NODE).hex()

    code, _, err = assay("earnings", run, "--node", node, "--why", 0, "--config", file)
    assert code == 2 and "the books are of run" in err
    code, _, err = assay("earnings", run, "--node", node, "--config", file)
    assert code == 2 and "--config goes with --why" in err
