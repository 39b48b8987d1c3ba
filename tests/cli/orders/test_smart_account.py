"""An account that is a contract buys: it makes the calls of written files, its hot key signs the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR
from assay.cli.process import read_process_file
from assay.observer.buyer.service import sign_delivered
from assay.orders.load import load_order
from assay.participant.config import read_run
from assay.participant.directory.find import announced_run
from assay.participant.files.index import IntegrityError, check_index, write_index
from assay.participant.files.record import Role, sign_record, write_record
from assay.participant.keys.keyring import QUICK, Keys, rotate_hot, write_keys
from assay.protocol.encoding.codec import digest
from assay.testing.members import an_account_key
from assay.testing.signed import NODES
from tests.a_network import NOW, keys_of
from tests.chain.moves import transfer_token
from tests.chain.smart_account import SmartAccount
from tests.cli.market import PASSWORD, PURSE, Market
from tests.cli.orders.test_money import market_of_records
from tests.conftest import Assay

pytestmark = pytest.mark.slow

DAY = 86_400


class Safe:
    """A buyer whose account is a contract, in a market with records of everybody."""

    def __init__(self, assay: Assay, market: Market) -> None:
        self.assay, self.market = assay, market
        self.folder = market.folder / "to-sign"
        self.account = SmartAccount(market.as_("stranger"))
        write_keys(market.folder / "buyer" / "keys", self.keys, PASSWORD, QUICK)
        transfer_token(market.as_("buyer"), self.account.address, PURSE)
        self.file, self.members = market_of_records(market)
        record = sign_record(self.keys, Role.BUYER, "::1", 1, NOW)
        (own,) = [path for path in self.members.iterdir() if "Assay buyer" in path.read_text()]
        write_record(own, record)

    @property
    def keys(self) -> Keys:
        return replace(keys_of("buyer"), account=self.account.keys(self.folder))

    def does(self, *words: object) -> tuple[list[str], str]:
        """Repeat a command until it is done, the account making what it writes: those calls, its words."""
        made: list[str] = []
        while True:
            code, out, err = self.assay(*words)
            if code == 0:
                return made, out
            assert code == 1 and "An account that is a contract makes the file's call" in err, err
            made.append(self.account.make(self.folder))

    def held(self) -> int:
        return self.market.bank.token_balance(self.account.address)


@pytest.fixture
def safe(assay: Assay, market: Market) -> Safe:
    market.join_nodes()
    return Safe(assay, market)


def placed(safe: Safe) -> int:
    """The run of the order, opened by the account; what it put up."""
    market = safe.market
    place = ("order", "place", safe.file, market.order_file)
    code, _, err = safe.assay(*place, "--members", safe.members)
    assert code == 2 and "assay stake lock" in err, err
    run, lot = read_run(read_process_file(safe.file)[0])[0], load_order(market.order_file).lot_units
    for name in NODES:
        market.as_(name).stake(OPERATOR, lot)
        market.as_(name).ensure_lot(OPERATOR, run.run_id, lot, market.bank.timestamp() + 390 * DAY)
    market.spec, market.run_id = run.spec, run.run_id
    made, out = safe.does(*place)
    assert made == ["approve", "open run", "announce run"] and "already open" in out
    return PURSE - safe.held()


def test_a_contract_buys_tops_up_cancels_and_is_refunded(safe: Safe):
    market, chain = safe.market, safe.market.bank

    budget = placed(safe)

    run = chain.run(market.run_id)
    assert run is not None and run.buyer == safe.account.address and run.spec_hash == digest(market.spec)
    assert run.deadline % DAY == 0 and run.budget == budget == load_order(market.order_file).budget_units()
    node = read_process_file(market.config_of(NODES[0], run=market.run_id.hex()))[0]
    taken, _ = read_run(node)  # as any participant takes it: from the directory, checked
    assert taken == announced_run(chain, market.run_id, NOW)
    assert evm_address(taken.spec.buyer) == safe.account.address
    assert taken.spec.signer == keys_of("buyer").hot_address

    more = str(budget // 10**6 + 5)
    assert safe.does("order", "topup", safe.file, "--to", more)[0] == ["approve", "top up"]
    assert PURSE - safe.held() == int(more) * 10**6
    assert safe.does("order", "cancel", safe.file)[0] == ["request close"]
    market.advance(market.params.close_delay_s)
    assert safe.does("order", "refund", safe.file)[0] == ["refund"]
    assert safe.held() == PURSE


def test_what_is_delivered_is_signed_by_the_key_that_the_spec_names_also_after_a_rotation(
    safe: Safe, tmp_path: Path
):
    placed(safe)
    signer = safe.market.spec.signer
    folder = tmp_path / "delivered"
    folder.mkdir()
    (folder / "a").write_text("a model")
    config, _ = read_process_file(safe.file)

    sign_delivered(config, folder)
    assert check_index(folder, signer) == 1
    rotate_hot(config.keys, PASSWORD, QUICK)
    sign_delivered(config, folder)
    assert check_index(folder, signer) == 1

    write_index(folder, an_account_key("stranger"))  # the contract's owner
    with pytest.raises(IntegrityError, match="not signed by the buyer"):
        check_index(folder, signer)
