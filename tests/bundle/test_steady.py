"""A source that sends a byte now and then holds nobody up: the next one is asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.bundle import steady
from assay.bundle.fetch import Client, fetch
from assay.bundle.read import read
from assay.bundle.steady import LEAST_RATE, WINDOW_S, Rate, TooSlow
from assay.protocol.errors import Unavailable
from tests.bundle.a_file_server import serving

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_rate_is_measured_over_whole_windows() -> None:
    fast = Rate(0.0)
    for at in range(1, 200):
        fast.add(int(LEAST_RATE), float(at))

    late = Rate(0.0)
    late.add(0, WINDOW_S - 0.1)  # a pause within a window
    late.add(int(LEAST_RATE * (WINDOW_S + 1)), WINDOW_S + 0.1)
    with pytest.raises(TooSlow, match="0 bytes in 60 s, at least 4,096 a second expected"):
        late.add(0, WINDOW_S + 0.1 + 60)


@pytest.mark.parametrize(
    ("size", "is_slow"), [(int(LEAST_RATE * WINDOW_S) - 1, True), (int(LEAST_RATE * WINDOW_S), False)]
)
def test_the_least_rate_is_enough(size: int, is_slow: bool) -> None:
    rate = Rate(5.0)
    if not is_slow:
        rate.add(size, 5.0 + WINDOW_S)
        return
    with pytest.raises(TooSlow):
        rate.add(size, 5.0 + WINDOW_S)


class Trickle:
    """A server that sends a beginning, and then a byte whenever it may, for ever."""

    def __init__(self, begun: bytes, filler: bytes = b"x") -> None:
        self.begun, self.filler, self.done = begun, filler, threading.Event()
        self.asked = 0
        self._line = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._line.getsockname()[1]}/"

    def close(self) -> None:
        self.done.set()
        self._line.close()

    def _serve(self) -> None:
        while not self.done.is_set():
            try:
                line, _ = self._line.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        try:
            line.recv(4096)
            self.asked += 1
            line.sendall(self.begun)
            while not self.done.wait(0.01):
                line.sendall(self.filler)
        except OSError:
            pass
        finally:
            line.close()


@pytest.fixture
def trickle() -> Iterator[type[Trickle]]:
    made: list[Trickle] = []

    class Kept(Trickle):
        def __init__(self, *given: bytes) -> None:
            super().__init__(*given)
            made.append(self)

    yield Kept
    for one in made:
        one.close()


def test_a_body_that_trickles_is_broken_off_by_the_clock(trickle: type[Trickle]) -> None:
    now_s, told = 0.0, list[str]()

    def clock() -> float:
        nonlocal now_s
        now_s += 1.0  # at every piece
        return now_s

    server = trickle(HEAD)
    client = Client([server.url, "http://127.0.0.1:9/"], 10**6, on_slow=told.append, clock=clock)

    with pytest.raises(Unavailable, match=r"too slow: .* bytes in 3[0-9] s"):
        client.small(server.url, "index.json", 10**6)

    assert len(told) == 1 and told[0].startswith(
        f"{server.url}index.json: too slow, the next source is asked: "
    )
    assert client.sources == ["http://127.0.0.1:9/", server.url]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_strangers_name_that_leads_here_after_it_was_looked_at_is_sent_nothing(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"{scheme}://localhost:{server.getsockname()[1]}/"
        with pytest.raises(Unavailable, match="no answer"):
            Client([url], 10**6, is_public=True).small(url, "index.json", 10**6)
        line, _ = server.accept()
        with line:
            line.settimeout(10)
            assert line.recv(1) == b""  # shut, and not a byte of a request or of a handshake


def test_who_names_a_source_itself_may_name_one_in_its_own_network(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(b"x")
    with serving(tmp_path) as serve:
        url = serve().url + "/"
        assert Client([url], 10**6).small(url, "index.json", 10**6) == b"x"
        with pytest.raises(Unavailable, match="no answer"):
            Client([url], 10**6, is_public=True).small(url, "index.json", 10**6)


@pytest.mark.parametrize(
    ("begun", "filler"),
    [(b"HTTP/1.1 200 OK\r\nX: ", b"x"), (b"HTTP/1.1 ", b"2"), (CHUNKED + b"1;", b"x")],
    ids=["head", "status", "chunk's size"],
)
def test_what_trickles_within_one_step_has_a_deadline(
    trickle: type[Trickle], monkeypatch: pytest.MonkeyPatch, begun: bytes, filler: bytes
) -> None:
    monkeypatch.setattr(steady, "STEP_S_MAX", 0.3)
    server = trickle(begun, filler)

    with pytest.raises(Unavailable, match=r"no answer|broke off"):
        Client([server.url], 10**6).small(server.url, "index.json", 10**6)


def test_a_run_comes_from_the_next_source_and_the_slow_one_is_asked_once_for_each_request_at_a_time(
    recorded_run: Path, tmp_path: Path, trickle: type[Trickle], monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(_rate: Rate, size: int, _now_s: float) -> None:
        if size < 20:  # no file of the run is as small
            raise TooSlow("few bytes")

    monkeypatch.setattr(Rate, "add", add)
    server, told = trickle(HEAD), list[str]()

    with serving(recorded_run) as serve:
        fetched = fetch([server.url, serve().url], tmp_path, on_slow=told.append)

    assert read(tmp_path).run_id == fetched.run_id
    assert server.asked == len(told) == 1
