"""The recorded run of tests/test_golden_run.py, unpacked once for tests that only read it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rounds of four nodes, of which one trains on stale parameters from round 2 on."""
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(Path(__file__).parents[1] / "vectors" / "golden_run.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder
