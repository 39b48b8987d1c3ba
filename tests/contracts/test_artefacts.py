"""The committed artefacts are what the sources compile to."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CONTRACTS = Path(__file__).parents[2] / "contracts"


def test_recompiling_gives_the_committed_artefacts(tmp_path: Path):
    if shutil.which("node") is None or not (CONTRACTS / "node_modules" / "solc").is_dir():
        pytest.skip("solc is not installed: run 'npm install --no-audit --no-fund' in contracts/")

    subprocess.run(["node", "compile.mjs", str(tmp_path)], cwd=CONTRACTS, check=True, timeout=300)

    committed = sorted(path.name for path in (CONTRACTS / "artefacts").glob("*.json"))
    assert committed == sorted(path.name for path in tmp_path.glob("*.json"))
    for name in committed:
        assert json.loads((tmp_path / name).read_text()) == json.loads(
            (CONTRACTS / "artefacts" / name).read_text()
        )


def test_the_lock_file_names_no_registry():
    lock = (CONTRACTS / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert '"integrity"' in lock


def test_every_contract_fits_the_chains_size_limit():
    for path in (CONTRACTS / "artefacts").glob("*.json"):
        assert len(json.loads(path.read_text())["deployedBytecode"]) // 2 - 1 <= 24_576, path.name
