"""Market: operators' offers of seats, buyers' bids for them, and the uniform price at which a batch clears.

Room: protocol (pure, integers). What is bought and sold is one hour of one seat of one class; a batch is all
bids and offers of a class as of one block. Rules: docs/protocol.md, "Offers". Whoever has the same bids,
offers and block hash computes the same clearing, whatever the order in which they came.

    bids, dearest first:     9 9 9 7 4            each number: one seat, and what it may cost an hour
    offers, cheapest first:  2 3 3 5 6            k = 4 seats change hands, as 7 >= 5 and 4 < 6
    price: the least of the first seat not sold, 6, or the most of the last one bought, 7, if that is lower
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

from assay.protocol.encoding.codec import Max
from assay.protocol.types import Address, Digest, HotSignature, PeerId

SPEED_MAX = 80  # powers of two: operations a second,
MEMORY_MAX = 50  # bytes,
DAYS_MAX = 8  # days,
LOT_MAX = 63  # and token units
SEATS_MAX = 1024  # of one offer or bid
PRICE_MAX = 10**18  # token units an hour
TRADES_MAX = 2048  # of one clearing
_TIE = b"assay/clearing-tie/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatClass:
    """What a seat is at least, each as a power of two: seats of one class are taken for equal.

    All that makes one order's seat dearer than another's is in it, so that one price can be right for all.
    """

    TAG: ClassVar[bytes] = b"assay/seat-class/1"
    speed: Annotated[int, Max(SPEED_MAX)]  # 2^speed operations of training a second
    memory: Annotated[int, Max(MEMORY_MAX)]  # 2^memory bytes
    days: Annotated[int, Max(DAYS_MAX)]  # 2^days days for which its lot may be bound
    lot: Annotated[int, Max(LOT_MAX)]  # 2^lot token units, to which its lot may come


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatOffer:
    """An operator's offer of seats. The one with the highest sequence number makes its others void."""

    TAG: ClassVar[bytes] = b"assay/offer/1"
    deployment_id: Digest
    account: Address
    hot: Address  # the key that signs it
    peer: PeerId  # of the operator's record, which says where it is
    seat_class: SeatClass
    seats: Annotated[int, Max(SEATS_MAX)]  # at once; 0 withdraws what was offered
    least_price: Annotated[int, Max(PRICE_MAX)]  # that the operator gets for an hour of a seat, token units
    from_s: int  # Unix time: it counts in batches of blocks from then,
    until_s: int  # until before then
    sequence: int  # higher in each further offer of the account


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSeatOffer:
    """An offer with its hot key's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-offer/1"
    offer: SeatOffer
    by_hot: HotSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What a buyer would have of a class, and the most that it pays for an hour of a seat."""

    TAG: ClassVar[bytes] = b"assay/bid/1"
    deployment_id: Digest
    account: Address
    order: Digest  # of the quote that it is for
    seat_class: SeatClass
    seats: Annotated[int, Max(SEATS_MAX)]
    least_seats: Annotated[int, Max(SEATS_MAX)]  # fewer are of no use: it gets at least these, or none
    most_price: Annotated[int, Max(PRICE_MAX)]  # that operators get, token units


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """Seats of one offer that one bid gets."""

    TAG: ClassVar[bytes] = b"assay/trade/1"
    buyer: Address
    operator: Address
    seats: Annotated[int, Max(SEATS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """The price of a batch, and who gets whose seats. Without a trade the price is 0."""

    TAG: ClassVar[bytes] = b"assay/clearing/1"
    price: Annotated[int, Max(PRICE_MAX)]
    trades: Annotated[tuple[Trade, ...], Max(TRADES_MAX)]

    def seats_bought(self, account: Address) -> int:
        """Seats that this buyer gets."""
        return sum(one.seats for one in self.trades if one.buyer == account)

    def seats_sold(self, account: Address) -> int:
        """Seats of this operator that are taken."""
        return sum(one.seats for one in self.trades if one.operator == account)


Side = TypeVar("Side", Bid, SeatOffer)


def clear(bids: Sequence[Bid], offers: Sequence[SeatOffer], block_hash: Digest) -> Clearing:
    """The clearing of a batch: as many seats change hands as some one price allows, all of them at one price.

    No buyer pays more than its most, no operator gets less than its least. The price is that of the first
    seat which is not sold: what is asked for a seat decides whether it is sold, not for how much, so that an
    operator of one seat gains nothing by asking for another price than its true one. Where every seat is sold
    the price is the most of the last bid that is filled. A bid that would get fewer seats than are of use to
    it is left out, and the others are cleared again.

    Args:
        bids: Of one class, one an account.
        offers: Of the same class, one an account; those that count, with the seats that count.
        block_hash: Of the block as of which the batch is. Among equal prices it draws who comes first; an
            account that was there before the block could not choose its place.

    Raises:
        ValueError: an account bids or offers twice, or the classes differ.
    """
    _check_batch(bids, offers)
    taken = sorted(bids, key=lambda one: (-one.most_price, _tie(block_hash, one.account)))
    given = sorted(offers, key=lambda one: (one.least_price, _tie(block_hash, one.account)))
    while True:
        traded, price = _crossing(taken, given)
        short = next((one for one, got in _filled(taken, traded) if 0 < got < one.least_seats), None)
        if short is None:
            return Clearing(price=price, trades=tuple(_trades(taken, given, traded)))
        taken = [one for one in taken if one is not short]


def price_to_fill(offers: Sequence[SeatOffer], seats: int) -> int | None:
    """The lowest `most_price` at which a bid for `seats` seats has them all filled; None: too few.

    Args:
        offers: Of one class, with the seats that count; no other bid is there.
        seats: At least 1.
    """
    for one in sorted(offers, key=lambda one: one.least_price):
        seats -= one.seats
        if seats <= 0:
            return one.least_price
    return None


def _check_batch(bids: Sequence[Bid], offers: Sequence[SeatOffer]) -> None:
    for what, accounts in (
        ("bids", [one.account for one in bids]),
        ("offers", [one.account for one in offers]),
    ):
        if len(set(accounts)) != len(accounts):
            raise ValueError(f"an account has two {what} in one batch, expected one")
    classes = {one.seat_class for one in bids} | {one.seat_class for one in offers}
    if len(classes) > 1:
        raise ValueError(f"{len(classes)} classes in one batch, expected one")


def _tie(block_hash: Digest, account: Address) -> bytes:
    return hashlib.sha256(_TIE + block_hash + account).digest()


def _crossing(bids: Sequence[Bid], offers: Sequence[SeatOffer]) -> tuple[int, int]:
    """Seats that change hands, and their price; both sides are sorted."""
    traded = bid = offer = price = 0
    bought = sold = 0  # of the bid and the offer that are looked at
    while bid < len(bids) and offer < len(offers) and bids[bid].most_price >= offers[offer].least_price:
        seats = min(bids[bid].seats - bought, offers[offer].seats - sold)
        traded, bought, sold = traded + seats, bought + seats, sold + seats
        price = bids[bid].most_price if seats else price
        if bought == bids[bid].seats:
            bid, bought = bid + 1, 0
        if sold == offers[offer].seats:
            offer, sold = offer + 1, 0
    unsold = next((one for one in offers[offer:] if one.seats > 0), None)
    if traded and unsold is not None:
        price = min(price, unsold.least_price)
    return traded, price


def _filled(side: Sequence[Side], traded: int) -> Iterator[tuple[Side, int]]:
    """Each of one side, and how many of its seats are among the first `traded`."""
    for one in side:
        seats = min(one.seats, traded)
        traded -= seats
        yield one, seats


def _trades(bids: Sequence[Bid], offers: Sequence[SeatOffer], traded: int) -> Iterator[Trade]:
    """The i-th seat bought is the i-th seat sold."""
    sellers = ((one, seats) for one, seats in _filled(offers, traded) if seats)
    offer, left = next(sellers, (None, 0))
    for bid, wanted in _filled(bids, traded):
        while wanted and offer is not None:
            seats = min(wanted, left)
            yield Trade(buyer=bid.account, operator=offer.account, seats=seats)
            wanted, left = wanted - seats, left - seats
            if not left:
                offer, left = next(sellers, (None, 0))
