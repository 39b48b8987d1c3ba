"""A run that is still going on: read from a store that is being written, and shown by pages that grow."""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from assay.bundle.follow import CONFIG, STORE, Followed
from assay.bundle.read import Delivered
from assay.explorer import live as lives
from assay.explorer.catalogue import open_runs
from assay.explorer.live import Live
from assay.participant.files.index import IntegrityError
from assay.participant.links import extend
from assay.participant.store import Store
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.state_transition import RunState
from tests.explorer.a_browser import CHROMIUM, a_browser
from tests.explorer.an_explorer import asking, golden, served
from tests.test_golden_run import ARCHIVE

LINKS = golden().links


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A participant of the recorded run that has started, and has no manifest yet."""
    folder = tmp_path / "follower"
    with tarfile.open(ARCHIVE) as archive:
        for name in ("run.assay", "network.txt"):
            archive.extract(name, folder, filter="data")
    (folder / CONFIG).write_text('keys = "keys"\nnetwork = "network.txt"\nport = 4001\n')
    return folder


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    store = Store(folder / STORE)
    yield store
    store.close()


def add(store: Store, first: int, end: int) -> None:
    for link in LINKS[first:end]:
        store.add_link(link)


def test_a_followed_run_is_the_delivered_one_as_far_as_it_has_got(folder: Path, store: Store):
    followed = Followed(folder)
    for end in (0, 3, 9, len(LINKS)):
        add(store, len(followed.read().links), end)
        found: Delivered = followed.read()

        assert (found.spec, found.run_id, found.deployment) == (
            golden().spec,
            golden().run_id,
            golden().deployment,
        )
        assert found.links == LINKS[:end] and found.run_states == golden().run_states[: end + 1]
        ripe = [epoch for epoch in golden().tables if golden().calendar.settled_at(epoch) < end]
        assert found.tables == {epoch: golden().tables[epoch] for epoch in ripe}
        assert followed.read() is found


def test_a_second_read_folds_only_what_was_added(folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch):
    followed = Followed(folder)
    add(store, 0, 5)
    followed.read()
    folded: list[object] = []

    def fold(state: RunState, link: CertifiedManifest) -> RunState:
        folded.append(link)
        return extend(state, link)

    monkeypatch.setattr("assay.bundle.read.extend", fold)
    add(store, 5, 7)

    followed.read()

    assert folded == list(LINKS[5:7])


def test_a_participant_that_never_started_has_no_manifest_and_no_store_is_made(folder: Path):
    assert Followed(folder).read().links == () and not (folder / STORE).exists()


def test_a_writers_open_transaction_neither_waits_for_a_reader_nor_makes_it_wait(folder: Path, store: Store):
    add(store, 0, 2)
    followed = Followed(folder)
    with closing(sqlite3.connect(folder / STORE, isolation_level=None, timeout=0)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO fact VALUES ('a', x'00')")
        assert len(followed.read().links) == 2
        writer.execute("COMMIT")
        assert writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0  # nobody reads any more


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE link SET body = substr(body, 1, 90) WHERE round = 3", "round 3: "),
        (
            "UPDATE link SET body = (SELECT body FROM link WHERE round = 2) WHERE round = 3",
            "expected round 3",
        ),
        (
            "UPDATE link SET body = CAST(substr(body, 1, length(body) - 9) || x'00' || "
            "substr(body, length(body) - 7) AS BLOB) WHERE round = 3",
            "round 3: ",
        ),
    ],
)
def test_a_torn_or_false_manifest_is_refused_as_in_a_delivered_run(
    folder: Path, store: Store, change: str, reason: str
):
    add(store, 0, 5)
    with closing(sqlite3.connect(folder / STORE, isolation_level=None)) as db:
        db.execute(change)

    with pytest.raises(IntegrityError, match=reason):
        Followed(folder).read()
    page = asking(Live("follower", Followed(folder))).get("/runs/follower")
    assert "follower is damaged" in page.text and "data-live" not in page.text


def test_a_folder_without_a_configuration_or_with_a_file_that_is_no_store_is_told(folder: Path):
    (folder / STORE).write_bytes(b"no database" * 100)
    with pytest.raises(Unavailable, match="not a database"):
        Followed(folder).read()
    (folder / CONFIG).unlink()
    with pytest.raises(ConfigError, match="expected a folder with `bundle` or"):
        Followed(folder)


def test_a_live_runs_pages_say_so_and_show_the_next_round_without_a_restart(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "POLL_S", 0.0)
    monkeypatch.setattr(lives, "SHARE", 0)
    client = asking(Live("follower", Followed(folder)))
    assert "No round is final yet" in client.get("/runs/follower").text
    add(store, 0, 4)

    for address in ("", "/rounds", "/nodes", "/audits", "/epochs", "/rounds/3"):
        page = client.get(f"/runs/follower{address}")
        assert page.status_code == 200 and "Round 3 is the newest that is final" in page.text, address
    assert client.get("/runs/follower/rounds/4").status_code == 404
    assert client.get("/runs/follower.json").json()["head"]["live"] == 4


def test_a_run_that_is_delivered_into_the_folder_is_shown_as_delivered_without_a_restart(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "POLL_S", 0.0)
    monkeypatch.setattr(lives, "SHARE", 0)
    monkeypatch.setattr(lives, "STREAM_S", 0.5)
    add(store, 0, 4)
    (live,) = open_runs([folder], lambda _run: None).values()
    assert isinstance(live, Live)
    client = asking(live)
    assert "Round 3 is the newest" in client.get("/runs/follower").text

    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")

    assert "data: -1" in client.get("/runs/follower/events?known=4").text
    page = client.get("/runs/follower").text
    assert "data-live" not in page and "each with its payout table and proofs" in page
    assert client.get("/runs/follower/epochs/0").status_code == 200
    assert client.get("/runs/follower/files/index.json").status_code == 200


def test_no_more_streams_are_open_than_may_be_and_a_delivered_run_has_none(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "STREAM_S", 0.5)
    client = asking(Live("follower", Followed(folder)))
    add(store, 0, 4)
    answer = client.get("/runs/follower/events?known=1")
    assert answer.headers["content-type"].startswith("text/event-stream") and "data: 4" in answer.text
    monkeypatch.setattr(lives, "STREAMS_MAX", 0)

    assert client.get("/runs/follower/events").status_code == 503
    assert asking().get("/runs/golden/events").status_code == 404


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium")
def test_a_page_in_a_browser_shows_later_rounds_without_a_reload(
    folder: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "STREAM_S", 8.0)
    add(store, 0, 4)
    with served(Live("follower", Followed(folder))) as url, a_browser(tmp_path) as browser:
        browser.open(f"{url}/runs/follower")
        browser.run("window.isSame = true")
        assert "Round 3 is" in browser.run("document.querySelector('.live').textContent")

        add(store, 4, 12)

        browser.until("document.querySelector('.live').textContent.includes('Round 11 is')")
        assert browser.run("window.isSame") and browser.complaints == []
        assert browser.check()[0] == "proved"
        assert "stands still" in browser.run("document.querySelector('.live').textContent")
        assert all(address.startswith(url) for address in browser.addresses)
