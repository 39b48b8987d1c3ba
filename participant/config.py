"""Config: a participant's configuration, and the keys, spec, store and network opened from it.

Room: participant (edge). One folder, one set of keys, one store, one host. The run's
spec is read from disk and must have the digest that the buyer funded on chain.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from assay.chain.addresses import Deployment
from assay.chain.endpoint import check_endpoint
from assay.ledger.settlement.results import run_id_of
from assay.network.blob_store import DiskBlobs
from assay.network.host import Handler, Host, PeerAddress, open_host
from assay.participant.compute import Workplace
from assay.participant.declarations import NO_DECLARATIONS, Declarations
from assay.participant.keyring import Keys, load_keys
from assay.participant.store import Store
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import ConfigError, MalformedMessage, Unavailable
from assay.protocol.identity import Domain, peer_of
from assay.protocol.params import RunSpec, check_spec
from assay.protocol.types import Digest, PeerId

log = logging.getLogger(__name__)
BLOB_STORE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One operator's configuration: paths, endpoints and devices. Read by package `cli`."""

    name: str
    folder: Path  # keys, store, blobs, state; no other process writes here
    password: str
    port: int
    ip: str = "127.0.0.1"
    rpc_url: str
    rpc_urls: tuple[str, ...] = ()  # more endpoints, which the ledger service compares with it
    one_rpc_suffices: bool = False  # while others do not answer
    deployment: Path
    spec: Path
    run_id: Digest
    data: Path  # a data set's folder; training/data/shards.py
    peers: Path  # JSON: hex peer id -> [ip, port]
    known_answers: Path | None = None  # of a node with known-answer tasks; node/known_answer.py
    ledger_service: PeerId | None = (
        None  # whose ledger a verifier cosigns, and whose checkpoint goes into the buyer's bundle
    )
    books: str | None = None  # URL of the ledger service's PostgreSQL database; None: a file in its folder
    limits: Path | None = None  # calibration that the spec names, for steps of other execution classes
    attestation: Path | None = None  # attestation policy, if the spec names one
    collateral: Path | None = None  # vendors' collateral, as fetched by a verifier
    drand: tuple[str, ...] = ()  # URLs from which a verifier fetches rounds of the run's drand network
    attester_key: Path | None = None  # of a node's software attester, for tests
    attester_command: tuple[str, ...] = ()  # a processor's family and its attestation program
    base: Path | None = None  # imported starting parameters, if the spec names some
    declarations: Declarations = NO_DECLARATIONS  # a buyer's declarations on its model
    device: str = "cpu"
    threads: int = 1  # 0: measure the fastest number at the first start


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

    @property
    def workplace(self) -> Workplace:
        """Where and on what our compute worker computes."""
        config = self.config
        return Workplace(
            data=str(config.data),
            folder=str(config.folder),
            base="" if config.base is None else str(config.base),
            device=config.device,
            threads=config.threads,
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
        """All verifiers but ourselves."""
        return tuple(peer for peer in self.spec.verifier_peers if peer != self.me)


def open_participant(config: Config) -> Participant:
    """Read keys, spec, deployment and peers; open store and blobs.

    Raises:
        ConfigError: a file is missing, damaged, or belongs to another deployment.
    """
    spec, deployment = read_run(config)
    try:
        check_endpoint(config.rpc_url, deployment)
    except Unavailable as error:  # training can go on without the chain
        log.warning("chain unavailable", extra={"reason": str(error)})
    config.folder.mkdir(parents=True, exist_ok=True)
    return Participant(
        config=config,
        keys=load_keys(config.folder / "keys", config.password),
        spec=spec,
        run_id=config.run_id,
        deployment=deployment,
        addresses=read_addresses(config.peers),
        store=Store(config.folder / "store.db"),
        blobs=DiskBlobs(config.folder / "blobs", bytes_max=BLOB_STORE_BYTES),
    )


def read_run(config: Config) -> tuple[RunSpec, Deployment]:
    """The run's spec and its deployment, checked against each other.

    Raises:
        ConfigError: a file is missing or damaged, or the two are not of one run.
    """
    spec, deployment = read_spec(config.spec), read_deployment(config.deployment)
    if spec.deployment_id != deployment.deployment_id:
        raise ConfigError(f"{config.spec} is for another deployment than {config.deployment}")
    if run_id_of(spec) != config.run_id:
        raise ConfigError(f"{config.spec} is not the spec of run {config.run_id.hex()[:8]}")
    return spec, deployment


def read_spec(path: Path) -> RunSpec:
    """A run's spec from its file.

    Raises:
        ConfigError: missing, damaged, or its parts do not fit together.
    """
    try:
        spec = decode(RunSpec, _read(path, "run spec"))
        check_spec(spec)
    except (MalformedMessage, ValueError) as error:
        raise ConfigError(f"run spec {path}: {error}") from None
    return spec


def read_deployment(path: Path) -> Deployment:
    """A deployment's contract addresses from their file.

    Raises:
        ConfigError: missing or damaged.
    """
    try:
        return Deployment.from_json(_read(path, "deployment").decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"deployment {path}: not a text file ({error.reason})") from None


def read_addresses(path: Path) -> dict[PeerId, PeerAddress]:
    """The peers that may connect, with their addresses.

    Raises:
        ConfigError: not a JSON object of hex peer id -> [ip, port].
    """
    try:
        found = {
            PeerId(bytes.fromhex(peer)): PeerAddress(
                peer=PeerId(bytes.fromhex(peer)), ip=str(ip), port=int(port)
            )
            for peer, (ip, port) in json.loads(_read(path, "peers")).items()
        }
        for address in found.values():
            if len(address.peer) != 32 or not 0 < address.port < 1 << 16:
                raise ValueError(f"{address.peer.hex()} at port {address.port}")
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"peers {path}: expected hex peer id -> [ip, port] ({error})") from None
    return found


@asynccontextmanager
async def open_network(me: Participant, handlers: Mapping[str, Handler]) -> AsyncIterator[Host]:
    """Run the participant's host, open to its known peers only."""
    async with open_host(
        seed=bytes(me.keys.peer),
        listen_port=me.config.port,
        listen_ip=me.config.ip,
        network_id=me.run_id.hex()[:16],
        is_member=lambda peer: peer in me.addresses,
        handlers=handlers,
        blobs=me.blobs,
    ) as host:
        yield host


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read ({error.strerror})") from None
