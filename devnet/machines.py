"""Machines: where the processes of a local network run.

Room: devnet (edge: asks the system for free ports). All of them run on this machine; `Loopback` gives each a
port, and a test bed may give each a network stack of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol


class Machines(Protocol):
    """Where a local network's participants listen, and how their processes are started there."""

    @property
    def chain_host(self) -> str:
        """The IPv4 address that the local chain listens on."""

    def addresses(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """IP address and TCP port of each participant; called once."""

    @property
    def is_one(self) -> bool:
        """Whether `prefix` is empty for all."""

    def prefix(self, name: str) -> Sequence[str]:
        """What goes before the command line of what starts a participant there."""


class Loopback:
    """All processes beside each other on 127.0.0.1."""

    chain_host = "127.0.0.1"
    is_one = True

    def addresses(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """A port that is free now for each."""
        ports = free_ports(len(names))
        return {name: (self.chain_host, port) for name, port in zip(names, ports, strict=True)}

    def prefix(self, name: str) -> Sequence[str]:
        """Nothing."""
        return ()


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports on loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
