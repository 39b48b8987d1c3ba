"""Process: one participant's configuration file, and the process it starts.

Room: cli (edge). `assay node run FILE`, `assay verifier run FILE`, `assay ledger
serve FILE` and `assay buyer run FILE` all read the same keys. Logs go to standard
error, one JSON object a line (participant/telemetry/json_log.py).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

import trio
from pydantic import BaseModel, ConfigDict, Field

from assay.orders.toml import read_tables
from assay.participant.config import Config
from assay.participant.declarations import Declarations
from assay.participant.files.invitation import read_invitation
from assay.participant.files.record import OWN_RECORD, read_record
from assay.participant.files.run_file import read_run_id
from assay.participant.keys.keyring import PASSWORD
from assay.participant.keys.private_files import read_password
from assay.participant.telemetry.json_log import log_as_json
from assay.protocol.errors import AssayError, ConfigError, Unavailable

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


THREADS_MAX, REPLICAS_MAX = 1024, 64
DEFAULT_PORT, PORT_MAX = 4001, 65_535
_M_ARENA_MAX, _ARENAS = -8, 2  # of `mallopt`, as its manual page numbers it
ANY_IPV4, ANY_IPV6 = "0.0.0.0", "::"


class DeclarationsSection(BaseModel):
    """[registry] of a buyer's file: its declarations, copied unverified into the model's entry."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    provider: str = ""  # whoever places the model on the market
    licence: str = ""  # of the model
    base_flop: Annotated[str, Field(pattern=r"^[0-9]{1,30}$")] | None = None  # TOML integers end at 2^63
    energy_flop_per_joule: int | None = None
    energy_source: str | None = None  # where that figure is from


