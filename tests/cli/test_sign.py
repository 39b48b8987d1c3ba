"""`assay key sign`: commands run again once their transactions are signed where the account's key is."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.client import UNIT
from assay.chain.signing.signer import KeyHere
from assay.chain.signing.unsigned import read_signed, read_unsigned, signed_path
from assay.chain.statements import OPERATOR
from assay.cli.operator import fleet_config
from assay.cli.process import read_process_file
from assay.fleet.service import Fleet
from assay.observer.ledger_service.service import run_ledger_service
from assay.observer.watchtower import run_watchtower
from assay.participant.config import Config
from assay.participant.files.record import OWN_RECORD, Role, write_record
from assay.participant.keys.keyring import QUICK, AccountElsewhere, Keys, load_keys, write_keys
from assay.participant.wallet.claims import claim_everything
from assay.participant.wallet.discharge import FILE, discharge
from assay.protocol.errors import ConfigError
from assay.testing.signed import NODES
from assay.verifier.service.process import run_verifier
from tests.a_network import a_record, keys_of
from tests.cli.market import PASSWORD, PURSE, Market, wallet
from tests.cli.test_discharge import LOT, Verifiers, a_participant, locked, settled_count
from tests.conftest import Assay, Ended

pytestmark = pytest.mark.slow

NODE, OTHER = NODES[0], NODES[1]
DAY = 86_400


class Apart:
    """A participant whose account's key is in another folder, as on a machine without network."""

    def __init__(self, assay: Assay, market: Market, name: str) -> None:
        self.assay, self.market, self.name = assay, market, name
        self.folder, self.offline = market.folder / "to-sign", market.folder / "offline"
        write_keys(self.offline, keys_of(name), PASSWORD, QUICK)
        write_keys(market.folder / name / "keys", self.keys, PASSWORD, QUICK)
        self.file = market.config_of(name)

    @property
    def keys(self) -> Keys:
        elsewhere = AccountElsewhere(url=f"file:{self.folder}", account=wallet(self.name))
        return replace(keys_of(self.name), account=elsewhere)

    def asked(self, *words: object) -> Path:
        """The file to sign that a command leaves."""
        code, _, err = self.assay(*words)
        assert code == 1 and "not signed yet" in err, err
        (path,) = self.folder.glob("*.json")
        assert str(path) in err and str(signed_path(path)) in err
        return path

    def sign(self, path: Path, *more: object) -> Ended:
        """At the key, as the password is the same there."""
        return self.assay("key", "sign", path, "--keys", self.offline, "--yes", *more)

    def done(self, *words: object, moves: int) -> tuple[list[str], str]:
        """Run a command until it is done: what was shown at the key each time, and its last words."""
        shown = []
        for _ in range(moves):
            code, out, err = self.sign(self.asked(*words), "--network", self.market.folder / "network.txt")
            assert code == 0, err
            shown.append(out)
        code, out, err = self.assay(*words)
        assert code == 0 and list(self.folder.iterdir()) == [], err
        return shown, out


@pytest.fixture
def apart(assay: Assay, market: Market) -> Apart:
    return Apart(assay, market, NODE)


def at_midnight(market: Market) -> None:
    """Chain time is a minute after a day's beginning (UTC)."""
    market.advance(DAY - market.bank.timestamp() % DAY + 60)


def test_stake_is_added_by_two_signatures_and_each_is_shown(apart: Apart, market: Market):
    (approve, stake), out = apart.done("stake", "add", apart.file, "300", moves=2)

    assert "added 300.000000 aUSD, 300.000000 aUSD active: block" in out
    assert market.bank.stake_of(wallet(NODE), OPERATOR).active == 300 * UNIT
    vault = market.deployment.stake_vault
    assert f"to        {market.deployment.token}, AssayToken" in approve
    assert "calls     approve(address,uint256)" in approve
    assert f"spender = {vault} (StakeVault)" in approve
    assert "value = 300000000 (300.000000 aUSD)" in approve
    assert f"to        {vault}, StakeVault" in stake and "calls     stake(uint8,uint256)" in stake
    assert f"account   {wallet(NODE)}" in stake and "chain     31337, nonce 1" in stake
    assert "role = 0" in stake and "amount = 300000000 (300.000000 aUSD)" in stake
    assert "sends     0 of the chain's coin" in stake and "at most" in stake and "asked as  'stake'" in stake


