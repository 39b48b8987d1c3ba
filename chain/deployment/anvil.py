"""Anvil: a local chain as a child process, with its state on disk.

Room: chain (edge). Listens on 127.0.0.1 unless told otherwise. The keys come from a mnemonic made
once per state folder: the keys of anvil's built-in accounts are public.
The whole state is written every few seconds, so after a crash the chain may have
gone back by that much; clients re-read and re-send.

    state_dir/mnemonic        12 words, mode 0600
    state_dir/chain.json      the chain; chain.json.bak is the copy from the last start or backup()
    state_dir/anvil.log       the child's output
    state_dir/anvil.pid       the child; held locked by its owner, so a second owner is refused and a
                              child whose owner was killed is ended before the next one starts
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from eth_account import Account

from assay.chain.endpoint import call
from assay.protocol.errors import ConfigError, Unavailable

HOST = "127.0.0.1"
START_S_MAX = 30.0
STOP_S_MAX = 10.0
INSTALL_HINT = (
    "install Foundry, so that 'anvil' is on PATH; or, in the source tree, run "
    "'npm install --omit=dev --no-audit --no-fund' in contracts/ (needs Node 20 or newer)"
)


def find_anvil(contracts_dir: Path) -> Path:
    """The anvil to start: the one npm put under `contracts_dir`, else PATH's.

    The native binary goes before npm's launcher, which is a Node script and needs Node on PATH.

    Raises:
        ConfigError: there is none; the message says which command installs it.
    """
    modules = contracts_dir / "node_modules"
    for native in sorted(modules.glob("@foundry-rs/anvil-*/bin/anvil*")):
        if os.access(native, os.X_OK):
            return native
    launcher = modules / ".bin" / "anvil"
    if not launcher.exists():
        found = shutil.which("anvil")
        if found is not None:
            return Path(found)
        raise ConfigError(f"anvil is not installed: {INSTALL_HINT}")
    if shutil.which("node") is None:
        raise ConfigError("anvil needs Node 20 or newer, and no 'node' is on PATH")
    return launcher


@dataclass(kw_only=True)
class Anvil:
    """A context manager that owns one anvil process; leaving it ends the process always.

    Args:
        binary: From `find_anvil`.
        state_dir: Created if missing; one chain per folder.
        host: IPv4 address to listen on; anybody who reaches it can use the chain.
        port: 0 picks a free one.
        block_time_s: Seconds between blocks; None mines each transaction at once.
        state_interval_s: Seconds between writes of the state; the chain may go back this far.
        chain_id: EIP-155 id, shared by all local chains.
        account_count: How many funded accounts the mnemonic gives.
        options: More of anvil's own, as on its command line.
    """

    binary: Path
    state_dir: Path
    host: str = HOST
    port: int = 0
    block_time_s: int | None = 1
    state_interval_s: int = 5
    chain_id: int = 31337
    account_count: int = 10
    options: tuple[str, ...] = ()
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _pid_file: int | None = field(default=None, init=False, repr=False)

    @property
    def rpc_url(self) -> str:
        """The chain's RPC URL, once started."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The child's process id.

        Raises:
            Unavailable: it does not run.
        """
        if self._child is None or self._child.poll() is not None:
            raise Unavailable("anvil does not run")
        return self._child.pid

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Private keys of the accounts that the chain funds at genesis, 32 bytes each."""
        Account.enable_unaudited_hdwallet_features()
        mnemonic = self._mnemonic()
        return tuple(
            bytes(Account.from_mnemonic(mnemonic, account_path=f"m/44'/60'/0'/0/{index}").key)
            for index in range(self.account_count)
        )

    def __enter__(self) -> Anvil:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the child and returns when it answers.

        Raises:
            ConfigError: the port is busy, another process owns the folder, or anvil stopped at once
                (the message holds its last output).
            Unavailable: no answer within 30 s.
        """
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.state_dir} cannot be created ({error.strerror})") from None
        self._own_folder()
        try:
            self.port = self.port or _free_port(self.host)
            _require_free(self.host, self.port)
            self._restore_or_back_up()
            shutil.rmtree(self._old_states, ignore_errors=True)  # an anvil that was killed leaves its own
            with (self.state_dir / "anvil.log").open("ab") as log:
                self._child = subprocess.Popen(
                    self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            assert self._pid_file is not None
            os.pwrite(self._pid_file, f"{self._child.pid:<20}".encode(), 0)
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the child: by SIGINT, so that it writes its state, then by SIGKILL."""
        child, self._child = self._child, None
        if child is not None:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            try:
                child.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self._pid_file is not None:
            os.close(self._pid_file)  # releases the lock
            self._pid_file = None

    def pass_time(self, to_s: int) -> None:
        """Makes the next block one of this second, and later ones follow it.

        Where the second is past, or the chain does not answer, time passes as it does.
        """
        _ask(self.rpc_url, "evm_setNextBlockTimestamp", to_s)

    def backup(self) -> bool:
        """Copies the state file beside itself if it is complete; returns whether it was."""
        state = self._state
        if not _is_whole(state):
            return False
        fresh = state.with_suffix(".json.new")
        shutil.copyfile(state, fresh)
        os.replace(fresh, state.with_suffix(".json.bak"))
        return True

    @property
    def _state(self) -> Path:
        return self.state_dir.resolve() / "chain.json"

    @property
    def _old_states(self) -> Path:
        return self.state_dir.resolve() / "old-states"

    def _own_folder(self) -> None:
        """Locks the folder for this process and ends the child of an owner that was killed."""
        file = os.open(self.state_dir / "anvil.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise ConfigError(f"{self.state_dir}: its chain belongs to another running process") from error
        self._pid_file = file
        leftover = os.pread(file, 20, 0).decode(errors="replace").strip()
        if leftover.isdigit() and _is_chain_of(int(leftover), self._state):
            _end(int(leftover), self._state)

    def _command(self) -> list[str]:
        command = [str(self.binary), "--host", self.host, "--port", str(self.port)]
        command += ["--chain-id", str(self.chain_id), "--hardfork", "prague", "--order", "fifo"]
        command += ["--mnemonic", self._mnemonic(), "--accounts", str(self.account_count)]
        command += ["--state", str(self._state), "--state-interval", str(self.state_interval_s), "--quiet"]
        command += ["--cache-path", str(self._old_states)]  # in the home folder otherwise, gigabytes in time
        command += ["--slots-in-an-epoch", "1"]  # a block is final two blocks later, not 64
        if self.block_time_s is not None:
            command += ["--block-time", str(self.block_time_s)]
        return [*command, *self.options]

    def _mnemonic(self) -> str:
        path = self.state_dir / "mnemonic"
        if not path.exists():
            self.state_dir.mkdir(parents=True, exist_ok=True)
            Account.enable_unaudited_hdwallet_features()
            _, mnemonic = Account.create_with_mnemonic()
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(mnemonic)
            os.replace(fresh, path)
        return path.read_text().strip()

    def _restore_or_back_up(self) -> None:
        """Replaces a state file cut short by a crash by its backup; backs a complete one up."""
        copy = self._state.with_suffix(".json.bak")
        if not self._state.exists() or self.backup():
            return
        if not _is_whole(copy):
            raise ConfigError(
                f"{self._state} is damaged and has no whole copy: remove it to start a new chain"
            )
        shutil.copyfile(copy, self._state)

    def _wait_until_it_answers(self) -> None:
        assert self._child is not None
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                output = (self.state_dir / "anvil.log").read_text(errors="replace").strip()[-500:]
                raise ConfigError(f"anvil stopped with code {self._child.returncode}: {output}")
            if _ask(self.rpc_url, "eth_chainId") == hex(self.chain_id):
                return
            time.sleep(0.05)
        raise Unavailable(f"anvil gave no answer at {self.rpc_url} within {START_S_MAX:.0f} s")


def _is_chain_of(pid: int, state: Path) -> bool:
    """Whether this process is an anvil on this state file; process ids are reused."""
    try:
        return str(state).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _end(pid: int, state: Path) -> None:
    """Ends a process and waits until it holds no port any more.

    A dying process loses its command line before its sockets, so /proc tells that too early.
    """
    with suppress(ProcessLookupError):  # it has already ended
        ending = os.pidfd_open(pid)
        try:
            if _is_chain_of(pid, state):  # asked again: the id may have gone to another process
                signal.pidfd_send_signal(ending, signal.SIGINT)
                if not select.select([ending], [], [], STOP_S_MAX)[0]:
                    signal.pidfd_send_signal(ending, signal.SIGKILL)
                    select.select([ending], [], [], STOP_S_MAX)
        finally:
            os.close(ending)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        # A port that a dead chain left in TIME_WAIT is free for anvil, so it must be free for us.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"port {port} on {host} is busy: {error.strerror}") from error


def _is_whole(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def _ask(url: str, method: str, *given: object) -> object:
    """What a chain answers; None if it does not, or refuses."""
    try:
        return call(url, method, [*given], timeout_s=2)["result"]
    except (OSError, ValueError, KeyError):
        return None
