"""A quote says what a network's offers make of an order's price, as a batch with no other bid would clear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.orders.load import load_order
from assay.orders.order import Order
from assay.orders.price.market import bid_of, market_quote
from assay.orders.price.quote import quote_of
from assay.participant.market.standing import Standing, StandingOffer
from assay.participant.market.work import hourly_pay
from assay.protocol.errors import ConfigError
from assay.protocol.market import SeatClass, SeatOffer
from assay.protocol.types import Address, Digest, PeerId

CLASS = SeatClass(speed=36, memory=34, days=5, lot=40)
NETWORK = Digest(b"n" * 32)


def an_order(**changes: object) -> Order:
    given = {
        "run.nodes": 0, "run.least_nodes": 2, "run.seats": 3, "run.verifiers": 4, "run.rounds": 7,
        "budget.price_per_mtoken": 10_000_000, "verify.known_answers": 0, **changes,
    }  # fmt: skip
    return load_order(None, given)


def standing(*offers: tuple[int, int], seat_class: SeatClass = CLASS) -> Standing:
    """Offers of (least price, seats)."""
    return Standing(
        block=9, block_hash=b"\5" * 32, as_of=1000, announced=len(offers), unreadable=0,
        offers=tuple(
            StandingOffer(
                offer=SeatOffer(
                    deployment_id=NETWORK, account=Address(bytes([at]) * 20), hot=Address(bytes(20)),
                    peer=PeerId(bytes(32)), seat_class=seat_class, seats=9, least_price=least, from_s=0,
                    until_s=2000, sequence=0,
                ),
                seats=seats, free_stake=0,
            )
            for at, (least, seats) in enumerate(offers)
        ),
    )  # fmt: skip


def own_pay(order: Order) -> int:
    return hourly_pay(quote_of(order).terms, 1 << CLASS.speed)


def test_a_quote_says_what_the_seats_would_cost_and_which_price_fills_them():
    order = an_order()
    pay = own_pay(order)
    found = market_quote(order, standing((pay // 4, 1), (pay // 2, 1), (pay // 3, 1), (pay, 1)), days=30)

    (one,) = found.classes
    assert (found.seats_wanted, found.block, one.offers, one.seats) == (3, 9, 4, 4)
    assert (one.most_price, one.price, one.seats_filled) == (pay, pay, 3)
    assert one.fill_price_per_mtoken is not None and one.price_per_mtoken is not None
    cheaper = an_order(**{"budget.price_per_mtoken": one.fill_price_per_mtoken})
    assert (
        market_quote(cheaper, standing((pay // 4, 1), (pay // 2, 1), (pay // 3, 1)), 30)
        .classes[0]
        .seats_filled
        == 3
    )
    too_cheap = an_order(**{"budget.price_per_mtoken": one.fill_price_per_mtoken - 1})
    assert own_pay(too_cheap) < pay // 2
    assert one.price_per_mtoken <= order.budget.price_per_mtoken


def test_seats_that_do_not_count_or_cannot_serve_are_not_in_it():
    order = an_order()
    assert market_quote(order, standing((1, 0)), days=30).classes == ()
    for other in (
        replace(CLASS, speed=1), replace(CLASS, memory=1), replace(CLASS, days=1), replace(CLASS, lot=1)
    ):  # fmt: skip
        assert market_quote(order, standing((1, 9), seat_class=other), days=30).classes == ()
    assert market_quote(order, standing((1, 9)), days=33).classes == ()


def test_too_few_seats_are_said_to_be_too_few_and_fewer_than_are_needed_are_none():
    order = an_order()
    (two,) = market_quote(order, standing((1, 2)), days=30).classes
    assert (two.seats_filled, two.fill_price_per_mtoken) == (2, None)
    (one,) = market_quote(order, standing((1, 1)), days=30).classes
    assert (one.seats_filled, one.price, one.price_per_mtoken) == (0, 0, None)


def test_classes_that_fill_all_seats_come_first_and_the_cheapest_of_them():
    order, cheap, dear = an_order(), standing((1, 3)), standing((9, 3), seat_class=replace(CLASS, days=6))
    few = standing((1, 2), seat_class=replace(CLASS, days=7))
    both = replace(cheap, offers=(*few.offers, *dear.offers, *cheap.offers))

    assert [one.seat_class.days for one in market_quote(order, both, days=30).classes] == [5, 6, 7]


def test_a_bid_is_for_the_seats_that_the_order_does_not_name():
    order = an_order(**{"run.nodes": 1})
    bid = bid_of(order, CLASS, Address(b"b" * 20), NETWORK)

    assert (bid.seats, bid.least_seats, bid.order) == (2, 1, quote_of(order).name)
    with pytest.raises(ConfigError, match="names 3 nodes for 3 seats"):
        market_quote(an_order(**{"run.nodes": 3, "run.least_nodes": 3}), standing((1, 9)), days=30)
    one_seat = an_order(**{"run.nodes": 2})
    assert market_quote(one_seat, standing((1, 9)), days=30).seats_wanted == 1
    assert bid_of(one_seat, CLASS, Address(b"b" * 20), NETWORK).least_seats == 1  # not 0: that buys nothing
    assert market_quote(an_order(**{"run.seats": 1024}), standing((1, 9)), days=30).seats_wanted == 1024
