"""Calibration tables: the blocks calibration audits open, and the layout of its result tables.

Room: verifier (pure).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from assay.protocol.auditing.draws import OPENED_LEAST
from assay.verifier.audit.tolerance import Grade

OPENED = 64
FEW_DRAWS = 25  # audits with the fewest blocks, of each one with 64


def drawn_blocks(what: str, count: int, opened: int = OPENED) -> NDArray[np.int64]:
    """The blocks an audit opens, ascending."""
    seed = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big")
    return np.sort(np.random.default_rng(seed).permutation(count)[:opened]).astype(np.int64)


def drawn_few(what: str, count: int) -> Iterator[NDArray[np.int64]]:
    """The blocks that the smallest audits open, `FEW_DRAWS` times, each ascending."""
    for draw in range(FEW_DRAWS):
        yield drawn_blocks(f"{what}, few {draw}", count, OPENED_LEAST)


def counted(grades: Iterable[Grade]) -> tuple[int, int, int]:
    """How many there are, how many of them passed, and how many failed."""
    every = list(grades)
    return len(every), every.count(Grade.PASSED), every.count(Grade.FAILED)


def table(*names: str) -> Table:
    """An empty table with these columns."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        made.add_column(name)
    return made
