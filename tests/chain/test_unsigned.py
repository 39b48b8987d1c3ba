"""Files to sign: what was signed elsewhere is sent once, if it is what is asked for, and nothing else is."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from assay.chain import rpc
from assay.chain.client import UNIT, Chain, ChainRefused, Sent, deploy
from assay.chain.signing.signer import KeyHere
from assay.chain.signing.unsigned import FileSigner, read_signed, read_unsigned, signed_path
from assay.chain.statements import OPERATOR, address_of
from assay.protocol.errors import ConfigError, NotYet, Unavailable
from tests.contracts.chain_world import Person, World

KEY, OTHER = b"\1" * 32, b"\2" * 32
ASKED: dict[str, Any] = {
    "to": "0x" + "11" * 20, "data": "0xabcd", "value": 3, "gas": 50_000, "nonce": 7, "chainId": 31337,
    "maxFeePerGas": 9, "maxPriorityFeePerGas": 1,
}  # fmt: skip


@pytest.fixture
def signer(tmp_path: Path) -> FileSigner:
    return FileSigner(account=address_of(KEY), folder=tmp_path / "unsigned")


def asked_for(signer: FileSigner, **edits: Any) -> Path:
    """The file to sign, of a transaction that is not signed yet."""
    with pytest.raises(NotYet, match="not signed yet"):
        signer.sign("stake", {**ASKED, **edits})
    (path,) = signer.folder.iterdir()
    return path


def sign(path: Path, key: bytes = KEY, **edits: Any) -> Path:
    """What a wallet makes of a file to sign."""
    made = Account.from_key(key).sign_transaction({**read_unsigned(path).transaction.fields, **edits})
    signed_path(path).write_text(f"0x{bytes(made.raw_transaction).hex()}\n")
    return signed_path(path)


def test_what_was_signed_elsewhere_is_what_a_key_here_signs(signer: FileSigner):
    path = asked_for(signer)
    assert json.loads(path.read_text()) == {
        "schema": "assay/unsigned-transaction/1",
        "action": "stake",
        "transaction": {
            "type": "0x2", "from": address_of(KEY), "to": ASKED["to"], "chainId": "0x7a69", "nonce": "0x7",
            "value": "0x3", "gas": "0xc350", "maxFeePerGas": "0x9", "maxPriorityFeePerGas": "0x1",
            "data": "0xabcd", "accessList": [],
        },
    }  # fmt: skip
    assert path.name == f"{address_of(KEY).lower()}-31337-7.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    sign(path)

    assert signer.sign("stake", ASKED) == KeyHere(KEY).sign("stake", ASKED)


def test_estimates_may_move_while_the_file_is_carried(signer: FileSigner):
    path = asked_for(signer)
    before = path.read_bytes()
    later = {**ASKED, "gas": 40_000, "maxFeePerGas": 5}

    assert asked_for(signer, gas=60_000, maxFeePerGas=12) == path and path.read_bytes() == before
    sign(path)

    assert signer.sign("stake", later) == KeyHere(KEY).sign("stake", ASKED)
    sign(path, gas=30_000, maxFeePerGas=8)  # less than was asked for is the owner's choice
    assert signer.sign("stake", later) == KeyHere(KEY).sign(
        "stake", {**ASKED, "gas": 30_000, "maxFeePerGas": 8}
    )


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        ({"key": OTHER}, "was signed by 0x.*, expected 0x"),
        ({"chainId": 1}, "chain_id 1, not 31337"),
        ({"nonce": 8}, "nonce 8, not 7"),
        ({"to": "0x" + "12" * 20}, "to 0x1212.*, not 0x1111"),
        ({"value": 4}, "value_wei 4, not 3"),
        ({"data": "0xabce"}, "data 0xabce, not 0xabcd"),
        ({"gas": 50_001}, "signed with gas 50001, above the 50000"),
        ({"maxFeePerGas": 10}, "signed with maxFeePerGas 10, above the 9"),
        ({"maxPriorityFeePerGas": 2}, "signed with maxPriorityFeePerGas 2, above the 1"),
        ({"accessList": [{"address": "0x" + "11" * 20, "storageKeys": []}]}, "without access list"),
    ],
)
def test_something_else_that_was_signed_is_not_sent(signer: FileSigner, edits: dict[str, Any], error: str):
    signed = sign(asked_for(signer), **edits)
    with pytest.raises(ConfigError, match=error) as refused:
        signer.sign("stake", ASKED)
    assert str(signed) in str(refused.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda text: text[:-3],
        lambda text: text[:-5],
        lambda text: text[:40],
        lambda text: f"{text.strip()}00",
        lambda text: f"0x01{text[4:]}",
        lambda text: text.replace("0x02", "0x"),
        lambda _: "0x02",
        lambda _: "0x02c0",
        lambda _: "a signature",
        lambda _: "0" * (1 << 21),
        lambda _: b"\xff\xfe",
    ],
)
def test_a_damaged_file_of_signed_bytes_is_named(signer: FileSigner, damage: Callable[[str], Any]):
    signed = sign(asked_for(signer))
    bad = damage(signed.read_text())
    signed.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
    with pytest.raises(ConfigError, match=str(signed)):
        signer.sign("stake", ASKED)


def test_another_call_takes_the_place_of_one_that_nobody_signed(signer: FileSigner):
    path = asked_for(signer)
    assert asked_for(signer, data="0xabce") == path
    assert read_unsigned(path).transaction.data == b"\xab\xce"
    path.write_text("{")
    asked_for(signer)
    assert read_unsigned(path).transaction.data == b"\xab\xcd"


def test_a_fee_that_the_chain_takes_no_more_is_asked_for_again(signer: FileSigner):
    path = asked_for(signer)
    signed = sign(path)
    dearer = {**ASKED, "maxFeePerGas": 18}

    with pytest.raises(NotYet, match="pays at most 9 wei per gas"):
        signer.sign("stake", dearer)
    assert signer.sign("stake", {**ASKED, "maxFeePerGas": 17}) == KeyHere(KEY).sign("stake", ASKED)
    signed.unlink()
    asked_for(signer, **dearer)
    assert read_unsigned(path).transaction.fee_wei == 18


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        ({"type": "0x1"}, "type 0x2"), ({"accessList": [1]}, "access list"), ({"gasPrice": "0x1"}, "fields"),
        ({"from": "0x" + "ab" * 20}, "checksummed"), ({"to": None}, "checksummed"), ({"data": "0xa"}, "data"),
        ({"nonce": "7"}, "nonce"), ({"value": "0x" + "f" * 65}, "value"), ({"gas": 5}, "gas"),
        ({"chainId": "-0x1"}, "chainId"),
    ],
)  # fmt: skip
def test_what_is_no_transaction_to_sign_is_refused(signer: FileSigner, edits: dict[str, Any], error: str):
    path = asked_for(signer)
    body = json.loads(path.read_text())
    body["transaction"].update(edits)
    path.write_text(json.dumps(body))
    with pytest.raises(ConfigError, match=f"{path}: no transaction to sign.*{error}"):
        read_unsigned(path)


@pytest.mark.parametrize("body", ["", "[]", "5", "{}", "[" * 9999, '{"transaction": 5, "schema": 1}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, body: str):
    (tmp_path / "a.json").write_text(body)
    with pytest.raises(ConfigError, match="no transaction to sign"):
        read_unsigned(tmp_path / "a.json")


def test_there_is_no_secret_and_no_deployment(signer: FileSigner):
    with pytest.raises(ConfigError, match="has no secret to report an offence with"):
        _ = signer.secret
    with pytest.raises(ConfigError, match="a deployment needs a key"):
        signer.sign("deploy", {name: value for name, value in ASKED.items() if name != "to"})
    assert not signer.folder.exists()


# ---- on a chain


@pytest.fixture
def owner(world: World) -> Person:
    return world.buyer


@pytest.fixture
def files(owner: Person, tmp_path: Path) -> FileSigner:
    return FileSigner(account=owner.account, folder=tmp_path / "unsigned")


def stake(world: World, signer: FileSigner) -> Sent:
    """What a command does each time that it is run."""
    return Chain(world.rpc_url, world.deployment, signer).stake(OPERATOR, 200 * UNIT)


def staked(world: World, owner: Person) -> int:
    return world.bank.stake_of(owner.account, OPERATOR).active


def signed_stake(world: World, signer: FileSigner, owner: Person, **edits: Any) -> Path:
    """Approve, and sign the stake after it; the signed file."""
    for edit in ({}, edits):
        with pytest.raises(NotYet, match="not signed yet"):
            stake(world, signer)
        (path,) = signer.folder.iterdir()
        signed = sign(path, owner.key, **edit)
    return signed


def test_two_moves_are_signed_one_after_the_other_and_leave_no_file(
    world: World, files: FileSigner, owner: Person
):
    signed_stake(world, files, owner)

    sent = stake(world, files)

    assert sent.block_number is not None and staked(world, owner) == 200 * UNIT
    assert list(files.folder.iterdir()) == []


def test_what_was_sent_and_not_seen_mined_is_not_asked_for_again(
    world: World, files: FileSigner, owner: Person
):
    """The process ended between sending and the receipt: the bytes are in a block, the files still here."""
    _, raw = read_signed(signed_stake(world, files, owner))
    tx_hash = bytes(world.bank._rpc.web3.eth.send_raw_transaction(raw))

    sent = stake(world, files)

    assert sent.tx_hash == tx_hash and list(files.folder.iterdir()) == []
    assert staked(world, owner) == 200 * UNIT
    with pytest.raises(NotYet, match="not signed yet"):  # the next one is another
        stake(world, files)


def test_what_a_wallet_sent_by_itself_is_not_asked_for_again(world: World, files: FileSigner, owner: Person):
    signed = signed_stake(world, files, owner)
    _, raw = read_signed(signed)
    signed.unlink()
    sent = bytes(world.bank._rpc.web3.eth.send_raw_transaction(raw))
    world.bank._rpc.receipt("wallet", sent)

    with pytest.raises(ConfigError, match=r"-1\.json was not brought back signed, and its nonce is used"):
        stake(world, files)
    assert staked(world, owner) == 200 * UNIT
    (unsigned,) = files.folder.iterdir()
    unsigned.unlink()
    with pytest.raises(NotYet, match="approve: not signed yet"):
        stake(world, files)


def test_a_nonce_that_another_transaction_took_is_said(
    world: World, files: FileSigner, owner: Person, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rpc, "REPLACED_S", 0)
    signed = signed_stake(world, files, owner)
    world.as_(owner).name_payee(address_of(OTHER))

    with pytest.raises(Unavailable, match=f"has taken its nonce.*remove {signed}"):
        stake(world, files)
    assert staked(world, owner) == 0
    for path in files.folder.iterdir():
        path.unlink()
    with pytest.raises(NotYet, match="not signed yet"):
        stake(world, files)


def test_a_signed_transaction_that_reverts_is_over(world: World, files: FileSigner, owner: Person):
    signed_stake(world, files, owner, gas=60_000)

    with pytest.raises(ChainRefused, match="RevertedInBlock"):
        stake(world, files)

    assert list(files.folder.iterdir()) == [] and staked(world, owner) == 0


def test_what_cannot_be_repeated_is_refused_before_anything_is_written(world: World, files: FileSigner):
    chain = Chain(world.rpc_url, world.deployment, files)
    with pytest.raises(ConfigError, match="running this again would repeat"):
        chain.fund_many([address_of(OTHER)], token_amount=1, amount_wei=1)
    with pytest.raises(ConfigError, match="has no secret"):
        chain.commit_to_report(bytes(32))
    with pytest.raises(ConfigError, match="a deployment needs a key"):
        deploy(world.rpc_url, files, world.params, bytes(32), [address_of(OTHER)])
    assert not files.folder.exists()
