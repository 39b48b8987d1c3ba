"""Narrowing: the moves by which a claim about a whole program comes down to one operator.

Room: training (pure, without compiled code: network processes make these moves). One party, the claimant,
claims the positions of its trace (trace.py) at the ends of up to 64 parts. Whoever doubts the claim names the
first part whose end is wrong by its own trace; the claimant cuts that part again, until one operator is left:

    claimant --`claimed`--> ends of parts --`first_wrong`--> one part --> ... --> one operator (referee.py)

A claimant that ran the program wins whatever part is named; a false claim loses to whoever ran it. Neither
depends on what was said before: no two claims of one claimant are compared. `AppealCourt` holds both to their
times, docs/protocol.md, section 7b.
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from assay.protocol.types import Digest

PARTS = 64  # of one cut: AppealCourt.PARTS
OPERATORS_MAX = PARTS**3  # AppealCourt.OPERATORS_MAX
START = Digest(blake3(b"assay/operator-trace/2").digest())  # the position before the first operator


def ends_of(first: int, last: int) -> tuple[int, ...]:
    """Where the parts of operators `first` to `last`, exclusive, end: as many parts as there may be."""
    parts = min(last - first, PARTS)
    return tuple(first + (last - first) * (part + 1) // parts for part in range(parts))


def claimed(positions: Sequence[bytes], first: int, last: int) -> tuple[bytes, ...]:
    """What a claimant with these positions states for a cut of operators `first` to `last`."""
    return tuple(positions[end] for end in ends_of(first, last))


def first_wrong(known: Sequence[bytes], first: int, last: int, told: Sequence[bytes]) -> int:
    """The first part whose end is not a known position; the last part if all are.

    Args:
        known: The positions of the doubter's own trace, from `START` on. What lies beyond them is wrong.
        first, last: The operators that were cut.
        told: The claimed positions at the ends of the parts.

    Raises:
        ValueError: there are not as many claims as parts.
    """
    ends = ends_of(first, last)
    if len(told) != len(ends):
        raise ValueError(f"{len(told)} positions for {len(ends)} parts")
    for part, (end, position) in enumerate(zip(ends, told, strict=True)):
        if end >= len(known) or known[end] != position:
            return part
    return len(ends) - 1
