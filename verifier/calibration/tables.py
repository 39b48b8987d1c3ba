"""Calibration tables: the blocks a calibration audit opens, and the layout of its result tables.

Room: verifier (pure).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

OPENED = 64


def drawn_blocks(what: str, count: int) -> NDArray[np.int64]:
    """The blocks an audit opens, ascending."""
    seed = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big")
    return np.sort(np.random.default_rng(seed).permutation(count)[:OPENED]).astype(np.int64)


def table(*names: str) -> Table:
    """An empty table with these columns."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        made.add_column(name)
    return made
