"""Money: what books and report of a ledger service must say once a run is settled, by the contracts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from assay.chain.events import Claimed
from assay.ledger.journal.store import BookStore
from assay.testing.members import RUN_ID
from tests.simulation.contracts import Contracts


def complaint(contracts: Contracts, folder: Path, rounds: int, *, is_alone: bool) -> str:
    """What is wrong with the money of a run whose ledger service has ended; empty if nothing is.

    Args:
        contracts: Of the run.
        folder: The service's.
        rounds: Of the run.
        is_alone: Nothing broke, so that nobody had to do what the service is for.
    """
    told = [json.loads(line) for line in (folder / "status.jsonl").read_text().splitlines()]
    for found in (_of_escrow(contracts), _of_books(contracts, folder), _of_report(contracts, told, rounds)):
        if found:
            return found
    others = {posted.proposer for posted in contracts.results.values()} - contracts.anchors.keys()
    if is_alone and others:
        return f"others than the ledger service propose results: {sorted(others)}"
    return ""


def paid_twice(contracts: Contracts) -> str:
    """The row of a result that was paid twice so far; empty if none was."""
    paid = Counter((one.epoch, one.index) for one in contracts.log.told if isinstance(one, Claimed))
    twice = [row for row, count in paid.items() if count > 1]
    return f"paid twice, as epoch and row: {twice}" if twice else ""


def _of_escrow(contracts: Contracts) -> str:
    """Every row is paid once, to its payee, and the buyer has all the rest."""
    for epoch, table in contracts.tables.items():
        paid, owed = contracts.received(epoch), Counter[str]()
        for payout in table.tree().payouts:
            owed[payout.account] += payout.amount
        if paid != owed:
            return f"epoch {epoch} paid {dict(paid)}, expected {dict(owed)}"
    earned = sum(table.total for table in contracts.tables.values())
    if contracts.returned != contracts.budget - earned:
        return f"{contracts.returned} of {contracts.budget} returned to the buyer, and {earned} are earned"
    return ""


def _of_books(contracts: Contracts, folder: Path) -> str:
    """The books have what the contracts had after the last block that they know, and nothing else."""
    books = BookStore(folder / "ledger.db", RUN_ID)
    try:
        balances = books.balances()
        last = max(number for number in contracts.after if number < books.next_block)
    finally:
        books.close()
    found = {account: balance * account.kind.side for account, balance in balances.items()}
    expected = contracts.after[last]
    wrong = {one.code: (found.get(one, 0), expected.get(one, 0)) for one in found.keys() | expected.keys()}
    differing = {code: both for code, both in sorted(wrong.items()) if both[0] != both[1]}
    return f"books and contracts differ after block {last}: {differing}" if differing else ""


def _of_report(contracts: Contracts, told: list[dict[str, Any]], rounds: int) -> str:
    """Each fact is told once, and the summary is right."""
    twice = [name for name, count in Counter(one["id"] for one in told if "id" in one).items() if count > 1]
    if twice:
        return f"the ledger service tells twice of {twice}"
    kinds = Counter(one["kind"] for one in told)
    rows, results = sum(len(posted.rows) for posted in contracts.results.values()), len(contracts.results)
    if (kinds["round"], kinds["claimed"], kinds["epoch"]) != (rounds, rows, 2 * results):
        return f"the ledger service tells of {dict(kinds)}; {rounds} rounds, {results} epochs, {rows} rows"
    (settled,) = [one for one in told if one["kind"] == "settled"]
    if not settled["chain_matches_books"] or settled["trial_balance"]:
        return f"the ledger service sums up {settled}"
    money = settled["money"]
    paid = money["paid_operators"] + money["paid_verifiers"] + money["fees"]
    if (money["funded"], paid, money["refunded"]) != (contracts.budget, contracts.paid, contracts.returned):
        return f"the ledger service sums up {money}, the escrow paid {contracts.paid} of {contracts.budget}"
    return ""
