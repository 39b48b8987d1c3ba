"""API commands: a server from its file, as a process, and the tokens that it takes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.conftest import Assay
from tests.ledger.an_invoiced_run import an_invoiced_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START_S_MAX = 90.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    an_invoiced_run(tmp_path / "ledger.db", tmp_path)
    path = tmp_path / "api.toml"
    path.write_text('port = 0\norigin = "http://127.0.0.1"\nwebhooks = true\n[runs]\npaper = "ledger.db"\n')
    return path


def test_tokens_are_made_shown_used_and_revoked(assay: Assay, file: Path):
    made = assay("api", "token", "create", file, "--name", "books", "--scope", "read", "--days", 2)
    secret = made.out.strip()
    assert (made.status, re.fullmatch(r"assay_[A-Za-z0-9_\-]{43}", secret) is not None) == (0, True)
    shown = assay("api", "token", "list", file)
    assert "1  books  read  -  0.000000 of 0.000000 aUSD  until" in shown.out
    assert secret not in shown.out + shown.err
    assert (file.parent / "access.db").stat().st_mode & 0o077 == 0

    with subprocess.Popen(
        [sys.executable, "-m", "assay.cli.main", "api", "serve", str(file), "--tethered"],
        cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stderr is not None and server.stdin is not None
            line = server.stderr.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert url is not None, line
            asked = f"{url[0]}/v1/runs/paper/audit"
            told = _soon(asked, secret)
            assert told.json()["ok"] is True, told.text
            assert _soon(f"{url[0]}/v1/hooks", secret).status_code == 403  # this server sends, but not for it
            assert assay("api", "token", "revoke", file, 1).status == 0
            assert _soon(asked, secret).status_code == 401
        finally:
            server.stdin.close()
            try:
                server.wait(120)
            except subprocess.TimeoutExpired:
                server.kill()  # `Popen.__exit__` would wait for it without limit
                raise
    assert server.returncode == 0


def _soon(url: str, secret: str) -> httpx.Response:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            return httpx.get(url, headers={"Authorization": f"Bearer {secret}"}, trust_env=False, timeout=30)
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["token", "revoke", "{}", 9], "there is no token 9"),
        (["token", "create", "{}", "--name", "x", "--scope", "everything"], "scope 'everything'"),
        (["token", "create", "{}", "--name", "x", "--scope", "move"], "needs an account"),
        (
            ["token", "create", "{}", "--name", "x", "--scope", "read", "--account", "0x12"],
            "is no address",
        ),
        (["token", "create", "{}", "--name", "x", "--scope", "read", "--days", 0], "1 to 366 days"),
        (["serve", "nowhere.toml"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(assay: Assay, file: Path, words: list[object], expected: str):
    done = assay("api", *(str(word).format(file) for word in words))

    assert (done.status, done.out, expected in done.err) == (2, "", True), done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[runs]\n'../x' = 'ledger.db'\n", "runs"),
        ("listne = '127.0.0.1'\n", "unknown"),
        ("origin = 'https://x/y'\n", "origin"),
        ("[limits]\nbody_bytes = 0\n", "body_bytes"),
        ("[chain]\nrpc_url = 'file:///etc/passwd'\ndeployment = 'x'\n", "rpc_url"),
    ],
)
def test_a_servers_file_is_checked(assay: Assay, file: Path, text: str, expected: str):
    file.write_text(text)

    done = assay("api", "token", "list", file)
    assert (done.status, expected in done.err) == (2, True), done.err
