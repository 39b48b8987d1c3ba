"""A run that is still going on: read from a store that is being written, and shown by pages that grow."""

from __future__ import annotations

import json
import socket
import sqlite3
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from assay.bundle.follow import CONFIG, STORE, Followed
from assay.bundle.read import Delivered
from assay.explorer import live as lives
from assay.explorer.catalogue import open_runs
from assay.explorer.explored import Explored
from assay.explorer.live import CLIENT_STREAMS_MAX, STREAMS_MAX, Live, Streams
from assay.network.http import client_of
from assay.participant.files.index import IntegrityError
from assay.participant.links import extend
from assay.participant.store import Store
from assay.participant.telemetry import round_trips
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.run_state import RunState
from tests.explorer.a_browser import CHROMIUM, a_browser
from tests.explorer.an_explorer import asking, golden, golden_explored, served
from tests.test_golden_run import ARCHIVE

pytestmark = pytest.mark.slow

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
    with pytest.raises(ConfigError, match="expected a folder with `bundle`, `observed` or"):
        Followed(folder)


def test_a_live_runs_pages_show_the_round_trips_that_the_participant_measured_lately(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "POLL_S", 0.0)
    monkeypatch.setattr(lives, "SHARE", 0)
    monkeypatch.setattr(lives, "WAIT_S", 120.0)
    node, verifier = golden().spec.nodes[0].peer, golden().spec.verifier_peers[1]
    add(store, 0, 4)
    client = asking(Live("follower", Followed(folder)))

    def tell(age_s: int) -> None:
        us = {node.hex(): 1500, verifier.hex(): 80_000}
        found = {"format": round_trips.FORMAT, "at_s": int(time.time()) - age_s, "us": us}
        (folder / round_trips.FILE).write_text(json.dumps(found))

    assert client.get("/runs/follower.json").json()["round_trips"] is None
    tell(0)  # no manifest is added: the page is renewed for its own sake
    found = client.get("/runs/follower.json").json()["round_trips"]
    assert (found["peers"], found["median_us"], found["longest_us"]) == (2, 40_750, 80_000)
    assert found["longest_peer"] == verifier.hex()
    assert "80.0 ms" in client.get("/runs/follower").text
    assert "1.5 ms" in client.get(f"/runs/follower/nodes/{node.hex()}").text
    assert client.get(f"/runs/follower/verifiers/{verifier.hex()}.json").json()["round_trip_us"] == 80_000
    tell(3600)
    assert client.get("/runs/follower.json").json()["round_trips"] is None
    assert "round trip," not in client.get(f"/runs/follower/nodes/{node.hex()}").text


def test_a_live_runs_pages_say_so_and_show_the_next_round_without_a_restart(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "POLL_S", 0.0)
    monkeypatch.setattr(lives, "SHARE", 0)
    monkeypatch.setattr(lives, "WAIT_S", 120.0)  # for the look that a page begins, on a busy machine too
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
    monkeypatch.setattr(lives, "WAIT_S", 120.0)
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
    monkeypatch.setattr(lives, "WAIT_S", 120.0)
    client = asking(Live("follower", Followed(folder)))
    add(store, 0, 4)
    answer = client.get("/runs/follower/events?known=1")
    assert answer.headers["content-type"].startswith("text/event-stream") and "data: 4" in answer.text
    monkeypatch.setattr(lives, "STREAMS_MAX", 0)
    refused = client.get("/runs/follower/events")
    assert refused.status_code == 503 and "reload the page" in refused.text

    assert asking().get("/runs/golden/events").status_code == 404


