"""What a participant still knows after it was killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from assay.participant.store import Store
from assay.protocol.errors import MalformedMessage, Unavailable
from assay.testing.signed import a_chain, a_history

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from pathlib import Path
from assay.participant.store import Store
store = Store(Path(sys.argv[1]))
for number in range(10**9):
    store.add_record(number, b"record %d" % number)
    store.set_value(f"fact/{number}", b"fact %d" % number)
    print(number, flush=True)  # only now was it promised
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def test_links_journal_and_facts_survive_a_reopening(path):
    links = a_chain(a_history(), 3)
    store = Store(path)
    for link in links:
        store.add_link(link)
    store.add_record(1, b"one")
    store.set_value("name", b"value")
    store.close()

    store = Store(path)

    assert list(store.links()) == links
    assert store.records() == [b"one"]
    assert store.value("name") == b"value"
    assert store.value("another name") is None


def test_links_come_ascending_from_a_round_on_and_so_many(path):
    links = a_chain(a_history(), 4)
    store = Store(path)
    for link in reversed(links):
        store.add_link(link)

    assert list(store.links(1, 2)) == links[1:3]
    assert list(store.links(4, 2)) == []


def test_the_first_link_of_a_round_stays(path):
    first, other = (a_chain(a_history(), 1, nodes=nodes)[0] for nodes in (("nora",), ("nils",)))
    store = Store(path)
    store.add_link(first)
    store.add_link(other)

    assert list(store.links()) == [first]


def test_of_several_links_all_are_stored_or_none(path):
    links, store = a_chain(a_history(), 3), Store(path)
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON link WHEN new.round = 2 "
            "BEGIN SELECT raise(ABORT, 'full'); END"
        )

    with pytest.raises(Unavailable, match="full"):
        store.add_links(links)
    assert list(store.links()) == []
    store.add_links(links[:2])
    assert list(store.links()) == links[:2]


def test_the_journal_keeps_its_order_and_forgets_up_to_an_iteration(path):
    store = Store(path)
    for iteration, body in [(3, b"c"), (1, b"a"), (2, b"b"), (3, b"d")]:
        store.add_record(iteration, body)
    assert store.records() == [b"c", b"a", b"b", b"d"]

    store.drop_records(2)

    assert store.records() == [b"c", b"d"]


def test_a_fact_is_replaced_and_facts_are_dropped_by_prefix_but_for_some(path):
    store = Store(path)
    for name in ("commit/1", "commit/2", "commit/3", "committed"):
        store.set_value(name, b"old")
    store.set_value("commit/2", b"new")

    store.drop_values("commit/", {"commit/2"})

    assert store.value("commit/1") is None and store.value("commit/3") is None
    assert store.value("commit/2") == b"new"
    assert store.value("committed") == b"old"


def test_a_file_that_is_no_store_is_refused_in_words(path):
    path.write_bytes(b"this is not a database, but it is long enough to be one" * 100)

    with pytest.raises(Unavailable, match=r"store\.db"):
        Store(path)


def test_a_folder_that_does_not_exist_is_refused_in_words(tmp_path):
    with pytest.raises(Unavailable, match="nowhere"):
        Store(tmp_path / "nowhere" / "store.db")


def test_a_write_that_disk_refuses_is_said(path):
    store = Store(path)
    store.close()

    with pytest.raises(Unavailable, match="cannot write"):
        store.set_value("name", b"value")


def test_a_damaged_link_is_refused_in_words(path):
    (link,) = a_chain(a_history(), 1)
    store = Store(path)
    store.add_link(link)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE link SET body = x'8100'")

    with pytest.raises(MalformedMessage, match="CertifiedManifest"):
        list(Store(path).links())


@pytest.mark.parametrize("acknowledged", [1, 17, 60])
def test_after_kill_9_in_the_middle_of_writing_every_acknowledged_write_is_there(path, acknowledged):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ}
    )
    assert writer.stdout is not None
    try:
        for _ in range(acknowledged):
            promised = int(writer.stdout.readline())
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    promised = max([promised, *map(int, writer.stdout.read().split())])
    writer.stdout.close()

    store = Store(path)

    assert store.records()[: promised + 1] == [b"record %d" % number for number in range(promised + 1)]
    assert [store.value(f"fact/{number}") for number in range(promised + 1)] == [
        b"fact %d" % number for number in range(promised + 1)
    ]
    store.set_value("after", b"the crash")
    assert store.value("after") == b"the crash"
