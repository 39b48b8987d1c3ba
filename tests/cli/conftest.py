"""One local chain for the commands that move money, as fresh for each test as on its first day."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.chain.deployment.anvil import Anvil
from tests.cli.market import Market


@pytest.fixture(scope="session")
def first_market(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Market:
    return Market(anvil.rpc_url, anvil.keys[0], tmp_path_factory.mktemp("market"))


@pytest.fixture
def market(first_market: Market, tmp_path: Path) -> Iterator[Market]:
    """A deployment on which nothing has happened yet: the chain goes back to that moment afterwards."""
    snapshot = first_market.rpc("evm_snapshot")
    yield first_market.fresh(tmp_path)
    assert first_market.rpc("evm_revert", snapshot)
