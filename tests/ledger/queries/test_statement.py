"""Statement: each party's balance is explained by what it earned, spent, paid in and took out."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from assay.chain.commit_statement import evm_address
from assay.chain.events import BondCollected, BondReleased, Swept
from assay.ledger.books import Books, Entry, book, reversal_of
from assay.ledger.journal.leaf import Written, leaf_of
from assay.ledger.queries.statement import AccountBalance, Movement, Party, Statement, statement_of
from tests.ledger.a_run import BUDGET, RUN, TREASURY, EventStream, a_settlement, wallet
from tests.ledger.a_run import BUYER as ADDRESS

TABLES = {epoch: a_settlement(epoch) for epoch in range(2)}
DAY_S = 86_400
TOTAL = sum(table.total for table in TABLES.values())
REST = BUDGET - TOTAL
BUYER = Party(address=ADDRESS, run_id=RUN)
NODE = Party(address=wallet("node-0"))
PARTIES = [BUYER, *(Party(address=wallet(f"{who}-{n}")) for who in ("node", "verifier") for n in range(4))]
PARTIES.append(Party(address=evm_address(TREASURY)))


def pay(party: Party) -> int:
    """What both epochs' tables give a party."""
    rows = (row for table in TABLES.values() for row in table.rows)
    return sum(row.amount for row in rows if evm_address(row.account) == party.address)


def journal(stream: EventStream, *reversed_at: int) -> list[Written]:
    """The stream's entries, a day apart; those at the named places are reversed at the end."""
    books, entries = Books(run_id=RUN, tables=TABLES), list[Entry]()
    for event in stream.events:
        books, entry = book(books, event)
        entries += [entry] if entry.postings else []
    entries += [reversal_of(entries[at]) for at in reversed_at]
    found = []
    for number, entry in enumerate(entries, 1):
        dated = replace(entry, block_time=number * DAY_S)
        found.append(Written(number=number, entry=dated, recorded_ms=0, leaf=leaf_of(dated.to_bytes(), 0)))
    return found


def a_stream() -> EventStream:
    stream = EventStream()
    stream.opened()
    stream.staked("node-0", 1_000)
    stream.slashed("node-0", 100)
    for table in TABLES.values():
        stream.settled(table)
    stream.refunded(BUDGET - sum(table.total for table in TABLES.values()))
    return stream


def totals(found: Statement) -> dict[str, int]:
    return {movement.value: found.total(movement) for movement in Movement if found.total(movement)}


def test_a_buyer_pays_for_results_and_what_it_paid_in_and_took_back_is_neither():
    found = statement_of(BUYER, journal(a_stream()))

    expected = {"paid in": BUDGET, "income": 20, "expense": TOTAL, "taken out": REST}
    assert totals(found) == expected and found.is_buyer
    assert found.opening == 0 and found.closing == 20 == found.lines[-1].balance  # its share of the slash
    assert found.accounts == (AccountBalance(f"rewards:{ADDRESS}", 20),)
    assert {line.kind for line in found.lines} == {"RunOpened", "Slashed", "ResultFinalized", "Refunded"}


def test_a_node_earns_by_final_results_and_loses_by_slashes():
    found = statement_of(NODE, journal(a_stream()))

    assert totals(found) == {"paid in": 1_000, "income": pay(NODE), "expense": 100, "taken out": pay(NODE)}
    assert found.closing == 900 and pay(NODE) > 0 and not found.is_buyer
    final = [line for line in found.lines if line.movement is Movement.INCOME]
    assert [(line.kind, line.epoch) for line in final] == [("ResultFinalized", 0), ("ResultFinalized", 1)]


def test_an_address_is_the_same_in_any_case_and_a_stranger_has_nothing():
    entries = journal(a_stream())

    assert (
        statement_of(Party(address=NODE.address.lower()), entries).lines == statement_of(NODE, entries).lines
    )
    assert statement_of(Party(address=wallet("nobody")), entries).lines == ()
    assert "expense" not in totals(statement_of(Party(address=ADDRESS), entries))  # another run's buyer


def test_a_claim_on_a_table_that_is_not_ours_and_lapsed_pay():
    stream = EventStream()
    stream.opened()
    stream.proposed(TABLES[0])  # never final by these books, and yet claimed
    stream.claimed(TABLES[0], 0)
    amount = TABLES[0].rows[0].amount
    found = statement_of(BUYER, journal(stream))
    assert totals(found) == {"paid in": BUDGET, "expense": amount}

    stream = EventStream()
    stream.opened()
    stream.proposed(TABLES[0])
    stream.final(TABLES[0])
    stream.emit(Swept, run_id=RUN, epoch=0, buyer=ADDRESS, amount=TABLES[0].total)
    found = statement_of(BUYER, journal(stream))
    lapsed = {"paid in": BUDGET, "income": TABLES[0].total, "expense": TABLES[0].total}
    assert totals(found) == {**lapsed, "taken out": TABLES[0].total}
    row = next(row for row in TABLES[0].rows if row.amount)
    found = statement_of(Party(address=evm_address(row.account)), journal(stream))
    assert (found.closing, totals(found)["income"]) == (0, totals(found)["expense"])


def test_a_proposal_that_is_rejected_costs_nothing_and_bonds_are_no_income():
    stream = EventStream()
    stream.opened()
    stream.proposed(TABLES[0], bond=50)
    stream.emit(BondReleased, run_id=RUN, epoch=0, account=wallet("ledger"), amount=50)
    stream.emit(BondCollected, account=wallet("ledger"), amount=50)

    assert totals(statement_of(BUYER, journal(stream))) == {"paid in": BUDGET}
    found = statement_of(Party(address=wallet("ledger")), journal(stream))
    assert totals(found) == {"bonds": 50, "taken out": 50}


def test_what_is_reversed_is_taken_back_from_the_same_totals():
    entries = journal(a_stream())
    found = journal(a_stream(), *reversed(range(len(entries))))

    for party in PARTIES:
        assert totals(statement_of(party, found)) == {} and statement_of(party, found).closing == 0
        assert statement_of(party, found).lines == () or any(
            line.amount < 0 for line in statement_of(party, found).lines
        )


@given(party=st.sampled_from(PARTIES), day=st.integers(0, 40), cut=st.lists(st.integers(0, 5), max_size=4))
def test_every_statement_explains_its_balance_and_days_follow_one_another(party, day, cut):
    entries = journal(a_stream(), *sorted(set(cut), reverse=True))
    whole = statement_of(party, entries)
    middle = date(1970, 1, 1) + timedelta(days=day)
    before = statement_of(party, entries, until=middle)
    after = statement_of(party, entries, since=middle + timedelta(days=1))

    for one in (whole, before, after):
        moved = sum(movement.sign * one.total(movement) for movement in Movement)
        assert one.opening + moved == one.closing
    for one in (whole, before):
        assert one.closing == sum(account.amount for account in one.accounts)
    assert before.lines + after.lines == whole.lines
    assert (before.closing, after.closing, before.opening) == (after.opening, whole.closing, 0)
    own = (each for one in entries for each in one.entry.postings if party.owns(each.account))
    assert whole.closing == -sum(each.amount for each in own)
