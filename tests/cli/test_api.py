"""API commands: a server from its file, as a process, and the tokens that it takes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.ledger.an_invoiced_run import an_invoiced_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START_S_MAX = 90.0


def assay(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "assay.cli.main", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    an_invoiced_run(tmp_path / "ledger.db", tmp_path)
    path = tmp_path / "api.toml"
    path.write_text('port = 0\norigin = "http://127.0.0.1"\n[runs]\npaper = "ledger.db"\n')
    return path


def test_tokens_are_made_shown_used_and_revoked(file: Path):
    made = assay("api", "token", "create", file, "--name", "books", "--scope", "read", "--days", 2)
    secret = made.stdout.strip()
    assert (made.returncode, re.fullmatch(r"assay_[A-Za-z0-9_\-]{43}", secret) is not None) == (0, True)
    shown = assay("api", "token", "list", file)
    assert "1  books  read  -  0.000000 of 0.000000 aUSD  until" in shown.stdout
    assert secret not in shown.stdout
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
            assert assay("api", "token", "revoke", file, 1).returncode == 0
            assert _soon(asked, secret).status_code == 401
        finally:
            server.stdin.close()
            try:
                server.wait(30)
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
            "is not an account",
        ),
        (["token", "create", "{}", "--name", "x", "--scope", "read", "--days", 0], "1 to 366 days"),
        (["serve", "nowhere.toml"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(file: Path, words: list[object], expected: str):
    done = assay("api", *(str(word).format(file) for word in words))

    assert (done.returncode, done.stdout, expected in done.stderr) == (2, "", True), done.stderr
    assert done.stderr.count("\n") == 1


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
def test_a_servers_file_is_checked(file: Path, text: str, expected: str):
    file.write_text(text)

    done = assay("api", "token", "list", file)
    assert (done.returncode, expected in done.stderr) == (2, True), done.stderr
