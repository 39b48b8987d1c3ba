"""Entries: one journal entry as the API gives it out, in pages and as an event of a stream.

Room: api (pure).
"""

from __future__ import annotations

from assay.api.schemas import EntryAnswer, PostingAnswer
from assay.ledger.accounts import NO_EPOCH
from assay.ledger.journal.leaf import Written
from assay.ledger.queries.export import happened_at, recorded_at


def entry_answer(one: Written) -> EntryAnswer:
    """An entry as the API's answers have it."""
    entry = one.entry
    return EntryAnswer(
        number=one.number,
        key=entry.key,
        kind=entry.kind,
        epoch=None if entry.epoch == NO_EPOCH else entry.epoch,
        block_number=entry.block_number,
        block_hash=entry.block_hash,
        reverses=entry.reverses or None,
        time=happened_at(one).isoformat(timespec="seconds"),
        recorded=recorded_at(one).isoformat(timespec="milliseconds"),
        leaf_hash=one.leaf,
        postings=[
            PostingAnswer(account=each.account.code, asset=each.account.asset, amount=str(each.amount))
            for each in entry.postings
        ],
    )


def event_text(one: Written) -> bytes:
    """An entry as a server-sent event: its number in the log, its kind, and its JSON in one line."""
    data = entry_answer(one).model_dump_json()
    return f"id: {one.number}\nevent: {one.entry.kind}\ndata: {data}\n\n".encode()
