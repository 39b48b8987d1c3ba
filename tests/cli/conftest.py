"""One local chain for the commands that move money, as fresh for each test as on its first day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from assay.chain.deployment.anvil import Anvil
from assay.cli import result
from assay.cli.schema import DOCUMENTS, schema_of
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


@pytest.fixture(autouse=True)
def every_document_has_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """What any test of the command line prints with `--json` is as `assay schema` says."""
    before = result.document

    def document(value: Any) -> str:
        text = before(value)
        kind = type(value)
        assert f"{kind.__module__}:{kind.__qualname__}" in DOCUMENTS
        jsonschema.validate(json.loads(text), schema_of(kind))
        return text

    monkeypatch.setattr(result, "document", document)
