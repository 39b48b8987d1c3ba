"""Entries: one journal entry as the API gives it out, in pages and as an event.

Room: api (pure).
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.api.schemas import EntryAnswer, PostingAnswer
from assay.ledger.accounts import NO_EPOCH
from assay.ledger.journal.leaf import Written
from assay.ledger.queries.export import happened_at, recorded_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An entry as it is sent to whoever follows a run."""

    number: int  # position in the Merkle log, from 1
    kind: str
    recorded: str  # ISO 8601
    data: bytes  # the entry's JSON, in one line

    def text(self) -> bytes:
        """As a server-sent event."""
        return f"id: {self.number}\nevent: {self.kind}\ndata: ".encode() + self.data + b"\n\n"


def entry_answer(one: Written) -> EntryAnswer:
    """An entry as the API's answers have it."""
    entry = one.entry
    return EntryAnswer.of(
        entry,
        number=one.number,
        epoch=None if entry.epoch == NO_EPOCH else entry.epoch,
        reverses=entry.reverses or None,
        time=happened_at(one).isoformat(timespec="seconds"),
        recorded=recorded_at(one).isoformat(timespec="milliseconds"),
        leaf_hash=one.leaf,
        postings=[
            PostingAnswer.of(each.account, account=each.account.code, amount=each.amount)
            for each in entry.postings
        ],
    )


def event_of(one: Written) -> Event:
    """An entry as an event."""
    answer = entry_answer(one)
    data = answer.model_dump_json().encode()
    return Event(number=one.number, kind=answer.kind, recorded=answer.recorded, data=data)
