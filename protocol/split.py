"""Split: which part of a run's data is held out, and which part each of its strata is.

Room: protocol (pure). Everybody has to agree on it, for a node's batch follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

STRETCH_WINDOWS = 32  # at most, held out in one place: about a page of bytes, a chapter of tokens


@dataclass(frozen=True, slots=True)
class Split:
    """The windows of context + 1 tokens of a stream, in strata; the last windows of each are held out.

    windows, held: of them all. strata: their number. Stratum k ends before window
    (k + 1) * windows // strata, and (k + 1) * held // strata windows are held out up to there.
    """

    windows: int
    held: int

    @property
    def strata(self) -> int:
        """As many as hold `STRETCH_WINDOWS` held-out windows each."""
        return -(-self.held // STRETCH_WINDOWS)

    def training(self, number: int) -> int:
        """The window that is number `number` of those trained on."""
        low, high = 0, self.strata - 1  # the last stratum that begins at this number or before
        while low < high:
            middle = (low + high + 1) // 2
            trained = middle * self.windows // self.strata - middle * self.held // self.strata
            low, high = (middle, high) if trained <= number else (low, middle - 1)
        return number + low * self.held // self.strata

    def trained_before(self, window: int) -> int:
        """How many of the windows before this one are trained on."""
        stratum = ((window + 1) * self.strata - 1) // self.windows
        begin, held = (stratum * count // self.strata for count in (self.windows, self.held))
        end, held_then = ((stratum + 1) * count // self.strata for count in (self.windows, self.held))
        return begin - held + min(window - begin, end - begin - (held_then - held))

    def held_out(self, number: int) -> int:
        """The window that is number `number` of those held out."""
        stratum = ((number + 1) * self.strata - 1) // self.held
        end, held = ((stratum + 1) * count // self.strata for count in (self.windows, self.held))
        return end - held + number
