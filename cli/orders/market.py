"""Order market: a quote with the prices of a network's offers, as text.

Room: cli (edge). The values are those of orders/price/market.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.chain.text.times import time_text
from assay.chain.text.units import money_text, token_text
from assay.cli.network.offers import class_text
from assay.cli.orders.money import quote_lines
from assay.orders.price.market import ClassQuote, MarketQuote


def market_lines(found: MarketQuote) -> Iterator[str]:
    """A quote, and three lines for each class of seats that can serve the order."""
    yield from quote_lines(found.quote)
    yield (
        f"market    offers as of block {found.block}, {time_text(found.as_of)}, for {found.seats_wanted} "
        f"seats and {found.days} days; nobody has certified it, and another buyer may be faster"
    )
    for one in found.classes:
        yield from _class_lines(one, found.seats_wanted)
    if not found.classes:
        yield "offers    none of seats that can serve this order"


def _class_lines(one: ClassQuote, wanted: int) -> Iterator[str]:
    yield f"class     {class_text(one.seat_class)}: {one.seats} seats of {one.offers} operators"
    if one.fill_price_per_mtoken is None:
        yield f"          too few for all {wanted} at any price"
    else:
        yield f"          all {wanted} from {token_text(one.fill_price_per_mtoken)} per 10^6 tokens on"
    own = f"the order's price is {money_text(one.most_price)} an hour of a seat"
    if one.price_per_mtoken is None:
        yield f"          {own}: it would fill none"
    else:
        yield (
            f"          {own}: it would fill {one.seats_filled}, at {money_text(one.price)} an hour, "
            f"{token_text(one.price_per_mtoken)} per 10^6 tokens"
        )
