"""A model's record on chain: a quorum of the present set takes it back, and whoever asks is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.chain.statements import ModelRecord
from assay.testing.signed import STATE, VERIFIERS
from tests.cli.market import Market
from tests.cli.orders.test_rotation import settle, signed
from tests.conftest import Assay

pytestmark = pytest.mark.slow

REASON = ("--reason", "data without a licence")


@pytest.fixture
def records(market: Market) -> list[str]:
    """Two records of one final result."""
    market.open_run()
    settle(market, market.spec, market.run_id, VERIFIERS[:3])
    first = ModelRecord(
        deployment_id=market.deployment.deployment_id,
        run_id=market.run_id,
        model_hash=STATE,
        data_inventory_hash=bytes(32),
        config_hash=bytes(32),
        parent=bytes(32),
        last_result=market.bank.epoch_state(market.run_id, 0).digest,
    )
    both = [first, replace(first, config_hash=b"\1" * 32)]
    return [market.bank.register_model(one, signed(market, one, VERIFIERS[:3])).hex() for one in both]


def signatures(assay: Assay, market: Market, *words: str) -> list[str]:
    found = [
        assay("registry", "sign-withdrawal", market.config_of(name), *words, *REASON)
        for name in VERIFIERS[:3]
    ]
    return [word for one in found for word in ("--signature", one.out.strip())]


def test_a_quorum_withdraws_a_record_and_whoever_asks_is_told(
    assay: Assay, market: Market, records: list[str]
):
    first, second = records
    config = market.config_of(VERIFIERS[3])
    check, withdraw = ("registry", "check", market.invitation()), ("registry", "withdraw", config)
    code, out, _ = assay(*check, first)
    assert (code, out.splitlines()[0]) == (0, f"record {first} stands")

    by_second = (first, "--by", second)
    told = signatures(assay, market, *by_second)
    code, _, err = assay(*withdraw, *by_second, *REASON, *told[:4])
    assert code != 0 and "QuorumNotReached" in err
    code, _, err = assay(*withdraw, first, *REASON, *told)  # signed was a replacement, not a withdrawal
    assert code != 0
    code, out, err = assay(*withdraw, *by_second, *REASON, *told)
    assert code == 0 and f"was replaced by {second}" in out, err
    assert "nothing was sent" in assay(*withdraw, *by_second, *REASON, *told).out
    code, out, _ = assay(*check, first)
    assert (code, out.splitlines()[0]) == (1, f"record {first} was replaced by {second}")

    assert f"{first} was replaced" in assay("registry", "sign-withdrawal", config, first, *REASON).err
    told = signatures(assay, market, second)
    code, out, err = assay(*withdraw, second, *REASON, *told)
    assert code == 0 and f"record {second} was withdrawn" in out, err
    assert assay(*check, second).status == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("ab" * 32,), "no record abab"),
        (("xy" * 32,), "64 hexadecimal digits"),
        (("nowhere",), "no delivered run"),
    ],
)
def test_a_record_that_is_none_is_named(assay: Assay, market: Market, words: tuple[str, ...], error: str):
    config = market.config_of(VERIFIERS[0])
    for command in (("check", market.invitation(), *words), ("sign-withdrawal", config, *words, *REASON)):
        code, _, err = assay("registry", *command)
        assert code == 2 and error in err


def test_a_record_cannot_take_its_own_place(assay: Assay, market: Market, records: list[str]):
    config = market.config_of(VERIFIERS[0])
    code, _, err = assay("registry", "sign-withdrawal", config, records[0], "--by", records[0], *REASON)
    assert code == 2 and "its own place" in err
