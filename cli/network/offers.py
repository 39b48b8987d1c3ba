"""Offers: lists what a network's operators offer to buyers.

Room: cli (edge). What counts is participant/market/standing.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from assay.cli.network.commands import InvitationText
from assay.cli.network.directory import Rpc, chain_of
from assay.cli.result import AsJson, show
from assay.orders.amounts import bytes_text

if TYPE_CHECKING:
    from assay.participant.market.standing import Standing
    from assay.protocol.market import SeatClass


def add_offers_command(app: typer.Typer) -> None:
    """Add the list of offers to `assay network`."""
    app.command("offers")(list_offers)


def list_offers(invitation: InvitationText, rpc: Rpc = None, as_json: AsJson = False) -> None:
    """List the seats that a network's operators offer: how many, of which class, from which price on.

    Example: assay network offers network.txt
    """
    from assay.participant.market.standing import read_standing

    found = read_standing(chain_of(invitation, rpc))
    show(found, standing_lines(found), as_json=as_json)


def standing_lines(found: Standing) -> Iterator[str]:
    """Offers for people, two lines each, the cheapest first."""
    from assay.chain.commit_statement import evm_address
    from assay.chain.text.times import when_text
    from assay.chain.text.units import token_text

    for one in found.offers:
        offer = one.offer
        counted = "" if one.seats == offer.seats else f" ({offer.seats} offered; the free stake is for fewer)"
        price = f"from {token_text(offer.least_price)} an hour"
        yield f"{evm_address(offer.account)}  {one.seats} seats{counted} {price}"
        yield f"    each {class_text(offer.seat_class)}; until {when_text(offer.until_s, found.as_of)}"
    yield (
        f"{len(found.offers)} offers as of block {found.block}; {found.announced} accounts with stake are in "
        f"the directory, of {found.unreadable} the offer could not be read"
    )


def class_text(one: SeatClass) -> str:
    """A class of seats for people."""
    from assay.chain.text.units import money_text

    return (
        f"{one.speed}-{one.memory}-{one.days}-{one.lot}: {(1 << one.speed) / 1e9:,.3g} GFLOP/s, "
        f"{bytes_text(1 << one.memory)}, {1 << one.days} days, a lot of up to {money_text(1 << one.lot)}"
    )
