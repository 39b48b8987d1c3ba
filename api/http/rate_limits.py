"""Rate limits: token buckets, one per caller name.

Room: api (pure: the time comes in). The bucket of a long idle name is full again, so the least
recently used are dropped first when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A rate limit: `burst` requests at once, then `per_minute`."""

    per_minute: int
    burst: int


@dataclass(slots=True)
class Buckets:
    """Token buckets of one rate; not thread-safe."""

    rate: Rate
    names_max: int = 50_000
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, name: str, now_s: float, cost: float = 1.0) -> float:
        """Take tokens from a bucket.

        Args:
            name: The bucket's.
            now_s: Seconds on a monotonic clock.
            cost: Tokens to take.

        Returns:
            0 if they were available; else the seconds until they are.
        """
        per_s = self.rate.per_minute / 60
        left, at = self._left.pop(name, (float(self.rate.burst), now_s))
        left = min(float(self.rate.burst), left + max(0.0, now_s - at) * per_s)
        wait = 0.0 if left >= cost else (cost - left) / per_s
        self._left[name] = (left - cost if not wait else left, now_s)
        while len(self._left) > self.names_max:  # the least recently used
            self._left.popitem(last=False)
        return wait
