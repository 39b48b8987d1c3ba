"""Child processes of tests: a child finds the tree that its parent tests, whatever tree is installed."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join((str(_ROOT / "build/import_root"), str(_ROOT)))
