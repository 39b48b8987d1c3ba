"""Sign-in: one message has one text, and it opens a session here, now, once, for its signer."""

from __future__ import annotations

import string
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_utils.abi import function_signature_to_4byte_selector
from eth_utils.address import to_checksum_address
from hypothesis import given
from hypothesis import strategies as st

from assay.api.access import NONCE_S, SESSION_S
from assay.api.gateway import Gateway
from assay.api.server import SWEEP_S
from assay.api.signin import (
    AGE_S_MAX,
    SKEW_S,
    SignIn,
    SignInRefused,
    check_signin,
    parse_signin,
    signed_digest,
)
from assay.chain.statements import Address
from tests.api.a_server import NOW_S, ORIGIN, ApiWorld, Clock, is_problem
from tests.contracts.chain_world import World

KEY = bytes.fromhex("11" * 32)
ACCOUNT = Account.from_key(KEY).address
NOW = datetime.fromtimestamp(NOW_S, timezone.utc)
UNRESERVED = string.ascii_letters + string.digits + "-._~"
URI_CHARS = UNRESERVED + ":/?#[]@!$&'()*+,;="


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def a_message(**fields: Any) -> SignIn:
    told = {
        "domain": ORIGIN.partition("://")[2], "address": ACCOUNT, "uri": f"{ORIGIN}/login", "chain_id": 31337,
        "nonce": "a1b2c3d4", "issued_at": stamp(NOW),
    }  # fmt: skip
    return SignIn(**{**told, **fields})


def signed(text: str, key: bytes = KEY) -> str:
    return "0x" + bytes(Account.sign_message(encode_defunct(text=text), key).signature).hex()


times = st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2999, 1, 1)).map(
    lambda one: one.strftime("%Y-%m-%dT%H:%M:%S") + "Z"
)
uris = st.text(URI_CHARS, max_size=60).map(lambda rest: f"https:{rest}")
messages = st.builds(
    SignIn,
    scheme=st.none() | st.sampled_from(["https", "http"]),
    domain=st.text(UNRESERVED, min_size=1, max_size=40),
    address=st.binary(min_size=20, max_size=20).map(lambda raw: Address(to_checksum_address(raw))),
    statement=st.none() | st.text(URI_CHARS + " ", min_size=1, max_size=80),
    uri=uris,
    chain_id=st.integers(0, 10**19),
    nonce=st.text(string.ascii_letters + string.digits, min_size=8, max_size=64),
    issued_at=times,
    expires_at=st.none() | times,
    not_before=st.none() | times,
    request_id=st.none() | st.text(UNRESERVED + "!$&'()*+,;=:@", max_size=30),
    resources=st.none() | st.lists(uris, max_size=5).map(tuple),
)


@given(messages)
def test_parsing_inverts_writing(message: SignIn):
    assert parse_signin(message.text()) == message


@given(messages, st.data())
def test_a_text_that_differs_in_any_place_is_another_message_or_none(message: SignIn, data: st.DataObject):
    text = message.text()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(["", "\n", " ", "x", "\r\n", "\u00a0", "0", "-"]))
    changed = text[:at] + other + text[at + 1 :]
    try:
        assert parse_signin(changed) != message or changed == text
        assert parse_signin(changed).text() == changed
    except SignInRefused:
        pass


@given(st.text(max_size=300))
def test_no_text_does_anything_but_parse_or_be_refused(text: str):
    with suppress(SignInRefused):
        assert parse_signin(text).text() == text


def test_the_digest_is_the_wallets():
    text = a_message().text()
    assert Account._recover_hash(signed_digest(text), signature=bytes.fromhex(signed(text)[2:])) == ACCOUNT


@pytest.mark.parametrize(
    "change",
    [
        ("Version: 1", "Version: 2"),
        ("Version: 1", "Version: 01"),
        ("Chain ID: 31337", "Chain ID: 031337"),
        ("Chain ID: 31337", "Chain ID: -1"),
        ("Nonce: a1b2c3d4", "Nonce: a1b2c3d"),
        ("Nonce: a1b2c3d4", "Nonce: a1b2c3d-"),
        ("\n", "\r\n"),
        (ACCOUNT, ACCOUNT.lower()),
        ("Issued At: ", "Issued At:  "),
        ("T", "T99"),
        ("account:\n", "account:\n\n"),
        ("URI: ", "uri: "),
        ("https://", "://"),
    ],
)
def test_a_text_that_is_not_by_the_grammar_is_refused(change: tuple[str, str]):
    with pytest.raises(SignInRefused):
        parse_signin(a_message().text().replace(*change))


