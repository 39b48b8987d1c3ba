"""Routers: a local network some of whose nodes sit behind routers of their own, as at home.

Room: tests (edge: network namespaces, nftables; needs root). Everybody else is on one address of this
machine, or has a namespace with an address that all can dial. A router translates addresses and lets nothing
in that was not asked for from within; all homes have the same private addresses.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from assay.devnet.machines import free_ports

PREFIX = "ahome"
LOCK = f"/run/{PREFIX}.lock"
STREET, HOME = "10.78.0.", "192.168.7."
PORT = 4001
ROUTER = """
table ip home {
  chain out { type nat hook postrouting priority srcnat; oifname "street" masquerade; }
  chain in { type filter hook forward priority filter; iifname "street" ct state new drop; }
  chain own { type filter hook input priority filter; iifname "street" ct state new drop; }
}
"""


def missing() -> str | None:
    """What this machine lacks for it; None if nothing."""
    if os.geteuid() != 0:
        return "needs root"
    return None if shutil.which("nft") and shutil.which("ip") else "no nft: sudo apt-get install nftables"


class Routers:
    """A context manager; see `assay.devnet.machines.Machines`."""

    chain_host = f"{STREET}1"
    is_one = False

    def __init__(self, root: Path, homes: Sequence[str], houses: Sequence[str] = ()) -> None:
        """
        Args:
            root: The run's folder.
            homes: The participants that have a router.
            houses: Those that have an address.
        """
        self._root, self._homes, self._houses, self._open = root, tuple(homes), tuple(houses), ExitStack()

    def __enter__(self) -> Routers:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._open.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_all()
        self._open.callback(remove_all)
        run(f"ip link add {PREFIX} type bridge")
        run(f"ip addr add {self.chain_host}/24 dev {PREFIX}")
        run(f"ip link set {PREFIX} up")
        for at in range(len(self._homes)):
            self._build(at)
        for name in self._houses:
            self._build_house(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def addresses(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Of those with a router the router's, where nobody answers; of the others a free port."""
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        homes = {name: (self.router(name), PORT) for name in self._homes}
        return {name: homes.get(name, (self.chain_host, ports[name])) for name in names}

    def prefix(self, name: str) -> Sequence[str]:
        """Start it in its home; what it listens on there is not what its record says."""
        if name not in self._homes:
            return ()
        config = self._root / "participants" / name / "config.toml"
        if "ip =" not in config.read_text():
            config.write_text(f'ip = "0.0.0.0"\n{config.read_text()}')
        return self.within(name)

    def within(self, name: str) -> Sequence[str]:
        """What puts a command into a home, or into a house."""
        at = f"{self._homes.index(name)}" if name in self._homes else f"h{self._houses.index(name)}"
        return ("ip", "netns", "exec", f"{PREFIX}{at}")

    def house(self, name: str) -> str:
        """Its address."""
        return f"{STREET}{self._houses.index(name) + 100}"

    def router(self, name: str) -> str:
        """The address of its router."""
        return f"{STREET}{self._homes.index(name) + 10}"

    def _build(self, at: int) -> None:
        """A home: a namespace for the node, one for its router, a wire between them and one to the street."""
        home, router = f"{PREFIX}{at}", f"{PREFIX}r{at}"
        for namespace in (home, router):
            run(f"ip netns add {namespace}")
            run(f"ip -n {namespace} link set lo up")
        run(f"ip link add {PREFIX}s{at} type veth peer name street netns {router}")
        run(f"ip link set {PREFIX}s{at} master {PREFIX} up")
        run(f"ip -n {router} link add inside type veth peer name outside netns {home}")
        run(f"ip -n {router} addr add {STREET}{at + 10}/24 dev street")
        run(f"ip -n {router} addr add {HOME}1/24 dev inside")
        run(f"ip -n {home} addr add {HOME}2/24 dev outside")
        for namespace, device in ((router, "street"), (router, "inside"), (home, "outside")):
            run(f"ip -n {namespace} link set {device} up")
        run(f"ip -n {home} route add default via {HOME}1")
        run(f"ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1")
        run(f"ip netns exec {router} nft -f -", ROUTER)

    def _build_house(self, name: str) -> None:
        """A namespace with a wire to the street."""
        at = self._houses.index(name)
        house = f"{PREFIX}h{at}"
        run(f"ip netns add {house}")
        run(f"ip -n {house} link set lo up")
        run(f"ip link add {PREFIX}d{at} type veth peer name street netns {house}")
        run(f"ip link set {PREFIX}d{at} master {PREFIX} up")
        run(f"ip -n {house} addr add {self.house(name)}/24 dev street")
        run(f"ip -n {house} link set street up")


def remove_all() -> None:
    """Remove what has the prefix, also of an earlier run that was killed."""
    for line in run("ip netns list").splitlines():
        if line.startswith(PREFIX):
            run(f"ip netns del {line.split()[0]}")
    for line in run("ip -o link").splitlines():
        if (name := line.split(": ")[1].split("@")[0]).startswith(PREFIX):
            subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def run(command: str, text: str | None = None) -> str:
    done = subprocess.run(command.split(), input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
    return done.stdout
