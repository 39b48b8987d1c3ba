"""Books: turns chain events and payout tables into double-entry postings, in integer minor units.

Room: ledger (pure). The books' only sources are the contracts' events and the
settlements that follow from finalised manifests. A correction is a reversal.
An amount is signed: debits positive, credits negative; an entry sums to zero per
asset, and after it no account is overdrawn.

    opened, topped up    escrow  <- budget          staked     vault <- stake
    proposed             budget  -> reserved        slashed    stake -> rewards and burnt, or -> held
                         bonds   <- bond
    rejected             reserved -> budget         paid out   held -> rewards, rest burnt
    final                reserved -> payable rows   reversed   held -> stake
    claimed              payable -> out of escrow   collected  rewards -> out of the vault
    swept, refunded      payable, budget -> out     withdrawn  stake -> out of the vault
    gifted               any asset <- gift
    challenged           bonds <- bond              case bond  vault <- casebond -> rewards or burnt
    released             bond -> bondowed           forfeited  bond -> burnt
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import cbor2

from assay.chain.commit_statement import evm_address
from assay.chain.events import (
    BondBurnt,
    BondCollected,
    BondForfeited,
    BondLocked,
    BondReleased,
    BondReturned,
    ChainEvent,
    Challenged,
    Claimed,
    Gifted,
    Refunded,
    ResultFinalized,
    ResultProposed,
    ResultRejected,
    RewardCollected,
    RunOpened,
    RunToppedUp,
    Slashed,
    SlashPaid,
    SlashReversed,
    Staked,
    Swept,
    Withdrawn,
)
from assay.ledger.accounts import (
    BONDS,
    ESCROW,
    HOLDERS,
    NO_EPOCH,
    VAULT,
    Account,
    Kind,
    bond,
    bond_owed,
    budget,
    case_bond,
    gift,
    held,
    payable,
    reserved,
    rewards,
    stake,
)
from assay.ledger.settlement.payouts import Settlement
from assay.protocol.errors import AssayError

AMOUNT_MAX = 2**63 - 1  # what the store's columns hold
# Kinds of entries without postings, which no block has: by these the log has a row of another table.
DOCUMENT, ROUND, SETTLEMENT = "document", "round", "settlement"
NO_SOURCE = bytes(32)


class BooksError(AssayError):
    """An entry cannot be booked, such as one that would overdraw an account: events are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """One line of an entry."""

    account: Account
    amount: int  # minor units; debit > 0, credit < 0, never 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One journal entry.

    Without postings it is a record: the log has what was written, and no money moved.

    Raises:
        ValueError: the postings do not sum to zero per asset, one is zero or too large, or two are of
            one account.
    """

    key: str  # idempotency key: the same for the same fact, whoever posts it
    kind: str
    block_number: int
    block_hash: bytes
    block_time: int  # Unix seconds; zero where no block has it
    postings: tuple[Posting, ...]
    epoch: int = NO_EPOCH
    reverses: str = ""  # key of the entry that this one reverses
    source: bytes = NO_SOURCE  # hash of the rows that it was made from (ledger/journal/rows.py)

    def __post_init__(self) -> None:
        sums: dict[str, int] = {}
        for posting in self.postings:
            if not 0 < abs(posting.amount) <= AMOUNT_MAX:
                raise ValueError(f"entry {self.key}: a posting of {posting.amount} units")
            sums[posting.account.asset] = sums.get(posting.account.asset, 0) + posting.amount
        if len({posting.account for posting in self.postings}) < len(self.postings):
            raise ValueError(f"entry {self.key}: two postings of one account")
        wrong = {asset: total for asset, total in sums.items() if total}
        if wrong:
            raise ValueError(f"entry {self.key}: postings sum to {wrong}, expected zero")

    def to_bytes(self) -> bytes:
        """Canonical CBOR of everything that the entry says, the accounts by their fields."""
        lines = [
            [of.kind.value, of.role, of.owner, of.epoch, of.asset, one.amount]
            for one in self.postings
            for of in (one.account,)
        ]
        head = ["assay/entry/3", self.key, self.kind, self.epoch]
        block = [self.block_number, self.block_hash, self.block_time]
        return cbor2.dumps([*head, *block, self.reverses, self.source, lines], canonical=True)


def request_hash(entry: bytes) -> bytes:
    """SHA-256 of an entry's bytes: tells a repeated request from a conflicting one."""
    return hashlib.sha256(entry).digest()


def document_hash(text: str) -> bytes:
    """SHA-256 of an invoice's or credit note's canonical JSON."""
    return hashlib.sha256(b"assay/invoice/1\n" + text.encode()).digest()


