"""Config: a participant's configuration, and the keys, spec, store and network opened from it.

Room: participant (edge). One folder, one set of keys, one store, one host. The network comes from an
invitation, the run from the buyer's run file; both are checked against each other and against the chain.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from assay.chain.addresses import Deployment
from assay.chain.endpoint import check_endpoint
from assay.participant.declarations import NO_DECLARATIONS, Declarations
from assay.participant.directory.find import save_run
from assay.participant.files.armour import read_text
from assay.participant.files.invitation import read_invitation
from assay.participant.files.record import Record, Role, SignedRecord, read_records, takes_place_of
from assay.participant.files.run_file import RunFile, read_run_file
from assay.participant.keys.keyring import Keys, load_keys
from assay.participant.openings import KEPT, KeptOpening
from assay.participant.telemetry.readings import Readings
from assay.participant.telemetry.traces import OFF, Traces, traces_of
from assay.protocol.encoding.codec import Message, decode
from assay.protocol.errors import ConfigError, MalformedMessage, Unavailable
from assay.protocol.identity import Domain, peer_of
from assay.protocol.params import RunSpec, check_spec
from assay.protocol.types import NO_DIGEST, Digest, PeerId

if TYPE_CHECKING:  # libp2p takes seconds to import; commands that only read a configuration do without
    from assay.network.blob_store import DiskBlobs
    from assay.network.host import Handler, Host, PeerAddress
    from assay.participant.compute import Workplace
    from assay.participant.store import Store

log = logging.getLogger(__name__)
BLOB_BYTES = 4 * 10**9
DEPLOYMENT_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One operator's configuration: paths, endpoints and devices. Read by package `cli`."""

    keys: Path  # folder of the private keys
    password: str
    network: Path  # the invitation
    run: Path  # the run file
    run_id: Digest | None = None  # of the run, if its file comes from the directory
    records: Path  # folder of records that are newer than the run file's
    folder: Path  # store, blobs, state; no other process writes here
    port: int
    ip: str = "127.0.0.1"
    rpc_url: str
    rpc_urls: tuple[str, ...] = ()  # more endpoints, which the ledger service compares with it
    one_rpc_suffices: bool = False  # while others do not answer
    data: Path  # a data set's folder; training/data/shards.py
    own_data: Path | None = None  # a node's: likewise, of data that only it has, for runs that ask for such
    books: str | None = None  # URL of the ledger service's PostgreSQL database; None: a file in its folder
    limits: Path | None = None  # calibration that the spec names, if it is not the one of this build
    attestation: Path | None = None  # attestation policy, if the spec names one
    collateral: Path | None = None  # vendors' collateral, as fetched by a verifier
    signed_mark: Path | None = None  # a verifier's high-water mark, if it is not in `folder`
    drand: tuple[str, ...] = ()  # URLs from which a verifier fetches rounds of the run's drand network
    attester_key: Path | None = None  # of a node's software attester, for tests
    attester_command: tuple[str, ...] = ()  # a processor's family and its attestation program
    blob_bytes: int = BLOB_BYTES  # most of updates, aggregates and openings on disk; old ones are deleted
    opening_bytes: int = 10**9  # most of openings that a buyer keeps and delivers; the oldest go
    least_price: int = 0  # a node's reserve price: token units for 10^6 accepted tokens
    delegation_days: int | None = None  # for which the hot key's delegation is renewed; None: by hand
    declarations: Declarations = NO_DECLARATIONS  # a buyer's declarations on its model
    device: str = "cpu"
    threads: int = 1  # of each replica; 0: measure the fastest number at the first start
    replicas: int = 1  # groups of a batch that are computed side by side, on CUDA each on a device of its own
    processes: int = 1  # that a model is divided among, on CUDA each on a device of its own
    is_checkpointing: bool = False  # whether layers are computed again in backward passes
    metrics: tuple[str, int] | None = None  # IP address and port at which Prometheus is answered
    traces: str | None = None  # base URL of an OpenTelemetry collector

    @property
    def has_run(self) -> bool:
        """Whether a run is chosen: its file is here, or the directory has it."""
        return self.run_id is not None or self.run.exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A participant's opened resources: keys, spec, store, blobs and peers."""

    config: Config
    keys: Keys
    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    addresses: Mapping[PeerId, PeerAddress]
    store: Store
    blobs: DiskBlobs
    records: tuple[SignedRecord, ...] = ()  # those of the run file
    watchtowers: tuple[PeerId, ...] = ()  # those of the run file, and those whose records we keep
    ledger_service: PeerId | None = None  # whose books a verifier cosigns, and a buyer packs
    readings: Readings = field(default_factory=Readings)  # for the metrics
    traces: Traces = OFF

    def worked(self, request: Message, seconds: float) -> None:
        """Count and trace one answer of our compute worker."""
        self.readings.worked(type(request).__name__, seconds)
        self.traces.worked(request, seconds)

    @property
    def base(self) -> Path | None:
        """The imported starting parameters, if the spec names some."""
        from assay.training.model.initial import BASE

        return None if self.spec.model.base == NO_DIGEST else self.config.data / BASE

    @property
    def workplace(self) -> Workplace:
        """Where and on what our compute worker computes."""
        from assay.participant.compute import Workplace

        config = self.config
        return Workplace(
            data=str(config.data),
            folder=str(config.folder),
            base="" if self.base is None else str(self.base),
            device=config.device,
            threads=config.threads,
            replicas=config.replicas,
            processes=config.processes,
            is_checkpointing=config.is_checkpointing,
        )

    @property
    def me(self) -> PeerId:
        """Our peer id."""
        return peer_of(self.keys.peer)

    @property
    def domain(self) -> Domain:
        """Signature domain of our messages."""
        return Domain(self.spec.deployment_id, self.run_id)

    @property
    def verifiers(self) -> tuple[PeerId, ...]:
        """All verifiers and reserves but ourselves."""
        return tuple(peer for peer in self.spec.seat_peers if peer != self.me)


