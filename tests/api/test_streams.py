"""Streams: every entry once and in order, within bounds, for those who may read and as long as they may."""

from __future__ import annotations

import json
import socket
import time
from asyncio import TimerHandle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.api import streams
from assay.api.config import LimitsSection
from assay.network.http import DeadlineHttp
from tests.api.a_books import books_of, grow, wait_until
from tests.api.a_server import ApiWorld, is_problem, listening
from tests.ledger.a_database import edit
from tests.ledger.a_run import wallet

pytestmark = pytest.mark.slow
PATH = "/v1/runs/paper/events"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "POLL_S", 0.02)
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)


@dataclass
class Sent:
    """One event as it was received."""

    id: int
    kind: str
    data: dict[str, Any]


class Reading:
    """An open stream."""

    def __init__(self, answer: httpx.Response) -> None:
        self.lines = answer.iter_lines()
        self.comments = 0

    def next(self) -> Sent:
        """The next event; a StopIteration if the stream ends before."""
        fields: dict[str, str] = {}
        while True:
            line = next(self.lines)
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                assert list(fields)[-3:] == ["id", "event", "data"]
                return Sent(int(fields["id"]), fields["event"], json.loads(fields["data"]))

    def take(self, count: int) -> list[Sent]:
        return [self.next() for _ in range(count)]

    def is_over(self) -> bool:
        """Whether it ends without another event."""
        try:
            self.next()
        except (StopIteration, httpx.RemoteProtocolError):
            return True
        return False


@contextmanager
def reading(url: str, token: str | None = None, **headers: str) -> Iterator[Reading]:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    with (
        httpx.Client(trust_env=False, timeout=120) as client,
        client.stream("GET", url, headers=headers) as answer,
    ):
        if answer.status_code != 200:
            answer.read()
        answer.raise_for_status()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield Reading(answer)


