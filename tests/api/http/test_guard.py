"""Guard: what is too long, too deep, too often, too many or too slow is a problem and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.api.config import LimitsSection
from assay.api.http.bodies import NESTED_MAX, read_json
from assay.api.http.guard import HEADERS, Guard
from assay.api.http.protocol import Http
from assay.api.http.rate_limits import Buckets, Rate
from tests.api.a_server import ApiWorld, is_problem, listening

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json", "idempotency-key": "x"}


def raw(url: str, *pieces: bytes) -> bytes:
    """What comes back for these bytes, until the other side ends."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        try:
            for piece in pieces:
                line.sendall(piece)
        except OSError:
            pass  # it had enough before we were through
        found = b""
        while True:
            try:
                more = line.recv(65_536)
            except OSError:
                return found
            if not more:
                return found
            found += more


def test_every_answer_tells_browsers_to_do_nothing(world_api: ApiWorld):
    for path in ("/v1/health", "/v1/runs", "/v1/nothing"):
        answer = world_api.ask("GET", path, headers={"Origin": "https://evil.org"})
        for name, value in HEADERS:
            assert answer.headers[name.decode()] == value.decode()
        assert answer.headers["cache-control"] == "no-store"
        assert "set-cookie" not in answer.headers
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_head_is_get_without_the_body(world_api: ApiWorld):
    told, head = world_api.get("/v1/health"), world_api.ask("HEAD", "/v1/health")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == told.headers["content-length"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 100_000, 400),
        (b'{"action": ' + b"[" * 40 + b"]" * 40 + b"}", 400),
        (b'{"action": NaN}', 400),
        (b'{"action": -Infinity}', 400),
        (b'{"action": 1e999}', 400),
        (b'{"action": "a", "action": "b", "parameters": {}}', 400),
        (b'{"action": ' + b"9" * 10_000 + b"}", 400),
        (b"\xff\xfe", 400),
        (b"", 422),
        (b"{}", 422),
        (b"x" * ((1 << 18) + 1), 413),
    ],
)
def test_a_body_that_is_not_as_expected_is_a_problem(world_api: ApiWorld, body: bytes, status: int):
    token = world_api.token("move", account="0x" + "11" * 20)
    answer = world_api.ask("POST", "/v1/moves/prepare", token, content=body, headers=JSON)
    assert is_problem(answer, status)


def test_a_body_without_a_length_is_bounded_too(world_api: ApiWorld):
    token = world_api.token("move", account="0x" + "11" * 20)

    async def pieces() -> Any:
        for _ in range(40):
            yield b"x" * 10_000

    answer = world_api.ask("POST", "/v1/moves/prepare", token, content=pieces(), headers=JSON)
    assert is_problem(answer, 413, "body too long")


def test_json_is_read_strictly():
    assert read_json(b'{"a": [1, 2.5, "x", null]}') == {"a": [1, 2.5, "x", None]}
    assert read_json(b"[" * NESTED_MAX + b"]" * NESTED_MAX)
    with pytest.raises(ValueError, match="nested"):
        read_json(b"[" * (NESTED_MAX + 2) + b"]" * (NESTED_MAX + 2))


def test_long_heads_and_paths_are_problems(world_api: ApiWorld):
    assert is_problem(world_api.ask("GET", "/v1/health", headers={"X": "x" * 20_000}), 431)
    assert is_problem(world_api.get("/v1/health?" + "x" * 3_000), 414)


def test_a_secret_is_never_logged(world_api: ApiWorld, caplog: pytest.LogCaptureFixture):
    token = world_api.token("read")
    with caplog.at_level(logging.DEBUG):
        world_api.get(f"/v1/runs?token={token}", token)
        world_api.get("/v1/runs", token + "x")

    told = json.dumps([str(vars(record)) for record in caplog.records if record.name.startswith("assay.api")])
    assert "request" in told
    assert token not in told
    assert token.encode() not in (world_api.folder / "access.db").read_bytes()


def test_who_asks_too_often_waits(folder: Path):
    by_token = ApiWorld(folder, limits=LimitsSection(token_burst=2, token_per_minute=1))
    token, other = by_token.token("read"), by_token.token("read")
    assert [by_token.get("/v1/runs", token).status_code for _ in range(3)] == [200, 200, 429]
    assert by_token.get("/v1/runs", other).status_code == 200

    by_account = ApiWorld(folder, limits=LimitsSection(account_burst=2, account_per_minute=1))
    whose = "0x" + "11" * 20
    tokens = [by_account.token("read", account=whose) for _ in range(3)]
    assert [by_account.get("/v1/runs", one).status_code for one in tokens] == [200, 200, 429]