class OperatorSection(BaseModel):
    """[operator] of a node's file: which runs `assay operator up` takes; amounts in aUSD."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reserve: Annotated[float, Field(ge=0)]  # least pay an hour: what pays less is not taken, and left
    lots: Annotated[float, Field(gt=0)]  # most that may be locked in lots, of runs that are over too
    folder: Path = Path("runs")  # for the runs' nodes
    data: tuple[Path, ...] = (Path("data"),)  # data sets, or folders of them: no other data are used
    runs: Annotated[int, Field(ge=1, le=64)] | None = (
        None  # at once; by default cores / (threads * replicas * processes)
    )
    ports: Annotated[int, Field(ge=1, le=65_472)] | None = None  # the first; by default the record's
    memory_gb: Annotated[float, Field(gt=0)] | None = None  # for all runs; by default what is free
    disk_gb: Annotated[float, Field(gt=0)] | None = None  # likewise
    upload_mbit: Annotated[float, Field(gt=0)] = 100  # megabits a second, which all runs together may send
    days: Annotated[int, Field(ge=1, le=390)] = 60  # most for which a lot may be bound
    hours: Annotated[int, Field(ge=0)] = 1  # least for which a run pays all its seats before it closes
    wait_s: Annotated[int, Field(ge=0)] = 86_400  # most for which a run may still wait for nodes, unpaid
    absence_s: Annotated[int, Field(ge=0)] = 3600  # least for which a run lets openings be overdue
    takes: Annotated[int, Field(ge=1, le=1000)] = 6  # of runs a day
    patience_s: Annotated[int, Field(ge=10)] = 1800  # for which a run may pay too little before it is left
    look_s: Annotated[int, Field(ge=1, le=3600)] = 30  # between two looks at the chain
    offer: bool = False  # keep an offer of the free seats on chain, as `assay operator offer` makes one


class ProcessFile(BaseModel):
    """The keys of a participant's TOML file, of which two are required; paths are relative to the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: Path  # folder of the private keys
    network: Path  # the invitation
    run: Path = Path("run.assay")  # the buyer's run file; or a run's id, whose file is in the directory
    records: Path = Path("records")  # folder of records of members that moved since
    password_file: Path | None = None  # by default `password` beside the folder of keys
    folder: Path = Path(".")  # for the store, blobs and books
    data: Path = Path("data")
    own_data: Path | None = None  # a node's: tokens that only it has, for a run that asks for such
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # by default that of the keys' own record
    ip: Annotated[str, Field(max_length=64)] | None = None  # to listen on; by default as the record suggests
    rpc_url: Annotated[str, Field(pattern=r"^https?://", max_length=2048)] | None = (
        None  # by default the invitation's first endpoint
    )
    rpc_urls: tuple[str, ...] = ()  # a ledger's: more endpoints, which must agree with rpc_url
    one_rpc_suffices: bool = False  # a ledger's: go on while some of them are unreachable
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Annotated[int, Field(ge=1, le=THREADS_MAX)] | Literal["auto"] = 1
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 1  # passes side by side; on cuda a device each
    processes: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 1  # that share one model; on cuda a device each
    gradient_checkpointing: bool = False  # compute layers again in backward passes, in place of keeping them
    metrics: Annotated[str, Field(max_length=80)] | None = (
        None  # "127.0.0.1:9100": Prometheus is answered there
    )
    traces: Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=1024)] | None = (
        None  # "http://127.0.0.1:4318": an OpenTelemetry collector is sent traces there
    )
    limits: Path | None = None  # calibration of other execution classes, if it is not the shipped one
    attestation: Path | None = None  # a verifier's copy of the policy that the run names
    collateral: Path | None = None  # a verifier's: the data that vendors publish about their devices
    signed_mark: Path | None = None  # a verifier's: how far its signatures have come; best on another disk
    drand: tuple[Annotated[str, Field(pattern=r"^https?://")], ...] = ()  # a verifier's: addresses of drand
    attester_key: Path | None = None  # a node's: the key of a software attester, for tests
    attester_command: tuple[str, ...] = ()  # a node's: ["tdx", "/usr/local/bin/quote"]
    blob_gb: Annotated[float, Field(ge=0.1, le=1e6)] = (
        4  # disk for updates and aggregates; of an archive: more
    )
    opening_gb: Annotated[float, Field(ge=0, le=1e6)] = (
        1  # a buyer's: disk for openings of drawn steps, which are delivered too
    )
    least_price: Annotated[int, Field(ge=0)] = 0  # a node's reserve price: token units for 10^6 tokens
    delegation_days: Annotated[int, Field(ge=30, le=366)] | None = (
        None  # renew the hot key's delegation for so long in its last 14 days; by default by hand
    )
    books: Annotated[str, Field(pattern=r"^postgresql://")] | None = None  # a ledger's
    status: Path | None = None  # status file of the ledger and the buyer
    bundle: Path | None = None  # where the buyer writes the model and its proof
    registry: DeclarationsSection | None = None  # the buyer's declarations about its model
    operator: OperatorSection | None = None  # which runs a node's machine takes by itself


def read_process_file(path: Path) -> tuple[Config, ProcessFile]:
    """A participant's configuration.

    Raises:
        ConfigError: unknown or missing keys, wrong types, unreadable files: one line each.
    """
    given = read_tables(path, ProcessFile)
    base = path.parent
    keys = base / given.keys
    run_id = read_run_id(str(given.run))
    port, ip = _listening(keys / OWN_RECORD, given.port, given.ip)

    def placed(found: Path | None) -> Path | None:
        return None if found is None else base / found

    config = Config(
        keys=keys,
        password=read_password(password_path(path, given)),
        network=base / given.network,
        run=base / (given.run if run_id is None else f"{run_id.hex()}.assay"),
        run_id=run_id,
        records=base / given.records,
        folder=base / given.folder,
        port=port,
        ip=ip,
        rpc_url=given.rpc_url or read_invitation(base / given.network).first_endpoint,
        rpc_urls=given.rpc_urls,
        one_rpc_suffices=given.one_rpc_suffices,
        data=base / given.data,
        own_data=placed(given.own_data),
        limits=placed(given.limits),
        attestation=placed(given.attestation),
        collateral=placed(given.collateral),
        signed_mark=placed(given.signed_mark),
        drand=given.drand,
        attester_key=placed(given.attester_key),
        attester_command=given.attester_command,
        blob_bytes=int(given.blob_gb * 1e9),
        opening_bytes=int(given.opening_gb * 1e9),
        least_price=given.least_price,
        delegation_days=given.delegation_days,
        books=given.books,
        declarations=_declarations(path.name, given.registry),
        metrics=None if given.metrics is None else _metrics_address(path.name, given.metrics),
        traces=given.traces,
        device=given.device,
        threads=0 if given.threads == "auto" else given.threads,
        replicas=given.replicas,
        processes=given.processes,
        is_checkpointing=given.gradient_checkpointing,
    )
    return config, given


