"""A verifier set that its network's stakes and its chain's randomness choose, installed by commands."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from assay.chain.draw import DELAY_S, LOCKED_S, draw_order, next_draw, seed_of
from assay.chain.reader import ChainReader
from assay.chain.state import LotState
from assay.chain.statements import VERIFIER, Address, term_of
from assay.participant.files.record import Role, write_record
from assay.testing.members import peer
from assay.testing.signed import VERIFIERS
from tests.a_network import a_record
from tests.cli.market import PURSE, WINDOWS, Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow

LEAST, DAY = WINDOWS.min_verifier_stake, 86_400
NEW = ["nova", "nora", "nils"]
STAKES = {name: LEAST * (1 + at) for at, name in enumerate([*VERIFIERS, *NEW])}


def lock(market: Market, name: str, amount: int, days: int = 390) -> None:
    """This verifier's lot for the second set."""
    chain = market.as_(name)
    chain.stake(VERIFIER, amount)
    chain.ensure_lot(VERIFIER, term_of(2), amount, market.bank.timestamp() + days * DAY)


def release(market: Market, name: str) -> None:
    market.as_(name).release_lot(wallet(name), VERIFIER, term_of(2))


def candidates(market: Market, stakes: dict[str, int]) -> None:
    """Everybody has a lot for the second set, a hot key and an announced record."""
    market.bank.fund_many(
        [wallet(name) for name in stakes if name not in VERIFIERS], token_amount=PURSE, amount_wei=10**18
    )
    for name, amount in stakes.items():
        lock(market, name, amount)
        market.delegate(name)
        market.as_(name).announce_record(peer(name), b"where I am")


def wait_until(market: Market, time_s: int) -> None:
    market.advance(time_s - market.bank.timestamp())


def expected_order(market: Market, weights: dict[str, int], since_s: int) -> list[Address]:
    """The order of the draw, by the first block at or after this time."""
    numbers = range(market.deployment.block, market.bank.block_number() + 1)
    blocks = (market.rpc("eth_getBlockByNumber", hex(number), False) for number in numbers)
    first = next(block for block in blocks if int(block["timestamp"], 16) >= since_s)
    seed = seed_of(market.deployment.deployment_id, 2, bytes.fromhex(first["mixHash"][2:]))
    return draw_order({wallet(name): amount for name, amount in weights.items()}, len(VERIFIERS), seed)


def sign_drawn(assay: Assay, market: Market) -> list[str]:
    """A quorum's signatures on the drawn set, as options of `rotate`."""
    found: list[str] = []
    for name in VERIFIERS[:3]:
        code, out, err = assay("network", "sign-rotation", market.config_of(name), "--drawn", "--json")
        assert code == 0, err
        found += ["--signature", json.loads(out)["steps"][-1]["text"]]
    return found


def test_the_set_that_was_drawn_is_installed(assay: Assay, market: Market):
    drawn_s = next_draw(market.bank.timestamp())
    candidates(market, STAKES)
    config = market.config_of(VERIFIERS[0])
    code, _, err = assay("network", "sign-rotation", config, "--drawn")
    assert code == 1 and "a draw replaces it after 60 d" in err

    wait_until(market, drawn_s - LOCKED_S)
    market.bank.fund_many([wallet("late")], token_amount=PURSE, amount_wei=10**18)
    lock(market, "late", 50 * LEAST)  # counts in no draw before the next
    wait_until(market, drawn_s - 60)
    release(market, "nils")
    wait_until(market, drawn_s)  # these blocks' randomness could have been known in the last that counts
    wait_until(market, drawn_s + DELAY_S)
    order = expected_order(
        market, {name: STAKES[name] for name in STAKES if name != "nils"}, drawn_s + DELAY_S
    )
    by_wallet = {wallet(name): name for name in STAKES}
    release(market, by_wallet[order[0]])  # who sees its seat and leaves
    lock(market, by_wallet[order[0]], STAKES[by_wallet[order[0]]])  # and comes back when others have signed
    members = sorted(order[1 : 1 + len(VERIFIERS)], key=str.lower)

    command = ("network", "rotate", market.config_of("stranger"), "--drawn")
    code, out, err = assay(*command, *sign_drawn(assay, market))

    assert code == 0 and "verifier set 2 is the present one" in out, err
    assert list(market.bank.verifier_set(2)) == members
    assert all(f"{account}  " in out for account in order)
    assert out.count(": seated") == len(VERIFIERS) and wallet("late") not in out
    assert f"{order[0]}  " in out and "it released its lot after the draw" in out
    code, _, err = assay("network", "sign-rotation", config, "--drawn")
    assert code == 1 and "verifier set 2 is there since" in err