def test_moves_that_end_on_a_date_are_the_same_all_day(apart: Apart, market: Market):
    at_midnight(market)
    market.as_(NODE).stake(OPERATOR, 200 * UNIT)

    path = apart.asked("key", "delegate", apart.file, "--days", 5)
    market.advance(DAY - 900)
    assert apart.sign(path)[0] == 0
    assert apart.assay("key", "delegate", apart.file, "--days", 5)[0] == 0
    hot = market.bank.hot_key(KeyHere(keys_of(NODE).hot).address)
    assert hot is not None and hot.expiry % DAY == 0 and hot.expiry > market.bank.timestamp() + 5 * DAY

    at_midnight(market)
    path = apart.asked("stake", "lock", apart.file, "150", "--days", 9)
    assert apart.sign(path)[0] == 0
    market.advance(DAY)  # too late: another date
    code, _, err = apart.assay("stake", "lock", apart.file, "150", "--days", 9)
    assert code == 2 and f"{signed_path(path)} was signed for another transaction: data" in err
    signed_path(path).unlink()
    (shown,), _ = apart.done("stake", "lock", apart.file, "150", "--days", 9, moves=1)
    lot = market.bank.lot_of(wallet(NODE), OPERATOR, market.run_id)
    now = market.bank.timestamp()
    assert lot.amount == 150 * UNIT and lot.until % DAY == 0 and now + 8 * DAY < lot.until < now + 9 * DAY
    assert f"until = {lot.until} (20" in shown and "commitment = 0x" + market.run_id.hex() in shown


def test_stake_leaves_and_comes_back(apart: Apart, market: Market):
    market.as_(NODE).stake(OPERATOR, 250 * UNIT)

    _, out = apart.done("stake", "remove", apart.file, "--to", "0", moves=1)
    assert "unbonding with ticket 1" in out
    market.advance(market.params.unbonding_s)
    (shown,), _ = apart.done("stake", "withdraw", apart.file, moves=1)
    assert "withdraw(uint256)" in shown and "ticket = 1" in shown
    assert market.bank.token_balance(wallet(NODE)) == PURSE


def test_pay_is_claimed_and_sent_to_another_address(apart: Apart, market: Market):
    market.open_run()
    tables = market.fill_store(NODE)
    market.settle(tables, 0)

    (payee, shown), out = apart.done("claim", apart.file, "--to", wallet("stranger"), moves=2)

    assert f"payee = {wallet('stranger')}" in payee and "claimed: block" in out
    assert "rows = 1 of them" in shown and f"rows[0].account = {wallet(NODE)}" in shown
    assert market.bank.token_balance(wallet("stranger")) > PURSE


def test_a_buyer_adds_to_its_escrow_and_closes_the_run(assay: Assay, market: Market):
    market.open_run()
    before = market.bank.run(market.run_id)
    apart = Apart(assay, market, "buyer")

    _, out = apart.done("order", "topup", apart.file, "5", moves=2)
    after = market.bank.run(market.run_id)
    assert before is not None and after is not None and after.budget == before.budget + 5 * UNIT
    assert "added 5.000000 aUSD" in out
    apart.done("order", "cancel", apart.file, moves=1)
    closing = market.bank.run(market.run_id)
    assert closing is not None and closing.closes_at < after.closes_at


# ---- at the key


def test_the_document_says_what_was_signed(apart: Apart, market: Market):
    path = apart.asked("stake", "add", apart.file, "300")

    code, out, _ = apart.sign(path, "--json")

    found = json.loads(out)
    transaction, _ = read_signed(signed_path(path))
    assert code == 0 and transaction == read_unsigned(path).transaction
    assert set(found) == {
        "schema", "action", "account", "chain_id", "nonce", "to", "contract", "function", "arguments",
        "value_wei", "fee_wei_max", "signed",
    }  # fmt: skip
    assert (found["schema"], found["contract"]) == (
        "assay/signed-transaction/1",
        None,
    )  # none says what it is
    assert found["function"] == "approve(address,uint256)"
    assert found["fee_wei_max"] == transaction.gas * transaction.fee_wei > 0
    assert found["arguments"]["spender"] == market.deployment.stake_vault
    assert signed_path(path).stat().st_mode & 0o777 == 0o600
    code, _, err = apart.sign(path)
    assert code == 2 and "is there already" in err


def edited(path: Path, **fields: str) -> None:
    body = json.loads(path.read_text())
    body["transaction"].update(fields)
    path.write_text(json.dumps(body))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda path, _: edited(path, data=f"{read_data(path)}00"), "hold more than the arguments"),
        (lambda path, _: edited(path, data=read_data(path)[:-2]), "damaged arguments"),
        (lambda path, _: edited(path, data="0x12345678"), "0x12345678 is no function of AssayToken at"),
        (lambda path, _: edited(path, data="0x"), "0x is no function of"),
        (lambda path, _: edited(path, to=wallet(OTHER)), "is no contract of this network"),
        (lambda path, market: edited(path, to=market.deployment.directory), "is no function of Directory"),
        (
            lambda path, _: edited(path, chainId="0x1"),
            "a transaction of chain 1, the network is on chain 31337",
        ),
        (lambda path, _: edited(path, **{"from": wallet(OTHER)}), f"is for {wallet(OTHER)}, "),
        (lambda path, _: path.write_text("{}"), "no transaction to sign"),
    ],
)
def test_what_cannot_be_shown_or_is_not_for_this_key_is_not_signed(
    apart: Apart, market: Market, edit: Callable[[Path, Market], None], said: str
):
    path = apart.asked("stake", "add", apart.file, "300")
    edit(path, market)

    code, _, err = apart.sign(path, "--network", market.folder / "network.txt")

    assert code == 2 and said in err and not signed_path(path).exists()


def read_data(path: Path) -> str:
    return f"0x{read_unsigned(path).transaction.data.hex()}"