def a_stream(url: str, name: str, source: str) -> socket.socket:
    """An open event stream, asked for from this address of the loopback."""
    host, port = url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=120, source_address=(source, 0))
    line.sendall(f"GET /runs/{name}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return line


def answer_of(line: socket.socket) -> str:
    """The first line of the answer."""
    return line.recv(4096).split(b"\r\n")[0].decode()


def test_one_address_cannot_hold_the_streams_of_all_and_has_one_again_once_it_ends_one(
    folder: Path, store: Store
):
    add(store, 0, 4)
    with served(Live("follower", Followed(folder))) as url, ExitStack() as stack:
        held = [
            stack.enter_context(a_stream(url, "follower", "127.0.0.1")) for _ in range(CLIENT_STREAMS_MAX)
        ]
        assert {answer_of(line) for line in held} == {"HTTP/1.1 200 OK"}

        with a_stream(url, "follower", "127.0.0.1") as line:
            refusal = ""
            while "streams of your address" not in refusal:
                part = line.recv(4096).decode()
                assert part, refusal
                refusal += part
        assert refusal.startswith("HTTP/1.1 503")
        with a_stream(url, "follower", "127.0.0.2") as line:
            assert answer_of(line) == "HTTP/1.1 200 OK"

        held[0].close()
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with a_stream(url, "follower", "127.0.0.1") as line:
                if answer_of(line) == "HTTP/1.1 200 OK":
                    return
        raise AssertionError("the stream that ended is still counted")


def test_streams_are_counted_by_address_and_by_network_where_one_caller_has_all_of_it():
    streams = Streams()
    clients = [
        client_of({"client": (host, 1)})
        for host in (
            "192.0.2.1",
            "192.0.2.2",
            "2001:db8::1",
            "2001:db8::ffff:2",
            "2001:db8:0:1::1",
            "fe80::1%lo",
        )
    ]
    assert len(set(clients)) == 5 and clients[2] == clients[3]

    with ExitStack() as stack:
        for client in [clients[0]] * CLIENT_STREAMS_MAX:
            assert streams.refusal(client) == ""
            stack.enter_context(streams.opened(client))
        assert "of your address" in streams.refusal(clients[0]) and streams.refusal(clients[1]) == ""
        for at in range(STREAMS_MAX - CLIENT_STREAMS_MAX):
            assert streams.refusal(f"other {at}") == ""
            stack.enter_context(streams.opened(f"other {at}"))
        assert streams.refusal("another").startswith(f"{STREAMS_MAX} streams are open")
    assert streams.clients == {} and streams.refusal(clients[0]) == ""


# ---- a backlog


class Gate:
    """Folds one manifest for each that is let through; the others wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let, self.reached = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr("assay.bundle.read.extend", self._fold)

    def _fold(self, state: RunState, link: CertifiedManifest) -> RunState:
        self.reached.release()
        assert self.let.acquire(timeout=120)
        return extend(state, link)


def until(claim: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.01)


def shown(live: Live) -> int:
    newest = live.newest()
    assert isinstance(newest, Explored)
    return len(newest.delivered.links)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two looks, and a step ends with its first transaction, of four manifests."""
    for name in ("POLL_S", "SHARE", "FOLD_S"):
        monkeypatch.setattr(lives, name, 0)
    monkeypatch.setattr("assay.bundle.follow.LINKS_AT_ONCE", 4)


def test_pages_are_served_while_a_backlog_is_folded_and_show_more_after_each_step(
    folder: Path, store: Store, at_once: None, monkeypatch: pytest.MonkeyPatch
):
    live = Live("follower", Followed(folder))
    client = asking(live)
    add(store, 0, 11)
    gate = Gate(monkeypatch)

    assert (
        "No round is final yet" in client.get("/runs/follower").text
    )  # it began the look, and did not wait for it
    assert gate.reached.acquire(timeout=120)
    assert client.get("/runs/follower/nodes").status_code == 200  # the fold stands still
    gate.let.release(4)
    until(lambda: shown(live) == 4)
    gate.let.release(4)
    until(lambda: shown(live) == 8)
    assert "Round 7 is the newest" in client.get("/runs/follower").text
    gate.let.release(3)
    until(lambda: shown(live) == 11)
    live.close()


def test_a_page_of_many_runs_waits_for_all_of_them_no_longer_than_for_one(
    folder: Path, store: Store, at_once: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "WAIT_S", 0.5)
    runs = [Live(f"run-{at}", Followed(folder)) for at in range(8)]
    add(store, 0, 3)
    gate = Gate(monkeypatch)

    started_s = time.monotonic()
    assert asking(*runs).get("/").status_code == 200
    took_s = time.monotonic() - started_s
    gate.let.release(3 * len(runs))

    assert 0.5 <= took_s < 3.5  # not eight times as long
    for run in runs:
        until(lambda run=run: shown(run) == 3)
        run.close()


def test_an_explorer_that_stops_leaves_the_rest_of_a_backlog(
    folder: Path, store: Store, at_once: None, monkeypatch: pytest.MonkeyPatch
):
    live = Live("follower", Followed(folder))
    add(store, 0, 11)
    gate = Gate(monkeypatch)
    live.newest()
    assert gate.reached.acquire(timeout=120)
    closing = threading.Thread(target=live.close)
    closing.start()
    until(lambda: live._is_closed)
    gate.let.release(20)
    closing.join(120)

    assert not closing.is_alive() and shown(live) == 4
    assert shown(live) == 4  # and looks no more


def test_a_read_stops_after_its_time_and_says_whether_more_may_be_there(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.bundle.follow.LINKS_AT_ONCE", 4)
    followed = Followed(folder)
    add(store, 0, 10)

    found = []
    for _ in range(4):
        links = followed.read(0.0).links
        found.append((len(links), followed.is_behind))

    assert found == [(4, True), (8, True), (10, False), (10, False)]
    assert Followed(folder).read().links == LINKS[:10]


def test_a_run_that_is_delivered_while_a_backlog_is_folded_is_read_once(
    folder: Path, store: Store, at_once: None
):
    asked = []

    def delivered() -> Explored | None:
        asked.append(True)
        return golden_explored() if len(asked) > 1 else None

    followed = Followed(folder)
    live = Live("follower", followed, delivered)
    add(store, 0, 11)
    until(lambda: live.newest() is golden_explored())
    live.close()

    assert followed.is_behind and len(asked) == 2


def test_what_is_wrong_in_our_own_code_is_raised_and_not_swallowed_by_the_thread(
    folder: Path, store: Store, at_once: None, monkeypatch: pytest.MonkeyPatch
):
    live = Live("follower", Followed(folder))
    add(store, 0, 2)

    def wrong(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(lives, "explore", wrong)
    live.newest()
    with pytest.raises(ZeroDivisionError):
        until(lambda: live.newest() is None)


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
        browser.run("document.querySelector('[data-check] button').focus()")

        add(store, 4, 12)

        browser.until("document.querySelector('.live').textContent.includes('Round 11 is')")
        assert browser.run("window.isSame") and browser.complaints == []
        assert browser.run("document.activeElement === document.querySelector('[data-check] button')")
        assert browser.check()[0] == "proved"
        assert "stands still" in browser.run("document.querySelector('.live').textContent")
        assert all(address.startswith(url) for address in browser.addresses)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium")
def test_losses_by_method_grow_with_a_run_that_goes_on_and_then_with_the_next(
    folder: Path, store: Store, tmp_path: Path
):
    add(store, 0, 4)
    found: list[Explored] = []
    first = Live("first", Followed(folder), lambda: found[0] if found else None)
    rounds = "[...document.querySelectorAll('tbody tr')].map((row) => row.children[5].textContent).join()"
    with served(first, Live("second", Followed(folder))) as url, a_browser(tmp_path) as browser:
        browser.open(f"{url}/methods")
        browser.run("window.isSame = true")
        assert browser.run(rounds) == "4,4"
        add(store, 4, 6)
        browser.until(f"{rounds}.startsWith('6,')")

        found.append(replace(golden_explored(), name="first"))
        browser.until("document.querySelector('main').dataset.live.startsWith('/runs/second/')")
        ended = golden().spec.rounds
        assert browser.run(rounds).startswith(f"{ended},")
        add(store, 6, 9)
        browser.until(f"{rounds} === '{ended},9'")
        assert browser.run("window.isSame") and browser.complaints == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium")
def test_a_page_that_gets_no_stream_says_so_and_has_a_link_that_reloads_it(
    folder: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lives, "CLIENT_STREAMS_MAX", 0)
    add(store, 0, 4)
    with served(Live("follower", Followed(folder))) as url, a_browser(tmp_path) as browser:
        browser.open(f"{url}/runs/follower/rounds?page=1")
        browser.until("document.querySelector('.live').textContent.includes('no stream left')")
        add(store, 4, 12)
        time.sleep(2 * lives.POLL_S)  # so that a look is due
        assert "Round 3 is" in browser.run("document.querySelector('.live').textContent")

        shown, end = "", time.monotonic() + 120
        while "Round 11 is" not in shown:  # a page does not wait for a look that takes long
            assert time.monotonic() < end, shown
            browser.run("window.isOld = true; document.querySelector('.live a').click()")
            browser.until(
                "!window.isOld && document.querySelector('.live')?.textContent.includes('no stream left')"
            )
            shown = browser.run("document.querySelector('.live').textContent")

        assert browser.run("location.href") == f"{url}/runs/follower/rounds?page=1"
