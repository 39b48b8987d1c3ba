"""For all tests: the order in which workers take them, Hypothesis without deadlines, the command line, and
one local chain, as fresh for each test as on its first day.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from copy import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # web3 costs a second to import: only tests that use the chain pay it
    from xdist.scheduler import LoadFileScheduling

    from assay.chain.deployment.anvil import Anvil
    from tests.contracts.chain_world import World

CONTRACTS = Path(__file__).parents[1] / "contracts"

settings.register_profile("assay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("assay")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a chain is slow. The longest come first, so that no worker is left with them in the end."""
    for item in items:
        if "anvil_binary" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
        if "e2e" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2400))  # the first to use a network waits for all of its run
    items.sort(key=lambda item: ("e2e" not in item.path.parts, item.get_closest_marker("slow") is None))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """A worker takes a file at a time, and one takes all of e2e: a network of processes fills all cores."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/e2e" if nodeid.startswith("tests/e2e/") else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


class Ended(NamedTuple):
    """A command's exit status, standard output and standard error."""

    status: int
    out: str
    err: str


Assay = Callable[..., Ended]


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


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """An app's tree of commands is built at its first call; of ours that takes as long as a test of it."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(typer.main.get_command)
        patch.setattr(typer.main, "get_command", once)
        patch.setattr(typer.testing, "_get_command", once)
        yield


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Assay]:
    """The command line, in this process; where a command logs, it logs no longer than its test runs."""
    from assay.cli.main import run

    def call(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    yield call
    handlers = logging.getLogger().handlers
    handlers[:] = [one for one in handlers if type(one) is not logging.StreamHandler]
