"""Books: whatever happens on chain, every unit is owed to somebody, once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from assay.chain.events import (
    EVENTS,
    BondBurnt,
    BondCollected,
    BondForfeited,
    BondLocked,
    BondReleased,
    BondReturned,
    CaseOpened,
    ChainEvent,
    Challenged,
    HotKeyDelegated,
    PayeeNamed,
    Resolved,
    ResultRejected,
    RunClosing,
    RunToppedUp,
    SlashPaid,
    SlashReversed,
    Swept,
    Withdrawn,
)
from assay.chain.logs import contract_of
from assay.ledger.accounts import (
    BONDS,
    ESCROW,
    NO_EPOCH,
    VAULT,
    Account,
    Kind,
    bond,
    bond_owed,
    budget,
    case_bond,
    held,
    payable,
    reserved,
    rewards,
    stake,
)
from assay.ledger.books import (
    Books,
    BooksError,
    Entry,
    Posting,
    book,
    bookable,
    post,
    reversal_of,
)
from assay.ledger.settlement.payouts import Settlement
from tests.ledger.a_run import BUDGET, BUYER, RUN, EventStream, a_settlement, wallet

TABLES = {epoch: a_settlement(epoch) for epoch in range(2)}
OTHER_RUN = b"another run".ljust(32, b"\0")


def empty(tables: dict[int, Settlement] | None = None) -> Books:
    return Books(run_id=RUN, tables=TABLES if tables is None else tables)


def booked(events: list[ChainEvent], books: Books | None = None) -> tuple[Books, list[Entry]]:
    books, entries = books or empty(), []
    for event in events:
        books, entry = book(books, event)
        entries.append(entry)
    return books, entries


def amounts(books: Books) -> dict[str, int]:
    """By code, on each account's own side."""
    return {account.code: books.balance(account) for account in books.balances}


