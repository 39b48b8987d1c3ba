"""Operators' offers on a real chain: who offers what, with which stake, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.chain.client import UNIT
from assay.chain.commit_statement import evm_address
from assay.chain.reader import ChainReader
from assay.chain.statements import OPERATOR
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.participant.market.offer import OFFER_SLOT, sign_offer
from assay.participant.market.standing import announce_offer, read_standing
from assay.protocol.encoding.codec import encode
from assay.protocol.market import SeatClass
from assay.testing.signed import NODES
from tests.a_network import a_record, keys_of
from tests.cli.market import PURSE, Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow
CLASS = SeatClass(speed=33, memory=33, days=5, lot=29)  # of the operator below
LOT = 1 << CLASS.lot
TABLE = """[operator]
reserve = 0.25
lots = 1_200
runs = 2
memory_gb = 20
"""


def an_operator(market: Market, name: str, table: str = TABLE) -> Path:
    """The configuration of an operator whose machine's speed is known."""
    file = market.config_of(name, network="../invitation.txt", folder=".")
    write_record(file.parent / "keys" / OWN_RECORD, a_record(name, Role.NODE))
    (file.parent / "runs").mkdir(exist_ok=True)
    (file.parent / "runs" / "speed").write_text(f"{10**10}\n")
    file.write_text(f"{file.read_text()}{table}")
    market.invitation()
    return file


