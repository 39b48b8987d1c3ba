"""Lines: a local network on loopback whose participants can be parted, and whose reserve floods verifiers.

    ASSAY_LINES=FOLDER/run python -m tests.wan.lines localnet run.toml --out FOLDER/run ...

Room: tests (edge: sockets, /proc). As `assay localnet`, but everybody listens on 127.0.0.2, and what a record
names is a port of this process, which carries bytes both ways. Who dials is who owns the connection's other
end. Between two that are apart it carries nothing: their bytes wait, as those of TCP do behind a dead line,
nobody is told, and connections that are dialled meanwhile are made when they meet again. The chain is on
nobody's line. Needs no root.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import assay.devnet.run
from assay.devnet.machines import Loopback

WITHIN = "127.0.0.2"
POLL_S, CHUNK_BYTES = 0.1, 1 << 16


def apart(run_folder: Path) -> Path:
    """The file that says who is parted: groups of names, each cut off from all others."""
    return run_folder.with_name("apart.json")


def orders(run_folder: Path) -> Path:
    """The file that says what the reserve does to whom: see `tests.wan.siege`."""
    return run_folder.with_name("flood.orders")


def are_apart(groups: Sequence[Sequence[str]], one: str, other: str) -> bool:
    """Whether a group has exactly one of the two."""
    return any((one in group) != (other in group) for group in groups)


class Lines(Loopback):
    """See `assay.devnet.machines.Machines`."""

    def __init__(self, run_folder: Path) -> None:
        self._run, self._names = run_folder, list[str]()

    def addresses(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """A port of this process for each."""
        self._names = list(names)
        doors = {name: socket.create_server((self.chain_host, 0)) for name in names}
        threading.Thread(target=lambda: asyncio.run(self._carry(doors)), daemon=True).start()
        return {name: (self.chain_host, int(door.getsockname()[1])) for name, door in doors.items()}

    def prefix(self, name: str) -> Sequence[str]:
        """What it listens on is not what its record says; a reserve starts from where it floods."""
        config = self._run / "participants" / name / "config.toml"
        if "ip =" not in config.read_text():
            config.write_text(f'ip = "{WITHIN}"\n{config.read_text()}')
        is_flooder = name == os.environ.get("ASSAY_FLOODER")
        return (sys.executable, "-m", "tests.wan.siege", "attackers") if is_flooder else ()

    async def _carry(self, doors: dict[str, socket.socket]) -> None:
        for name, door in doors.items():
            port = door.getsockname()[1]

            async def take(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name, port: int = port
            ) -> None:
                with suppress(OSError):
                    await self._join(reader, writer, name, port)
                writer.close()

            await asyncio.start_server(take, sock=door)
        await asyncio.Event().wait()

    async def _join(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, port: int
    ) -> None:
        """Carry a connection to a participant until one side ends it."""
        dialler = owner_of(self._run, writer.get_extra_info("peername")[1], port)
        if dialler is None:  # it has hung up already
            return
        await self._until_met(dialler, name)
        far_reader, far_writer = await asyncio.open_connection(WITHIN, port)
        try:
            ways = (
                self._copy(reader, far_writer, dialler, name),
                self._copy(far_reader, writer, dialler, name),
            )
            await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one: str, other: str
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._until_met(one, other)
                writer.write(data)
                await writer.drain()

    async def _until_met(self, one: str, other: str) -> None:
        while are_apart(self._apart(), one, other):
            await asyncio.sleep(POLL_S)

    def _apart(self) -> Sequence[Sequence[str]]:
        try:
            found: list[list[str]] = json.loads(apart(self._run).read_text())
        except FileNotFoundError:
            return ()
        return found


def owner_of(run_folder: Path, port: int, door: int) -> str | None:
    """The participant that has the end at `port` of a connection to `door`, both of 127.0.0.1."""
    ends = (f"0100007F:{port:04X}", f"0100007F:{door:04X}")
    rows = (row.split() for row in Path("/proc/net/tcp").read_text().splitlines())
    inode = next((row[9] for row in rows if (row[1], row[2]) == ends), None)
    if inode is None:
        return None
    logs = f"{(run_folder / 'logs').resolve()}/"
    for log in Path("/proc").glob("[0-9]*/fd/2"):
        with suppress(OSError):
            if os.readlink(log).startswith(logs) and _holds(log.parent, f"socket:[{inode}]"):
                return Path(os.readlink(log)).stem
    return None


def _holds(folder: Path, target: str) -> bool:
    for fd in folder.iterdir():
        with suppress(OSError):
            if os.readlink(fd) == target:
                return True
    return False


def main() -> None:
    """`assay` with these lines in place of plain loopback."""
    from assay.cli.main import run  # seconds of imports, which those who only read this file's names save

    folder = Path(os.environ["ASSAY_LINES"])
    vars(assay.devnet.run)["Loopback"] = lambda: Lines(folder)
    run()


if __name__ == "__main__":
    main()
