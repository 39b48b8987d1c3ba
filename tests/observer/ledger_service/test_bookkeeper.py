"""Bookkeeper: one line per fact, one booking per fact, through restarts and a chain that goes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from assay.chain.commit_statement import evm_address
from assay.chain.events import ChainEvent, Equivocation, Slashed, Swept
from assay.chain.providers import Head, Providers
from assay.ledger.journal.store import BookStore
from assay.ledger.queries import report
from assay.ledger.settlement.payouts import Settlement, settle
from assay.observer.ledger_service.bookkeeper import Bookkeeper
from assay.observer.ledger_service.status import StatusFile
from assay.protocol.errors import Unavailable
from assay.protocol.messages import CertifiedManifest, Outcome
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import RUN_ID, peer
from assay.testing.signed import NODES, VERIFIERS, a_certified, a_chain, a_history, a_manifest, a_spec
from tests.ledger.a_run import BUYER, EventStream

SPEC = a_spec()
LINKS = a_chain(a_history(), SPEC.ordered.last_round + 1)


def settlements_of(
    links: Iterable[CertifiedManifest], run_state: RunState | None = None
) -> dict[int, Settlement]:
    run_state, found = run_state or a_history(), {}
    for certified in links:
        run_state = advance(run_state, certified.manifest)
        for epoch in range(SPEC.epochs):
            if SPEC.ordered.settled_at(epoch) == int(run_state.round) - 1:
                found[epoch] = settle(run_state, epoch)
    return found


TABLES = settlements_of(LINKS)


class Blocks:
    """A chain that says what it is told to say, and how far back it was asked."""

    def __init__(self) -> None:
        self.said: list[ChainEvent] = []
        self.height, self.fork = 0, "main"
        self.asked_from: list[int] = []

    def head(self) -> Head:
        return Head(self.height, self.block_hash(self.height) or b"")

    def block_hash(self, number: int) -> bytes | None:
        """By what is said in it; a block without an event is another one on another fork."""
        said = (event.block_hash for event in self.said if event.block_number == number)
        made = hashlib.sha256(f"{self.fork} {number}".encode()).digest()
        return None if number > self.height else next(said, made)

    def events(self, first: int, last: int) -> list[ChainEvent]:
        self.asked_from.append(first)
        return [event for event in self.said if first <= event.block_number <= last]

    def tell(self, stream: EventStream) -> Providers:
        self.said, self.height = list(stream.events), max(stream.height, self.height)
        return cast(Providers, self)


class Rig:
    """A bookkeeper with its files; `again` is the next process."""

    def __init__(self, folder: Path, spec: RunSpec = SPEC) -> None:
        self.folder, self.spec = folder, spec
        self.again()

    def again(self) -> None:
        self.books = BookStore(self.folder / "ledger.db", RUN_ID)
        status = StatusFile(self.folder / "status.jsonl")
        self.ledger_service = Bookkeeper(self.spec, Digest(RUN_ID), self.books, status)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        told = (self.folder / "status.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, told) if line["kind"] == kind]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def ours(stream: EventStream) -> EventStream:
    """The stream, with events of the builders' run."""
    stream.events = [
        replace(event, run_id=RUN_ID) if hasattr(event, "run_id") else event for event in stream.events
    ]
    return stream


def a_whole_stream() -> EventStream:
    stream = EventStream()
    stream.opened()
    for table in TABLES.values():
        stream.settled(table)
    stream.refunded(10_000_000 - sum(table.total for table in TABLES.values()))
    return ours(stream)


def node_figures(rig: Rig) -> tuple[report.NodeFigures, ...]:
    return report.nodes(rig.books, start(SPEC, Digest(RUN_ID)))


# ---- rounds


def test_every_final_manifest_is_one_line_also_the_tail_after_training(rig: Rig):
    rig.ledger_service.book_rounds(LINKS, TABLES)
    rig.ledger_service.tell_rounds()

    told = rig.lines("round")
    assert [line["round"] for line in told] == list(range(SPEC.ordered.last_round + 1))
    assert told[0] == {
        "kind": "round",
        "round": 0,
        "rounds": 6,
        "loss": 5.0,
        "nodes": 3,
        "active": 3,
        "bytes": 30,
        "signatures": 3,
        "verifiers": 4,
        "audits": {"drawn": 0, "passed": 0, "failed": 0},
        "slashes": 0,
        "escrow": 0,
        "id": "round/0",
    }
    assert (told[-1]["loss"], told[-1]["nodes"], told[-1]["active"]) == (None, 0, 0)
    assert told[-1]["audits"] == asdict(report.audits(rig.books, SPEC.ordered.last_round))
    assert told[-1]["audits"]["passed"] == told[-1]["audits"]["drawn"] > 0


