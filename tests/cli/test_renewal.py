"""A hot key's delegation that a participant's process renews by itself, on real contracts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.commit_statement import evm_address
from assay.chain.state import HotKey
from assay.cli.process import read_process_file
from assay.participant.telemetry.readings import Readings
from assay.participant.wallet.delegation import DAY_S, delegate, watch_delegation
from assay.testing.members import peer
from assay.testing.signed import VERIFIERS
from tests.a_network import keys_of
from tests.cli.market import Market
from tests.conftest import Assay

pytestmark = pytest.mark.slow
NAME = VERIFIERS[0]


def hot_key(market: Market) -> HotKey:
    found = market.bank.hot_key(evm_address(keys_of(NAME).hot_address))
    assert found is not None
    return found


def looked(market: Market, line: str) -> int:
    """A verifier's process looks once, with this line in its file; the end that it read, in days from now."""
    file = market.config_of(NAME)
    file.write_text(f"{file.read_text()}{line}\n")
    me: Any = SimpleNamespace(
        me=peer(NAME),
        spec=market.spec,
        run_id=market.run_id,
        deployment=market.deployment,
        keys=keys_of(NAME),
        config=read_process_file(file)[0],
        readings=Readings(),
    )

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_delegation, me)
            with trio.fail_after(60):
                while me.readings.holdings is None:
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()

    trio.run(main)
    return round((me.readings.holdings.hot_key_expiry - market.bank.timestamp()) / DAY_S)


def test_a_process_renews_a_delegation_that_ends_soon_if_its_file_says_so(market: Market):
    market.open_run()
    delegate(market.as_(NAME), keys_of(NAME), 10, market.bank.timestamp())

    assert looked(market, "") == 10
    assert looked(market, "delegation_days = 90") == 90
    assert round((hot_key(market).expiry - market.bank.timestamp()) / DAY_S) == 90


def test_a_delegation_that_its_account_ended_stays_ended(market: Market):
    market.open_run()
    delegate(market.as_(NAME), keys_of(NAME), 0, market.bank.timestamp())
    ended = hot_key(market)
    market.advance(1)

    assert looked(market, "delegation_days = 90") == 0
    assert hot_key(market) == ended


def test_a_renewal_for_less_than_a_month_is_refused(assay: Assay, market: Market):
    file = market.config_of(NAME)
    file.write_text(f"{file.read_text()}delegation_days = 29\n")
    code, _, err = assay("stake", "show", file)
    assert code == 2 and "delegation_days" in err and "30" in err
