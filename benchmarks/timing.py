"""Timing: CPU time of one call, and what is printed of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


def cpu_ms(work: Callable[[], object]) -> float:
    """Milliseconds of CPU time that one call takes."""
    since_s = time.process_time()
    work()
    return (time.process_time() - since_s) * 1e3


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median, and the least and the most."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.{digits}f} ({ordered[0]:.{digits}f} to {ordered[-1]:.{digits}f})"
