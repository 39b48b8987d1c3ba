"""Times: formats chain times and spans, in seconds, for people.

Room: chain (pure). Deadlines run on the chain's clock, so `now` is always the newest
block's time, never this machine's.
"""

from __future__ import annotations

from datetime import datetime, timezone

CLOSE_DELAY_S = 2 * 86_400  # of a public deployment's escrow
EVIDENCE_WINDOW_S = 7 * 86_400  # of a public deployment's slash court
SECONDS_MAX = 253_402_300_799  # the last second of the year 9999
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def time_text(unix_s: int) -> str:
    """A chain time as text: 2026-11-20 09:30:00 UTC."""
    if not 0 <= unix_s <= SECONDS_MAX:  # contracts write "for ever" as the field's largest number
        return "after the year 9999"
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def span_text(seconds: int) -> str:
    """A span as text in its two largest units: 20 d 3 h, 4 min, 0 s."""
    parts, rest = [], abs(seconds)
    for size, name in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,} {name}")
    return " ".join(parts[:2]) or "0 s"


def when_text(unix_s: int, now: int) -> str:
    """A chain time and its distance from `now`: 2026-11-20 09:30:00 UTC (in 20 d 3 h)."""
    far = span_text(unix_s - now)
    return f"{time_text(unix_s)} ({far} ago)" if unix_s <= now else f"{time_text(unix_s)} (in {far})"
