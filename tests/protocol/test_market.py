"""A batch of bids and offers clears at one price, and nobody gains by asking for another."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import MalformedMessage
from assay.protocol.market import (
    SEATS_MAX,
    Bid,
    Clearing,
    SeatClass,
    SeatOffer,
    clear,
)
from assay.protocol.types import NO_DIGEST, Address, Digest, PeerId

CLASS = SeatClass(speed=38, memory=33, days=5, lot=30)
HASH = Digest(b"\5" * 32)


def who(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


def a_bid(number: int, most: int, seats: int = 1, least: int = 1) -> Bid:
    return Bid(
        deployment_id=NO_DIGEST, account=who(number), order=NO_DIGEST, seat_class=CLASS, seats=seats,
        least_seats=least, most_price=most,
    )  # fmt: skip


def an_offer(number: int, least: int, seats: int = 1) -> SeatOffer:
    return SeatOffer(
        deployment_id=NO_DIGEST, account=who(number), hot=who(number), peer=PeerId(NO_DIGEST),
        seat_class=CLASS, seats=seats, least_price=least, from_s=0, until_s=1, sequence=0,
    )  # fmt: skip


def bids_of(*pairs: tuple[int, ...]) -> list[Bid]:
    return [a_bid(number, *pair) for number, pair in enumerate(pairs)]


def offers_of(*pairs: tuple[int, ...]) -> list[SeatOffer]:
    return [an_offer(100 + number, *pair) for number, pair in enumerate(pairs)]


PRICE = st.integers(0, 6)
SIDE = st.lists(st.tuples(PRICE, st.integers(0, 3)), max_size=5)
BIDS = st.lists(st.tuples(PRICE, st.integers(0, 3), st.integers(0, 4)), max_size=5)


def by_definition(bids: list[Bid], offers: list[SeatOffer]) -> tuple[int, int]:
    """Seats and price of divisible bids, seat by seat: the most seats that some price has, and that price."""
    most = sorted((one.most_price for one in bids for _ in range(one.seats)), reverse=True)
    least = sorted(one.least_price for one in offers for _ in range(one.seats))
    k = max(k for k in range(min(len(most), len(least)) + 1) if all(map(int.__ge__, most[:k], least[:k])))
    return k, 0 if not k else min([most[k - 1], *least[k : k + 1]])


def surplus(bids: list[Bid], offers: list[SeatOffer], found: Clearing) -> int:
    most, least = {b.account: b.most_price for b in bids}, {o.account: o.least_price for o in offers}
    return sum(one.seats * (most[one.buyer] - least[one.operator]) for one in found.trades)


# ---- the price


def test_the_price_is_that_of_the_first_seat_which_is_not_sold():
    found = clear(bids_of((9, 3), (7,), (4,)), offers_of((2,), (3, 2), (5,), (6,)), HASH)

    assert (found.price, sum(one.seats for one in found.trades)) == (6, 4)


def test_or_the_most_of_the_last_one_bought_where_that_is_lower_or_all_are_sold():
    assert clear(bids_of((9, 3), (5,)), offers_of((2, 3), (5,), (6,)), HASH).price == 5
    assert clear(bids_of((9, 2)), offers_of((2,), (3,)), HASH).price == 9


def test_nobody_trades_where_nobody_agrees():
    assert clear(bids_of((1,)), offers_of((2,)), HASH) == Clearing(price=0, trades=())
    assert clear([], offers_of((2,)), HASH) == clear(bids_of((1,)), [], HASH) == Clearing(price=0, trades=())


def test_every_batch_of_three_seats_a_side_clears_as_defined():
    for most in itertools.combinations_with_replacement(range(5), 3):
        for least in itertools.combinations_with_replacement(range(5), 3):
            bids, offers = bids_of(*((one,) for one in most)), offers_of(*((one,) for one in least))
            found = clear(bids, offers, HASH)
            assert (sum(one.seats for one in found.trades), found.price) == by_definition(bids, offers)


@given(SIDE, SIDE)
def test_any_batch_clears_as_defined(most: list[tuple[int, int]], least: list[tuple[int, int]]):
    bids, offers = bids_of(*most), offers_of(*least)

    found = clear(bids, offers, HASH)

    assert (sum(one.seats for one in found.trades), found.price) == by_definition(bids, offers)


@given(SIDE, SIDE)
def test_no_other_choice_of_seats_is_worth_more(most: list[tuple[int, int]], least: list[tuple[int, int]]):
    bids, offers = bids_of(*most), offers_of(*least)
    values = sorted((b.most_price for b in bids for _ in range(b.seats)), reverse=True)
    costs = sorted(o.least_price for o in offers for _ in range(o.seats))

    best = max(sum(values[:k]) - sum(costs[:k]) for k in range(min(len(values), len(costs)) + 1))

    assert surplus(bids, offers, clear(bids, offers, HASH)) == best


@given(BIDS, SIDE)
def test_nobody_trades_at_a_loss_or_more_than_it_said_or_fewer_than_are_of_use(
    most: list[tuple[int, int, int]], least: list[tuple[int, int]]
):
    bids, offers = bids_of(*most), offers_of(*least)

    found = clear(bids, offers, HASH)

    for bid in bids:
        got = found.seats_bought(bid.account)
        assert got == 0 or (found.price <= bid.most_price and bid.least_seats <= got <= bid.seats)
    for offer in offers:
        sold = found.seats_sold(offer.account)
        assert sold == 0 or (found.price >= offer.least_price and sold <= offer.seats)
    assert all(one.seats for one in found.trades)


@given(BIDS, SIDE)
def test_whoever_is_left_out_would_not_gain_at_the_price(
    most: list[tuple[int, int, int]], least: list[tuple[int, int]]
):
    """Nothing cheaper than the price is unsold, and of those who would pay more only bids go without that
    need more seats than there were for them."""
    bids, offers = bids_of(*most), offers_of(*least)
    found = clear(bids, offers, HASH)
    if not found.trades:
        return

    assert all(o.least_price >= found.price for o in offers if found.seats_sold(o.account) < o.seats)
    short = [b for b in bids if found.seats_bought(b.account) < b.seats and b.most_price > found.price]
    assert all(b.least_seats > 1 and not found.seats_bought(b.account) for b in short)


# ---- what one lie buys


@given(BIDS, SIDE, st.data())
def test_an_operator_of_one_seat_gains_nothing_by_another_price_than_its_true_one(
    most: list[tuple[int, int, int]], least: list[tuple[int, int]], data: st.DataObject
):
    cost, said = data.draw(PRICE), data.draw(PRICE)
    bids, others = bids_of(*most), offers_of(*least)

    def gain(least_price: int) -> int:
        found = clear(bids, [*others, an_offer(7, least_price)], HASH)
        return found.seats_sold(who(7)) * (found.price - cost)

    assert gain(said) <= gain(cost)


@pytest.mark.slow
@settings(max_examples=300)
@given(BIDS, SIDE, st.data())
def test_who_asks_less_or_pays_more_never_trades_fewer_seats(
    most: list[tuple[int, int, int]], least: list[tuple[int, int]], data: st.DataObject
):
    bids, offers = bids_of(*most), offers_of(*least)
    if offers:
        at = data.draw(st.integers(0, len(offers) - 1))
        one = offers[at]
        cheaper = [
            *offers[:at],
            replace(one, least_price=data.draw(st.integers(0, one.least_price))),
            *offers[at + 1 :],
        ]
        before, after = clear(bids, offers, HASH), clear(bids, cheaper, HASH)
        assert after.seats_sold(one.account) >= before.seats_sold(one.account)
    if bids:
        at = data.draw(st.integers(0, len(bids) - 1))
        bid = bids[at]
        dearer = [*bids[:at], replace(bid, most_price=bid.most_price + data.draw(PRICE)), *bids[at + 1 :]]
        before, after = clear(bids, offers, HASH), clear(dearer, offers, HASH)
        assert after.seats_bought(bid.account) >= before.seats_bought(bid.account)


@given(SIDE, SIDE, st.tuples(PRICE, st.integers(0, 3)))
def test_a_further_offer_never_raises_the_price_and_a_further_bid_never_lowers_it(
    most: list[tuple[int, int]], least: list[tuple[int, int]], more: tuple[int, int]
):
    bids, offers = bids_of(*most), offers_of(*least)
    before = clear(bids, offers, HASH)
    if not before.trades:
        return

    assert clear(bids, [*offers, an_offer(7, *more)], HASH).price <= before.price
    assert clear([*bids, a_bid(8, *more)], offers, HASH).price >= before.price


def test_a_wash_offer_that_is_dear_moves_no_price_while_an_honest_one_is_left_over():
    bids, offers = bids_of((9, 2)), offers_of((2,), (3,), (4,))
    honest = clear(bids, offers, HASH)

    assert honest.price == 4
    assert clear(bids, [*offers, an_offer(7, 8, seats=3)], HASH) == honest


def test_an_operator_that_holds_seats_back_raises_the_price_to_the_next_offer_and_never_above_the_bid():
    bids = bids_of((9, 2))

    assert clear(bids, offers_of((2, 4), (6,)), HASH).price == 2
    assert clear(bids, offers_of((2, 2), (6,)), HASH).price == 6
    assert clear(bids, offers_of((2, 2)), HASH).price == 9  # the bid is what protects its buyer


def test_a_bid_that_needs_more_seats_than_there_are_is_left_out_and_keeps_nobody_else_out():
    bids, offers = bids_of((9, 4, 4), (5, 2)), offers_of((1,), (2,), (3,))

    found = clear(bids, offers, HASH)

    assert (found.seats_bought(who(0)), found.seats_bought(who(1)), found.price) == (0, 2, 3)


# ---- ties and order


def test_equal_prices_are_drawn_by_the_block_and_by_nothing_that_an_account_says():
    offers = offers_of(*((3,) for _ in range(6)))
    bids = bids_of((3,))
    first = {clear(bids, offers, Digest(bytes([salt]) * 32)).trades[0].operator for salt in range(64)}

    assert len(first) == 6
    (sold,) = clear(bids, offers, HASH).trades
    others = [replace(one, sequence=9, until_s=9, peer=PeerId(b"\x09" * 32)) for one in offers]
    assert clear(bids, others, HASH).trades == (sold,)


@given(BIDS, SIDE, st.randoms(use_true_random=False))
def test_the_order_of_arrival_is_nothing(most, least, random):
    bids, offers = bids_of(*most), offers_of(*least)
    found = clear(bids, offers, HASH)
    random.shuffle(bids)
    random.shuffle(offers)

    assert clear(bids, offers, HASH) == found


def test_an_account_is_in_a_batch_once_and_a_batch_is_of_one_class():
    with pytest.raises(ValueError, match="two offers"):
        clear([], [an_offer(1, 2), an_offer(1, 3)], HASH)
    with pytest.raises(ValueError, match="two bids"):
        clear([a_bid(1, 2), a_bid(1, 3)], [], HASH)
    with pytest.raises(ValueError, match="2 classes"):
        clear([a_bid(1, 2)], [replace(an_offer(1, 2), seat_class=replace(CLASS, days=6))], HASH)


def test_a_clearing_travels_and_an_offer_of_more_than_its_bounds_does_not():
    found = clear(bids_of((9, 2)), offers_of((2,), (3,)), HASH)
    assert decode(Clearing, encode(found)) == found

    body = encode(an_offer(1, 2, seats=SEATS_MAX))
    assert decode(SeatOffer, body).seats == SEATS_MAX
    with pytest.raises(MalformedMessage, match=r"SeatOffer.seats: expected an integer from 0 to 1024"):
        decode(SeatOffer, body.replace(b"\x19\x04\x00", b"\x19\x04\x01"))
