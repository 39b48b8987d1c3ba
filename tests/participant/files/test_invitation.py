"""An invitation to other code, another chain or other parameters never passes."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import replace

import pytest

from assay.chain.commit_statement import evm_address
from assay.chain.deployment.parameters import LOCALNET, ChainParams
from assay.chain.reader import ChainReader
from assay.participant.files.invitation import (
    check_invitation,
    check_network,
    invitation_line,
    invitation_text,
    parse_invitation,
    spoken_digest,
)
from assay.participant.files.record import Role
from assay.participant.wallet.founding import found_network
from assay.protocol.errors import ConfigError
from assay.protocol.types import Address, Digest
from assay.testing.signed import VERIFIERS
from tests.a_network import NOW, a_record, an_invitation

PARAMS = replace(LOCALNET, close_delay_s=77, accuser_fee=19 * 10**6)
FIRST = [a_record(name, Role.VERIFIER) for name in VERIFIERS]


@pytest.fixture(scope="module")
def founded(anvil):
    return found_network(anvil.rpc_url, anvil.keys[0], PARAMS, "town", [anvil.rpc_url], FIRST)


def compare(anvil, invitation):
    check_invitation(invitation, NOW)
    check_network(invitation, ChainReader(anvil.rpc_url, invitation.deployment))


def refused(anvil, invitation, words):
    with pytest.raises(ConfigError, match=words):
        compare(anvil, invitation)


def test_what_was_founded_is_what_the_chain_has(anvil, founded):
    compare(anvil, founded)
    assert founded.params == PARAMS
    assert founded.endpoints == (anvil.rpc_url,)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(ChainParams)][:-1])
def test_no_parameter_can_be_misstated(anvil, founded, name):
    said = replace(founded.params, **{name: getattr(founded.params, name) - 1})

    refused(anvil, replace(founded, params=said), f"{name} is .* on chain")


def test_the_supply_of_a_coin_is_its_issuers_to_change(anvil, founded):
    for more in (-1, 1):
        params = replace(PARAMS, token_supply=PARAMS.token_supply + more)
        compare(anvil, replace(founded, params=params))


def test_another_chain_is_refused(anvil, founded):
    refused(anvil, replace(founded, chain_id=1), "wrong chain: id 31337, 1 expected")
    refused(anvil, replace(founded, block_hash=Digest(bytes(32))), "wrong chain: block")
    refused(anvil, replace(founded, deployment_id=Digest(bytes(32))), "belongs to deployment")


@pytest.mark.parametrize("index", range(7))
def test_other_code_at_any_address_is_refused(anvil, founded, index):
    contracts = list(founded.contracts)
    other = found_network(
        anvil.rpc_url, anvil.keys[1], replace(PARAMS, close_delay_s=78), "other", [anvil.rpc_url], FIRST
    )
    contracts[index] = replace(contracts[index], code=Digest(bytes(32)))
    refused(anvil, replace(founded, contracts=tuple(contracts)), "the invitation says 0000")
    contracts[index] = other.contracts[index]  # real contracts, of another deployment
    refused(anvil, replace(founded, contracts=tuple(contracts)), "belongs to deployment|works with")
    contracts[index] = replace(contracts[index], address=Address(secrets.token_bytes(20)))
    refused(anvil, replace(founded, contracts=tuple(contracts)), "wrong chain: no ")


def test_other_first_verifiers_are_refused(anvil, founded):
    strangers = (*FIRST[1:], a_record("mallory", Role.VERIFIER))

    refused(anvil, replace(founded, verifiers=strangers), "not those of the invitation")
    refused(anvil, replace(founded, verifiers=tuple(FIRST[1:])), "not those of the invitation")
    refused(anvil, replace(founded, verifiers=(*FIRST[1:], a_record(VERIFIERS[0]))), "a node among")


def test_a_network_needs_verifiers_with_accounts_of_their_own(anvil):
    with pytest.raises(ConfigError, match="one account"):
        found_network(anvil.rpc_url, anvil.keys[0], PARAMS, "x", [], [FIRST[0], FIRST[0]])
    with pytest.raises(ConfigError, match="record of a node"):
        found_network(anvil.rpc_url, anvil.keys[0], PARAMS, "x", [], [a_record("nora")])


# ---- by itself


def test_file_and_line_hold_the_same_invitation():
    made = an_invitation()

    assert (
        parse_invitation(invitation_text(made), NOW) == parse_invitation(invitation_line(made), NOW) == made
    )
    assert len(invitation_text(made)) < 8_000
    assert set(invitation_line(made)) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
    )


def test_the_digest_to_read_aloud_is_sixty_digits_that_any_change_changes():
    groups = spoken_digest(an_invitation()).split()

    assert [len(group) for group in groups] == [5] * 12 and "".join(groups).isdigit()
    assert spoken_digest(an_invitation(name="paper2")) != spoken_digest(an_invitation())
    assert spoken_digest(an_invitation(endpoints=("http://evil.example",))) != spoken_digest(an_invitation())


def test_a_forged_verifiers_record_is_refused():
    forged = replace(FIRST[0], record=replace(FIRST[0].record, host="203.0.113.9"))

    with pytest.raises(ConfigError, match="signature does not cover"):
        check_invitation(an_invitation(verifiers=(forged,)), NOW)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a", "http://a b", "http://a\n", "http://\x1b[2J", "x"]
)
def test_an_endpoint_that_is_no_url_of_the_web_is_refused(url):
    with pytest.raises(ConfigError, match="expected http"):
        check_invitation(an_invitation(endpoints=(url,)), NOW)


@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[31m"])
def test_a_name_that_could_deceive_a_terminal_is_refused(name):
    with pytest.raises(ConfigError, match="one printable line"):
        check_invitation(an_invitation(name=name), NOW)


def test_an_invitation_with_too_few_contracts_is_refused():
    with pytest.raises(ConfigError, match="8 contracts, 9 expected"):
        check_invitation(an_invitation(contracts=an_invitation().contracts[1:]), NOW)


def test_the_addresses_are_those_of_the_deployment():
    made = an_invitation()

    assert evm_address(made.contracts[0].address) == made.deployment.token
