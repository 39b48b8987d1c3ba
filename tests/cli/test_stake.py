"""Stake commands: in, out after the delay, never somebody else's, and never more than was said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.chain.client import UNIT
from assay.chain.statements import OPERATOR, VERIFIER, Delegation, address_of, sign_digest
from assay.testing.members import a_hot_key, an_account_key
from assay.testing.signed import NODES, VERIFIERS
from tests.cli.market import PURSE, Market, wallet
from tests.conftest import Assay
from tests.forked_commands import command

pytestmark = pytest.mark.slow

NODE, OTHER = NODES[0], NODES[1]
HOT = address_of(a_hot_key(NODE))
FILE = "the participant's file"


def active(market: Market, name: str = NODE, role: int = OPERATOR) -> int:
    return market.bank.stake_of(wallet(name), role).active


def test_stake_goes_in_leaves_late_and_comes_back_whole(assay: Assay, market: Market):
    file = market.config_of(NODE)

    assert assay("stake", "add", file, "300")[0] == 0
    code, out, _ = assay("stake", "remove", file, "200")
    assert (code, active(market)) == (0, 100 * UNIT)
    assert "200.000000 aUSD unbonding with ticket 1" in out and "(in 21 d" in out

    code, out, _ = assay("stake", "withdraw", file)
    assert code == 0 and "ticket 1: 200.000000 aUSD, can be withdrawn from" in out and "(in 2" in out
    assert market.bank.token_balance(wallet(NODE)) == PURSE - 300 * UNIT

    market.advance(market.params.unbonding_s)
    code, out, _ = assay("stake", "withdraw", file)
    assert code == 0 and "ticket 1: 200.000000 aUSD withdrawn" in out
    assert market.bank.token_balance(wallet(NODE)) == PURSE - 100 * UNIT
    assert "nothing to withdraw now" in assay("stake", "withdraw", file)[1]
    assert "withdrawn or cancelled before" in assay("stake", "withdraw", file, "--ticket", 1)[1]


def test_the_form_with_to_may_be_repeated_and_the_other_adds_again(assay: Assay, market: Market):
    file = market.config_of(NODE)

    assay("stake", "add", file, "--to", "250.5")
    code, out, _ = assay("stake", "add", file, "--to", "250.5")
    assert (code, active(market)) == (0, 250_500_000) and "nothing to add" in out
    assay("stake", "add", file, "10")
    assay("stake", "add", file, "10")
    assert active(market) == 270_500_000
    assay("stake", "remove", file, "--to", "100")
    code, out, _ = assay("stake", "remove", file, "--to", "100")
    assert (code, active(market)) == (0, 100 * UNIT) and "nothing to remove" in out
    assay("stake", "remove", file, "--to", "0")
    assert active(market) == 0


@pytest.mark.parametrize(("word", "least"), [("add", "300"), ("remove", "100")])
def test_the_form_with_to_waits_for_what_an_earlier_process_has_sent(
    assay: Assay, market: Market, word: str, least: str
):
    file = market.config_of(NODE)
    market.as_(NODE).stake(OPERATOR, 200 * UNIT)

    with market.unmined(NODE):
        code, out, err = assay("stake", word, file, "--to", least)
        assert (code, out) == (1, "") and "is not mined yet" in err

    assert active(market) == 200 * UNIT
    assert assay("stake", word, file, "--to", least)[0] == 0
    assert active(market) == int(least) * UNIT


def test_the_role_is_the_one_in_the_run(assay: Assay, market: Market):
    assay("stake", "add", market.config_of(VERIFIERS[0]), "150")

    assert active(market, VERIFIERS[0], VERIFIER) == 250 * UNIT  # with the 100 that its seat needs
    assert active(market, VERIFIERS[0], OPERATOR) == 0
    code, _, err = assay("stake", "add", market.config_of("buyer"), "150")
    assert code == 2 and "neither node nor verifier" in err


@pytest.mark.parametrize(
    "words", [["add", "300"], ["add", "--to", "300"], ["remove", "50"], ["cancel"], ["withdraw"], ["collect"]]
)
def test_a_dry_run_says_what_it_would_send_and_sends_nothing(assay: Assay, market: Market, words: list[str]):
    file = market.config_of(NODE)
    chain = market.as_(NODE)
    chain.stake(OPERATOR, 250 * UNIT)
    chain.request_unstake(OPERATOR, 20 * UNIT)
    market.advance(market.params.unbonding_s)
    before = market.bank.block_number()

    code, out, _ = assay("stake", words[0], file, *words[1:], "--dry-run")

    assert code == 0 and ("would send" in out or words == ["collect"])
    assert "approve(" not in out  # the key is here: a payment permits itself
    assert market.bank.block_number() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", FILE, "1e400"], "is not an amount"),
        (["add", "--", FILE, "-1"], "is not an amount"),
        (["add", FILE, "-1"], "No such option"),
        (["add", FILE, "0"], "nothing to move"),
        (["add", FILE, "1.0000000000000000001"], "19 decimals"),
        (["add", FILE, "10000.000001"], "holds only 10,000.000000 aUSD"),
        (["add", FILE, "99.999999"], "the least in the role of operator is 100.000000 aUSD"),
        (["add", FILE], "either AMOUNT or --to"),
        (["add", FILE, "1", "--to", "2"], "either AMOUNT or --to"),
        (["remove", FILE, "1"], "only 0.000000 aUSD are free"),
        (["lock", FILE, "1"], "only 0.000000 aUSD are free"),
        (["lock", FILE, "1", "--days", "401"], "a lot is locked for 1 to 400"),
        (["withdraw", FILE, "--ticket", "-1"], "--ticket"),
        (["withdraw", FILE, "--ticket", str(2**64)], "--ticket"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    assay: Assay, market: Market, words: list[str], said: str
):
    file, before = market.config_of(NODE), market.bank.block_number()

    code, out, err = assay("stake", *(file if word == FILE else word for word in words))

    assert code == 2 and said in err and out == ""
    assert market.bank.block_number() == before


def test_what_stays_is_nothing_or_the_least(assay: Assay, market: Market):
    file = market.config_of(NODE)
    market.as_(NODE).stake(OPERATOR, 150 * UNIT)

    code, _, err = assay("stake", "remove", file, "50.000001")

    assert code == 2 and "nothing (--to 0), or at least 100.000000 aUSD" in err
    assert assay("stake", "remove", file, "50")[0] == 0


def test_nobody_withdraws_a_strangers_ticket(assay: Assay, market: Market):
    chain = market.as_(OTHER)
    chain.stake(OPERATOR, 300 * UNIT)
    ticket = chain.request_unstake(OPERATOR, 300 * UNIT)
    market.advance(market.params.unbonding_s)
    file = market.config_of(NODE)

    code, _, err = assay("stake", "withdraw", file, "--ticket", ticket)
    assert code == 2 and f"belongs to {wallet(OTHER)}" in err
    assert "nothing to withdraw now" in assay("stake", "withdraw", file)[1]
    code, _, err = assay("stake", "withdraw", file, "--ticket", ticket + 1)
    assert code == 2 and "there is no ticket" in err


def test_what_was_unstaked_by_mistake_is_free_stake_again(assay: Assay, market: Market):
    chain, file = market.as_(NODE), market.config_of(NODE)
    chain.stake(OPERATOR, 300 * UNIT)
    first, second, third = (chain.request_unstake(OPERATOR, part * UNIT) for part in (20, 30, 40))

    code, out, _ = assay("stake", "cancel", file, "--ticket", second)
    assert (code, active(market)) == (0, 240 * UNIT) and "30.000000 aUSD are free stake again" in out
    code, out, _ = assay("stake", "cancel", file)
    assert (code, active(market)) == (0, 300 * UNIT) and f"ticket {first}" in out and f"ticket {third}" in out
    for again in ([], ["--ticket", first]):
        assert "nothing was sent" in assay("stake", "cancel", file, *again)[1]


def test_nobody_cancels_a_strangers_ticket(assay: Assay, market: Market):
    chain = market.as_(OTHER)
    chain.stake(OPERATOR, 300 * UNIT)
    ticket = chain.request_unstake(OPERATOR, 300 * UNIT)

    code, _, err = assay("stake", "cancel", market.config_of(NODE), "--ticket", ticket)

    assert code == 2 and f"belongs to {wallet(OTHER)}" in err
    assert "nothing was sent" in assay("stake", "cancel", market.config_of(NODE))[1]


def test_a_ticket_that_is_not_ripe_says_until_when(assay: Assay, market: Market):
    chain = market.as_(NODE)
    chain.stake(OPERATOR, 300 * UNIT)
    ticket = chain.request_unstake(OPERATOR, 300 * UNIT)

    code, _, err = assay("stake", "withdraw", market.config_of(NODE), "--ticket", ticket)

    assert code == 1 and "can be withdrawn from" in err and "(in 2" in err


def test_show_tells_what_stands_in_the_way(assay: Assay, market: Market):
    chain, file = market.as_(NODE), market.config_of(NODE)
    code, out, _ = assay("stake", "show", file)
    assert code == 0 and "NOT enough to take part" in out and "is not delegated by any account yet" in out
    chain.stake(OPERATOR, 300 * UNIT)
    chain.request_unstake(OPERATOR, 100 * UNIT)
    expiry = market.bank.timestamp() + 3_600
    consent = Delegation(
        deployment_id=market.deployment.deployment_id, account=wallet(NODE), hot_key=HOT, expiry=expiry
    )
    chain.delegate(HOT, expiry, sign_digest(market.deployment.digest(consent), a_hot_key(NODE)))

    _, out, _ = assay("stake", "show", file)
    assert "active    200.000000 aUSD, least 100.000000 aUSD\n" in out
    assert "ticket    1: 100.000000 aUSD, can be withdrawn from" in out
    assert f"hot key   {HOT} until" in out
    market.advance(3_600)
    assert "EXPIRED" in assay("stake", "show", file)[1]


def test_a_lot_is_locked_for_the_run_slashed_in_it_and_released_after_it(assay: Assay, market: Market):
    chain, file = market.as_(NODE), market.config_of(NODE)
    chain.stake(OPERATOR, 500 * UNIT)
    assert "no lot to release" in assay("stake", "release", file)[1]
    code, out, _ = assay("stake", "lock", file, "300")
    assert code == 0 and "locked 300.000000 aUSD" in out and ("(in 59 d" in out or "(in 60 d" in out)
    assert assay("stake", "lock", file, "300")[0] == 0  # no more
    assert "lot       300.000000 aUSD" in assay("stake", "show", file)[1]
    code, _, err = assay("stake", "remove", file, "300")
    assert code == 2 and "only 200.000000 aUSD are free" in err

    case = market.accuse(NODE, ppm=250_000)
    market.advance(40 * 86_400)  # nobody carried the order out
    market.bank.expire_case(case)
    code, out, _ = assay("stake", "release", file)
    assert code == 0 and "released 300.000000 aUSD" in out
    assert assay("stake", "remove", file, "--to", "0")[0] == 0


def test_the_rewards_of_a_slash_are_collected_once(assay: Assay, market: Market):
    market.lock(NODE, 300 * UNIT)
    case = market.accuse(NODE, ppm=250_000, challenger=VERIFIERS[0])
    market.advance(market.params.veto_window_s)
    market.bank.execute_case(case)
    file = market.config_of(VERIFIERS[0])
    assert "no reward to collect" in assay("stake", "collect", file)[1]  # a veto could still undo the slash
    market.advance(market.params.payout_delay_s)
    market.bank.pay_out_case(case)

    assert "20.000000 aUSD collected" in assay("stake", "collect", file)[1]
    assert "no reward to collect" in assay("stake", "collect", file)[1]
    assert market.bank.token_balance(wallet(VERIFIERS[0])) == PURSE - 100 * UNIT + 20 * UNIT


# ---- files and endpoints that lie


def test_another_deployments_contracts_are_refused(assay: Assay, market: Market):
    market.invite(replace(market.deployment, stake_vault=market.deployment.token))
    before = market.bank.block_number()

    code, _, err = assay("stake", "add", market.config_of(NODE), "300")
    assert code != 0 and "Traceback" not in err and err.startswith("assay: ")

    other = replace(market.deployment, deployment_id=b"x" * 32)
    market.invite(other)
    code, _, err = assay("stake", "add", market.config_of(NODE), "300")
    assert code == 2 and "another deployment" in err
    assert market.bank.block_number() == before


def test_an_endpoint_of_another_chain_is_refused(assay: Assay, market: Market):
    other = replace(market.deployment, chain_id=1)
    market.invite(other)
    code, _, err = assay("stake", "show", market.config_of(NODE))
    assert code == 2 and "wrong chain" in err

    code, _, err = assay("stake", "show", market.config_of(NODE, rpc_url="http://127.0.0.1:1"))
    assert code == 2 and "127.0.0.1:1" in err


def test_a_process_of_its_own_stakes_and_shows_no_key(market: Market):
    file = market.config_of(NODE)

    added, shown, refused = (
        command(market.folder, "stake", *words, timeout_s=300)
        for words in (("add", file, "--to", "300"), ("show", file), ("add", file, "1e400"))
    )

    assert [status for status, *_ in (added, shown, refused)] == [0, 0, 2]
    assert active(market) == 300 * UNIT
    assert "300.000000 aUSD" in shown[1] and "Traceback" not in refused[2]
    said = "".join(out + err for _, out, err in (added, shown, refused)).lower()
    for secret in (an_account_key(NODE).hex(), a_hot_key(NODE).hex(), "a password of nobody"):
        assert secret not in said


def test_a_chain_that_is_away_is_named_with_the_key_that_names_it(assay: Assay, market: Market):
    code, out, err = assay("stake", "show", market.config_of(NODE, rpc_url="http://127.0.0.1:1"))

    assert (code, out) == (2, "")
    assert "no chain answers at http://127.0.0.1:1; is `rpc_url` right?" in err and "HTTPConn" not in err