def password_path(path: Path, given: ProcessFile) -> Path:
    """Where the password of the keys is that a configuration names."""
    if given.password_file is not None:
        return path.parent / given.password_file
    return (path.parent / given.keys).parent / PASSWORD


def _listening(own: Path, port: int | None, ip: str | None) -> tuple[int, str]:
    """Port and IP address to listen on; where the file names none, as others find us by our own record."""
    if port is not None and ip is not None:
        return port, ip
    if not own.exists():
        return port or DEFAULT_PORT, ip or ANY_IPV4
    record = read_record(own, int(time.time())).record
    try:
        host = ip_address(record.host)
        suggested = record.host if host.is_loopback else ANY_IPV4 if host.version == 4 else ANY_IPV6
    except ValueError:  # a DNS name
        suggested = ANY_IPV4
    return port or record.port, ip or suggested


def _declarations(name: str, given: DeclarationsSection | None) -> Declarations:
    """A buyer's declarations, with the version of the program that made them.

    Raises:
        ConfigError: a figure without its source, or text that does not fit a line.
    """
    found = given or DeclarationsSection()
    figures: dict[str, Any] = {
        "flop_per_joule": found.energy_flop_per_joule,
        "flop_source": found.energy_source,
        "base_flop": None if found.base_flop is None else int(found.base_flop),
    }
    try:
        return Declarations(
            provider=found.provider,
            licence=found.licence,
            version=importlib.metadata.version("assay"),
            **{key: value for key, value in figures.items() if value is not None},
        )
    except ValueError as error:
        raise ConfigError(f"{name}: [registry] {error}") from None


def _metrics_address(name: str, text: str) -> tuple[str, int]:
    """The IP address and the port at which Prometheus is answered.

    Raises:
        ConfigError: no IP address and port.
    """
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
        if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= PORT_MAX):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{name}: metrics: {text!a}, expected an IP address and a port such as 127.0.0.1:9100"
        ) from None
    return str(address), int(port)


def _share_freed_memory() -> None:
    """Let all threads share what they free; glibc keeps it for each, so 16 times a round's arrays."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc's alone
        mallopt(_M_ARENA_MAX, _ARENAS)


def run_process(
    main: Callable[[], Awaitable[None]],
    *,
    is_tethered: bool = False,
    first_signal: Callable[[], None] | None = None,
) -> None:
    """Run a participant until it is done or stopped by SIGTERM or Ctrl-C.

    Args:
        main: What to run.
        is_tethered: End also when standard input closes, that is, when the parent process ends.
        first_signal: Called at the first signal in place of stopping; the second one stops.

    Raises:
        ConfigError: the operator has to mend something; starting it again would not help.
        AssayError: it ended, also because chain, disk or network are away; it can be started again.
    """
    log_as_json()
    _share_freed_memory()

    async def supervised() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, nursery.cancel_scope, first_signal)
            if is_tethered:
                nursery.start_soon(_stop_when_alone, nursery.cancel_scope)
            await main()
            nursery.cancel_scope.cancel()

    try:
        trio.run(supervised)
    except BaseExceptionGroup as group:
        error = _first(group)
        if isinstance(error, Unavailable | OSError):
            raise AssayError(f"{error}; it can be started again") from error
        raise error from None


async def _stop_on_signal(scope: trio.CancelScope, first: Callable[[], None] | None) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if first is not None:
                first()
                first = None
                continue
            logging.getLogger("assay.cli").info("stopping", extra={"signal": int(number)})
            scope.cancel()
            return


async def _stop_when_alone(scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as tether:
        while await tether.receive_some(1):
            pass
    scope.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception of a group that an operator can act on first."""
    leaves: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            leaves.append(error)
    telling = [error for error in leaves if isinstance(error, ConfigError)]
    return (telling or leaves)[0]
