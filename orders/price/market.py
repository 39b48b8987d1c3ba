"""Market: at which price the offers of a network would fill an order's seats.

Room: orders (pure). Nobody has certified it: it is what the verifiers would compute of the same block if no
other buyer bid for the class.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.orders.order import Order
from assay.orders.price.quote import quote_of
from assay.orders.price.quoted import Quoted, quoted
from assay.participant.market.standing import Standing
from assay.participant.market.work import hourly_pay, price_per_mtoken, serves
from assay.protocol.errors import ConfigError
from assay.protocol.market import PRICE_MAX, SEATS_MAX, Bid, SeatClass, clear, price_to_fill
from assay.protocol.types import Address, Digest

_NOBODY = Address(bytes(20))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassQuote:
    """What one class of seats would cost; prices in token units, an hour or for 10^6 tokens."""

    seat_class: SeatClass
    offers: int
    seats: int  # that these offer
    most_price: int  # what the order's own price is an hour of such a seat
    price: int  # at which a batch would clear; 0: nobody offers at the order's price
    seats_filled: int
    price_per_mtoken: int | None  # of the order, for that price; None where there is none
    fill_price_per_mtoken: int | None  # the least that fills all its seats; None: too few are offered


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketQuote:
    """An order's quote, and what the offers of a network make of its price; certified by nobody."""

    quote: Quoted
    block: int  # as of which the offers are read
    as_of: int  # its time
    seats_wanted: int
    days: int
    classes: tuple[ClassQuote, ...]  # that can serve the order, those that fill all its seats cheapest first


def market_quote(order: Order, standing: Standing, days: int) -> MarketQuote:
    """An order's quote with the market's prices.

    Args:
        order: What would be bought: the seats of the nodes that the order does not name.
        standing: The network's offers.
        days: For which the lots would be bound: until the run's deadline.

    Raises:
        ConfigError: as `quote_of`, or the order names all its nodes.
    """
    wanted = order.seats - order.run.nodes
    if not 0 < wanted <= SEATS_MAX:
        raise ConfigError(
            f"the order names {order.run.nodes} nodes for {order.seats} seats, so offers fill {wanted}; "
            f"expected 1 to {SEATS_MAX}: fewer [run] nodes, or more seats"
        )
    found = [
        _class_quote(order, standing, one, wanted)
        for one in standing.by_class()
        if serves(one, quote_of(order).terms, days, order.lot_units)
    ]
    return MarketQuote(
        quote=quoted(order),
        block=standing.block,
        as_of=standing.as_of,
        seats_wanted=wanted,
        days=days,
        classes=tuple(sorted(found, key=_cheapest_first)),
    )


def bid_of(order: Order, seat_class: SeatClass, account: Address, deployment_id: Digest) -> Bid:
    """A buyer's bid for the seats that its order does not name, at the order's own price."""
    quote = quote_of(order)
    return Bid(
        deployment_id=deployment_id,
        account=account,
        order=quote.name,
        seat_class=seat_class,
        seats=order.seats - order.run.nodes,
        least_seats=max(order.least_nodes - order.run.nodes, 1),
        most_price=min(hourly_pay(quote.terms, 1 << seat_class.speed), PRICE_MAX),
    )


def _class_quote(order: Order, standing: Standing, seat_class: SeatClass, wanted: int) -> ClassQuote:
    terms, offers = quote_of(order).terms, standing.by_class()[seat_class]
    bid = bid_of(order, seat_class, _NOBODY, Digest(offers[0].deployment_id))
    cleared = clear([bid], offers, Digest(standing.block_hash))
    to_fill = price_to_fill(offers, wanted)
    return ClassQuote(
        seat_class=seat_class,
        offers=len(offers),
        seats=sum(one.seats for one in offers),
        most_price=bid.most_price,
        price=cleared.price,
        seats_filled=cleared.seats_bought(_NOBODY),
        price_per_mtoken=price_per_mtoken(terms, seat_class, cleared.price) if cleared.trades else None,
        fill_price_per_mtoken=None if to_fill is None else price_per_mtoken(terms, seat_class, to_fill),
    )


def _cheapest_first(one: ClassQuote) -> tuple[bool, int, int]:
    to_fill = one.fill_price_per_mtoken
    return to_fill is None, to_fill or 0, -one.seats_filled
