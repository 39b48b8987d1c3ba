"""A deployment file is somebody's word: code, immutables and mutual links are asked of the chain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.client import Chain
from assay.chain.deployment.code_check import LINKS, OWN_CODE, check_code, links_of
from assay.chain.deployment.deploy import deploy
from assay.chain.rpc import Rpc, artefact
from assay.protocol.errors import ConfigError, Unavailable
from tests.contracts.chain_world import World


def check(world: World, deployment: Deployment) -> None:
    Chain(world.rpc_url, deployment).check_deployment()


def test_the_contracts_of_this_release_pass(world: World):
    check(world, world.deployment)


@pytest.mark.parametrize("contract", OWN_CODE)
def test_code_that_differs_in_one_byte_is_refused_by_name(world: World, contract: str):
    where = world.deployment.address(contract)
    code = bytearray(bytes.fromhex(world.rpc("eth_getCode", where, "latest")[2:]))
    code[-1] ^= 1
    world.rpc("anvil_setCode", where, "0x" + code.hex())

    with pytest.raises(ConfigError, match=f"^{contract} at {where} has other code"):
        check(world, world.deployment)


def test_another_contract_with_the_right_deployment_id_is_refused(world: World):
    lent = replace(world.deployment, run_escrow=world.deployment.model_registry)

    with pytest.raises(ConfigError, match=r"^RunEscrow at .* has other code"):
        check(world, lent)


@pytest.mark.parametrize("contract", OWN_CODE)
def test_a_contract_of_a_copy_with_the_same_id_is_refused_because_it_works_with_others(
    world: World, contract: str
):
    people = [one.account for one in world.verifiers]
    copy = deploy(world.rpc_url, world.bank_key, world.params, world.deployment.deployment_id, people)
    mixed = replace(world.deployment, **{CONTRACTS[contract]: copy.address(contract)})

    with pytest.raises(ConfigError, match=r"works with 0x\w+ as its \w+, 0x\w+ expected"):
        check(world, mixed)


def test_code_that_answers_with_one_address_and_pays_another_is_refused(world: World):
    """Who deploys code without its constructor may give each place of an immutable a value of its own."""
    where = world.deployment.address("RunEscrow")
    code = bytearray(bytes.fromhex(world.rpc("eth_getCode", where, "latest")[2:]))
    last = code.rindex(bytes.fromhex(world.deployment.address("AssayToken")[2:]))
    code[last : last + 20] = b"\xee" * 20
    world.rpc("anvil_setCode", where, "0x" + code.hex())

    with pytest.raises(ConfigError, match=rf"^RunEscrow at {where} has 2 values of its token"):
        check(world, world.deployment)


def test_contracts_that_other_code_than_their_constructors_made_are_refused(world: World):
    """It may have written stakes, runs and verifiers into their storage, and any window into their code."""
    chain = Chain(world.rpc_url, world.deployment)
    chain.check_created()
    where = world.deployment.address("Directory")
    code = bytes.fromhex(world.rpc("eth_getCode", where, "latest")[2:])
    # It stores 1 in slot 0, copies what follows it, and returns that.
    maker = bytes.fromhex("60015f5561") + len(code).to_bytes(2, "big") + bytes.fromhex("80600e5f395ff3")
    rpc = Rpc(world.rpc_url, world.bank_key)
    sent = rpc.send("deploy", {"data": maker + code, "gas": 3_000_000})
    assert sent.tx_hash is not None
    made = rpc.receipt("deploy", sent.tx_hash)["contractAddress"]
    lent = replace(world.deployment, directory=made)
    assert int(world.rpc("eth_getStorageAt", made, "0x0", "latest"), 16) == 1
    check(world, lent)

    with pytest.raises(ConfigError, match=r"^Directory at 0x\w+ was made by other code"):
        Chain(world.rpc_url, lent).check_created()


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"transactions": None},
        {"transactions": [bytes(32)]},
        {"transactions": [{"to": None}]},
        {"transactions": [{"from": "0x" + "11" * 20, "nonce": -1, "to": None, "input": b""}]},
    ],
)
def test_an_endpoint_that_makes_up_blocks_of_transactions_is_as_one_that_does_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
):
    chain = Chain(world.rpc_url, world.deployment)
    monkeypatch.setattr(chain._rpc.web3.eth, "get_block", lambda *_: said)

    with pytest.raises(Unavailable, match=r"check chain: .* malformed answer"):
        chain.check_created()


def test_contracts_that_no_transaction_after_the_deployments_block_made_are_refused(world: World):
    late = replace(world.deployment, block=Chain(world.rpc_url, world.deployment).block_number())

    with pytest.raises(ConfigError, match=r"was made by no transaction of blocks"):
        Chain(world.rpc_url, late).check_created()


@pytest.mark.parametrize("contract", OWN_CODE)
def test_every_link_of_a_contract_is_known_and_code_of_another_length_is_refused(contract: str):
    assert set(dict(links_of(artefact(contract)["abi"]))) <= set(LINKS)
    assert dict(links_of(artefact(contract)["abi"]))
    whole = bytes.fromhex(artefact(contract)["deployedBytecode"][2:])
    check_code(contract, "here", whole, artefact(contract))

    for other in (whole[:-1], whole + b"\0", b""):
        with pytest.raises(ConfigError, match="other code"):
            check_code(contract, "here", other, artefact(contract))