def test_a_set_other_than_the_drawn_one_is_not_signed(assay: Assay, market: Market):
    drawn_s = next_draw(market.bank.timestamp())
    candidates(market, STAKES)
    wait_until(market, drawn_s + DELAY_S)
    order = expected_order(market, STAKES, drawn_s + DELAY_S)
    signatures = sign_drawn(assay, market)
    by_wallet = {wallet(name): name for name in STAKES}
    records = []
    for account in [*order[:3], order[4]]:  # one seat is another's
        records.append(market.folder / f"{account}.record")
        write_record(records[-1], a_record(by_wallet[account], Role.VERIFIER))
    file = market.config_of("stranger")

    code, _, err = assay("network", "rotate", file, *records, *signatures)

    assert code != 0 and "NotAMember" in err
    assert market.bank.set_version() == 1
    code, _, err = assay("network", "rotate", file, *records, "--drawn", *signatures)
    assert code == 2 and "either" in err
    code, _, err = assay("network", "sign-rotation", file)
    assert code == 2 and "either" in err
    assert assay("network", "rotate", file, "--drawn", *signatures).status == 0


def test_a_chain_whose_blocks_have_no_randomness_draws_no_set(
    assay: Assay, market: Market, monkeypatch: pytest.MonkeyPatch
):
    wait_until(market, next_draw(market.bank.timestamp()) + DELAY_S)
    monkeypatch.setattr(ChainReader, "randomness", lambda *_: (1).to_bytes(32, "big"))
    code, _, err = assay("network", "sign-rotation", market.config_of(VERIFIERS[0]), "--drawn")
    assert code == 2 and "have the same randomness: sets cannot be drawn here" in err


def test_too_few_candidates_are_refused_with_what_each_lacks(
    assay: Assay, market: Market, monkeypatch: pytest.MonkeyPatch
):
    drawn_s, lot_of = next_draw(market.bank.timestamp()), ChainReader.lot_of
    candidates(market, {name: STAKES[name] for name in VERIFIERS[:3]})
    market.bank.fund_many([wallet(name) for name in NEW], token_amount=PURSE, amount_wei=10**18)
    lock(market, "nova", LEAST)  # delegates to nobody
    lock(market, "nora", LEAST)
    market.delegate("nora")  # announces nothing
    lock(market, "nils", LEAST, days=(drawn_s - market.bank.timestamp()) // DAY + 60)
    wait_until(market, drawn_s + DELAY_S)

    def with_one_banned(chain: ChainReader, account: str, role: int, commitment: bytes) -> LotState:
        found = lot_of(chain, account, role, commitment)
        return replace(found, amount=0) if account == wallet(VERIFIERS[2]) else found  # as the vault says it

    monkeypatch.setattr(ChainReader, "lot_of", with_one_banned)

    code, out, err = assay("network", "sign-rotation", market.config_of(VERIFIERS[0]), "--drawn")

    assert code == 2 and "2 of 6 candidates can be seated in verifier set 2, which has 4 seats" in err
    for lacks in (
        "delegated to no hot key",
        "announced no record",
        "its lot ends before",
        "its lot is smaller",
    ):
        assert out.count(lacks) == 1
    assert "signature" not in out
