"""Checks: what a participant needs before it can take part, each found good or missing, with its mend.

Room: participant (edge: chain, clock, disk, port). Nothing is changed, but the file of a run that is
given by its id is fetched. `assay join` runs these on a new configuration, `assay doctor`
on an existing one, and each process on its own at its start and once an hour (health.py).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.text.times import span_text, when_text
from assay.chain.text.units import UNIT, money_text
from assay.participant.config import Config, read_run
from assay.participant.directory.find import announced_record
from assay.participant.files.invitation import check_network, read_invitation
from assay.participant.files.record import OWN_RECORD, read_record
from assay.participant.keys.keyring import Keys, load_keys
from assay.participant.wallet.account import STAKED
from assay.participant.wallet.delegation import WARN_S, delegation_fault
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError, ConfigError, Unavailable

CLOCK_S_MAX = 60  # between this machine's clock and the newest block's time
DISK_BYTES_MIN = 6 << 30  # blobs take up to 4 GiB
MEMORY_BYTES_MIN = 2 << 30
GAS_WEI_MIN = 10**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a participant needs."""

    name: str
    fault: str | None  # None: good
    found: str
    mend: str = ""  # of the fault: a command, and what it costs

    @property
    def line(self) -> str:
        """The result as one line."""
        if self.fault is None:
            return f"good     {self.name:<10} {self.found}"
        return f"MISSING  {self.name:<10} {self.fault}" + (f": {self.mend}" if self.mend else "")


def check_participant(config: Config, file: Path, *, is_running: bool = False) -> Iterator[Check]:
    """The checks of a configuration, one after another.

    Args:
        config: The configuration.
        file: Where it is, named in the mends.
        is_running: Its own process asks. It has the port and the memory, and follows the run's escrow
            itself, past its end: these three are left out, and so are the blocks of the network's founding,
            which no endpoint has to keep.

    Raises:
        ConfigError: the keys cannot be opened, or the chain has not the invitation's network.
        Unavailable: the chain does not answer.
    """
    keys, invitation = load_keys(config.keys, config.password), read_invitation(config.network)
    chain = Chain(config.rpc_url, invitation.deployment, keys.signer)
    if is_running:
        chain.check_deployment()
    else:
        check_network(invitation, chain)
    yield Check(
        name="network", fault=None, found=f"{invitation.name}, chain {invitation.chain_id}, {config.rpc_url}"
    )
    yield _clock(chain.timestamp(), int(time.time()))
    if not is_running:
        yield _found(
            "port",
            lambda: check_port(config.ip, config.port),
            "choose another with `port`, or end what has it",
        )
        yield _enough("memory", free_memory(), MEMORY_BYTES_MIN, "end other programs")
    yield _address(config)
    yield _enough(
        "disk",
        shutil.disk_usage(_existing(config.folder)).free,
        DISK_BYTES_MIN,
        "set `folder` to a larger disk",
    )
    gas = chain.gas_balance()
    yield Check(
        name="gas",
        fault=None if gas >= GAS_WEI_MIN else f"{chain.address} holds {gas} wei",
        found=f"{gas / 10**18:.4f} of the chain's coin",
        mend=f"send it at least {GAS_WEI_MIN} wei; on a new network the founder's `assay network fund`",
    )
    role = read_record(config.keys / OWN_RECORD, int(time.time())).record.role
    if role in STAKED:
        yield _stake(chain, STAKED[role], file)
        yield _delegation(chain, keys, file)
    yield _directory(config, chain, file)
    if config.has_run and not is_running:
        yield _found("run", lambda: _run(config, chain), "ask the buyer whether `assay order place` was done")


def _clock(chain_s: int, here_s: int) -> Check:
    far = abs(here_s - chain_s)
    return Check(
        name="clock",
        fault=f"{span_text(far)} from the chain's newest block" if far > CLOCK_S_MAX else None,
        found=f"{span_text(far)} from the chain's newest block",
        mend="synchronise this machine's clock (NTP), or use an endpoint that is not behind",
    )