@st.composite
def streams(draw: st.DrawFn) -> list[ChainEvent]:
    """A possible life of the contracts: what each step may take is what the ones before left."""
    stream, data = EventStream(), draw(st.data())
    stream.opened()
    stream.opened(BUDGET // 2, OTHER_RUN)
    state = _Contracts()
    for _ in range(draw(st.integers(0, 25))):
        move = draw(st.sampled_from(sorted(state.moves())))
        state.moves()[move](stream, data)
    return stream.events


class _Contracts:
    """Just enough of the contracts to tell only streams they could tell."""

    def __init__(self) -> None:
        self.stakes: dict[str, int] = {}
        self.rewards: dict[str, int] = {}
        self.phase = {0: "none", 1: "none"}
        self.unpaid = {epoch: dict(enumerate(row.amount for row in t.rows)) for epoch, t in TABLES.items()}
        self.free = BUDGET

    def moves(self):
        found = {"stake": self.stake, "top up": self.top_up}
        if any(self.stakes.values()):
            found |= {"slash": self.slash, "withdraw": self.withdraw}
        if any(self.rewards.values()):
            found["collect"] = self.collect
        if self.free:
            found["refund"] = self.refund
        for epoch, phase in self.phase.items():
            table = TABLES[epoch]
            if phase == "none" and table.total <= self.free:
                found[f"propose {epoch}"] = lambda stream, _, e=epoch: self.propose(stream, e)
            if phase == "proposed":
                found[f"final {epoch}"] = lambda stream, _, e=epoch: self.final(stream, e)
                found[f"reject {epoch}"] = lambda stream, _, e=epoch: self.reject(stream, e)
            if phase == "final" and self.unpaid[epoch]:
                found[f"claim {epoch}"] = lambda stream, data, e=epoch: self.claim(stream, data, e)
                found[f"sweep {epoch}"] = lambda stream, _, e=epoch: self.sweep(stream, e)
        return found

    def stake(self, stream: EventStream, data: DataObject) -> None:
        name = data.draw(st.sampled_from(["node-0", "node-1"]))
        amount = data.draw(st.integers(1, 10**12))
        self.stakes[name] = self.stakes.get(name, 0) + amount
        stream.staked(name, amount)

    def _staker(self, data: DataObject) -> tuple[str, int]:
        name = data.draw(st.sampled_from(sorted(n for n, left in self.stakes.items() if left)))
        amount = data.draw(st.integers(1, self.stakes[name]))
        self.stakes[name] -= amount
        return name, amount

    def slash(self, stream: EventStream, data: DataObject) -> None:
        name, amount = self._staker(data)
        stream.slashed(name, amount)
        for who, share in ((BUYER, amount // 5), (wallet("verifier-0"), 3 * amount // 10)):
            self.rewards[who] = self.rewards.get(who, 0) + share

    def withdraw(self, stream: EventStream, data: DataObject) -> None:
        name, amount = self._staker(data)
        stream.emit(Withdrawn, account=wallet(name), role=0, ticket=1, amount=amount)

    def collect(self, stream: EventStream, data: DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(w for w, left in self.rewards.items() if left)))
        stream.collected(who, self.rewards.pop(who))

    def top_up(self, stream: EventStream, data: DataObject) -> None:
        self.free += 7
        stream.emit(RunToppedUp, run_id=RUN, payer=BUYER, amount=7)

    def refund(self, stream: EventStream, data: DataObject) -> None:
        stream.refunded(self.free)
        self.free = 0

    def propose(self, stream: EventStream, epoch: int) -> None:
        stream.proposed(TABLES[epoch])
        self.free -= TABLES[epoch].total
        self.phase[epoch] = "proposed"

    def final(self, stream: EventStream, epoch: int) -> None:
        stream.final(TABLES[epoch])
        self.phase[epoch] = "final"

    def reject(self, stream: EventStream, epoch: int) -> None:
        total, place = TABLES[epoch].total, {"run_id": RUN, "epoch": epoch}
        stream.emit(Challenged, **place, challenger=BUYER, reason_hash=bytes(32), bond=50)
        stream.emit(Resolved, **place, outcome=2, window_ends_at=0)
        stream.emit(ResultRejected, **place, digest=bytes(32), total=total)
        self.free += total
        self.phase[epoch] = "none"

    def claim(self, stream: EventStream, data: DataObject, epoch: int) -> None:
        index = data.draw(st.sampled_from(sorted(self.unpaid[epoch])))
        del self.unpaid[epoch][index]
        stream.claimed(TABLES[epoch], index)

    def sweep(self, stream: EventStream, epoch: int) -> None:
        left = sum(self.unpaid[epoch].values())
        self.unpaid[epoch] = {}
        stream.emit(Swept, run_id=RUN, epoch=epoch, buyer=BUYER, amount=left)


# ---- what holds after every entry


@given(streams())
def test_after_every_entry_the_books_sum_to_zero_and_no_account_is_on_its_wrong_side(events):
    books = empty()
    for event in events:
        books, _ = book(books, event)
        assert sum(books.balances.values()) == 0
        assert all(books.balance(account) > 0 for account in books.balances)


@given(streams())
def test_undoing_every_entry_newest_first_leaves_nothing(events):
    books, entries = booked(events)

    for entry in reversed(entries):
        books = post(books, reversal_of(entry))
        assert all(books.balance(account) > 0 for account in books.balances)

    assert books.balances == {}


@given(streams(), st.data())
def test_a_lost_event_that_moved_tokens_is_noticed_or_leaves_another_balance(events, data):
    books, entries = booked(events)
    moved = [entry for entry in entries if {ESCROW, VAULT} & {line.account for line in entry.postings}]
    lost = data.draw(st.sampled_from(moved))
    rest = [event for event in events if lost.key.split("/")[1] != event.block_hash.hex()]

    try:
        others, _ = booked(rest)
    except BooksError:
        return
    assert others.balances != books.balances


# ---- the road of the buyer's money


def test_a_settled_run_owes_nothing_but_stake():
    stream = EventStream()
    stream.opened()
    stream.staked("node-0", 500)
    for table in TABLES.values():
        stream.settled(table)
    stream.refunded(BUDGET - sum(table.total for table in TABLES.values()))

    books, _ = booked(stream.events)

    assert amounts(books) == {"asset:vault": 500, stake(0, wallet("node-0")).code: 500}


def test_money_is_free_then_reserved_then_owed_to_each_payee():
    stream, table = EventStream(), TABLES[0]
    stream.opened()
    stream.proposed(table)
    proposed, _ = booked(stream.events)
    stream.final(table)
    final, _ = booked(stream.events)

    assert proposed.balance(reserved(RUN, 0)) == table.total
    assert proposed.balance(budget(RUN)) == final.balance(budget(RUN)) == BUDGET - table.total
    assert final.balance(reserved(RUN, 0)) == 0
    assert final.balance(payable("operator", wallet("node-0"), 0)) == table.rows[0].amount
    owed = [a for a in final.balances if a.kind is Kind.PAYABLE]
    assert (len(owed), sum(map(final.balance, owed))) == (len(table.rows), table.total)


def test_a_result_that_is_not_our_table_is_nobodys_pay_until_it_is_claimed():
    stream, table = EventStream(), TABLES[0]
    stream.opened()
    stream.settled(replace(table, table_hash=b"\7" * 32))

    books, _ = booked(stream.events[:3])
    after, _ = booked(stream.events)

    assert books.balance(reserved(RUN, 0)) == table.total
    assert not [a for a in after.balances if a.kind is Kind.PAYABLE]
    assert after.balance(ESCROW) == BUDGET - table.total


def test_another_buyers_run_is_in_the_books_without_its_payees():
    stream, table = EventStream(), replace(TABLES[0], run_id=OTHER_RUN)
    stream.opened(run_id=OTHER_RUN)
    stream.settled(table)

    books, _ = booked(stream.events)

    assert amounts(books) == {
        "asset:escrow": BUDGET - table.total,
        budget(OTHER_RUN).code: BUDGET - table.total,
    }


def test_what_nobody_claimed_goes_back_to_the_buyer():
    stream, table = EventStream(), TABLES[0]
    stream.opened()
    stream.proposed(table)
    stream.final(table)
    stream.claimed(table, 0)
    left = table.total - table.rows[0].amount
    stream.emit(Swept, run_id=RUN, epoch=0, buyer=BUYER, amount=left)

    books, _ = booked(stream.events)

    assert amounts(books) == {"asset:escrow": BUDGET - table.total, budget(RUN).code: BUDGET - table.total}


def test_bonds_of_a_result_and_its_challenge_leave_the_books_returned_shared_or_burnt():
    """The proposer lost 40: 20 to the challenger beside its own 50, 18 to two jurors, and 2 burnt."""
    stream, table, place = EventStream(), TABLES[0], {"run_id": RUN, "epoch": 0}
    jurors = [wallet("verifier-1"), wallet("verifier-2")]
    stream.opened()
    stream.proposed(table, bond=40)
    stream.emit(Challenged, **place, challenger=BUYER, reason_hash=bytes(32), bond=50)
    staked, _ = booked(stream.events)
    for juror in jurors:
        stream.emit(BondReleased, **place, account=juror, amount=9)
    stream.emit(BondReleased, **place, account=BUYER, amount=20)
    stream.emit(BondForfeited, **place, amount=2)
    stream.emit(BondReleased, **place, account=BUYER, amount=50)
    stream.emit(Resolved, **place, outcome=2, window_ends_at=0)
    stream.emit(ResultRejected, **place, digest=bytes(32), total=table.total)
    owed, _ = booked(stream.events)
    for account, amount in ((BUYER, 70), *((juror, 9) for juror in jurors)):
        stream.emit(BondCollected, account=account, amount=amount)

    after, _ = booked(stream.events)

    assert (staked.balance(BONDS), staked.balance(bond(RUN, 0))) == (90, 90)
    assert (owed.balance(BONDS), owed.balance(bond_owed(BUYER)), owed.balance(bond(RUN, 0))) == (88, 70, 0)
    assert amounts(after) == {"asset:escrow": BUDGET, budget(RUN).code: BUDGET}


# ---- cases


@pytest.mark.parametrize("ends", ["paid", "vetoed"])
def test_a_case_holds_its_slash_and_its_bond_until_it_is_paid_out_or_vetoed(ends: str):
    stream, who, case = EventStream(), wallet("node-0"), b"c" * 32
    stream.staked("node-0", 1_000)
    opener = wallet("verifier-1")
    stream.emit(BondLocked, case_id=case, account=opener, amount=70)
    stream.slashed("node-0", 100, payable_at=9, offence_id=case)
    waiting, _ = booked(stream.events)
    assert amounts(waiting) == {
        "asset:vault": 1_070,
        stake(0, who).code: 900,
        held(case).code: 100,
        case_bond(case).code: 70,
    }
    if ends == "paid":
        stream.emit(BondReturned, case_id=case, account=opener, amount=70)
        shares = {"buyer": BUYER, "buyer_amount": 20, "challenger": opener, "challenger_amount": 30}
        stream.emit(SlashPaid, account=who, role=0, offence_id=case, burnt=50, **shares)
    else:
        stream.emit(SlashReversed, account=who, role=0, offence_id=case, amount=100)
        stream.emit(BondBurnt, case_id=case, account=opener, amount=70)

    books, _ = booked(stream.events)

    assert amounts(books) == (
        {
            "asset:vault": 1_020,
            stake(0, who).code: 900,
            rewards(BUYER).code: 20,
            rewards(opener).code: 100,
        }
        if ends == "paid"
        else {"asset:vault": 1_000, stake(0, who).code: 1_000}
    )


# ---- stake


def test_a_slash_burns_a_part_and_keeps_the_rewards_in_the_vault_until_collected():
    stream = EventStream()
    stream.staked("node-0", 1_000)
    stream.slashed("node-0", 100)
    slashed, _ = booked(stream.events)
    stream.collected(BUYER, 20)

    books, _ = booked(stream.events)

    assert (slashed.balance(VAULT), slashed.balance(stake(0, wallet("node-0")))) == (950, 900)
    assert (slashed.balance(rewards(BUYER)), slashed.balance(rewards(wallet("verifier-0")))) == (20, 30)
    assert (books.balance(VAULT), books.balance(rewards(BUYER))) == (930, 0)


def test_a_challenger_who_is_also_the_buyer_has_one_line():
    stream = EventStream()
    stream.staked("node-0", 1_000)
    stream.slashed("node-0", 100)
    stream.events[-1] = replace(stream.events[-1], challenger=BUYER)

    books, entries = booked(stream.events)

    assert books.balance(rewards(BUYER)) == 50
    assert len(entries[-1].postings) == 3


# ---- what is refused


@pytest.mark.parametrize("second", [-99, 101])
def test_an_entry_that_does_not_sum_to_zero_cannot_be_made(second: int):
    with pytest.raises(ValueError, match="sum to"):
        an_entry(100, second)


def test_an_entry_has_one_posting_of_each_account():
    with pytest.raises(ValueError, match="two postings of one account"):
        an_entry(5, -5, other=ESCROW)


def test_an_entry_must_balance_in_each_asset_alone():
    other = replace(budget(RUN), asset="other")
    with pytest.raises(ValueError, match="sum to"):
        Entry(
            key="k",
            kind="test",
            block_number=1,
            block_time=1,
            block_hash=bytes(32),
            postings=(Posting(account=ESCROW, amount=1), Posting(account=other, amount=-1)),
        )


@pytest.mark.parametrize("amount", [0, 2**63, -(2**63)])
def test_a_posting_is_neither_zero_nor_more_than_a_column_holds(amount: int):
    with pytest.raises(ValueError, match="a posting of"):
        an_entry(amount, -amount)


def a_case(epoch: int) -> ChainEvent:
    return EventStream().emit(
        CaseOpened, case_id=bytes(32), offender=BUYER, run_id=OTHER_RUN, epoch=epoch, role=1, ppm=1,
        evidence_hash=bytes(32), challenger=BUYER, veto_ends_at=2**64 - 1, execute_by=2**64 - 1,
    )  # fmt: skip


def test_an_epoch_that_no_column_holds_is_none():
    """Else a quorum of any run could end the books of all: only an order's epoch is not bounded on chain."""
    named = {kind for kind in EVENTS if "epoch" in {field.name for field in fields(kind)}}

    assert {contract_of(kind) for kind in named - {CaseOpened}} == {"EpochSettlement"}
    cases = [a_case(epoch) for epoch in (0, 2**63 - 1, 2**63, 2**64 - 1)]
    assert [entry.epoch for entry in booked(cases)[1]] == [0, 2**63 - 1, NO_EPOCH, NO_EPOCH]


def test_money_that_is_not_there_cannot_be_paid():
    stream = EventStream()
    stream.opened(100)
    stream.refunded(100)
    stream.refunded(1)

    with pytest.raises(BooksError, match="would fall to -1"):
        booked(stream.events)


def test_a_row_is_claimed_once():
    stream, table = EventStream(), TABLES[0]
    stream.opened()
    stream.proposed(table)
    stream.final(table)
    stream.claimed(table, 0)
    stream.claimed(table, 0)

    with pytest.raises(BooksError):
        booked(stream.events)


def test_events_without_money_make_entries_without_postings():
    stream = EventStream()
    stream.emit(RunClosing, run_id=RUN, closes_at=1)
    stream.emit(HotKeyDelegated, account=BUYER, hot_key=BUYER, expiry=1)
    stream.emit(PayeeNamed, account=BUYER, payee=BUYER)
    stream.emit(Withdrawn, account=BUYER, role=0, ticket=1, amount=0)

    _, entries = booked(stream.events)
    assert [entry.kind for entry in entries] == [type(event).__name__ for event in stream.events]
    assert not any(entry.postings for entry in entries)


def test_an_entry_says_everything_in_its_bytes():
    entry = an_entry(5, -5)
    changes = [
        {"key": "other"},
        {"kind": "other"},
        {"epoch": 1},
        {"block_number": 2},
        {"block_hash": b"\1" * 32},
        {"reverses": "r"},
        {"block_time": 2},
        {"source": b"\1" * 32},
        {"postings": tuple(reversed(entry.postings))},
    ]
    said = {entry.to_bytes(), *(replace(entry, **change).to_bytes() for change in changes)}

    assert len(said) == 1 + len(changes)


# ---- waiting for a payout table


def test_blocks_wait_for_the_table_of_a_result_that_is_final():
    stream = EventStream()
    stream.opened()
    stream.proposed(TABLES[0])
    stream.final(TABLES[0])
    stream.staked("node-0", 1)

    assert bookable(RUN, {}, stream.events) == 2
    assert bookable(RUN, TABLES, stream.events) == 4
    assert bookable(OTHER_RUN, {}, stream.events) == 4


def test_a_block_is_booked_whole_or_not_at_all():
    stream = EventStream()
    stream.opened()
    stream.staked("node-0", 1)
    stream.final(TABLES[0])
    same_block = replace(stream.events[1], block_number=stream.events[2].block_number)

    assert bookable(RUN, {}, [stream.events[0], same_block, stream.events[2]]) == 1


def an_entry(first: int, second: int, key: str = "k", other: Account | None = None) -> Entry:
    return Entry(
        key=key,
        kind="test",
        block_number=1,
        block_time=1,
        block_hash=bytes(32),
        postings=(
            Posting(account=ESCROW, amount=first),
            Posting(account=other or budget(RUN), amount=second),
        ),
    )
