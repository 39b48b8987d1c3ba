"""Chain log: blocks and events of the simulated contracts, of which the ledger service makes its books.

A block is there once its time is over. The chain may go back: then blocks from some number on have other
hashes, and what happened in them happens in the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from assay.chain import state
from assay.chain.events import ChainEvent
from assay.chain.providers import Head
from tests.simulation.one_thread import now_s

BLOCK_S = 2
BLOCKS_BACK = 5  # that a reorganisation replaces, at most: a block is final so many later


@dataclass
class ChainLog:
    """What has happened. `told` are without the hashes of their blocks, which may change.

    tell: Has whatever happened by itself added.
    """

    tell: Callable[[], None]
    told: list[ChainEvent] = field(default_factory=list)
    forks: list[int] = field(default_factory=list)  # the first block of each reorganisation

    def add(self, kind: type[ChainEvent], at_s: float | None = None, **fields: Any) -> None:
        """An event happens, now or at a time after all others."""
        number = int(now_s() if at_s is None else at_s) // BLOCK_S
        index = sum(one.block_number == number for one in self.told)
        self.told.append(
            kind(
                block_number=number, block_hash=b"", block_time=number * BLOCK_S, log_index=index,
                tx_hash=_hash("transaction", len(self.told)), **fields,
            )
        )  # fmt: skip

    def go_back(self, blocks: int) -> tuple[int, int]:
        """The newest blocks are replaced by empty ones; the first, and the one in which all happens again."""
        self.tell()
        first, last = _newest() - blocks + 1, _newest() + 1
        kept = [one for one in self.told if one.block_number < first]
        again = enumerate(self.told[len(kept) :])
        kept += [
            replace(one, block_number=last, block_time=last * BLOCK_S, log_index=index)
            for index, one in again
        ]
        self.told[:] = kept
        self.forks.append(first)
        return first, last

    def hash_of(self, number: int) -> bytes:
        """Of a block, as the chain is now."""
        return _hash("block", number, sum(first <= number for first in self.forks))

    def place(self, at: str = "latest") -> state.Head:
        """The newest block, or the newest that is final."""
        number = _newest() - BLOCKS_BACK * (at == "finalized")
        return state.Head(number=number, hash=self.hash_of(number), time_s=number * BLOCK_S)

    # ---- in place of `chain.providers.Providers`

    def read_by(self, _urls: Any, _deployment: Any, **_options: Any) -> ChainLog:
        """Whose only endpoint this is."""
        return self

    def check(self) -> None:
        """There is one endpoint."""

    def head(self) -> Head:
        """The newest block."""
        self.tell()
        return Head(_newest(), self.hash_of(_newest()))

    def block_hash(self, number: int) -> bytes | None:
        """Of a block; None if there is none yet."""
        return self.hash_of(number) if number <= _newest() else None

    def events(self, first: int, last: int) -> list[ChainEvent]:
        """The events of these blocks, both included."""
        found = (one for one in self.told if first <= one.block_number <= min(last, _newest()))
        return [replace(one, block_hash=self.hash_of(one.block_number)) for one in found]


def _newest() -> int:
    return int(now_s()) // BLOCK_S - 1


def _hash(*what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()