def test_who_has_a_whole_network_of_addresses_has_one_rate():
    async def served(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(served, LimitsSection(address_burst=3, address_per_minute=1), ("x",))

    async def ask(host: str) -> int:
        transport = httpx.ASGITransport(app=guard, client=(host, 1))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.get("/v1/signin/nonce")).status_code

    async def codes(*hosts: str) -> list[int]:
        return [await ask(host) for host in hosts]

    assert asyncio.run(codes(*(f"2001:db8:1:2::{one:x}" for one in range(5)))) == [200, 200, 200, 429, 429]
    # Other networks have their own, and so has each IPv4 address, also on a socket that serves both.
    assert asyncio.run(codes("2001:db8:1:3::", *(f"::ffff:192.0.2.{one}" for one in range(4)))) == [200] * 5
    # This machine's have none: a proxy passes everybody's requests on from there.
    assert asyncio.run(codes(*["127.0.0.1"] * 5, *["::1"] * 5, *["::ffff:127.0.0.1"] * 5)) == [200] * 15


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("api.example.org", 200),
        ("API.example.org:443", 200),
        ("localhost:8600", 200),
        ("127.0.0.1:8600", 200),
        ("10.1.2.3:8600", 200),  # a monitor's
        ("[2001:db8::1]:8600", 200),
        ("evil.example:8600", 421),
        ("api.example.org.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("example.org", 421),
        ("", 421),
    ],
)
def test_a_name_that_leads_here_by_rebinding_is_refused(folder: Path, host: str, status: int):
    world_api = ApiWorld(folder, public_read=True)
    for path in ("/v1/health", "/v1/runs", "/wallet"):
        answer = world_api.ask("GET", path, headers={"Host": host})
        assert answer.status_code == status
        assert status == 200 or is_problem(answer, 421, "not at that host")


def test_a_bucket_fills_with_time_and_never_over_its_brim():
    buckets = Buckets(rate=Rate(per_minute=60, burst=2), names_max=2)

    assert [buckets.take("a", 0.0) for _ in range(3)] == [0, 0, 1]
    assert buckets.take("a", 0.5) == 0.5
    assert buckets.take("a", 1.0) == 0
    assert [bool(buckets.take("a", 1e6)) for _ in range(3)] == [False, False, True]
    for name in ("b", "c"):
        buckets.take(name, 1e6)
    assert len(buckets._left) == 2


def test_what_takes_too_long_or_is_too_many_is_told_so():
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await go.wait()

    async def run() -> list[int]:
        guard = Guard(slow, LimitsSection(requests_at_once=1, request_s=0.05), ("x",))
        transport = httpx.ASGITransport(app=guard)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            first = asyncio.create_task(client.get("/a"))
            await begun.wait()
            second = await client.get("/b")
            return [second.status_code, (await first).status_code]

    assert asyncio.run(run()) == [503, 503]


def test_one_address_has_a_quarter_of_the_requests_at_once_and_one_export_and_a_proxy_all():
    go = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(slow, LimitsSection(requests_at_once=8), ("x",))

    async def ask(host: str, path: str) -> int:
        transport = httpx.ASGITransport(app=guard, client=(host, 1))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.get(path)).status_code

    async def codes(*hosts: str, path: str = "/v1/runs") -> list[int]:
        go.clear()
        asked = [asyncio.create_task(ask(host, path)) for host in hosts]
        refused, _ = await asyncio.wait(asked, timeout=0.5)
        go.set()
        assert all(one.result() == 503 for one in refused)
        return [await one for one in asked]

    async def run() -> None:
        for _ in range(2):  # what is left of a request would add up
            assert await codes(*["192.0.2.1"] * 3, *["192.0.2.2"] * 3) == [200, 200, 503] * 2
            assert await codes(*["127.0.0.1"] * 9) == [200] * 8 + [503]
            hosts = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "127.0.0.1", "127.0.0.1"]
            assert await codes(*hosts, path="/v1/runs/paper/export") == [200, 503, 200, 200, 200]

    asyncio.run(run())


def test_a_mistake_of_ours_is_a_number_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch):
    world_api = ApiWorld(folder, public_read=True)

    def fails(_: object) -> None:
        raise RuntimeError("the secret path /root/keys")

    monkeypatch.setattr("assay.api.routes.books._run", fails)
    answer = world_api.get("/v1/runs/paper")
    assert is_problem(answer, 500, "incident")
    assert "secret" not in answer.text
    assert "RuntimeError" not in answer.text


# ---- over a socket


def test_the_same_over_a_socket(world_api: ApiWorld):
    with listening(world_api.app) as url:
        assert httpx.get(f"{url}/v1/health", trust_env=False).json()["ok"] is True
        token = {"Authorization": f"Bearer {world_api.token('read')}"}
        told = httpx.get(f"{url}/v1/runs/paper/export", headers=token, trust_env=False)
        assert told.text.startswith("entry,time,recorded")
        assert "server" not in told.headers


def test_a_million_characters_of_head_are_a_problem_over_a_socket(world_api: ApiWorld):
    with listening(world_api.app) as url:
        told = raw(url, b"GET /v1/health HTTP/1.1\r\nHost: x\r\nX: ", b"x" * 10**6)
        assert told.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert b"application/problem+json" in told
        assert raw(url, b"NONSENSE\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert httpx.get(f"{url}/v1/health", trust_env=False).status_code == 200


def test_who_never_finishes_a_head_is_cut_off(world_api: ApiWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("assay.network.http.HEAD_S_MAX", 0.2)
    with listening(world_api.app) as url:
        assert raw(url, b"GET /v1/health HTT") == b""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such option")
def test_the_kernel_ends_a_connection_on_which_nothing_is_acknowledged(
    world_api: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    found: list[int] = []
    begin = Http.connection_made

    def begun(line: Http, transport: Any) -> None:
        begin(line, transport)
        its_socket = transport.get_extra_info("socket")
        found.append(its_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    monkeypatch.setattr(Http, "connection_made", begun)
    with listening(world_api.app) as url:
        assert httpx.get(f"{url}/v1/health", trust_env=False).status_code == 200

    assert found == [30_000]
