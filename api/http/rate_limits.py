"""Buckets: who may ask how often.

Room: api (pure: the time comes in). One bucket for each name; a name that has not asked for
long is full again, so the fullest are forgotten first when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`burst` requests at once, then `per_minute`."""

    per_minute: int
    burst: int


@dataclass(slots=True)
class Buckets:
    """Buckets of one rate; not shared between threads."""

    rate: Rate
    names_max: int = 50_000
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, name: str, now_s: float, cost: float = 1.0) -> float:
        """Take from a bucket.

        Args:
            name: Whose.
            now_s: Seconds on a clock that does not go back.
            cost: How much of it.

        Returns:
            0 if it was there; else how many seconds until it is.
        """
        per_s = self.rate.per_minute / 60
        left, at = self._left.pop(name, (float(self.rate.burst), now_s))
        left = min(float(self.rate.burst), left + max(0.0, now_s - at) * per_s)
        wait = 0.0 if left >= cost else (cost - left) / per_s
        self._left[name] = (left - cost if not wait else left, now_s)
        while len(self._left) > self.names_max:  # the one that asked longest ago
            self._left.popitem(last=False)
        return wait
