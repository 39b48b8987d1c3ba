"""A PostgreSQL server of our own, for tests and benchmarks: made, used over a socket and thrown away."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import sqlalchemy as sa

START_S_MAX = 60.0
USER = "assay"
_PR_SET_PDEATHSIG = 1


def binaries() -> Path | None:
    """Where initdb and postgres are; the newest of them, and None if there are none."""
    found = [Path(one).parent for one in [shutil.which("initdb")] if one]
    found += [one.parent for one in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    whole = [one for one in found if (one / "postgres").exists()]
    return max(
        whole, key=lambda one: (one.parent.name.isdigit() and int(one.parent.name), str(one)), default=None
    )


class Server:
    """A server that listens on one socket in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count()

    def url(self, database: str) -> str:
        """How `BookStore` is told of a database."""
        asked = sa.URL.create(
            "postgresql", username=USER, database=database, query={"host": str(self.folder)}
        )
        return asked.render_as_string()

    def new(self) -> str:
        """The URL of a fresh database."""
        name = f"books_{next(self._numbers)}"
        with self._rig() as db:
            db.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        return self.url(name)

    def new_schema(self) -> str:
        """The URL of an empty schema of one database: a place of its own for a hundredth of the time."""
        name = f"books_{next(self._numbers)}"
        with self._rig() as db:
            db.execute(f"CREATE SCHEMA {name}".encode())
        url = sa.make_url(self.url("postgres")).update_query_dict({"options": f"-csearch_path={name}"})
        return url.render_as_string()

    def drop_schemas(self) -> None:
        """Remove all that `new_schema` made."""
        with self._rig() as db:
            asked = b"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'books_%'"
            for (name,) in db.execute(asked).fetchall():
                db.execute(f"DROP SCHEMA {name} CASCADE".encode())

    def _rig(self) -> psycopg.Connection:
        return psycopg.connect(host=str(self.folder), user=USER, dbname="postgres", autocommit=True)


@contextmanager
def a_server(found: Path, *, is_durable: bool, parent: Path | None = None) -> Iterator[Server]:
    """A running server; gone when the block ends, however it ends, and when this process dies.

    Args:
        found: See `binaries`.
        is_durable: Whether a commit waits for the disk. Tests of what SQL does need not.
        parent: On the disk to use; default: the temporary folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="assay-pg-", dir=parent))
    try:
        # PostgreSQL refuses to run as root.
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        ids = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data = folder / "data"
        made = subprocess.run(
            [found / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
            cwd=folder, capture_output=True, text=True, check=False, **ids,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stderr}")
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "on" if is_durable else "off",
            "full_page_writes": "on" if is_durable else "off",
            "max_connections": "100",
        }
        told = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen(
                [found / "postgres", "-D", data, *told],
                cwd=folder, stdout=log, stderr=log, preexec_fn=_end_with_parent, **ids,
            )  # fmt: skip
        try:
            _wait_for(server, folder)
            yield Server(folder)
        finally:
            server.send_signal(signal.SIGINT)  # fast: whoever is connected is cut off
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _wait_for(server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and server.poll() is None:
        try:
            psycopg.connect(host=str(folder), user=USER, dbname="postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"postgres did not start: {(folder / 'log').read_text()[-2000:]}")
