"""One anvil for the whole session, one fresh deployment for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.anvil import Anvil, find_anvil
from protocol.errors import ConfigError
from tests.contracts.chain_world import World

CONTRACTS = Path(__file__).parents[2] / "contracts"


@pytest.fixture(scope="session")
def anvil_binary() -> Path:
    try:
        return find_anvil(CONTRACTS)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def anvil(anvil_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anvil]:
    with Anvil(binary=anvil_binary, state_dir=tmp_path_factory.mktemp("chain"), block_time_s=None) as chain:
        yield chain


@pytest.fixture
def world(anvil: Anvil) -> World:
    return World(anvil.rpc_url, anvil.keys[0])