def test_nothing_is_signed_unasked_nor_by_another_key(apart: Apart, market: Market):
    path = apart.asked("stake", "add", apart.file, "300")
    other = market.folder / "other"
    write_keys(other, keys_of(OTHER), PASSWORD, QUICK)

    code, out, err = apart.assay("key", "sign", path, "--keys", apart.offline)
    assert code == 2 and "give --yes" in err and "approve(address,uint256)" in out
    code, _, err = apart.assay("key", "sign", path, "--keys", other, "--yes")
    assert code == 2 and f"has the key of {wallet(OTHER)}" in err
    online = ("--keys", market.folder / NODE / "keys", "--password-file", market.folder / "password")
    code, _, err = apart.assay("key", "sign", path, *online, "--yes")
    assert code == 2 and "behind the files in" in err
    assert not signed_path(path).exists()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "is_signed"), [("n", False), ("", False), ("y", True)])
def test_a_person_is_asked(apart: Apart, monkeypatch: pytest.MonkeyPatch, answer: str, is_signed: bool):
    path = apart.asked("stake", "add", apart.file, "300")
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))

    code, out, _ = apart.assay("key", "sign", path, "--keys", apart.offline)

    assert "approve(address,uint256)" in out and "sign it? [y/N]" in out
    assert (code == 0) == signed_path(path).exists() == is_signed


def test_text_from_the_other_machine_cannot_move_the_cursor(apart: Apart):
    path = apart.asked("stake", "add", apart.file, "300")
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "action": "\x1b[2Jclaim"}))

    out = apart.sign(path).out

    assert "compared with no network" in out
    assert "\x1b" not in out and "asked as  '\\x1b[2Jclaim'" in out


def test_a_folder_of_keys_without_the_accounts_key(assay: Assay, tmp_path: Path):
    made = tmp_path / "keys"
    for wrong in (
        ["--unsigned", tmp_path / "to-sign"],
        ["--unsigned", tmp_path / "to-sign", "--signer", "http://a", "--account", wallet(NODE)],
        ["--account", wallet(NODE)],
    ):
        code, _, err = assay("key", "new", made, *wrong)
        assert code == 2 and "--unsigned" in err and not made.exists()

    code, out, err = assay("key", "new", made, "--unsigned", tmp_path / "to-sign", "--account", wallet(NODE))

    assert code == 0 and f"account {wallet(NODE)}" in out, err
    keys = load_keys(made, (tmp_path / "password").read_text().strip())
    assert keys.signs_by_files and keys.signer.address == wallet(NODE)
    assert json.loads((made / "signer.json").read_text())["url"] == f"file:{tmp_path / 'to-sign'}"


# ---- processes


@pytest.mark.parametrize(
    ("process", "name"),
    [
        (lambda config: trio.run(run_verifier, config), "a verifier"),
        (lambda config: trio.run(run_watchtower, config), "a watchtower"),
        (lambda config: trio.run(run_ledger_service, config, config.folder / "status"), "a ledger service"),
    ],
)
def test_a_process_that_sends_by_itself_refuses_such_an_account(
    apart: Apart, process: Callable[[Config], None], name: str
):
    config, _ = read_process_file(apart.file)
    with pytest.raises(ConfigError, match=f"{name} sends transactions by itself"):
        process(config)
    assert not apart.folder.exists()


def test_an_operators_process_refuses_such_an_account(apart: Apart):
    write_record(apart.market.folder / NODE / "keys" / OWN_RECORD, a_record(NODE, Role.NODE))
    apart.file.write_text(f"{apart.file.read_text()}[operator]\nreserve = 1\nlots = 1\n")
    with pytest.raises(ConfigError, match="an operator's process sends transactions by itself"):
        Fleet(fleet_config(apart.file))


def test_a_node_says_once_what_it_leaves_to_its_owner(
    apart: Apart, market: Market, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    follower: Any = SimpleNamespace()  # not asked for anything

    trio.run(claim_everything, me_of(apart), follower)

    (line,) = caplog.records
    assert "no transaction is sent here" in line.message
    assert "assay claim" in line.by_hand and "assay key delegate" in line.by_hand  # type: ignore[attr-defined]


def me_of(apart: Apart) -> Any:
    me = a_participant(apart.market, apart.name)
    me.keys = apart.keys
    return me


def test_a_node_that_left_keeps_its_discharge_for_its_owner(apart: Apart, market: Market):
    locked(market)
    text = trio.run(discharge, me_of(apart), Verifiers(market, settled_count(market)))
    assert "sent by hand: assay stake release" in text and (market.folder / NODE / FILE).exists()
    assert not apart.folder.exists()

    assert apart.sign(apart.asked("stake", "release", apart.file))[0] == 0
    code, _, err = apart.assay("stake", "release", apart.file)
    assert code == 1 and "the lot can be released from" in err and "(in 7 d)" in err
    market.advance(market.params.evidence_window_s)
    _, out = apart.done("stake", "release", apart.file, moves=1)
    assert "released 300.000000 aUSD" in out and LOT == 300 * UNIT