def pages(world_api: ApiWorld, token: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world_api.get("/v1/runs/paper/entries?limit=500", token).json()["entries"]
    return found


def test_a_stream_has_every_entry_once_and_in_order_also_those_written_later(world_api: ApiWorld):
    token = world_api.token("read")
    grow(world_api.folder, 230)  # more than two pages
    before = pages(world_api, token)

    with listening(world_api.app) as url, reading(url + PATH, token) as one:
        found = one.take(len(before))
        for _ in range(3):
            grow(world_api.folder, 2)
            found += one.take(2)

    after = pages(world_api, token)
    assert len(after) == len(before) + 6
    assert [sent.data for sent in found] == after
    assert (
        [sent.id for sent in found] == [entry["number"] for entry in after] == list(range(1, len(after) + 1))
    )
    assert [sent.kind for sent in found] == [entry["kind"] for entry in after]


def test_a_reader_that_was_cut_off_resumes_after_the_last_event_it_has(world_api: ApiWorld):
    token = world_api.token("read")
    grow(world_api.folder, 20)
    whole = pages(world_api, token)
    found: list[Sent] = []
    with listening(world_api.app) as url:
        while len(found) < len(whole):
            last = {"Last-Event-ID": str(found[-1].id)} if found else {}
            with reading(url + PATH, token, **last) as one:  # the connection ends in the middle of the stream
                found += one.take(min(7, len(whole) - len(found)))
        with reading(f"{url}{PATH}?after=5", token) as one:
            assert one.next().id == 6
        with reading(f"{url}{PATH}?after=5", token, **{"Last-Event-ID": "9"}) as one:
            assert one.next().id == 10  # who resumes sends the first address again

    assert [sent.data for sent in found] == whole


def test_a_number_that_the_log_does_not_have_is_a_problem(world_api: ApiWorld):
    token = world_api.token("read")
    size = len(pages(world_api, token))

    for number in (size + 1, 2**63 - 1):
        assert is_problem(world_api.get(f"{PATH}?after={number}", token), 409, f"the log has {size} entries")
    for number in ("-1", str(2**63), "x", "1.5"):
        assert world_api.get(f"{PATH}?after={number}", token).status_code == 422
        answer = world_api.ask("GET", PATH, token, headers={"Last-Event-ID": number})
        assert answer.status_code == 422


def test_only_who_may_read_the_books_has_a_stream(world_api: ApiWorld, folder: Path):
    party, stranger = wallet("node-0"), "0x" + "99" * 20

    assert is_problem(world_api.get(PATH), 401)
    assert is_problem(world_api.get(PATH, "assay_" + "x" * 43), 401)
    assert is_problem(world_api.get(PATH, world_api.token("quote")), 403, "scope 'read'")
    assert is_problem(world_api.get(PATH, world_api.session(stranger)), 403, "a run's parties")
    assert is_problem(world_api.get("/v1/runs/other/events", world_api.token("read")), 404)
    with listening(world_api.app) as url, reading(url + PATH, world_api.session(party)) as one:
        assert one.next().id == 1
    with listening(ApiWorld(folder, public_read=True).app) as url, reading(url + PATH) as one:
        assert one.next().id == 1


def test_a_stream_ends_soon_after_its_token_is_revoked(world_api: ApiWorld):
    token = world_api.token("read")
    with listening(world_api.app) as url:
        with reading(url + PATH, token) as one, reading(url + PATH, world_api.token("read")) as other:
            one.take(2)
            world_api.access.revoke(1, world_api.clock())
            one.take(len(pages(world_api, world_api.token("read"))) - 2)
            assert one.is_over()
            size = len(pages(world_api, world_api.token("read")))
            assert len(other.take(size)) == size
            grow(world_api.folder, 1)
            assert other.next().id == size + 1  # the others go on
        with pytest.raises(httpx.HTTPStatusError, match="401"), reading(url + PATH, token):
            pass


def test_a_stream_beyond_the_bounds_is_a_problem_and_one_that_ended_is_not_counted(folder: Path):
    world_api = ApiWorld(folder, limits=LimitsSection(streams=3, streams_per_account=2))
    account = wallet("node-0")
    mine = [world_api.session(account), world_api.token("read", account=account.upper().replace("X", "x"))]
    others = [world_api.token("read") for _ in range(3)]
    with listening(world_api.app) as url:
        for _ in range(5):  # what is left of a stream would add up
            with reading(url + PATH, mine[0]) as one, reading(url + PATH, mine[1]) as two:
                for token in mine:  # an account's sessions and tokens are counted together
                    assert "2 streams of this caller" in refusal(url, token, 429)
                with reading(url + PATH, others[0]) as three:
                    assert "3 streams are open" in refusal(url, others[1], 503)
                    assert [each.next().id for each in (one, two, three)] == [1, 1, 1]
            wait_until(lambda: not world_api.server.streams._open)
    assert not world_api.server.streams._tails  # nothing is kept of a run that nobody reads


def test_readers_without_credentials_behind_a_proxy_of_this_machine_have_no_bound_of_one_caller(folder: Path):
    world_api = ApiWorld(folder, public_read=True, limits=LimitsSection(streams=3, streams_per_account=1))
    with listening(world_api.app) as url, ExitStack() as stack:
        held = [stack.enter_context(reading(url + PATH)) for _ in range(3)]
        assert [one.next().id for one in held] == [1, 1, 1]
        assert is_problem(httpx.get(url + PATH, trust_env=False), 503, "3 streams are open")


def refusal(url: str, token: str, status: int) -> str:
    answer = httpx.get(url + PATH, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
    assert is_problem(answer, status)
    assert int(answer.headers["retry-after"]) > 0
    return str(answer.json()["detail"])


def test_a_quiet_stream_has_heartbeats_and_ends_after_its_time(folder: Path):
    world_api = ApiWorld(folder, limits=LimitsSection(stream_s=0.6))
    token = world_api.token("read")
    size = len(pages(world_api, token))
    with listening(world_api.app) as url, reading(f"{url}{PATH}?after={size}", token) as one:
        began_s = time.monotonic()
        assert one.is_over()
        assert 0.5 < time.monotonic() - began_s < 10
        assert 1 <= one.comments <= 6  # a busy machine sends fewer


def test_a_reader_that_takes_nothing_is_cut_off_and_resumes(
    world_api: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.network.http.FULL_S_MAX", 0.5)
    grow(world_api.folder, 2000)
    token = world_api.token("read")
    with listening(world_api.app, send_bytes=8192) as url:
        with with_a_small_buffer(url, token) as line:
            wait_until(lambda: world_api.server.streams._open)
            began_s = time.monotonic()
            wait_until(lambda: not world_api.server.streams._open)  # though the socket is open here
            assert 0.4 < time.monotonic() - began_s < 15
            ids = taken(line, 2000)[:-1]  # the last one may be cut off in its middle
        assert ids == list(range(1, len(ids) + 1)) and len(ids) < 2000
        with reading(url + PATH, token, **{"Last-Event-ID": str(ids[-1])}) as one:
            assert one.next().id == ids[-1] + 1


def test_a_reader_that_takes_nothing_for_a_moment_is_not_cut_off(
    world_api: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.network.http.FULL_S_MAX", 600)  # however busy the machine is
    deadlines: list[TimerHandle] = []
    pause_writing = DeadlineHttp.pause_writing

    def pause(connection: DeadlineHttp) -> None:
        pause_writing(connection)
        assert connection._abort is not None
        deadlines.append(connection._abort)

    monkeypatch.setattr(DeadlineHttp, "pause_writing", pause)
    grow(world_api.folder, 2000)
    token = world_api.token("read")
    with listening(world_api.app, send_bytes=8192) as url, with_a_small_buffer(url, token) as line:
        wait_until(lambda: deadlines)
        assert not deadlines[0].cancelled()
        ids = taken(line, 300)
        wait_until(lambda: len(deadlines) > 1)  # full again, with a deadline that begins anew
        assert deadlines[0].cancelled()
        ids += taken(line, 2000 - len(ids))
        assert ids == list(range(1, len(ids) + 1)) and len(ids) >= 2000
        wait_until(lambda: all(one.cancelled() for one in deadlines))


@contextmanager
def with_a_small_buffer(url: str, token: str) -> Iterator[socket.socket]:
    """A reader of the stream whose kernel takes little for it."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(20)
        line.connect((host, int(port)))
        head = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        line.sendall(head.encode())
        yield line


def taken(line: socket.socket, count: int) -> list[int]:
    """The ids of the next `count` events at least, or of all until the connection ends."""
    found = b""
    while found.count(b"\nid: ") < count:
        try:
            more = line.recv(1 << 16)
        except ConnectionError:
            break
        if not more:
            break
        found += more
    while not found.endswith(b"\n\n\r\n") and (more := _more(line)):
        found += more
    return [int(one.split(b"\n")[0]) for one in found.split(b"\nid: ")[1:] if b"\n" in one]


def _more(line: socket.socket) -> bytes:
    """The rest of an event; nothing if the connection has ended."""
    try:
        return line.recv(1)
    except ConnectionError:
        return b""


def test_the_log_is_read_once_for_all_streams_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch):
    reads: list[tuple[int, int]] = []
    kept = streams.Tail._read

    def counted(tail: streams.Tail, after: int, last: int) -> streams.Page:
        reads.append((after, last))
        return kept(tail, after, last)

    monkeypatch.setattr(streams.Tail, "_read", counted)
    world_api = ApiWorld(folder, limits=LimitsSection(streams_per_account=8))
    token = world_api.token("read")
    size = len(pages(world_api, token))
    with (
        listening(world_api.app) as url,
        reading(url + PATH, token) as one,
        reading(url + PATH, token) as two,
        reading(url + PATH, token) as three,
    ):
        for each in (one, two, three):
            each.take(size)
        grow(folder, 3)
        for each in (one, two, three):
            assert [sent.id for sent in each.take(3)] == [size + 1, size + 2, size + 3]

    assert reads == [(0, size), (size, size + 3)]


def test_streams_that_wait_look_at_the_log_once_between_them(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "POLL_S", 0.3)
    looks: list[float] = []
    kept = streams.Tail._log_size

    def counted(tail: streams.Tail) -> int:
        looks.append(time.monotonic())
        return kept(tail)

    monkeypatch.setattr(streams.Tail, "_log_size", counted)
    world_api = ApiWorld(folder, limits=LimitsSection(streams_per_account=6, stream_s=1.5))
    token = world_api.token("read")
    address = f"{PATH}?after={len(pages(world_api, token))}"
    with listening(world_api.app) as url, ExitStack() as stack:
        for one in [stack.enter_context(reading(url + address, token)) for _ in range(6)]:
            assert one.is_over()

    # Each may look when it is opened; six that look apart would do so six times as often afterwards.
    assert 2 <= len(looks) <= 6 + (looks[-1] - looks[0]) / 0.3 + 1


def test_an_altered_entry_is_not_sent_and_ends_the_stream(world_api: ApiWorld):
    token = world_api.token("read")
    with listening(world_api.app) as url, reading(url + PATH, token) as one:
        size = one.take(len(pages(world_api, token)))[-1].id
        grow(world_api.folder, 1)
        assert one.next().id == size + 1
        edit(books_of(world_api.folder), f"UPDATE log_edge SET size = {size}")  # a log that has shrunk
        assert one.is_over()
    edit(books_of(world_api.folder), "UPDATE journal_entry SET block_number = block_number + 1 WHERE id = 2")
    assert is_problem(world_api.get(PATH, token), 500, "incident")


def test_the_head_of_a_stream_opens_none(world_api: ApiWorld):
    answer = world_api.ask("HEAD", PATH, world_api.token("read"))

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_a_server_that_stops_ends_its_streams(world_api: ApiWorld):
    token = world_api.token("read")
    with listening(world_api.app) as url, reading(url + PATH, token) as one:
        one.next()
        world_api.server.streams.is_stopping = lambda: True
        one.take(len(pages(world_api, token)) - 1)
        assert one.is_over()


def test_streams_leave_half_of_the_requests_at_once_for_all_else(folder: Path):
    world_api = ApiWorld(folder, limits=LimitsSection(streams=3, requests_at_once=5))
    tokens = [world_api.token("read") for _ in range(3)]
    with listening(world_api.app) as url, reading(url + PATH, tokens[0]), reading(url + PATH, tokens[1]):
        assert "2 streams are open" in refusal(url, tokens[2], 503)
