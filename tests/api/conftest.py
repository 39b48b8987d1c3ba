"""Books of a run with two final epochs, and a server for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.bundle import books
from assay.protocol.encoding.codec import encode
from tests.api.a_server import ApiWorld
from tests.ledger.an_invoiced_run import RUN, SPEC, an_invoiced_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server's folder with one run in it."""
    ledger_service = tmp_path / "paper" / "participants" / "ledger"
    ledger_service.mkdir(parents=True)
    an_invoiced_run(ledger_service / "ledger.db", ledger_service)
    (tmp_path / "paper" / "spec.cbor").write_bytes(encode(SPEC))
    monkeypatch.setattr(books, "run_id_of", lambda _: RUN)
    monkeypatch.setattr(books, "read_spec", lambda _: SPEC)  # too small for a real run
    return tmp_path


@pytest.fixture
def world_api(folder: Path) -> ApiWorld:
    return ApiWorld(folder)