def open_participant(config: Config, *, is_archive: bool = False) -> Participant:
    """Read keys, network, run and peers; open store and blobs.

    Args:
        config: The operator's.
        is_archive: Keep all blobs of the run, as long as the disk takes them, and not `blob_bytes` of them.

    Raises:
        ConfigError: a file is missing, damaged, or belongs to another deployment.
    """
    from assay.network.blob_store import DiskBlobs
    from assay.participant.store import Store

    run, deployment = read_run(config)
    try:
        check_endpoint(config.rpc_url, deployment)
    except Unavailable as error:  # training can go on without the chain
        log.warning("chain unavailable", extra={"reason": str(error)})
    config.folder.mkdir(parents=True, exist_ok=True)
    keys = load_keys(config.keys, config.password)
    records = records_of(run, read_records(config.records, int(time.time())))
    return Participant(
        config=config,
        keys=keys,
        traces=traces_of(config.traces, run.run_id, peer_of(keys.peer)),
        spec=run.spec,
        run_id=run.run_id,
        deployment=deployment,
        addresses=addresses_of(records),
        records=run.content.records,
        watchtowers=tuple(one.peer for one in records if one.role is Role.WATCHTOWER),
        store=Store(config.folder / "store.db"),
        blobs=DiskBlobs(config.folder / "blobs", bytes_max=sys.maxsize if is_archive else config.blob_bytes),
        ledger_service=run.ledger_service,
    )


