"""Statements: one digest per meaning, one signature per signer, and nothing a chain would not take."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_type_hints

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from assay.chain import statements
from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.statements import (
    STATEMENTS,
    Address,
    BadSignatureError,
    Statement,
    Veto,
    address_of,
    certificate,
    digest,
    quorum,
    recover,
    sign,
    sign_digest,
    signers,
    verify_certificate,
)
from assay.protocol.errors import ConfigError, MalformedMessage

N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
DIGEST = keccak(b"something to sign")
HOT = [keccak(bytes([i])) for i in range(1, 8)]


def a_deployment(**changes: Any) -> Deployment:
    addresses = {name: Address(address_of(keccak(text=name))) for name in CONTRACTS.values()}
    base = Deployment(chain_id=31337, deployment_id=b"\1" * 32, block=0, **addresses)
    return replace(base, **changes)


def a_statement(kind: type, seed: int = 1) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for at, field in enumerate(fields(kind)):
        solidity = hints[field.name].__metadata__[0]
        values[field.name] = {
            "bytes32": keccak(bytes([seed, at])),
            "address": address_of(keccak(bytes([seed, at]))),
            "bool": seed == 1,
        }.get(solidity, seed + at)
    return kind(**{**values, "deployment_id": bytes([seed]) * 32})


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_digest_is_what_another_implementation_of_eip712_computes(kind: type):
    deployment, statement = a_deployment(), a_statement(kind)
    names = [one.split(" ") for one in statements.type_string(kind).split("(")[1][:-1].split(",")]
    domain = deployment.domain(kind)
    signable = encode_typed_data(
        {
            "name": domain.name,
            "version": "1",
            "chainId": 31337,
            "verifyingContract": domain.verifying_contract,
        },
        {kind.__name__: [{"type": solidity, "name": name} for solidity, name in names]},
        {name: getattr(statement, field.name) for (_, name), field in zip(names, fields(kind), strict=True)},
    )
    assert deployment.digest(statement) == keccak(
        b"\x19" + signable.version + signable.header + signable.body
    )


@pytest.mark.parametrize("kind", STATEMENTS)
def test_a_digest_covers_every_field_and_the_place_of_judgement(kind: type):
    deployment, statement, other = a_deployment(), a_statement(kind), a_statement(kind, seed=7)
    domain = deployment.domain(kind)
    changed = [replace(statement, **{f.name: getattr(other, f.name)}) for f in fields(kind)]
    digests = {digest(one, domain) for one in changed}
    digests |= {digest(statement, replace(domain, chain_id=1))}
    digests |= {digest(statement, replace(domain, verifying_contract=address_of(HOT[0])))}
    assert digest(statement, domain) not in digests
    assert len(digests) == len(fields(kind)) + 2


def test_a_statement_is_signed_for_its_own_judge_and_deployment_only():
    deployment = a_deployment()
    with pytest.raises(ValueError, match="checked by SlashCourt"):
        digest(a_statement(Veto), deployment.domain(statements.EpochResult))
    with pytest.raises(ValueError, match="for deployment"):
        a_deployment(deployment_id=b"\2" * 32).digest(a_statement(Statement))


def test_a_signature_names_its_signer():
    domain = a_deployment().domain(Statement)
    signature = sign(a_statement(Statement), domain, HOT[0])
    assert recover(digest(a_statement(Statement), domain), signature) == address_of(HOT[0])
    assert bytes(Account.unsafe_sign_hash(DIGEST, HOT[0]).signature) == sign_digest(DIGEST, HOT[0])


def test_a_signature_has_one_form():
    good = sign_digest(DIGEST, HOT[0])
    high = good[:32] + (N - int.from_bytes(good[32:64], "big")).to_bytes(32, "big") + bytes([55 - good[64]])
    for bad in (high, good[:64], good + b"\0", good[:64] + bytes([good[64] - 27]), bytes(64) + b"\x1b"):
        with pytest.raises(BadSignatureError):
            recover(DIGEST, bad)


@given(st.binary(max_size=200))
def test_bytes_from_a_stranger_are_refused_by_name_or_recover(garbage: bytes):
    for judge in (recover, signers):
        try:
            judge(DIGEST, garbage)
        except MalformedMessage:
            continue


@given(st.permutations(range(7)), st.integers(0, 7))
def test_a_certificate_holds_exactly_from_the_quorum_on(order: list[int], count: int):
    members = [address_of(key) for key in HOT]
    cert = certificate(DIGEST, [sign_digest(DIGEST, HOT[at]) for at in order[:count]] * 2)
    assert len(signers(DIGEST, cert)) == count
    if count >= quorum(7):
        verify_certificate(DIGEST, cert, members)
    else:
        with pytest.raises(BadSignatureError, match=f"{count} signatures; 5 of 7"):
            verify_certificate(DIGEST, cert, members)


def test_unsorted_repeated_or_foreign_signers_are_refused():
    members = [address_of(key) for key in HOT[:4]]
    cert = certificate(DIGEST, [sign_digest(DIGEST, key) for key in HOT[:4]])
    one, two = cert[:65], cert[65:130]
    with pytest.raises(BadSignatureError, match="ascending"):
        signers(DIGEST, two + one)
    with pytest.raises(BadSignatureError, match="ascending"):
        signers(DIGEST, one + one)
    stranger = certificate(DIGEST, [sign_digest(DIGEST, key) for key in HOT])
    with pytest.raises(BadSignatureError, match="not in the verifier set"):
        verify_certificate(DIGEST, stranger, members)


@pytest.mark.parametrize(("members", "needed"), [(1, 1), (3, 3), (4, 3), (7, 5), (10, 7), (64, 43)])
def test_a_quorum_is_more_than_two_thirds(members: int, needed: int):
    assert quorum(members) == needed


def test_a_deployment_file_reads_back_and_bad_ones_are_the_operators_to_fix():
    deployment = a_deployment()
    assert Deployment.from_json(deployment.to_json()) == deployment
    whole, token = deployment.to_json(), deployment.token
    for text in ("", "[]", "{}", whole.replace("01" * 32, "01"), whole[:-5]):
        with pytest.raises(ConfigError, match="deployment file"):
            Deployment.from_json(text)
    for other in ("0x", token.lower(), token[:-2]):
        with pytest.raises(ConfigError, match=f"deployment file: token: '{other}', expected a checksummed"):
            Deployment.from_json(whole.replace(token, other))
