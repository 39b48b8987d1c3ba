"""A process that keeps books in its turn: waits, books what the chain says an epoch at a time, says so.

    python -m tests.ledger.a_ledger_service PLACE

One line to standard output for each thing done; one more epoch for each line of standard input.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from assay.ledger.journal.lease import Lease, begin_term
from assay.ledger.journal.store import BookStore
from tests.ledger.a_run import RUN
from tests.ledger.journal.test_store import TABLES, a_life


def main(place: str) -> None:
    where = place if "://" in place else Path(place)
    lease = Lease(where)
    print("up", flush=True)
    while not lease.try_take():
        time.sleep(0.02)
    store = BookStore(where, RUN)
    print(f"turn {begin_term(store)}", flush=True)
    events = a_life().events
    for _ in sys.stdin:
        at = sum(type(one).__name__ == "ResultFinalized" for one in _seen(store)) + 1
        finals = [one.block_number for one in events if type(one).__name__ == "ResultFinalized"]
        until = finals[at - 1]
        store.take_blocks([one for one in events if one.block_number <= until], 0, until, TABLES)
        print(f"settled {at}", flush=True)


def _seen(store: BookStore) -> list[object]:
    from assay.chain.events import ResultFinalized

    return list(store.events(ResultFinalized))


if __name__ == "__main__":
    main(sys.argv[1])
