"""A deployment on a coin that was there before: what is demanded of the coin, and that it is used."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from assay.chain.client import Chain, deploy
from assay.chain.deployment.coin import SINK, address_given
from assay.chain.statements import VERIFIER, Address
from assay.protocol.errors import ConfigError
from tests.contracts.chain_world import WINDOWS, World

pytestmark = pytest.mark.slow

SAYS_18 = "60125f5260205ff3"  # runtime code that answers 18 to every question
REVERTS = "5f5ffd"


def placed(world: World, code: str) -> Address:
    """A contract with this runtime code."""
    where = Address(address_given("0x" + secrets.token_hex(20)))
    world.rpc("anvil_setCode", where, "0x" + code)
    return where


def on(world: World, coin: Address | None, **given: Any) -> Chain:
    accounts = [p.account for p in world.verifiers]
    fresh_id = secrets.token_bytes(32)
    made = deploy(world.rpc_url, world.bank_key, WINDOWS, fresh_id, accounts, coin=coin, **given)
    return Chain(world.rpc_url, made, world.bank_key)


def test_a_deployment_on_a_coin_that_exists_takes_stake_in_it_and_makes_no_token(world: World):
    coin, sink = world.deployment.token, Address(address_given("0x" + "5a" * 20))

    chain = on(world, coin, sink=sink)

    chain.check_deployment()
    assert chain.deployment.token == coin and chain.sinks() == {sink}
    before = world.bank.token_balance()
    chain.stake(VERIFIER, WINDOWS.min_verifier_stake)
    assert world.bank.token_balance() == before - WINDOWS.min_verifier_stake


def test_a_deployment_that_names_no_sink_has_one_that_nobody_has_the_key_of(world: World):
    assert world.bank.sinks() == {SINK}


def test_a_sink_that_coins_refuse_is_refused(world: World):
    with pytest.raises(ConfigError, match="could not be deployed"):
        on(world, None, sink=Address("0x" + "0" * 40))


@pytest.mark.parametrize(
    ("code", "words"), [("", "no contract"), (REVERTS, "no ERC-20"), (SAYS_18, "18 decimals, 6 expected")]
)
def test_what_cannot_be_a_networks_coin_is_refused_before_anything_is_deployed(
    world: World, code: str, words: str
):
    nonce = world.rpc("eth_getTransactionCount", world.bank.address, "latest")

    with pytest.raises(ConfigError, match=words):
        on(world, placed(world, code))

    assert world.rpc("eth_getTransactionCount", world.bank.address, "latest") == nonce


MISTYPED = "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB4B"  # the last digit


@pytest.mark.parametrize("text", ["", "0x12", "aUSD", "0x" + "g" * 40, MISTYPED])
def test_a_text_that_is_no_address_is_refused(text: str):
    with pytest.raises(ConfigError, match="is no address"):
        address_given(text)