def _address(config: Config) -> Check:
    try:
        record = read_record(config.keys / OWN_RECORD, int(time.time())).record
        socket.getaddrinfo(record.host, record.port, type=socket.SOCK_STREAM)
    except (ConfigError, OSError) as error:
        mend = f"assay key card {config.keys} --role ROLE --address HOST:PORT"
        return Check(name="address", fault=str(error), found="", mend=mend)
    here = "; listening on another port" if record.port != config.port else ""
    return Check(
        name="address", fault=None, found=f"others find us at {record.host} port {record.port}{here}"
    )


def _directory(config: Config, chain: Chain, file: Path) -> Check:
    """Whether the directory has our last record; whoever announced none may be known by files alone."""
    record = read_record(config.keys / OWN_RECORD, int(time.time())).record
    try:
        found = announced_record(chain, chain.address, record.peer, int(time.time()))
    except ConfigError:  # what is there is of no use to others
        found = None
    except Unavailable as error:
        return Check(name="directory", fault=None, found=str(error))
    mend = f"assay network announce {file}"
    if found is None:
        return Check(name="directory", fault=None, found=f"our record is not announced; {mend} does that")
    is_old = found.record.sequence < record.sequence
    return Check(
        name="directory",
        fault=f"it has an older record, at {found.record.host} port {found.record.port}" if is_old else None,
        found="it has our record",
        mend=mend,
    )


def check_port(ip: str, port: int) -> str:
    """That a port is free, in words.

    Raises:
        ConfigError: somebody listens there, or nobody may.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigError(f"{ip} port {port}: {error.strerror}") from None
    return f"{ip} port {port} is free"


def _stake(chain: Chain, role: int, file: Path) -> Check:
    stake, wallet = chain.stake_of(chain.address, role), chain.token_balance()
    least, held = f"{money_text(stake.minimum)} {UNIT}", f"{money_text(wallet)} in the wallet"
    return Check(
        name="stake",
        fault=None if stake.active >= stake.minimum else f"{money_text(stake.active)} staked, {held}",
        found=f"{money_text(stake.active)} {UNIT}, at least {least}",
        mend=f"assay stake add {file} --to {money_text(stake.minimum).replace(',', '')}; locks {least}",
    )


def _delegation(chain: Chain, keys: Keys, file: Path) -> Check:
    found, now_s = chain.hot_key(evm_address(keys.hot_address)), chain.timestamp()
    return Check(
        name="delegation",
        fault=delegation_fault(found, chain.address, now_s + WARN_S),
        found="" if found is None else f"until {when_text(found.expiry, now_s)}",
        mend=f"assay key delegate {file}; costs gas alone",
    )


def _run(config: Config, chain: Chain) -> str:
    run, _ = read_run(config)
    escrow = chain.run(run.run_id)
    if escrow is None or escrow.spec_hash != digest(run.spec):
        raise ConfigError(f"run {run.run_id.hex()[:16]} is not open on chain")
    now_s = chain.timestamp()
    if escrow.closes_at <= now_s:
        raise ConfigError(f"run {run.run_id.hex()[:16]} closed {when_text(escrow.closes_at, now_s)}")
    return f"{run.spec.name}, {money_text(escrow.free)} {UNIT} in escrow"


def _enough(name: str, have: int, least: int, mend: str) -> Check:
    text = f"{have / 2**30:.1f} GiB free, at least {least / 2**30:.0f} expected"
    return Check(name=name, fault=text if have < least else None, found=text, mend=mend)


def free_memory(table: Path = Path("/proc/meminfo")) -> int:
    """Bytes that a new program can have; what the disk cache would give back is among them."""
    try:
        (available,) = re.findall(r"^MemAvailable:\s+(\d+) kB$", table.read_text(), re.MULTILINE)
        return int(available) << 10
    except (OSError, ValueError):  # not Linux
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _found(name: str, look: Callable[[], str], mend: str) -> Check:
    try:
        return Check(name=name, fault=None, found=look())
    except AssayError as error:
        return Check(name=name, fault=str(error), found="", mend=mend)


def _existing(folder: Path) -> Path:
    return next(one for one in (folder.resolve(), *folder.resolve().parents) if one.exists())
