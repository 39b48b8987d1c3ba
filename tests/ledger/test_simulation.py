"""Simulation: random traffic and crashes, and the books say what a few plain dicts say."""

from __future__ import annotations

from typing import Any

import pytest

from assay.ledger.journal.store import BookStore
from tests.ledger.a_database import Databases, content
from tests.ledger.simulate import World

pytestmark = pytest.mark.slow

POSTINGS = 2_000


@pytest.mark.parametrize("seed", range(2))
def test_books_and_reference_agree_through_crashes_and_every_escrow_closes(databases: Databases, seed: int):
    world = World(databases.new(), seed, crash_rate=0.2).run(POSTINGS)

    assert world.postings >= POSTINGS
    assert min(world.crashes, world.repeated, world.refused, len(world.reference.undone)) >= 1


def test_the_same_seed_gives_the_same_history(databases: Databases):
    first, second = databases.new(), databases.new()
    for place in (first, second):
        World(place, 7, crash_rate=0.2).run(300)

    assert content(first) == content(second)


def test_a_store_that_books_a_repetition_twice_is_noticed(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
):
    """The simulation sees what it is there to see."""
    add = BookStore.add_entries
    times = iter(range(10**6))

    def careless(self: BookStore, entries: Any) -> Any:
        renamed = [
            type(one)(
                **{
                    **{f: getattr(one, f) for f in one.__dataclass_fields__},
                    "key": f"{one.key}/{next(times)}",
                }
            )
            for one in entries
        ]
        return add(self, renamed)

    monkeypatch.setattr(BookStore, "add_entries", careless)
    with pytest.raises(AssertionError, match=r"replay|=="):
        World(databases.new(), 0).run(POSTINGS)
