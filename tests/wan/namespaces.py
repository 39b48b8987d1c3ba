"""Namespaces: a network stack for each participant of a local network, joined by `tests.wan.switch`.

Room: tests (edge: network namespaces; needs root and `ip`). Everything it makes has its own prefix and is
removed at the end; what an earlier, killed run left is removed before.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

PREFIX = "awan"
LOCK = f"/run/{PREFIX}.lock"
SUBNET = "10.77.0."
CHAIN = SUBNET + "1"  # of this machine's own stack, which the local chain listens on
PORT = 4001
SIOCETHTOOL = 0x8946
# Checksums and segments are made by the kernel: a frame that waits in user space must be whole.
OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)  # transmit checksums, TSO, GSO, GRO


class Namespaces:
    """A context manager: the test bed's lines; see `assay.devnet.machines.Machines`."""

    chain_host = CHAIN
    is_one = False

    def __init__(self, *, mbit: float, delay_ms: float, loss: float = 0.0, mtu: int = 1500) -> None:
        """
        Args:
            mbit: Rate of each participant's line, in each direction.
            delay_ms: Of each line, in each direction: a round trip between two participants takes four.
            loss: Share of frames that are lost.
            mtu: Bytes of a frame; more of them cost the switch less.
        """
        self._options = ["--mbit", str(mbit), "--delay-ms", str(delay_ms), "--loss", str(loss)]
        self._mtu = mtu
        self._switch: subprocess.Popen[str] | None = None
        self._index: dict[str, int] = {}
        self._ports: list[str] = []
        self._lock = -1

    def __enter__(self) -> Namespaces:
        self._lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # one test bed at a time: they share names
        _remove_all()
        self._ports = [self._stack(None, 1)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        _remove_all()
        os.close(self._lock)

    def addresses(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Make all stacks and start the switch."""
        self._index = {name: at for at, name in enumerate(names)}
        self._ports += [self._stack(name, at + 10) for name, at in self._index.items()]
        command = [sys.executable, "-m", "tests.wan.switch", *self._options, *self._ports]
        self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != "ready\n":
            raise RuntimeError("the switch did not start")
        return {name: (f"{SUBNET}{at + 10}", PORT) for name, at in self._index.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """All participants."""
        return tuple(self._index)

    def prefix(self, name: str) -> Sequence[str]:
        """Start it in its namespace."""
        return ("ip", "netns", "exec", f"{PREFIX}{self._index[name] + 10}")

    def tell(self, command: str, *names: str) -> None:
        """A command for the switch, about these participants' lines."""
        assert self._switch is not None
        assert self._switch.stdin is not None
        ports = " ".join(f"{PREFIX}{self._index[name] + 10}" for name in names)
        self._switch.stdin.write(f"{command} {ports}\n")
        self._switch.stdin.flush()

    def bytes_of(self, name: str) -> tuple[int, int]:
        """Bytes that a participant has sent and received."""
        counters = Path("/sys/class/net") / f"{PREFIX}{self._index[name] + 10}" / "statistics"
        return int((counters / "rx_bytes").read_text()), int((counters / "tx_bytes").read_text())

    def _stack(self, name: str | None, host: int) -> str:
        """A veth pair, its far end in a namespace or, for this machine's own stack, here; PORT=MAC."""
        near, far, inside = f"{PREFIX}{host}", f"{PREFIX}{host}e", f"{PREFIX}{host}"
        mac = f"02:a5:00:00:00:{host:02x}"
        _ip(f"link add {near} mtu {self._mtu} type veth peer name {far} mtu {self._mtu} address {mac}")
        within = ""
        if name is not None:
            _ip(f"netns add {inside}")
            _ip(f"link set {far} netns {inside}")
            within = f"-n {inside} "
            _ip(f"{within}link set lo up")
        _ip(f"{within}addr add {SUBNET}{host}/24 dev {far}")
        _whole_frames(far, inside if name is not None else None)
        _ip(f"link set {near} up")
        _ip(f"{within}link set {far} up")
        return f"{near}={mac}"


def _whole_frames(device: str, namespace: str | None) -> None:
    """Switch off what the kernel leaves to a network card."""
    if namespace is not None:
        code = f"from tests.wan.namespaces import _whole_frames; _whole_frames({device!r}, None)"
        subprocess.run(["ip", "netns", "exec", namespace, sys.executable, "-c", code], check=True)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for offload in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", offload, 0))
            request = struct.pack("16sP", device.encode(), ctypes.addressof(value)) + bytes(16)
            fcntl.ioctl(any_socket.fileno(), SIOCETHTOOL, request)


def _ip(arguments: str, *, check: bool = True) -> str:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {arguments}: {done.stderr.strip()}")
    return done.stdout


def _remove_all() -> None:
    for line in _ip("netns list", check=False).splitlines():
        if line.startswith(PREFIX):
            _ip(f"netns del {line.split()[0]}", check=False)
    for line in _ip("-o link", check=False).splitlines():
        name = line.split(": ")[1].split("@")[0]
        if name.startswith(PREFIX):
            _ip(f"link del {name}", check=False)
