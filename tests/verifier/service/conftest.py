"""The clock of the verifiers in these tests: manifests carry a time, and those compared here carry zero."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _epoch(monkeypatch):
    for module in ("driver", "proposer"):
        monkeypatch.setattr(f"assay.verifier.service.{module}.wall_s", lambda: 0)
