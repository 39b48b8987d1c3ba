"""Order commands with money: only what was quoted is put up, and what is left comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.chain.client import UNIT
from assay.chain.deployment.coin import address_given
from assay.chain.statements import OPERATOR, VERIFIER
from assay.chain.text.times import span_text
from assay.orders import place
from assay.orders.amounts import bytes_text
from assay.orders.load import load_order
from assay.orders.price.quote import quote_of
from assay.orders.purchase import check_place
from assay.participant.files.record import Role, sign_record, write_record
from assay.participant.files.run_file import read_run_file, run_file_of, write_run_file
from assay.participant.wallet.delegation import delegate
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest
from assay.testing.members import an_account_key, peer
from assay.testing.signed import NODES, VERIFIERS
from assay.verifier.audit.messages import longest_opening
from tests.a_network import NOW, a_record, keys_of, records_of
from tests.chain.moves import transfer_token
from tests.cli.market import ORDER, PURSE, Market, wallet
from tests.conftest import Assay
from tests.forked_commands import command

pytestmark = pytest.mark.slow

DAY = 86_400
FILE, ORDERED = "the buyer's file", "the order's file"


@pytest.fixture(autouse=True)
def lots(market: Market) -> None:
    """The nodes have locked what the order asks of them."""
    for name in NODES:
        market.lock(name)


def budget(market: Market) -> int:
    return load_order(market.order_file).budget_units()


def held(market: Market, name: str = "buyer") -> int:
    return market.bank.token_balance(wallet(name))


def test_a_run_is_quoted_placed_cancelled_and_refunded(assay: Assay, market: Market):
    market.join_nodes()
    file, order = market.config_of("buyer"), market.order_file
    code, out, _ = assay("order", "quote", order, "--json")
    quoted = json.loads(out)
    assert code == 0 and quoted["escrow"] == budget(market)

    code, out, _ = assay("order", "place", file, order, "--quote", quoted["quote"])
    assert code == 0 and market.run_id.hex() in out and ("(in 29 d 23 h)" in out or "(in 30 d)" in out)
    assert held(market) == PURSE - quoted["escrow"]
    code, out, _ = assay("order", "place", file, order, "--days", 100)
    assert code == 0 and "already open" in out and held(market) == PURSE - quoted["escrow"]

    code, _, err = assay("order", "refund", file)
    assert code == 1 and "the run is open until" in err
    code, out, _ = assay("order", "cancel", file)
    assert code == 0 and "closing" in out and "finished work are accepted and paid" in out
    code, out, _ = assay("order", "cancel", file)
    assert code == 0 and "nothing was sent: closing" in out
    code, _, err = assay("order", "refund", file)
    assert code == 1 and ("(in 1 d 23 h)" in err or "(in 2 d)" in err)

    market.advance(market.params.close_delay_s)
    code, out, _ = assay("order", "refund", file)
    assert code == 0 and "returned to" in out and held(market) == PURSE
    code, out, _ = assay("order", "refund", file)
    assert code == 0 and "nothing to return" in out and held(market) == PURSE
    code, _, err = assay("order", "place", file, order)
    assert code == 2 and "opened before and closed" in err and held(market) == PURSE


def test_the_status_follows_the_money(assay: Assay, market: Market):
    market.join_nodes()
    file = market.config_of("buyer")
    code, _, err = assay("order", "show", file)
    assert code == 2 and "is not open" in err
    assay("order", "place", file, market.order_file)
    tables = market.fill_store(NODES[0])

    market.propose(tables, 0)
    _, out, _ = assay("order", "show", file)
    assert "epoch 0:" in out and "can be challenged until" in out and "epoch 1: no result on chain" in out
    assert f"reserved  {tables[0].total // UNIT:,}." in out
    size, seconds = bytes_text(longest_opening(market.spec)), market.spec.timing.opening_ms / 1000
    later = span_text(market.spec.audit.absence_s)
    assert f"openings  up to {size} to verifiers within {seconds:g} s; slashed {later} later" in out
    market.advance(market.params.challenge_window_s)
    assert "anyone may make it final" in assay("order", "show", file)[1]
    market.bank.finalize(market.run_id, 0)
    assert "0.000000 of" in assay("order", "show", file)[1]


def test_a_refund_goes_where_the_buyer_wants_it_and_nobody_else_may_say_where(assay: Assay, market: Market):
    file, other = market.config_of("buyer"), address_given("0x" + "5a" * 20)
    market.open_run()
    put_up = PURSE - held(market)
    assay("order", "cancel", file)
    market.advance(market.params.close_delay_s + 60)
    code, _, err = assay("order", "refund", market.config_of(NODES[0]), "--to", other)
    assert code == 2 and "only the buyer" in err
    assert "would send" in assay("order", "refund", file, "--to", other, "--dry-run").out

    code, out, err = assay("order", "refund", file, "--to", other)

    assert code == 0 and "from now on" in out, err
    assert market.bank.token_balance(other) == put_up and held(market) == PURSE - put_up


def test_a_result_that_waits_keeps_the_refund_waiting(assay: Assay, market: Market):
    file = market.config_of("buyer")
    market.open_run()
    tables = market.fill_store(NODES[0])
    assay("order", "cancel", file)
    market.advance(market.params.close_delay_s - 60)
    market.propose(tables, 0)
    market.advance(120)

    code, _, err = assay("order", "refund", file)
    assert code == 1 and "epoch 0 (proposed," in err
    market.advance(market.params.challenge_window_s)
    market.bank.finalize(market.run_id, 0)
    code, out, _ = assay("order", "refund", file)
    assert code == 0 and "wait to be claimed" in out
    assert held(market) == PURSE - tables[0].total


def test_the_escrow_is_topped_up_by_anybody_while_the_run_is_open(assay: Assay, market: Market):
    market.open_run()
    file, start = market.config_of(NODES[0]), budget(market)

    assert assay("order", "topup", file, "12.5")[0] == 0
    _, out, _ = assay("order", "topup", file, "--to", "1")
    assert "nothing to add" in out
    run = market.bank.run(market.run_id)
    assert run is not None and run.budget == start + 12_500_000
    market.as_("buyer").request_close(market.run_id)
    market.advance(market.params.close_delay_s)
    code, _, err = assay("order", "topup", file, "12.5")
    assert code == 2 and "it takes no money" in err


def test_a_top_up_to_an_amount_waits_for_what_an_earlier_process_has_sent(assay: Assay, market: Market):
    market.open_run()
    file, target = market.config_of("buyer"), budget(market) // UNIT + 500

    with market.unmined("buyer"):
        code, out, err = assay("order", "topup", file, "--to", target)
        assert (code, out) == (1, "") and "is not mined yet" in err

    assert assay("order", "topup", file, "--to", target)[0] == 0
    run = market.bank.run(market.run_id)
    assert run is not None and run.budget == target * UNIT


@pytest.mark.parametrize(
    "words", [["place", FILE, ORDERED], ["topup", FILE, "5"], ["cancel", FILE], ["refund", FILE]]
)
def test_a_dry_run_says_what_it_would_send_and_sends_nothing(assay: Assay, market: Market, words: list[str]):
    file = market.config_of("buyer")
    market.join_nodes()
    if words[0] != "place":
        market.open_run()
    if words[0] == "refund":
        market.as_("buyer").request_close(market.run_id)
        market.advance(market.params.close_delay_s)
    before = market.bank.block_number()
    given = {FILE: file, ORDERED: market.order_file}

    code, out, _ = assay("order", *(given.get(word, word) for word in words), "--dry-run")

    assert code == 0 and "would send to RunEscrow" in out
    assert market.bank.block_number() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ORDER.replace("rounds = 6", "rounds = 7"), "rounds: 6 in the spec, 7 was ordered"),
        (ORDER.replace("1_000_000_000_000", "999_999_999_999"), "money.price_per_mtoken"),
        (ORDER.replace("probation = 2", "probation = 3"), "audit.probation: 2 in the spec, 3 was ordered"),
        (ORDER.replace("width = 64", "width = 128"), "model.width"),
    ],
)
def test_a_run_that_is_not_what_was_quoted_is_not_paid_for(
    assay: Assay, market: Market, text: str, said: str
):
    market.order_file.write_text(text)

    code, _, err = assay("order", "place", market.config_of("buyer"), market.order_file)

    assert code == 2 and said in err and held(market) == PURSE
    assert market.bank.run(market.run_id) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("text", "data.root: "),
        ("licence", "data.licence: none in the spec, CC0-1.0 was ordered"),
        ("base", "model.base: 0000000000000000 in the spec, "),
        ("gone", "made up: does not exist"),
    ],
)
def test_a_run_that_was_made_of_other_data_is_not_paid_for(
    assay: Assay, market: Market, changed: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    market.join_nodes()
    file, text = market.config_of("buyer"), market.folder / "made up"
    if changed == "text":
        text.write_bytes(text.read_bytes()[::-1])
    if changed == "licence":
        market.order_file.write_text(ORDER.replace('"none"\n[train]', '"CC0-1.0"\n[train]'))
    if changed == "base":  # other weights in the same file
        monkeypatch.setattr(place, "described", lambda *_: (market.spec.data, Digest(bytes([1]) * 32)))
    if changed == "gone":
        text.unlink()
    name = quote_of(load_order(market.order_file)).name.hex()

    for more in ((), ("--dry-run",)):
        code, _, err = assay("order", "place", file, market.order_file, "--quote", name, *more)
        assert code == 2 and said in err and "run.assay, and place it anew" in err

    assert held(market) == PURSE and market.bank.run(market.run_id) is None
    market.open_run()
    assert "already open" in assay("order", "place", file, market.order_file).out


def test_a_run_whose_operator_has_not_locked_its_lot_is_not_paid_for(assay: Assay, market: Market):
    market.join_nodes()
    market.as_(NODES[1]).release_lot(wallet(NODES[1]), OPERATOR, market.run_id)

    code, _, err = assay("order", "place", market.config_of("buyer"), market.order_file)

    assert code == 2 and held(market) == PURSE and market.bank.run(market.run_id) is None
    assert f"the operator {wallet(NODES[1])} has locked 0.000000" in err and "assay stake lock" in err


def test_a_run_that_outlasts_its_verifiers_terms_is_not_paid_for(assay: Assay, market: Market):
    market.join_nodes()
    market.advance(30 * DAY)
    for name in NODES:
        market.lock(name)

    code, _, err = assay("order", "place", market.config_of("buyer"), market.order_file, "--days", 365)

    assert code == 2 and held(market) == PURSE and market.bank.run(market.run_id) is None
    assert "of 4 verifiers 4 have locked no lot" in err


def test_a_quote_that_was_another_one_is_not_paid_for(assay: Assay, market: Market):
    name = quote_of(load_order(market.order_file)).name.hex()
    for other in (name[:-1] + ("0" if name[-1] != "0" else "1"), name[:16], "", "\x1b[2J"):
        code, _, err = assay("order", "place", market.config_of("buyer"), market.order_file, "--quote", other)
        assert code == 2 and "its quote is" in err and "\x1b" not in err
    assert held(market) == PURSE


def test_only_the_buyer_places_and_cancels(assay: Assay, market: Market):
    code, _, err = assay("order", "place", market.config_of("stranger"), market.order_file)
    assert code == 2 and "the spec's buyer is" in err
    market.open_run()
    code, _, err = assay("order", "cancel", market.config_of("stranger"))
    assert code == 2 and "only the buyer" in err and "may cancel" in err
    run = market.bank.run(market.run_id)
    assert run is not None and run.closes_at == run.deadline


def test_judges_whom_the_contracts_do_not_know_are_refused(assay: Assay, market: Market):
    market.join_nodes()
    market.as_("stranger").stake(VERIFIER, market.params.min_verifier_stake)
    market.delegate("stranger")
    records = records_of(verifiers=("stranger", *VERIFIERS[1:]))
    verifiers = tuple(s.record.member for s in records if s.record.role is Role.VERIFIER)
    money = replace(market.spec.money, treasury=market.spec.buyer)
    spec = replace(market.spec, verifiers=verifiers, money=money)
    write_run_file(market.folder / "run.assay", run_file_of(spec, records, an_account_key("buyer")))
    file = market.config_of("buyer")

    code, _, err = assay("order", "place", file, market.order_file)

    assert code == 2 and "verifiers are not those of the contracts" in err


@pytest.mark.parametrize(("days", "said"), [(0, "1 to 366"), (367, "1 to 366"), (1, "the close delay, 2 d")])
def test_a_deadline_that_the_escrow_would_refuse_is_refused_in_words(
    assay: Assay, market: Market, days: int, said: str
):
    code, _, err = assay("order", "place", market.config_of("buyer"), market.order_file, "--days", days)

    assert code == 2 and said in err


def test_a_purse_that_is_too_small_is_refused_before_anything_is_sent(assay: Assay, market: Market):
    market.join_nodes()
    transfer_token(market.as_("buyer"), wallet("stranger"), PURSE - budget(market) + 1)
    before = market.bank.block_number()

    code, _, err = assay("order", "place", market.config_of("buyer"), market.order_file)

    assert code == 2 and "to put up" in err and market.bank.block_number() == before


def test_a_run_found_on_other_terms_is_told(assay: Assay, market: Market):
    order = load_order(market.order_file)
    deadline = market.bank.timestamp() + 30 * DAY
    chain, file = market.as_("buyer"), market.config_of("buyer")
    snapshot = market.rpc("evm_snapshot")
    told = {"epoch_cap": order.epoch_units_max(), "epochs": 2, "deadline": deadline, "lot": order.lot_units}
    chain.open_run(market.spec_hash, budget=order.budget_units() - 1, **told)
    code, _, err = assay("order", "place", file, market.order_file)
    assert code == 2 and "order topup --to" in err
    market.rpc("evm_revert", snapshot)

    chain.open_run(market.spec_hash, budget=order.budget_units(), **{**told, "epoch_cap": 1})
    code, _, err = assay("order", "place", file, market.order_file)
    assert code == 2 and "open for 2 epochs of at most 0.000001" in err


def test_processes_of_their_own_quote_place_and_show_no_key(market: Market):
    market.join_nodes()
    file = market.config_of("buyer")

    done = [
        command(market.folder, "order", *words, timeout_s=300)
        for words in (
            ("quote", market.order_file),
            ("place", file, market.order_file),
            ("show", file),
            ("cancel", file),
            ("refund", file),
        )
    ]

    assert [status for status, *_ in done] == [0, 0, 0, 0, 1]
    said = "".join(out + err for _, out, err in done).lower()
    assert "traceback" not in said and an_account_key("buyer").hex() not in said
    assert "a password of nobody" not in said


def test_an_order_that_the_contracts_cannot_carry_out_is_not_placed(assay: Assay, market: Market):
    assert market.bank.case_ppm_max() == market.params.case_ppm_max
    harsh = market.order_file.with_name("harsh.toml")
    harsh.write_text(market.order_file.read_text().replace("[budget]", "[budget]\nslash = 0.4"))

    code, _, err = assay("order", "place", market.config_of("buyer"), harsh)

    assert code == 2 and "slash takes 0.4 of a lot" in err and "at most 0.3" in err
    assert held(market) == PURSE


def test_the_cap_that_counts_when_a_run_is_placed_is_that_of_its_own_contracts(market: Market):
    account = SimpleNamespace(spec=market.spec, chain=SimpleNamespace(case_ppm_max=lambda: 299_999))

    with pytest.raises(ConfigError, match=r"at most 0\.299999"):
        check_place(account, quote_of(load_order(market.order_file)))  # type: ignore[arg-type]


# ---- an order becomes a run


def market_of_records(market: Market) -> tuple[Path, Path]:
    """A buyer with nothing but records and an order: its configuration, and the folder of records."""
    (market.folder / "run.assay").unlink()
    members = market.folder / "members"
    people = [*records_of(), a_record("leo", Role.LEDGER), a_record("buyer", Role.BUYER)]
    for at, signed in enumerate(people):
        write_record(members / f"{at}.record", signed)
    return market.config_of("buyer"), members


def test_an_order_becomes_a_run_file_and_an_escrow_in_one_go_and_only_once(assay: Assay, market: Market):
    market.join_nodes()
    file, members = market_of_records(market)

    code, out, err = assay("order", "place", file, market.order_file, "--members", members)
    assert code == 2 and "assay stake lock" in err
    assert out.count("staked and delegated") == 7
    run = read_run_file(market.folder / "run.assay", NOW)
    for name in NODES:  # each has the run file now
        chain, lot = market.as_(name), load_order(market.order_file).lot_units
        chain.stake(OPERATOR, lot)
        chain.ensure_lot(OPERATOR, run.run_id, lot, market.bank.timestamp() + 390 * DAY)
    code, _, err = assay("order", "place", file, market.order_file)
    assert code == 0, err
    found = market.bank.run(run.run_id)
    assert found is not None and found.spec_hash == digest(run.spec)
    assert run.ledger_service == peer("leo") and run.spec.buyer == keys_of("buyer").account_address

    code, out, _ = assay("order", "place", file, market.order_file)
    assert code == 0 and "already open" in out
    assert held(market) == PURSE - budget(market)


@pytest.mark.parametrize("what", ["delegation", "expiry", "owner", "count", "older", "forged"])
def test_a_member_that_cannot_be_held_to_its_work_is_refused_before_money_moves(
    assay: Assay, market: Market, what: str
):
    market.join_nodes()
    file, members = market_of_records(market)
    said = {
        "delegation": "its hot key is not delegated",
        "expiry": "delegation ends",
        "owner": "its hot key signs for",
        "count": "records of 4 nodes, the order has 3",
        "older": "is known",
        "forged": "signature does not cover",
    }[what]
    if what == "delegation":  # a record with a hot key that the account never delegated to
        rotated = replace(keys_of(NODES[0]), hot=keys_of("x").hot)
        write_record(members / "0.record", sign_record(rotated, Role.NODE, "::1", 1, NOW + 1))
    if what == "owner":  # a record that claims the account of somebody with stake
        claimed = replace(keys_of(NODES[0]), account=keys_of("stranger").account)
        market.as_("stranger").stake(OPERATOR, market.params.min_operator_stake)
        write_record(members / "0.record", sign_record(claimed, Role.NODE, "::1", 1, NOW + 1))
    if what == "expiry":
        delegate(market.as_(NODES[0]), keys_of(NODES[0]), 5, market.bank.timestamp())
    if what == "count":
        write_record(members / "9.record", a_record("stranger"))
    if what == "older":
        write_record(market.folder / "buyer" / "records" / "x.record", a_record(NODES[0], now_s=NOW + 5))
    if what == "forged":
        first = a_record(NODES[0])
        write_record(members / "0.record", replace(first, record=replace(first.record, port=9)))

    code, _, err = assay("order", "place", file, market.order_file, "--members", members)

    assert code == 2 and said in err
    assert held(market) == PURSE and not (market.folder / "run.assay").exists()


def test_an_empty_order_is_refused(assay: Assay, tmp_path: Path):
    empty = tmp_path / "run.toml"
    empty.write_text("# nothing\n")

    for word in ("check", "quote"):
        code, _, err = assay("order", word, empty)
        assert code == 2 and "is empty, expected an order" in err
