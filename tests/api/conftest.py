"""Books of a run with two final epochs, and the one anvil of tests/contracts."""

from __future__ import annotations

from pathlib import Path

import pytest

import assay.bundle.books
from assay.protocol.encoding.codec import encode
from tests.api.a_server import Desk
from tests.contracts.conftest import anvil, anvil_binary, first_day, world
from tests.ledger.an_invoiced_run import RUN, SPEC, an_invoiced_run

__all__ = ["anvil", "anvil_binary", "first_day", "world"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server's folder with one run in it."""
    keeper = tmp_path / "paper" / "participants" / "ledger"
    keeper.mkdir(parents=True)
    an_invoiced_run(keeper / "ledger.db", keeper)
    (tmp_path / "paper" / "spec.cbor").write_bytes(encode(SPEC))
    monkeypatch.setattr(assay.bundle.books, "run_id_of", lambda _: RUN)
    monkeypatch.setattr(assay.bundle.books, "read_spec", lambda _: SPEC)  # too small for a real run
    return tmp_path


@pytest.fixture
def desk(folder: Path) -> Desk:
    return Desk(folder)
