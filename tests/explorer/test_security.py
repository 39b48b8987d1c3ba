"""A stranger wrote the run, another one asks for the pages: neither gets more than pages of this run."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from assay.cli.explorer import serve as command
from assay.cli.main import app
from assay.explorer.app import FILES, STATIC, make_app
from assay.explorer.catalogue import open_runs
from assay.explorer.explored import Explored
from assay.explorer.guard import FORM_POLICY, POLICY, Guard
from assay.explorer.pages.run import Damaged
from assay.explorer.serve import LOOPBACK, serve
from assay.protocol.errors import ConfigError
from tests.explorer.an_explorer import addresses, asking, golden_explored, guarded, renamed
from tests.test_golden_run import ARCHIVE

pytestmark = pytest.mark.slow

KINDS = addresses(golden_explored())
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7777*7777}}"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "Quick Start!"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_strangers_text_is_text_on_every_page(kind: str):
    run = renamed(HOSTILE[:64], golden_explored())
    page = asking(run, Damaged(name="broken", reason=HOSTILE)).get(KINDS[kind])

    assert page.status_code == 200
    assert (
        "<script>alert" not in page.text
        and "<img" not in page.text
        and "60481729" not in page.text.split("<h1>")[0]
    )
    if kind not in ("index", "new order"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text


@pytest.mark.parametrize(
    "address", ["/runs/broken", "/", "/runs/broken/rounds", f"/runs/{HOSTILE.replace('/', '')}"]
)
def test_a_reason_and_an_address_are_text_too(address: str):
    page = asking(Damaged(name="broken", reason=HOSTILE)).get(address)

    assert "<script>alert" not in page.text and "<img" not in page.text
    assert "&lt;img" in page.text


def test_no_page_has_a_script_or_a_style_inside_or_names_another_host():
    for kind, address in KINDS.items():
        text = asking().get(address).text
        assert text.count("<script") == 1 + (kind == "new order")
        assert '<script type="module" src="/static/page.mjs"></script>' in text
        for part in ("<style", " style=", " onclick", "javascript:", "http://", "https://"):
            assert part not in text, (address, part)
    for path in FILES.values():
        assert "https://" not in path.read_text()


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [
        ("GET", "/", 200), ("HEAD", "/", 200), ("GET", "/index.json", 200),
        ("GET", "/runs/golden/spec.cbor", 200), ("GET", "/static/page.mjs", 200), ("GET", "/none", 404),
        ("POST", "/", 405), ("PUT", "/runs/golden", 405), ("DELETE", "/", 405),
        ("OPTIONS", "/", 405), ("PATCH", "/static/page.mjs", 405), ("TRACE", "/", 405),
        ("GET", "/?" + "a" * 2048, 414),
    ],
)  # fmt: skip
def test_every_answer_has_the_headers_and_only_reading_is_answered(method: str, address: str, status: int):
    found = asking().request(method, address)

    assert found.status_code == status
    assert found.headers["content-security-policy"] == POLICY
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["cross-origin-resource-policy"] == "same-origin"
    assert "set-cookie" not in found.headers and "access-control-allow-origin" not in found.headers
    if method == "HEAD":
        assert found.content == b""


def test_only_the_form_may_be_sent_and_only_to_this_server():
    client, changed = asking(), ("form-action 'self'", "form-action 'none'")

    assert client.get("/orders/new").headers["content-security-policy"] == FORM_POLICY
    assert FORM_POLICY.replace(*changed) == POLICY != FORM_POLICY
    for address in (
        "/orders/new.json",
        "/orders/new.toml",
        "/orders/new/",
        "/orders/other",
        "/orders/new?x=1",
    ):
        found = client.get(address).headers["content-security-policy"]
        assert found == (FORM_POLICY if "?" in address else POLICY)


def test_the_policy_lets_nothing_in_from_elsewhere_and_nothing_inline():
    assert POLICY.startswith("default-src 'none'")
    for word in ("unsafe", "*", "data:", "http:"):
        assert word not in POLICY


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", ""]
)
def test_a_name_that_leads_here_by_rebinding_is_refused(host: str):
    found = asking().get("/", headers={"host": host})

    assert found.status_code == 421
    assert host == "" or host not in found.text


def test_two_names_in_one_request_are_refused():
    assert asking().get("/", headers=[("host", "localhost"), ("host", "evil.example")]).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8600", "127.0.0.1", "[::1]:8600", "LOCALHOST"])
def test_names_of_this_machine_are_answered_and_the_host_is_on_no_page(host: str):
    found = asking().get("/runs/golden", headers={"host": host})

    assert found.status_code == 200
    assert host not in found.text


def test_beyond_the_loopback_any_name_is_answered_and_none_is_repeated():
    client = TestClient(Guard(make_app({"golden": golden_explored()}), ()), base_url="http://runs.example")

    for address in ("/", "/runs/golden", "/runs/golden/", "/none"):
        found = client.get(address, headers={"host": "evil.example"}, follow_redirects=False)
        assert found.status_code in (200, 404)
        assert "evil.example" not in found.text + str(found.headers)


@pytest.mark.parametrize(
    "address",
    [
        "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd",
        "/static/check/../../app.py", "/static/check", "/static/", "/static/page.mjs%00",
        "/runs/..", "/runs/../golden", "/runs/%2e%2e%2f%2e%2e%2fetc", "/runs/golden/rounds/..%2f7",
        "/runs/golden/rounds/../../../etc/passwd", "/runs/golden/settlements/..%2f..%2f0.json",
    ],
)  # fmt: skip
def test_no_address_leads_out_of_what_is_served(address: str):
    status = []

    async def send(message: dict[str, Any]) -> None:
        status.append(message.get("status"))

    scope = {
        "type": "http", "method": "GET", "path": unquote(address), "raw_path": address.encode(),
        "query_string": b"", "headers": [(b"host", b"localhost")], "scheme": "http", "root_path": "",
        "http_version": "1.1", "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2),
    }  # fmt: skip
    asyncio.run(guarded(golden_explored())(scope, None, send))  # as it was sent: a client would tidy it up

    assert status[0] == 404


def test_static_files_are_the_ones_in_the_folder_and_no_link():
    assert {"page.mjs", "style.css", "check/run.mjs"} <= set(FILES)
    assert all(path.resolve().is_relative_to(STATIC.resolve()) for path in FILES.values())


def test_runs_are_named_by_their_folders_and_a_damaged_one_is_a_page_that_says_what_is_wrong(
    run_folder: Path, tmp_path: Path
):
    shutil.copytree(run_folder, tmp_path / "Quick Start!")
    link = tmp_path / "Quick Start!" / "bundle" / "links" / "000003.cbor"
    data = bytearray(link.read_bytes())
    data[len(data) // 2] ^= 1
    link.write_bytes(bytes(data))
    told: list[str] = []

    found = open_runs([run_folder, tmp_path / "Quick Start!"], lambda run: told.append(run.name))

    assert list(found) == told == ["quick-start", "quick-start-2"]
    assert isinstance(found["quick-start"], Explored) and isinstance(found["quick-start-2"], Damaged)
    client = asking(*found.values())
    page, twin = client.get("/runs/quick-start-2"), client.get("/runs/quick-start-2.json")
    assert (
        page.status_code == 200 and "bundle/links/000003.cbor" in page.text and "Traceback" not in page.text
    )
    assert twin.json()["reason"].startswith("bundle/links/000003.cbor")
    assert client.get("/runs/quick-start-2/rounds").status_code == 404
    assert str(tmp_path) not in page.text
    assert client.get("/runs/quick-start").status_code == 200


@pytest.mark.parametrize(
    "part", ["spec.cbor", "deployment.json", "links/000000.cbor", "settlements/epoch-000.json"]
)
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x80", b"null", b'"' + b"[" * 5000])
def test_whatever_a_file_holds_its_run_is_damaged_and_nothing_raises(
    part: str, content: bytes, run_folder: Path, tmp_path: Path
):
    for name in ("links", "settlements", "anchors"):
        (tmp_path / "bundle" / name).mkdir(parents=True)
    for path in (run_folder / "bundle").rglob("*"):
        target = tmp_path / "bundle" / path.relative_to(run_folder / "bundle")
        if path.is_file() and target.parent.exists():
            target.symlink_to(path)
    (tmp_path / "bundle" / part).unlink()
    (tmp_path / "bundle" / part).write_bytes(content)

    (found,) = open_runs([tmp_path], lambda _: None).values()

    assert isinstance(found, Damaged) and found.reason.startswith(f"bundle/{part}")


def test_a_folder_that_holds_no_run_ends_the_command(tmp_path: Path):
    with pytest.raises(ConfigError, match="no delivered run"):
        open_runs([tmp_path], lambda _: None)
    assert isinstance(
        CliRunner().invoke(app, ["explorer", "serve", str(tmp_path), "--port", "0"]).exception, ConfigError
    )


def test_it_listens_on_this_machine_unless_told_otherwise():
    assert inspect.signature(command).parameters["listen"].default == "127.0.0.1"


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--listen", "everywhere"], "is no IP address"), (["--listen", "203.0.113.9"], "cannot listen")],
)
def test_an_address_that_cannot_be_listened_on_is_one_error(words: list[str], text: str, run_folder: Path):
    done = CliRunner().invoke(app, ["explorer", "serve", str(run_folder), "--port", "0", *words])

    assert isinstance(done.exception, ConfigError) and text in str(done.exception)


def test_pages_link_to_a_wallet_page_only_where_one_is_named_and_load_nothing_from_there():
    api = "https://api.example.org/x"
    linked = TestClient(
        Guard(make_app({"golden": golden_explored()}, api=api), LOOPBACK), base_url="http://127.0.0.1:8600"
    )
    for address in ("/", "/runs/golden", "/runs/golden/rounds/3", "/none"):
        with_link, without = linked.get(address), asking().get(address)
        assert with_link.text.count(f'<a href="{api}/wallet">Wallet</a>') == 1
        assert with_link.text.count("api.example.org") == 1
        assert "Wallet" not in without.text
        assert with_link.headers["content-security-policy"] == without.headers["content-security-policy"]
    assert "api.example.org" not in linked.get("/runs/golden.json").text


def test_what_is_no_plain_address_is_not_linked():
    for url in ("javascript:alert(1)", "https://u:p@example.org", 'https://example.org/"><script>'):
        with pytest.raises(ConfigError, match="no explorer's address"):
            serve([], listen="nowhere", port=0, api=url, on_run=print, on_ready=print)
