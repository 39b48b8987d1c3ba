"""Paging: cuts a list into pages, and names what every page of a run begins with.

Room: explorer (pure).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from assay.explorer.explored import Explored
from assay.protocol.types import Digest, PeerId

T = TypeVar("T")
ROWS_MAX = 50  # of a list on one page


class NoSuchPage(LookupError):
    """The run has nothing at this address; the message says what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The run that a page is about. name: in addresses; title: as its buyer named it.

    live: manifests so far, of a run that is not delivered yet; None: it is delivered. hand_overs: the rounds
    whose manifests handed a verifier's seat over, without which no later signature can be checked.
    """

    name: str
    title: str
    run_id: Digest
    live: int | None
    hand_overs: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """The place of a page in its list. first: index of its first row, from 0; page: from 1."""

    page: int
    pages: int
    rows: int
    first: int


def head_of(run: Explored) -> Head:
    """The head of a run's pages."""
    delivered = run.delivered
    return Head(
        name=run.name,
        title=delivered.spec.name,
        run_id=delivered.run_id,
        live=len(delivered.links) if run.is_live else None,
        hand_overs=delivered.run_states[-1].rotation.handed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverLine:
    """One verifier's seat that another holder signs for after this round."""

    round: int
    seat: PeerId
    holder: PeerId


def hand_overs_of(run: Explored) -> list[HandOverLine]:
    """All hand-overs of the run so far, the oldest first."""
    rotation = run.delivered.run_states[-1].rotation
    pairs = zip(rotation.handed, rotation.configuration.hand_overs, strict=True)
    return [HandOverLine(round=at, seat=one.seat, holder=one.holder) for at, one in pairs]


def cut(rows: Sequence[T], page: int, rows_max: int = ROWS_MAX) -> tuple[Sequence[T], Paging]:
    """The rows of one page.

    Args:
        rows: All of them.
        page: From 1.
        rows_max: Of one page.

    Raises:
        NoSuchPage: the list is shorter.
    """
    pages = max(-(-len(rows) // rows_max), 1)
    if not 1 <= page <= pages:
        raise NoSuchPage(f"page {page} of this list, which has {pages}")
    first = (page - 1) * rows_max
    return rows[first : first + rows_max], Paging(page=page, pages=pages, rows=len(rows), first=first)
