"""The contracts' own properties: random inputs and random sequences of moves, in forge (contracts/test)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from assay import contracts

ROOT = Path(contracts.__file__).parent
FORGE = ROOT / "node_modules" / ".bin" / "forge"


@pytest.mark.slow
def test_no_random_move_breaks_an_invariant_of_the_contracts():
    if not FORGE.exists():
        pytest.skip("needs forge: npm install in contracts/ with the development dependencies")
    # Compiling takes a third of the time so. Optimised code runs under `make contracts`, and on every chain.
    env = os.environ if "FOUNDRY_PROFILE" in os.environ else {**os.environ, "FOUNDRY_OPTIMIZER": "false"}
    done = subprocess.run(
        [str(FORGE), "test"], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=540
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = re.search(r"(\d+) tests passed, 0 failed, 0 skipped", done.stdout)
    assert found is not None
    assert int(found[1]) >= 75