def test_a_restart_at_any_round_books_and_tells_each_round_once(rig: Rig):
    for end in (1, 4, 5, len(LINKS)):
        rig.again()
        rig.ledger_service.book_rounds(LINKS[:end], TABLES)
        if end != 5:
            rig.ledger_service.tell_rounds()

    assert [line["round"] for line in rig.lines("round")] == list(range(len(LINKS)))
    assert sum(node.accepted for node in node_figures(rig)) == 18


def test_a_settled_epoch_is_on_record_with_every_row(rig: Rig):
    rig.ledger_service.book_rounds(LINKS, TABLES)

    with rig.books.reading() as db:
        rows = db.exec_driver_sql("SELECT epoch, row_index, role, amount FROM payout").all()
        heads = db.exec_driver_sql("SELECT epoch, total, table_hash FROM settlement").all()
    expected = [(e, i, row.role, row.amount) for e, t in TABLES.items() for i, row in enumerate(t.rows)]
    assert sorted(map(tuple, rows)) == sorted(expected)
    assert [tuple(head) for head in heads] == [(e, t.total, t.table_hash) for e, t in TABLES.items()]


def test_an_upheld_fault_is_counted_and_its_steps_are_listed_as_unpaid(rig: Rig):
    run_state, links = a_history(), []
    while not run_state.is_complete:
        accused = {(1, peer("mallory")): dict.fromkeys(VERIFIERS, Outcome.MISMATCH)}
        names = [name for name in NODES if peer(name) in run_state.active]
        certified = a_certified(a_manifest(run_state, names, accused))
        links.append(certified)
        run_state = advance(run_state, certified.manifest)

    rig.ledger_service.book_rounds(links, settlements_of(links))

    mallory = next(node for node in node_figures(rig) if node.peer == peer("mallory").hex())
    assert mallory.audits_failed == 1
    assert [one.round for one in mallory.unpaid] == list(range(mallory.accepted))
    assert rig.ledger_service.open_offences()


# ---- the chain


def test_a_whole_life_on_chain_is_told_and_settles_to_the_unit(rig: Rig):
    rig.ledger_service.book_rounds(LINKS, TABLES)
    chain = Blocks().tell(a_whole_stream())

    assert rig.ledger_service.book_blocks(chain, TABLES)
    rig.ledger_service.tell_events()

    phases = [(line["epoch"], line["phase"]) for line in rig.lines("epoch")]
    assert phases == [(0, "proposed"), (0, "final"), (1, "proposed"), (1, "final")]
    assert sum(line["amount"] for line in rig.lines("claimed")) == sum(t.total for t in TABLES.values())
    assert len(rig.lines("refunded")) == 1
    assert rig.ledger_service.is_paid_out() and not rig.ledger_service.open_offences()
    told = report.money(rig.books)
    assert told.funded == told.paid_operators + told.paid_verifiers + told.fees + told.refunded
    paid = node_figures(rig)
    assert sum(node.paid for node in paid) == told.paid_operators > 0


def test_pay_that_nobody_claimed_in_time_counts_as_refunded(rig: Rig):
    stream, table = EventStream(), TABLES[0]
    stream.opened(table.total)
    stream.proposed(table)
    stream.final(table)
    stream.claimed(table, 0)
    left = table.total - table.rows[0].amount
    stream.emit(Swept, run_id=RUN_ID, epoch=0, buyer=BUYER, amount=left)

    rig.ledger_service.book_blocks(Blocks().tell(ours(stream)), TABLES)

    told = report.money(rig.books)
    assert (told.funded, told.paid_operators, told.refunded) == (table.total, table.rows[0].amount, left)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_run_is_not_paid_out_before_the_last_claim_and_the_refund(rig: Rig, missing: int):
    stream = a_whole_stream()
    stream.events = stream.events[:-missing]

    rig.ledger_service.book_blocks(Blocks().tell(stream), TABLES)

    assert not rig.ledger_service.is_paid_out()


def test_facts_are_told_once_through_restarts_and_looks(rig: Rig):
    blocks = Blocks()
    chain = blocks.tell(a_whole_stream())
    for _ in range(3):
        rig.again()
        rig.ledger_service.book_blocks(chain, TABLES)
        rig.ledger_service.tell_events()

    assert len(rig.lines("claimed")) == sum(len(table.rows) for table in TABLES.values())
    assert len(rig.lines("epoch")) == 4


def test_the_first_look_goes_back_to_the_deployment_and_later_ones_read_only_what_is_new(rig: Rig):
    blocks = Blocks()
    blocks.height = 1_000
    chain = blocks.tell(a_whole_stream())
    for height in (1_000, 1_000, 1_010):
        blocks.height = height
        rig.ledger_service.book_blocks(chain, TABLES)
    rig.again()
    rig.ledger_service.book_blocks(chain, TABLES)

    assert blocks.asked_from == [0, 1_001, 1_001, 0]