@pytest.mark.parametrize("time", ["2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00+99:99",
                                  "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"])  # fmt: skip
def test_a_time_that_is_none_is_refused(time: str):
    with pytest.raises(SignInRefused, match="is not a time"):
        parse_signin(a_message(issued_at=time).text())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, None),
        ({"scheme": "https"}, None),
        ({"scheme": "http"}, "a sign-in for"),
        ({"domain": "evil.example.org"}, "a sign-in for"),
        ({"domain": "api.example.org.evil.com"}, "a sign-in for"),
        ({"domain": "API.example.org"}, "a sign-in for"),
        ({"uri": "https://evil.org/login"}, "another origin"),
        ({"uri": "http://api.example.org/"}, "another origin"),
        ({"uri": "https://api.example.org@evil.org/"}, "another origin"),
        ({"uri": "https://api.example.org.evil.org"}, "another origin"),
        ({"uri": "did:example:123"}, "another origin"),
        ({"chain_id": 1}, "on chain 1, 31337 expected"),
        ({"issued_at": stamp(NOW + timedelta(seconds=SKEW_S))}, None),
        ({"issued_at": stamp(NOW + timedelta(seconds=SKEW_S + 1))}, "in the future"),
        ({"issued_at": stamp(NOW - timedelta(seconds=AGE_S_MAX))}, None),
        ({"issued_at": stamp(NOW - timedelta(seconds=AGE_S_MAX + 1))}, "ago"),
        ({"expires_at": stamp(NOW + timedelta(seconds=1))}, None),
        ({"expires_at": stamp(NOW)}, "has expired"),
        ({"not_before": stamp(NOW)}, None),
        ({"not_before": stamp(NOW + timedelta(seconds=1))}, "not valid yet"),
    ],
)
def test_a_message_is_for_one_site_chain_and_time(fields: dict[str, Any], words: str | None):
    message = parse_signin(a_message(**fields).text())
    if words is None:
        check_signin(message, origin=ORIGIN, chain_id=31337, now=NOW)
    else:
        with pytest.raises(SignInRefused, match=words):
            check_signin(message, origin=ORIGIN, chain_id=31337, now=NOW)


# ---- at the server


@pytest.fixture
def chained(folder: Path, world: World) -> ApiWorld:
    return ApiWorld(folder, gateway=Gateway(world.rpc_url, world.deployment))


def sign_in(world_api: ApiWorld, key: bytes = KEY, signer: bytes | None = None, **fields: Any) -> Any:
    told = world_api.ask("POST", "/v1/signin/nonce").json()
    fields = {
        "nonce": told["nonce"],
        "chain_id": told["chain_id"],
        "issued_at": stamp(datetime.fromtimestamp(world_api.clock(), timezone.utc)),
        **fields,
    }
    text = a_message(address=Account.from_key(key).address, **fields).text()
    return world_api.ask(
        "POST", "/v1/signin", json={"message": text, "signature": signed(text, signer or key)}
    )


def test_a_wallet_signs_in_and_out(chained: ApiWorld):
    made = sign_in(chained)
    secret = made.json()["token"]

    assert (made.status_code, made.json()["account"]) == (201, ACCOUNT)
    assert chained.get("/v1/runs", secret).status_code == 200
    chained.clock.now_s += SESSION_S - 1
    assert chained.get("/v1/runs", secret).status_code == 200
    assert chained.ask("DELETE", "/v1/signin", secret).status_code == 204
    assert is_problem(chained.get("/v1/runs", secret), 401)


