"""One local chain for the commands that move money, as fresh for each test as on its first day."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.chain.deployment.anvil import Anvil
from assay.cli.main import run
from tests.cli.market import Market

Assay = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def first_market(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Market:
    return Market(anvil.rpc_url, anvil.keys[0], tmp_path_factory.mktemp("market"))


@pytest.fixture
def market(first_market: Market, tmp_path: Path) -> Iterator[Market]:
    """A deployment on which nothing has happened yet: the chain goes back to that moment afterwards."""
    snapshot = first_market.rpc("evm_snapshot")
    yield first_market.fresh(tmp_path)
    assert first_market.rpc("evm_revert", snapshot)


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Assay:
    """The command line: exit status, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call
