"""A network whose verifiers change: new runs go to the new set, open ones stay with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from assay.chain.client import ChainRefused, EpochPhase
from assay.chain.commit_statement import evm_address
from assay.chain.statements import VERIFIER, Delegation, certificate, sign_digest, term_of
from assay.ledger.settlement.funding import reading_of
from assay.ledger.settlement.payouts import Row, Settlement
from assay.ledger.settlement.results import epoch_result
from assay.orders.load import load_order
from assay.participant.files.record import Role, write_record
from assay.participant.files.run_file import read_run_file
from assay.participant.wallet.judges import Judges, read_judges
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import a_digest, a_hot_key, peer
from assay.testing.signed import NODES, STATE, VERIFIERS, a_member
from tests.a_network import NOW, a_record, records_of
from tests.cli.market import PURSE, Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow

NEXT = [*VERIFIERS[1:], "nova"]  # the first member goes, nova comes
DAY = 86_400


def rotate(assay: Assay, market: Market) -> None:
    """All members of the next set lock a lot for their term, and a quorum of the first hands over to them."""
    least, until = market.params.min_verifier_stake, market.bank.timestamp() + 390 * DAY
    market.bank.fund_many([wallet("nova")], token_amount=PURSE, amount_wei=10**18)
    records = [market.folder / f"{name}.record" for name in NEXT]
    for name, record in zip(NEXT, records, strict=True):
        write_record(record, a_record(name, Role.VERIFIER))
        market.as_(name).stake(VERIFIER, least)
    sign = ("network", "sign-rotation", market.config_of(VERIFIERS[0]), *records)
    assert "assay stake lock --set 2" in assay(*sign).err
    for name in NEXT:
        market.as_(name).ensure_lot(VERIFIER, term_of(2), least, until)
    market.delegate("nova")
    found = [assay("network", "sign-rotation", market.config_of(name), *records) for name in VERIFIERS[:3]]
    signatures = [word for one in found for word in ("--signature", one.out.strip())]
    command = ("network", "rotate", market.config_of(VERIFIERS[3]), *records)
    code, _, err = assay(*command, *signatures[:4])
    assert (code != 0 and "QuorumNotReached" in err) or "quorum" in err
    code, out, err = assay(*command, *signatures)
    assert code == 0 and "verifier set 2" in out, err


def place(assay: Assay, market: Market) -> tuple[RunSpec, Digest]:
    """A run that is ordered of the next set, by the buyer's command."""
    (market.folder / "run.assay").unlink()
    people = [*records_of(verifiers=NEXT), a_record("leo", Role.LEDGER), a_record("buyer", Role.BUYER)]
    for at, record in enumerate(people):
        write_record(market.folder / "members" / f"{at}.record", record)
    file = market.config_of("buyer")
    assay("order", "place", file, market.order_file, "--members", market.folder / "members")
    made = read_run_file(market.folder / "run.assay", NOW)
    market.run_id = made.run_id
    for name in NODES:
        market.lock(name)
    code, _, err = assay("order", "place", file, market.order_file)
    assert code == 0, err
    return made.spec, made.run_id


def signed(market: Market, statement: Any, keys: Sequence[str]) -> bytes:
    message = market.deployment.digest(statement)
    return certificate(message, [sign_digest(message, a_hot_key(name)) for name in keys])


def judges_of(market: Market, spec: RunSpec, run_id: bytes) -> Judges:
    return read_judges(market.bank, spec, Digest(run_id))


def settle(market: Market, spec: RunSpec, run_id: Digest, keys: Sequence[str]) -> None:
    """The first epoch, with these hot keys' signatures."""
    version = judges_of(market, spec, run_id).set_version
    row = Row(role="operator", peer=peer(NODES[0]), account=a_member(NODES[0]).account, amount=5)
    table = Settlement(
        run_id=run_id, epoch=0, rows=(row,), unpaid=(), tokens_paid=1, table_hash=a_digest("table")
    )
    result = epoch_result(spec, table, STATE, NO_DIGEST, version)
    market.bank.propose(result, signed(market, result, keys))
    market.advance(market.params.challenge_window_s)
    market.bank.finalize(run_id, 0)
    market.bank.claim(run_id, 0, table.tree(), 0)
    assert market.bank.epoch_state(run_id, 0).phase is EpochPhase.FINAL


def test_after_a_rotation_orders_go_to_the_new_set_and_an_open_run_stays_with_its_own(
    assay: Assay, market: Market
):
    market.join_nodes()
    market.open_run()
    old_spec, old_run = market.spec, market.run_id
    rotate(assay, market)

    new_spec, new_run = place(assay, market)

    assert load_order(market.order_file).run.verifiers == len(NEXT)
    assert judges_of(market, old_spec, old_run).set_version == 1
    assert judges_of(market, new_spec, new_run).set_version == 2
    market.advance(1)
    for spec, run_id in ((old_spec, old_run), (new_spec, new_run)):
        final = market.bank.final_escrow(run_id)
        assert reading_of(spec, final, market.bank.close_delay(), 0).epochs == spec.epochs
    with pytest.raises(ChainRefused, match="NotAMember"):
        settle(market, old_spec, old_run, ["nova", *VERIFIERS[1:3]])
    settle(market, old_spec, old_run, VERIFIERS[:3])
    with pytest.raises(ChainRefused, match="NotAMember"):
        settle(market, new_spec, new_run, VERIFIERS[:3])
    settle(market, new_spec, new_run, ["nova", *VERIFIERS[1:3]])


def test_a_leaked_hot_key_is_replaced_while_its_run_is_open(market: Market):
    market.open_run()
    name, spec = VERIFIERS[0], market.spec
    hot = evm_address(a_member("a fresh key").hot)
    consent = Delegation(
        deployment_id=market.deployment.deployment_id, account=wallet(name), hot_key=hot, expiry=2**40
    )
    message = market.deployment.digest(consent)
    market.as_(name).delegate(hot, 2**40, sign_digest(message, a_hot_key("a fresh key")))

    assert judges_of(market, spec, market.run_id).hot_keys[peer(name)] == hot
    found = market.bank.hot_key(evm_address(a_member(name).hot))
    assert found is not None and found.is_replaced
    with pytest.raises(ChainRefused, match="NotAMember"):
        settle(market, spec, Digest(market.run_id), VERIFIERS[:3])
    settle(market, spec, Digest(market.run_id), ["a fresh key", *VERIFIERS[1:3]])
