"""People: strangers with a folder each who do nothing but call `assay`; of what is theirs they give files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from assay.participant.files.record import OWN_RECORD, read_record
from assay.participant.keys.keyring import PASSWORD, QUICK, create_keys
from assay.participant.keys.private_files import write_private
from assay.protocol.types import PeerId
from tests.e2e.nets import WAIT_S
from tests.forked_commands import command, running

STARTS = {"node": ("node", "run"), "verifier": ("verifier", "run"), "ledger": ("ledger", "serve")}
STARTS |= {"buyer": ("buyer", "run")}
STOP_S = 30.0


class Person:
    """Somebody with a folder of their own."""

    def __init__(self, root: Path, name: str, prefix: Sequence[str] = ()) -> None:
        """
        Args:
            root: Where the folder is made.
            name: Of the folder.
            prefix: Of its commands: what puts them into a network namespace.
        """
        self.name, self.folder, self._prefix = name, root / name, tuple(prefix)
        self.folder.mkdir()

    def assay(self, *words: object, status: int | None = 0) -> str:
        """Call one command, and wait for it. status: that it ends with; None: with any."""
        if self._prefix:
            done = subprocess.run(
                self._command(*words), cwd=self.folder, capture_output=True, text=True,
                timeout=WAIT_S, check=False,
            )  # fmt: skip
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            code, out, err = command(self.folder, *words, timeout_s=WAIT_S)
        assert status in (code, None), f"{self.name}: assay {words}: {out}{err}"
        return out + err

    def makes_keys(self, *, are_quick: bool) -> None:
        """Make keys in `keys`; quick ones, which no command waits for, only where commands are forked."""
        if self._prefix or not are_quick:
            self.assay("key", "new", "keys")
            return
        write_private(self.folder / PASSWORD, b"a password of nobody")
        create_keys(self.folder / "keys", "a password of nobody", QUICK)

    def runs(self, *words: str) -> AbstractContextManager[Any]:
        """A command that goes on, with its output in `log`; it is ended with the block."""
        self.log.unlink(missing_ok=True)
        return self._running(*words) if self._prefix else running(self.log, *words)

    @contextmanager
    def _running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        with open(self.log, "wb") as out:
            process = subprocess.Popen(
                self._command(*words), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _command(self, *words: object) -> list[str]:
        return [*self._prefix, sys.executable, "-m", "assay.cli.main", *map(str, words)]

    @property
    def log(self) -> Path:
        """What its command that goes on has written."""
        return self.folder / "log"

    def says(self, text: str) -> bool:
        """Whether that command has written this."""
        return self.log.exists() and text in self.log.read_text()

    def peer(self) -> PeerId:
        """Its peer id."""
        return read_record(self.folder / "keys" / OWN_RECORD, int(time.time())).record.peer

    def gives(self, name: str, to: Person, place: str = "") -> None:
        """Copy a file, as a mail would."""
        target = to.folder / (place or name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / name, target)


def each(people: Sequence[Person], step: Callable[[Person], object]) -> None:
    """The same step by several people at once."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(step, people))


def until(is_so: Callable[[], object], alive: Sequence[Any]) -> None:
    """Wait for something that must happen, while these processes go on."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert all(process.poll() is None for process in alive), "a process ended early"
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Founding:
    """How people who share only a chain and small files become a network."""

    def __init__(self, founder: Person, people: Mapping[str, Person], roles: Mapping[str, str]) -> None:
        self.founder, self.people, self.roles = founder, people, roles

    def of_role(self, *roles: str) -> list[Person]:
        """All people of these roles."""
        return [self.people[name] for name, role in self.roles.items() if role in roles]

    def introduce(self, addresses: Mapping[str, str]) -> str:
        """Everybody makes keys and gives the founder a record; returns the founder's account."""

        def make(person: Person) -> None:
            person.makes_keys(are_quick=person is not self.founder)
            if person is not self.founder:
                role, at = self.roles[person.name], addresses[person.name]
                person.assay("key", "card", "keys", "--role", role, "--address", at)
                person.gives("keys/own.record", self.founder, f"{person.name}.record")

        each([self.founder, *self.people.values()], make)
        return str(json.loads(self.founder.assay("key", "show", "keys", "--json"))["account"])

    def found(self, rpc_url: str) -> None:
        """The founder deploys the contracts, names the first verifiers and hands out coins."""
        verifiers = [f"{person.name}.record" for person in self.of_role("verifier")]
        (self.founder.folder / "network.toml").write_text(
            f'name = "strangers"\nrpc_url = "{rpc_url}"\npreset = "localnet"\n'
            f"verifiers = {json.dumps(verifiers)}\n[parameters]\nclose_delay_s = 600\n"
            "evidence_window_s = 20\nunbonding_s = 55\n"
        )
        self.founder.assay("network", "create", "network.toml", "--keys", "keys")
        records = [f"{name}.record" for name in self.people]
        pay = ("--keys", "keys", "--tokens", "20000", "--gas", "1")
        self.founder.assay("network", "fund", "network.txt", *records, *pay)

    def join(self) -> None:
        """Everybody joins; operators and verifiers stake, and verifiers lock a lot for their term."""

        def enter(person: Person) -> None:
            self.founder.gives("network.txt", person, "invitation.txt")
            found = person.assay("join", "invitation.txt", "--keys", "keys")
            if self.roles[person.name] in ("node", "verifier"):
                assert "MISSING  stake" in found
                assert "MISSING  delegation" in found
                person.assay("stake", "add", "config.toml", "--to", "1000")
                person.assay("key", "delegate", "config.toml")
            if self.roles[person.name] == "verifier":
                person.assay("stake", "lock", "config.toml", "1000")

        each(list(self.people.values()), enter)

    def order(self, buyer: Person, order: str) -> None:
        """The buyer orders a run that names no node, and everybody gets its file and its data."""
        (buyer.folder / "run.toml").write_text(order)
        for person in self.of_role("verifier", "ledger", "buyer"):
            self.founder.gives(f"{person.name}.record", buyer, f"members/{person.name}.record")
        buyer.assay("order", "data", "run.toml", "data")
        buyer.assay("order", "place", "config.toml", "run.toml", "--members", "members")
        for person in self.people.values():
            if person is not buyer:
                buyer.gives("run.assay", person)
                shutil.copytree(buyer.folder / "data", person.folder / "data")