def listed(assay: Assay, market: Market) -> dict[str, Any]:
    code, out, err = assay("network", "offers", market.invitation(), "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def offered(market: Market, name: str, stake: int = 4 * LOT, **changes: Any) -> None:
    """Stake, and an offer that no command made."""
    chain = market.as_(name)
    lacking = stake - chain.stake_of(chain.address, OPERATOR).active
    if lacking > 0:
        chain.stake(OPERATOR, lacking)
    now = market.bank.timestamp()
    given: dict[str, Any] = {"seats": 2, "least_price": 10, "from_s": now, "until_s": now + 86_400, **changes}
    network = given.pop("network", market.deployment.deployment_id)
    keys, seat_class = keys_of(given.pop("signer", name)), given.pop("seat_class", CLASS)
    announce_offer(chain, sign_offer(keys, network, seat_class, **given))


def counted(market: Market) -> dict[str, int]:
    names = {wallet(name): name for name in (*NODES, "stranger")}
    return {names[evm_address(one.offer.account)]: one.seats for one in read_standing(market.bank).offers}


def test_an_operator_offers_what_its_process_would_serve_and_takes_it_back(assay: Assay, market: Market):
    market.as_("stranger").stake(OPERATOR, 3 * LOT)
    file = an_operator(market, "stranger")
    would = assay("operator", "offer", file, "--dry-run")
    assert would.status == 0 and "would announce" in would.out and listed(assay, market)["offers"] == [], (
        would.err
    )

    code, out, err = assay("operator", "offer", file)

    assert code == 0, err
    assert "offered 2 seats, each 33-33-5-29: 8.59 GFLOP/s" in out
    assert "from 0.250000 aUSD an hour" in out
    found = listed(assay, market)
    (one,) = found["offers"]
    assert (one["seats"], one["offer"]["seats"], one["offer"]["least_price"]) == (2, 2, 250_000)
    assert one["offer"]["seat_class"] == {"speed": 33, "memory": 33, "days": 5, "lot": 29}
    assert wallet("stranger") in assay("network", "offers", market.invitation()).out
    before = market.bank.block_number()
    assert "offered already" in assay("operator", "offer", file).out
    assert market.bank.block_number() == before

    assert "offered nothing any more" in assay("operator", "offer", file, "--withdraw").out
    assert listed(assay, market)["offers"] == []
    assert "nothing is offered" in assay("operator", "offer", file, "--withdraw").out
    then = market.bank.head(before)
    assert len(read_standing(market.bank, then).offers) == 1  # as of that block it stands, whoever asks when


def test_only_seats_with_a_free_lot_behind_them_count(assay: Assay, market: Market):
    offered(market, "stranger", stake=2 * LOT - 1)
    assert counted(market) == {"stranger": 1}
    assert (
        "1 seats (2 offered; the free stake is for fewer)"
        in assay("network", "offers", market.invitation()).out
    )

    market.as_("stranger").stake(OPERATOR, 1)
    assert counted(market) == {"stranger": 2}

    market.as_("stranger").ensure_lot(OPERATOR, b"\1" * 32, LOT, market.bank.timestamp() + 86_400)
    assert counted(market) == {"stranger": 1}  # one machine is not sold twice: its lot is locked


def test_seats_of_an_account_that_can_take_no_run_do_not_count(
    market: Market, monkeypatch: pytest.MonkeyPatch
):
    chain, least = market.as_("stranger"), market.params.min_operator_stake
    offered(market, "stranger", stake=least, seat_class=replace(CLASS, lot=2))
    assert counted(market) == {"stranger": 2}
    with monkeypatch.context() as patched:
        patched.setattr(ChainReader, "is_banned", lambda *_: True)
        assert counted(market) == {"stranger": 0}

    slashed, whole = replace(chain.stake_of(chain.address, OPERATOR), active=least - 1), ChainReader.stake_of
    monkeypatch.setattr(ChainReader, "stake_of", lambda *_: slashed)
    assert counted(market) == {"stranger": 0}  # what is left would cover the lots, but is no operator's stake
    monkeypatch.setattr(ChainReader, "stake_of", whole)
    assert counted(market) == {"stranger": 2}


def test_an_operator_is_told_that_its_stake_is_for_fewer(assay: Assay, market: Market):
    market.as_("stranger").stake(OPERATOR, LOT)
    said = assay("operator", "offer", an_operator(market, "stranger"))

    assert "is for 1 seats: no more count" in said.out, said.err


def test_an_offer_counts_within_its_time_alone(market: Market):
    now = market.bank.timestamp()
    offered(market, "stranger", from_s=now + 3600, until_s=now + 7200)
    assert counted(market) == {}
    market.advance(3600)
    assert counted(market) == {"stranger": 2}
    market.advance(3600)
    assert counted(market) == {}


def test_nobody_offers_for_another_or_replays_what_another_offered(market: Market):
    offered(market, "nora", least_price=10)
    market.as_("stranger").stake(OPERATOR, 4 * LOT)
    now = market.bank.timestamp()
    body = encode(
        sign_offer(keys_of("nora"), market.deployment.deployment_id, CLASS, seats=9, least_price=1,
                   from_s=now, until_s=now + 10)
    )  # fmt: skip
    market.as_("stranger").announce_record(OFFER_SLOT, body)

    found = read_standing(market.bank)
    assert counted(market) == {"nora": 2} and found.unreadable == 1


@pytest.mark.parametrize(
    "change", [{"network": b"n" * 32}, {"signer": "vera"}], ids=lambda change: next(iter(change))
)
def test_an_offer_for_another_network_or_of_another_account_is_left_out(
    market: Market, change: dict[str, Any]
):
    offered(market, "stranger", **change)

    assert counted(market) == {} and read_standing(market.bank).unreadable == 1


def test_an_account_without_stake_offers_nothing(market: Market):
    now = market.bank.timestamp()
    offer = sign_offer(
        keys_of("stranger"), market.deployment.deployment_id, CLASS, seats=9, least_price=1, from_s=now,
        until_s=now + 99,
    )  # fmt: skip
    announce_offer(market.as_("stranger"), offer)
    assert read_standing(market.bank).offers == ()

    market.as_("stranger").stake(OPERATOR, 4 * LOT)
    offered(market, "stranger")
    assert counted(market) == {"stranger": 2}
    market.as_("stranger").request_unstake(OPERATOR, 4 * LOT)
    assert counted(market) == {"stranger": 0}


def test_an_offer_of_before_there_was_stake_is_made_again(assay: Assay, market: Market):
    file = an_operator(market, "stranger")
    assert "is for 0 seats" in assay("operator", "offer", file).out
    assert listed(assay, market)["offers"] == []  # the directory lists who has stake
    market.as_("stranger").stake(OPERATOR, 4 * LOT)

    assert "offered 2 seats" in assay("operator", "offer", file).out

    assert counted(market) == {"stranger": 2}


def test_offers_and_records_of_one_account_do_not_hide_each_other(assay: Assay, market: Market):
    offered(market, "stranger")
    file = an_operator(market, "stranger")
    assert assay("network", "announce", file)[0] == 0
    assert counted(market) == {"stranger": 2}
    offered(market, "stranger", least_price=11)

    code, out, err = assay("network", "list", market.invitation(), "--json")

    assert code == 0, err
    (one,) = [one for one in json.loads(out)["stakers"] if one["account"] == wallet("stranger")]
    assert one["place"]["port"] == 4001 and counted(market) == {"stranger": 2}


def test_an_order_is_quoted_at_what_the_offers_ask(assay: Assay, market: Market):
    order = market.order_file.read_text().replace("nodes = 3", "nodes = 0\nleast_nodes = 2\nseats = 3")
    market.order_file.write_text(f"{order}operator_stake = 100\n")
    for name, price in (("nora", 1 * UNIT), ("stranger", 3 * UNIT)):
        offered(market, name, stake=PURSE // 2, least_price=price)

    code, out, err = assay("order", "quote", market.order_file, "--network", market.invitation(), "--json")

    assert code == 0, err
    found = json.loads(out)
    (one,) = found["classes"]
    assert (found["seats_wanted"], one["seats"], one["seats_filled"], one["price"]) == (3, 4, 3, 3 * UNIT)
    assert found["quote"]["price_per_mtoken"] > one["price_per_mtoken"] == one["fill_price_per_mtoken"]
    said = assay("order", "quote", market.order_file, "--network", market.invitation()).out
    assert "nobody has certified it" in said and "all 3 from" in said
