"""Static analysis: slither finds nothing in the contracts that is not explained where it stands.

`make slither` installs it in an environment of its own, so that its dependencies do not meet ours. One
detector is off as a whole (contracts/slither.config.json): `timestamp`, which names every comparison with
the block's time. Every window here is days long, and whoever makes a block can move its time by seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = ROOT / "contracts"
OWN = ROOT / "build" / "slither" / "bin" / "slither"
FORGE = CONTRACTS / "node_modules" / ".bin"


@pytest.mark.slow
def test_slither_finds_nothing_unexplained(tmp_path: Path):
    slither = str(OWN) if OWN.exists() else shutil.which("slither")
    if slither is None or not (FORGE / "forge").exists():
        pytest.skip("needs slither and forge: run 'make slither'")
    report = tmp_path / "slither.json"
    path = f"{FORGE}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        [slither, ".", "--json", str(report)],
        cwd=CONTRACTS,
        # Its own folders: tests that run beside it compile the same contracts.
        env={
            **os.environ,
            "PATH": path,
            "FOUNDRY_OPTIMIZER": "false",  # it reads the syntax trees
            "FOUNDRY_OUT": str(tmp_path / "out"),
            "FOUNDRY_CACHE_PATH": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )

    assert report.exists(), done.stderr[-4000:]
    told = json.loads(report.read_text())
    assert told["success"], done.stderr[-4000:]
    assert "Impossible to generate IR" not in done.stderr, "a function it could not read"
    assert [one["description"] for one in told["results"].get("detectors", [])] == []
    seen = re.search(r"analyzed \((\d+) contracts", done.stderr)
    assert seen is not None and int(seen[1]) >= 40  # ours, and what they inherit
