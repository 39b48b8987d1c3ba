"""For all tests: Hypothesis without deadlines, and one local chain, as fresh for each test as on its first
day.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # web3 costs a second to import: only tests that use the chain pay it
    from assay.chain.deployment.anvil import Anvil
    from tests.contracts.chain_world import World

CONTRACTS = Path(__file__).parents[1] / "contracts"

settings.register_profile("assay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("assay")


@pytest.fixture(scope="session")
def anvil_binary() -> Path:
    from assay.chain.deployment.anvil import find_anvil
    from assay.protocol.errors import ConfigError

    try:
        return find_anvil(CONTRACTS)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def anvil(anvil_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anvil]:
    from assay.chain.deployment.anvil import Anvil

    folder = tmp_path_factory.mktemp("chain")
    with Anvil(binary=anvil_binary, state_dir=folder, block_time_s=None, state_interval_s=3_600) as chain:
        yield chain


@pytest.fixture(scope="session")
def first_day(anvil: Anvil) -> World:
    from tests.contracts.chain_world import World

    return World(anvil.rpc_url, anvil.keys[0])


@pytest.fixture
def world(first_day: World) -> Iterator[World]:
    """A deployment on which nothing has happened yet: the chain goes back to that moment afterwards."""
    snapshot = first_day.rpc("evm_snapshot")
    yield copy(first_day)
    assert first_day.rpc("evm_revert", snapshot)