def test_a_message_comes_whole_to_who_does_not_write_one(chained: ApiWorld):
    asked = {"account": ACCOUNT.lower()}
    told = chained.ask("POST", "/v1/signin/message", json=asked).json()
    message = parse_signin(told["message"])

    expected = a_message(
        uri=ORIGIN,
        nonce=message.nonce,
        statement=message.statement,
        expires_at=stamp(NOW + timedelta(seconds=NONCE_S)),
    )
    assert (message, told["expires_at"]) == (expected, NOW_S + NONCE_S)
    body = {"message": told["message"], "signature": signed(told["message"])}
    assert chained.ask("POST", "/v1/signin", json=body).json()["account"] == ACCOUNT
    assert is_problem(chained.ask("POST", "/v1/signin", json=body), 401, "used")
    assert is_problem(chained.ask("POST", "/v1/signin/message", json={"account": "0x12"}), 422, "account")


def test_a_session_ends_when_its_time_is_over(chained: ApiWorld):
    secret = sign_in(chained).json()["token"]
    chained.clock.now_s += SESSION_S

    assert is_problem(chained.get("/v1/runs", secret), 401)


def test_no_number_of_accounts_keeps_another_from_signing_in(
    chained: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.api.access.SESSIONS_MAX", 3)
    made_up = [chained.session(f"0x{number:040x}") for number in range(3)]

    answer = sign_in(chained)

    assert answer.status_code == 201
    known = [chained.access.authenticate(one, NOW_S) for one in (*made_up, answer.json()["token"])]
    assert [one is not None for one in known] == [False, True, True, True]  # the oldest alone has ended


def test_no_number_of_used_nonces_keeps_another_from_signing_in_or_makes_one_good_again(
    chained: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.api.access.NONCES_MAX", 3)
    store = chained.access
    unused = store.new_nonce(NOW_S)
    nonces = [store.new_nonce(NOW_S + second) for second in range(1, 6)]
    now_s = NOW_S + 6

    assert all(store.use_nonce(one, now_s) for one in nonces)
    assert not any(store.use_nonce(one, now_s) for one in nonces)  # also those that the table forgot
    assert not store.use_nonce(unused, now_s)  # as old as those: nothing says that it was not used
    chained.clock.now_s = now_s
    assert sign_in(chained).status_code == 201
    with store.reading() as db:
        assert db.execute("SELECT count(*) FROM used_nonce").fetchone()[0] == 3


def test_what_has_expired_is_deleted_however_often_somebody_asks(world_api: ApiWorld):
    store, clock, token = world_api.access, world_api.clock, world_api.token("read")

    def used_count() -> int:
        with store.reading() as db:
            found: int = db.execute("SELECT count(*) FROM used_nonce").fetchone()[0]
        return found

    for clock.now_s in (NOW_S, NOW_S - 3600):  # also after the clock was set back
        assert store.use_nonce(store.new_nonce(clock()), clock())
        assert used_count() == 1
        for _ in range(0, NONCE_S + SWEEP_S, 50):
            clock.now_s += 50
            assert world_api.get("/v1/runs", token).status_code == 200
        assert used_count() == 0


def test_a_message_is_good_once(chained: ApiWorld):
    nonce = chained.ask("POST", "/v1/signin/nonce").json()["nonce"]
    assert sign_in(chained, nonce=nonce).status_code == 201

    assert is_problem(sign_in(chained, nonce=nonce), 401, "expired or used")


def test_a_nonce_is_ours_and_expires(chained: ApiWorld):
    nonce = chained.ask("POST", "/v1/signin/nonce").json()["nonce"]
    for other in ("a1b2c3d4", nonce[:-1] + ("0" if nonce[-1] != "0" else "1"), "f" * 58, nonce[1:] + "0"):
        assert is_problem(sign_in(chained, nonce=other), 401, "nonce")
    chained.clock.now_s += NONCE_S
    assert is_problem(sign_in(chained, nonce=nonce), 401, "nonce")


def test_who_did_not_sign_gets_nothing_and_spoils_nobodys_nonce(chained: ApiWorld):
    nonce = chained.ask("POST", "/v1/signin/nonce").json()["nonce"]

    assert is_problem(sign_in(chained, signer=b"\x22" * 32, nonce=nonce), 401, "is not signed by")
    assert is_problem(sign_in(chained, nonce=nonce, chain_id=1), 401, "on chain 1")
    assert sign_in(chained, nonce=nonce).status_code == 201


@pytest.mark.parametrize(
    "body", [{"message": "hello", "signature": "0x00"}, {"message": "x" * 5000, "signature": "0x00"},
             {"message": 1, "signature": "0x00"}, {"signature": "0x00"}, {"message": "a", "signature": "zz"},
             {"message": "a", "signature": "0x00", "more": 1}, [], "x", None]
)  # fmt: skip
def test_what_is_no_message_is_refused(chained: ApiWorld, body: Any):
    answer = chained.ask("POST", "/v1/signin", json=body)
    assert is_problem(answer, 401 if body == {"message": "hello", "signature": "0x00"} else 422)


def test_a_contract_wallet_is_asked_whether_it_signed(chained: ApiWorld, world: World):
    """Runtime code that answers the magic word if the signature's first byte is 0x01, else zeros."""
    # Calldata is selector, digest, 0x40, length, signature at 0x64.
    runtime = "60643560f81c60011460145760005f5260205ff35b7f1626ba7e" + "00" * 28 + "5f5260205ff3"
    wallet = to_checksum_address("0x" + "c0" * 20)
    world.rpc("anvil_setCode", wallet, "0x" + runtime)
    nonce = chained.ask("POST", "/v1/signin/nonce").json()
    text = replace(
        a_message(nonce=nonce["nonce"], chain_id=nonce["chain_id"]), address=Address(wallet)
    ).text()

    good = chained.ask("POST", "/v1/signin", json={"message": text, "signature": "0x01aa"})
    assert (good.status_code, good.json()["account"]) == (201, wallet)
    bad = chained.ask("POST", "/v1/signin", json={"message": text, "signature": "0x02aa"})
    assert is_problem(bad, 401, "is not signed by")
    nobody = text.replace(wallet, to_checksum_address("0x" + "c1" * 20))
    assert is_problem(chained.ask("POST", "/v1/signin", json={"message": nobody, "signature": "0x01aa"}), 401)
    for refusing in ("5f5ffd", "5b5f56", "fe", "00"):  # reverts, never ends, no code, answers nothing
        world.rpc("anvil_setCode", wallet, "0x" + refusing)
        again = chained.ask("POST", "/v1/signin", json={"message": text, "signature": "0x01aa"})
        assert is_problem(again, 401, "is not signed by")


def test_a_contract_wallet_sends_the_server_to_no_address_that_it_names(
    chained: ApiWorld, world: World, monkeypatch: pytest.MonkeyPatch
):
    """By EIP-3668 a call that reverts with OffchainLookup is answered by HTTP requests of the caller."""
    wallet, asked = to_checksum_address("0x" + "c0" * 20), list[object]()

    def ask(*given: object, **_: object) -> bytes:
        asked.append(given)
        return b""

    monkeypatch.setattr("web3.eth.eth.handle_offchain_lookup", ask)
    lookup = function_signature_to_4byte_selector("OffchainLookup(address,string[],bytes,bytes4,bytes)")
    kinds = ["address", "string[]", "bytes", "bytes4", "bytes"]
    data = lookup + encode(kinds, [wallet, ["https://example.org/{sender}/{data}"], b"", b"call", b""])
    size = len(data).to_bytes(2, "big").hex()
    world.rpc("anvil_setCode", wallet, f"0x61{size}600c5f3961{size}5ffd{data.hex()}")  # reverts with the data
    nonce = chained.ask("POST", "/v1/signin/nonce").json()
    signed = a_message(nonce=nonce["nonce"], chain_id=nonce["chain_id"])
    text = replace(signed, address=Address(wallet)).text()

    answer = chained.ask("POST", "/v1/signin", json={"message": text, "signature": "0x01aa"})

    assert is_problem(answer, 401, "is not signed by") and asked == []


def test_without_a_chain_nobody_signs_in(world_api: ApiWorld):
    assert is_problem(world_api.ask("POST", "/v1/signin/nonce"), 503, "not connected to a chain")


def test_the_clock_is_the_servers(folder: Path, world: World):
    late = ApiWorld(folder, gateway=Gateway(world.rpc_url, world.deployment), clock=Clock(NOW_S + 10**6))
    told = late.ask("POST", "/v1/signin/nonce").json()

    answer = sign_in(late, nonce=told["nonce"], issued_at=stamp(NOW))
    assert is_problem(answer, 401, "ago")