def record(kind: str, name: str, source: bytes) -> Entry:
    """The entry by which the Merkle log has a document, a round or a payout table.

    Args:
        kind: DOCUMENT, ROUND or SETTLEMENT.
        name: Which one.
        source: Hash of its rows.
    """
    return Entry(
        key=f"{kind}/{name}",
        kind=kind,
        block_number=0,
        block_hash=bytes(32),
        block_time=0,
        postings=(),
        source=source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Balances, and the other state that booking the next event needs."""

    run_id: bytes
    tables: Mapping[int, Settlement]  # of this run's final epochs, from finalised manifests
    results: Mapping[bytes, bytes] = field(default_factory=dict)  # proposed: result digest -> table hash
    balances: Mapping[Account, int] = field(default_factory=dict)

    def balance(self, account: Account) -> int:
        """Balance on the account's own side: negative means overdrawn."""
        return self.balances.get(account, 0) * account.kind.side


def event_key(event: ChainEvent, orphaned_count: int = 0) -> str:
    """An event's idempotency key; `orphaned_count`: how often a reorganisation has orphaned it before."""
    return place_key(event.block_hash, event.log_index, orphaned_count)


def place_key(block_hash: bytes, log_index: int, orphaned_count: int = 0) -> str:
    """`event_key` from the event's position alone."""
    return f"event/{block_hash.hex()}/{log_index}/{orphaned_count}"


def post(books: Books, entry: Entry) -> Books:
    """The books with one more entry.

    Raises:
        BooksError: an account would be overdrawn.
    """
    balances = dict(books.balances)
    for posting in entry.postings:
        balances[posting.account] = balances.get(posting.account, 0) + posting.amount
    for posting in entry.postings:
        left = balances[posting.account] * posting.account.kind.side
        if left < 0:
            raise BooksError(f"{entry.kind} {entry.key}: {posting.account.code} would fall to {left}")
        if left == 0:
            del balances[posting.account]
    return replace(books, balances=balances)


def book(
    books: Books, event: ChainEvent, orphaned_count: int = 0, source: bytes = NO_SOURCE
) -> tuple[Books, Entry]:
    """The books after one chain event, and its entry, which has no postings where no money moved.

    Args:
        books: Before it.
        event: The event.
        orphaned_count: How often a reorganisation has orphaned it before.
        source: Hash of the event's row.

    Raises:
        BooksError: an earlier event is missing.
    """
    if isinstance(event, ResultProposed):
        books = replace(books, results={**books.results, event.digest: event.table_hash})
    epoch = getattr(event, "epoch", NO_EPOCH)
    if epoch > AMOUNT_MAX:  # an order's is any 64 bits that a quorum signed; the escrow bounds others
        epoch = NO_EPOCH
    entry = Entry(
        key=event_key(event, orphaned_count),
        kind=type(event).__name__,
        block_number=event.block_number,
        block_hash=event.block_hash,
        block_time=event.block_time,
        epoch=epoch,
        postings=_merged(_lines(books, event)),
        source=source,
    )
    return post(books, entry), entry


def reversal_of(entry: Entry) -> Entry:
    """The entry that reverses another: same kind, every amount negated."""
    return replace(
        entry,
        key=f"reversal/{entry.key}",
        reverses=entry.key,
        postings=tuple(replace(posting, amount=-posting.amount) for posting in entry.postings),
    )


def bookable(run_id: bytes, tables: Mapping[int, Settlement], events: Sequence[ChainEvent]) -> int:
    """How many of `events` can be booked now: those before the first whose payout table is not known yet.

    A result of this run becomes final on chain after our own manifests determine its table, so
    the wait is short; stopping between blocks keeps the cursor exact.
    """
    for event in events:
        if isinstance(event, ResultFinalized) and event.run_id == run_id and event.epoch not in tables:
            return sum(one.block_number < event.block_number for one in events)
    return len(events)


def _lines(books: Books, event: ChainEvent) -> list[tuple[Account, int]]:
    """The entry's lines before merging; amounts may be zero."""
    match event:
        case RunOpened():
            return _in(ESCROW, budget(event.run_id), event.budget)
        case RunToppedUp():
            return _in(ESCROW, budget(event.run_id), event.amount)
        case Refunded():
            return _out(ESCROW, budget(event.run_id), event.amount)
        case Staked():
            return _in(VAULT, stake(event.role, event.account), event.amount)
        case Withdrawn():
            return _out(VAULT, stake(event.role, event.account), event.amount)
        case RewardCollected():
            return _out(VAULT, rewards(event.account), event.amount)
        case Slashed(payable_at=0):
            return [(stake(event.role, event.account), event.amount), *_shared_out(event)]
        case Slashed():
            return _move(stake(event.role, event.account), held(event.offence_id), event.amount)
        case SlashPaid():
            amount = event.burnt + event.buyer_amount + event.challenger_amount
            return [(held(event.offence_id), amount), *_shared_out(event)]
        case SlashReversed():
            return _move(held(event.offence_id), stake(event.role, event.account), event.amount)
        case BondLocked():
            return _in(VAULT, case_bond(event.case_id), event.amount)
        case BondReturned():
            return _move(case_bond(event.case_id), rewards(event.account), event.amount)
        case BondBurnt():
            return _out(VAULT, case_bond(event.case_id), event.amount)
        case Challenged():
            return _in(BONDS, bond(event.run_id, event.epoch), event.bond)
        case BondReleased():
            return _move(bond(event.run_id, event.epoch), bond_owed(event.account), event.amount)
        case BondForfeited():
            return _out(BONDS, bond(event.run_id, event.epoch), event.amount)
        case BondCollected():
            return _out(BONDS, bond_owed(event.account), event.amount)
        case ResultProposed():
            return [
                *_move(budget(event.run_id), reserved(event.run_id, event.epoch), event.total),
                *_in(BONDS, bond(event.run_id, event.epoch), event.bond),
            ]
        case ResultRejected():
            return _move(reserved(event.run_id, event.epoch), budget(event.run_id), event.total)
        case ResultFinalized():
            return _settlement_lines(books, event)
        case Gifted():
            return _in(HOLDERS[event.contract], gift(event.contract), event.amount)
        case Claimed():
            return _out(ESCROW, _claimed_from(books, event), event.amount)
        case Swept():
            return _swept_lines(books, event)
        case _:
            return []


def _settlement_lines(books: Books, event: ResultFinalized) -> list[tuple[Account, int]]:
    """Reserved money becomes payable if the final result is the table we computed; else it stays reserved."""
    table = books.tables.get(event.epoch) if event.run_id == books.run_id else None
    if table is None or books.results.get(event.digest) != table.table_hash or table.total != event.total:
        return []
    return [
        (reserved(event.run_id, event.epoch), event.total),
        *((payable(row.role, evm_address(row.account), event.epoch), -row.amount) for row in table.rows),
    ]


def _claimed_from(books: Books, event: Claimed) -> Account:
    """The payable account that a claim debits; the reserved one if the result's table is not ours."""
    table = books.tables.get(event.epoch) if event.run_id == books.run_id else None
    if table is not None and event.index < len(table.rows):
        owed = payable(table.rows[event.index].role, event.account, event.epoch)
        if books.balance(owed) >= event.amount:
            return owed
    return reserved(event.run_id, event.epoch)


def _swept_lines(books: Books, event: Swept) -> list[tuple[Account, int]]:
    owed = [
        (account, -balance)
        for account, balance in sorted(books.balances.items(), key=lambda item: item[0].code)
        if account.kind is Kind.PAYABLE and account.epoch == event.epoch and event.run_id == books.run_id
    ]
    rest = event.amount - sum(amount for _, amount in owed)
    return [*owed, (reserved(event.run_id, event.epoch), rest), (ESCROW, -event.amount)]


def _shared_out(event: Slashed | SlashPaid) -> list[tuple[Account, int]]:
    """Lines that distribute slashed money when the slash is final."""
    return [
        (VAULT, -event.burnt),
        (rewards(event.buyer), -event.buyer_amount),
        (rewards(event.challenger), -event.challenger_amount),
    ]


def _in(asset: Account, liability: Account, amount: int) -> list[tuple[Account, int]]:
    return [(asset, amount), (liability, -amount)]


def _out(asset: Account, liability: Account, amount: int) -> list[tuple[Account, int]]:
    return [(liability, amount), (asset, -amount)]


def _move(source: Account, target: Account, amount: int) -> list[tuple[Account, int]]:
    """Lines of a transfer between liabilities: the source is debited."""
    return [(source, amount), (target, -amount)]


def _merged(lines: Iterable[tuple[Account, int]]) -> tuple[Posting, ...]:
    """One line per account, none of them zero."""
    sums: dict[Account, int] = {}
    for account, amount in lines:
        sums[account] = sums.get(account, 0) + amount
    return tuple(Posting(account=account, amount=amount) for account, amount in sums.items() if amount)