def read_run(config: Config) -> tuple[RunFile, Deployment]:
    """The run and its deployment, checked against each other; a run given by its id comes from the directory.

    Raises:
        ConfigError: a file is missing or damaged, or the two are not of one network.
        Unavailable: the directory has to be asked, and the endpoint does not answer.
    """
    deployment = read_invitation(config.network).deployment
    now_s = int(time.time())
    if config.run_id is not None and not config.run.exists():
        from assay.chain.reader import ChainReader

        save_run(config.run, ChainReader(config.rpc_url, deployment), config.run_id, now_s)
    run = read_run_file(config.run, now_s)
    if config.run_id not in (None, run.run_id):
        raise ConfigError(f"{config.run} is the file of run {run.run_id.hex()[:16]}: remove it")
    if run.spec.deployment_id != deployment.deployment_id:
        raise ConfigError(f"{config.run} is for another deployment than {config.network}")
    return run, deployment


def records_of(run: RunFile, known: Mapping[PeerId, SignedRecord]) -> list[Record]:
    """The newest record of each peer of a run, of the run file or known, and those of all known watchtowers.

    A known record replaces the run file's only if it has the same account and role. Who watches a run need
    not be in its file: it has no say there, and an operator that keeps its record lets it follow.
    """
    found = {}
    for signed in run.content.records:
        other = known.get(signed.record.peer, signed)
        found[signed.record.peer] = (other if takes_place_of(signed, other) else signed).record
    for peer, signed in known.items():
        if signed.record.role is Role.WATCHTOWER:
            found.setdefault(peer, signed.record)
    return list(found.values())


def addresses_of(records: Iterable[Record]) -> dict[PeerId, PeerAddress]:
    """Where the peers of some records listen."""
    from assay.network.host import PeerAddress

    return {one.peer: PeerAddress(peer=one.peer, host=one.host, port=one.port) for one in records}


def read_spec(path: Path) -> RunSpec:
    """A delivered run's spec from its file.

    Raises:
        ConfigError: missing, damaged, or its parts do not fit together.
    """
    try:
        spec = decode(RunSpec, path.read_bytes())
        check_spec(spec)
    except OSError as error:
        raise ConfigError(f"run spec {path}: cannot be read ({error.strerror})") from None
    except (MalformedMessage, ValueError) as error:
        raise ConfigError(f"run spec {path}: {error}") from None
    return spec


def read_deployment(path: Path) -> Deployment:
    """A deployment's contract addresses from their file.

    Raises:
        ConfigError: missing or damaged.
    """
    return Deployment.from_json(read_text(path, "deployment", DEPLOYMENT_BYTES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How a participant deals with peers that its run file does not name."""

    handlers: Mapping[str, Handler]  # that anybody may call
    is_open: Callable[[], bool]  # whether strangers may connect
    knows: Callable[[PeerId], bool]  # whether a peer is no stranger any more


def may_read(me: Participant, peer: PeerId, blob: Digest) -> bool:
    """Whether a member may be served a blob: what shows data that only one node has, verifiers alone.

    Others learn an opening's digest from verdicts, and whoever judged it has a record of it by then.
    """
    spec = me.spec
    if peer in spec.seat_peers or not spec.bringing_nodes:
        return True
    if spec.brings_data(me.me):
        return False
    kept = me.store.value(f"{KEPT}{blob.hex()}")
    return kept is None or not spec.brings_data(decode(KeptOpening, kept).node)


@asynccontextmanager
async def open_network(
    me: Participant, handlers: Mapping[str, Handler], door: Door | None = None
) -> AsyncIterator[Host]:
    """Run the participant's host, open to the run file's peers, and to others as `door` says."""
    from assay.network.host import open_host

    async with open_host(
        seed=bytes(me.keys.peer),
        listen_port=me.config.port,
        listen_ip=me.config.ip,
        network_id=me.run_id.hex()[:16],
        is_member=lambda peer: peer in me.addresses or (door is not None and door.knows(peer)),
        handlers=handlers,
        public=None if door is None else door.handlers,
        takes_strangers=lambda: door is not None and door.is_open(),
        blobs=me.blobs,
        may_read=partial(may_read, me),
    ) as host:
        yield host