def test_a_chain_that_went_back_is_followed(rig: Rig):
    blocks, short = Blocks(), a_whole_stream()
    rig.ledger_service.book_blocks(blocks.tell(a_whole_stream()), TABLES)
    assert rig.ledger_service.is_paid_out()

    short.events, blocks.height = short.events[:2], 2
    blocks.said = short.events
    assert rig.ledger_service.book_blocks(cast(Providers, blocks), TABLES)

    assert not rig.ledger_service.is_paid_out()
    assert report.money(rig.books).refunded == 0


def test_another_fork_is_read_from_the_last_block_that_both_have(rig: Rig):
    """Found by the hash of the block where a look ended, though the fork is as long as the chain was."""
    blocks, stream = Blocks(), a_whole_stream()
    whole = list(stream.events)
    for height in (3, 5, 8):
        blocks.height, blocks.said = height, [e for e in whole if e.block_number <= height]
        rig.ledger_service.book_blocks(cast(Providers, blocks), TABLES)
    fork = "other"
    moved = [
        replace(e, block_hash=hashlib.sha256(f"{fork} {e.block_number}".encode()).digest())
        if e.block_number > 4
        else e
        for e in whole[:7]
    ]
    blocks.fork, blocks.said, blocks.height = fork, moved, 8
    blocks.asked_from.clear()

    assert rig.ledger_service.book_blocks(cast(Providers, blocks), TABLES)

    assert blocks.asked_from == [4]  # looks ended in blocks 3, 5 and 8: 3 still stands
    with rig.books.reading() as db:
        seen = db.exec_driver_sql(
            "SELECT block_number, block_hash FROM chain_event WHERE state = 'seen'"
        ).all()
    assert {tuple(row) for row in seen} == {(e.block_number, e.block_hash) for e in moved}


def test_a_chain_that_moves_while_it_is_read_is_read_again(rig: Rig):
    blocks = Blocks()
    chain = blocks.tell(a_whole_stream())
    hashes = iter([b"a" * 32, b"b" * 32])

    class Moving(Blocks):
        def head(self) -> Head:
            return Head(self.height, next(hashes))

    moving = Moving()
    moving.said, moving.height = blocks.said, blocks.height
    with pytest.raises(Unavailable, match="was reorganised while its events"):
        rig.ledger_service.book_blocks(cast(Providers, moving), TABLES)

    assert rig.books.next_block == 0
    assert rig.ledger_service.book_blocks(chain, TABLES)


def test_an_endpoint_that_lags_takes_nothing_back(rig: Rig):
    blocks = Blocks()
    chain = blocks.tell(a_whole_stream())
    rig.ledger_service.book_blocks(chain, TABLES)
    blocks.asked_from.clear()

    class Lagging(Blocks):
        def head(self) -> Head:
            return Head(2, self.block_hash(2) or b"")

    lagging = Lagging()
    lagging.said, lagging.height = blocks.said, blocks.height
    assert not rig.ledger_service.book_blocks(cast(Providers, lagging), TABLES)

    assert rig.ledger_service.is_paid_out()
    assert not rig.ledger_service.book_blocks(chain, TABLES)
    assert blocks.asked_from == [blocks.height + 1]


def test_a_slash_names_the_node_by_its_peer(rig: Rig):
    member = SPEC.nodes[0]
    stream = EventStream()
    stream.staked("node-0", 1_000)
    said: dict[str, Any] = {"account": BUYER, "hot_key": BUYER, "value_a": b"a" * 32, "value_b": b"b" * 32}
    stream.emit(Equivocation, offence_id=NO_DIGEST, run_id=RUN_ID, **said)
    stream.slashed("node-0", 100)
    stream.emit(Equivocation, offence_id=b"o" * 32, run_id=b"another run".ljust(32), **said)
    stream.slashed("node-0", 70, offence_id=b"o" * 32)
    account = evm_address(member.account)
    stream.events = [replace(event, account=account) for event in stream.events]

    rig.ledger_service.book_blocks(Blocks().tell(stream), TABLES)
    rig.ledger_service.tell_events()

    line, _ = rig.lines("slashed")
    assert (line["node"], line["amount"], line["burnt"]) == (member.peer.hex(), 100, 50)
    assert (line["buyer"], line["challenger"]) == (20, 30)
    assert node_figures(rig)[0].slashed == 100
    assert report.money(rig.books).slashed == 100  # the other slash is another run's
    assert len(rig.books.events(Slashed)) == 2
