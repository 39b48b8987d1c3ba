"""Read: loads the certified chain and the settlements of a delivered run and checks both, without torch.

`bundle/follow.py` reads a run that is not delivered yet into the same value, by the same functions.

Room: bundle (edge: reads a folder). Verification, receipts, reports and replays start here. Nothing in the
folder is trusted but the spec, whose digest the run id names.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from eth_abi.exceptions import EncodingError

from assay.bundle.finished import Settled
from assay.bundle.settlement_file import SETTLEMENTS, SettlementFile, epoch_name, read_settlement
from assay.chain.addresses import Deployment
from assay.chain.proofs.event_proof import EventProof
from assay.chain.proofs.result_anchor import ANCHORS
from assay.ledger.settlement.payouts import Settlement, settle
from assay.ledger.settlement.results import run_id_of
from assay.participant.files.index import OPENINGS, IntegrityError
from assay.participant.files.record import OWN_RECORD, read_record
from assay.participant.files.shown_list import read_list
from assay.participant.links import extend
from assay.protocol.calendar import Calendar
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode
from assay.protocol.encoding.json_text import parse_json, read_plain
from assay.protocol.errors import AssayError, ConfigError
from assay.protocol.known_answers import is_announced
from assay.protocol.messages import CertifiedManifest, Commit, TaskList
from assay.protocol.params import RunSpec, check_spec
from assay.protocol.run_state import RunState, start
from assay.protocol.types import NO_DIGEST, Digest, PeerId

BUNDLE = "bundle"  # of a delivered run's folder
BLOB_FOLDERS = ("updates", "aggregates")  # in it
REPORT = "report.json"  # of its training, in the bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Where a participant keeps what it has of a run.

    store: its own. blobs: updates, aggregates and openings, by digest. data: the run's. limits: a calibration
    file, if one is named.
    """

    store: Path
    blobs: Path
    data: Path
    limits: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A run's certified chain, and what follows from this without the parameters.

    run_states[r] is the state before the manifest of round r, the last one the state after all.
    """

    root: Path
    bundle: Path  # the folder of its chain, updates and aggregates; of a participant's run there is none
    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    links: tuple[CertifiedManifest, ...]
    run_states: tuple[RunState, ...]
    tables: Mapping[int, Settlement]  # payout tables by epoch, recomputed from the chain
    settled: Mapping[int, Settled]  # by epoch: its table, and the result that stands on chain
    sizes: Mapping[Digest, int]  # bytes of the files of updates and aggregates that are there, by name
    report: bytes | None  # the content of `report.json`, unchecked; None: there is none
    is_followed: bool = False  # not delivered yet, and read so far: settled, sizes and report are empty
    held: Held | None = None  # by the participant whose run this is
    asked: Mapping[PeerId, TaskList] = field(default_factory=dict)  # lists that its verifiers gave

    @property
    def data(self) -> Path:
        """The folder of the run's data."""
        return self.root / "data" if self.held is None else self.held.data

    @property
    def calendar(self) -> Calendar:
        """Rounds and epochs of the run."""
        return self.run_states[-1].calendar

    def has(self, name: Digest) -> bool:
        """Whether an update or an aggregate is here; of a delivered run all are to be."""
        return not self.is_followed or any(self.file(folder, name).is_file() for folder in BLOB_FOLDERS)

    def file(self, folder: str, name: Digest) -> Path:
        """The file of an update or an aggregate. folder: one of `BLOB_FOLDERS`."""
        if self.held is not None:
            return self.held.blobs / f"{name.hex()}.blob"
        return self.bundle / folder / f"{name.hex()}.bin"

    def update(self, commit: Commit) -> bytes:
        """The update that a commit binds. Raises IntegrityError: missing or altered."""
        return self._blob("updates", commit.update)

    def aggregate(self, round_id: int) -> bytes:
        """The aggregate of a round, empty if it has none. Raises IntegrityError: missing or altered."""
        name = self.links[round_id].manifest.aggregate
        return b"" if name == NO_DIGEST else self._blob("aggregates", name)

    def opening(self, name: Digest) -> Path | None:
        """The file of a drawn step's opening, unchecked; None where it is not here."""
        path = self.root / opening_name(name) if self.held is None else self.held.blobs / f"{name.hex()}.blob"
        return path if path.is_file() else None

    def task_list(self, node: PeerId) -> TaskList | None:
        """The list of a node's known-answer tasks, if it has shown it; None where it is not here.

        Raises:
            IntegrityError: it is not the list that the node announced.
        """
        name, shown = f"{self.bundle.name}/{list_name(node)}", self.asked.get(node)
        if shown is None and self.held is not None:
            shown = read_list(self.held.store, self.run_id, node)
        elif shown is None and (self.bundle / list_name(node)).is_file():
            with _about(name):
                shown = decode(TaskList, _bytes(self.bundle, list_name(node)))
        if shown is not None and not (shown.node == node and is_announced(shown, self.run_states[-1])):
            raise IntegrityError(f"{name}: not the list of known-answer tasks that the node announced")
        return shown

    def load(self, name: Digest) -> bytes:
        """An update or an aggregate by its digest. Raises IntegrityError: missing or altered."""
        is_update = self.file("updates", name).exists()
        return self._blob("updates" if is_update else "aggregates", name)

    def _blob(self, folder: str, name: Digest) -> bytes:
        path = self.file(folder, name)
        shown = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
        body = _bytes(path.parent, path.name, shown)
        if blob_digest(body) != name:
            raise IntegrityError(f"{shown}: altered")
        return body


def read(root: Path) -> Delivered:
    """Read a delivered run's chain and settlements, and check them.

    Everything but the spec is checked: certificates, the manifests' rules, payout tables recomputed from the
    chain, and the quorum's signatures on each result. The parameters are not replayed: `bundle/verify.py`.

    Raises:
        ConfigError: this is no run's folder.
        IntegrityError: a certified manifest or a settlement is invalid; the message begins with its file.
    """
    if not (root / BUNDLE).is_dir():
        raise ConfigError(f"{root}: no delivered run, expected a folder with `{BUNDLE}` in it")
    spec, deployment = read_terms(root, BUNDLE)
    run_id = run_id_of(spec)
    links: list[CertifiedManifest] = []
    run_states = [start(spec, run_id)]
    while not run_states[-1].is_settled:
        name = f"{BUNDLE}/{link_name(len(links))}"
        link, run_state = extended(run_states[-1], name, _bytes(root, name), "bundle/spec.cbor")
        links.append(link)
        run_states.append(run_state)
    settled = dict(_settled(root, spec, deployment, links, run_states))
    return Delivered(
        root=root,
        bundle=root / BUNDLE,
        spec=spec,
        run_id=run_id,
        deployment=deployment,
        links=tuple(links),
        run_states=tuple(run_states),
        tables={epoch: one.settlement for epoch, one in settled.items()},
        settled=settled,
        sizes={
            Digest(bytes.fromhex(path.stem)): path.stat().st_size
            for folder in BLOB_FOLDERS
            for path in (root / BUNDLE / folder).glob("[0-9a-f]" * 64 + ".bin")
        },
        report=_bytes(root, f"{BUNDLE}/{REPORT}") if (root / BUNDLE / REPORT).is_file() else None,
    )


def read_terms(root: Path, folder: str) -> tuple[RunSpec, Deployment]:
    """The spec and the deployment in a folder of a run's.

    Raises:
        IntegrityError: one is missing, damaged, or not the other's.
    """
    with _about(f"{folder}/spec.cbor") as name:
        spec = decode(RunSpec, _bytes(root, name))
        check_spec(spec)
    with _about(f"{folder}/deployment.json") as name:
        deployment = Deployment.from_json(_bytes(root, name).decode())
        if deployment.deployment_id != spec.deployment_id:
            raise ValueError("another deployment than the spec's")
    return spec, deployment


def link_name(round_id: int) -> str:
    """The name of a certified manifest's file in a bundle."""
    return f"links/{round_id:06d}.cbor"


def list_name(node: PeerId) -> str:
    """The name of the file of a node's known-answer tasks in a bundle."""
    return f"tasks/{node.hex()}.cbor"


def opening_name(opening: Digest) -> str:
    """The name of an opening's file under a run's folder."""
    return f"{OPENINGS}/{opening.hex()}.bin"


def extended(run_state: RunState, name: str, body: bytes, spec: str) -> tuple[CertifiedManifest, RunState]:
    """The next certified manifest of a run, and the state after it.

    Args:
        run_state: The state before it.
        name: Where the manifest is kept; errors begin with it.
        body: Its encoding.
        spec: The file that the run id was read from, for an error.

    Raises:
        IntegrityError: it is damaged, of another run, or not what a quorum signed to follow this state.
    """
    with _about(name):
        link = decode(CertifiedManifest, body)
        if link.manifest.run_id != run_state.run_id:
            raise ValueError(f"of another run than {spec}, so one of the two was altered")
        return link, extend(run_state, link)


def _settled(
    root: Path,
    spec: RunSpec,
    deployment: Deployment,
    links: Sequence[CertifiedManifest],
    run_states: Sequence[RunState],
) -> Iterator[tuple[int, Settled]]:
    committed = {
        int(signed.commit.round): signed.commit.state
        for link in links
        for signed in link.manifest.commits
        if signed.commit.state != NO_DIGEST
    }
    previous = NO_DIGEST
    calendar = run_states[-1].calendar
    for epoch in range(calendar.epochs):
        table = settle(run_states[calendar.settled_at(epoch) + 1], epoch)
        anchor = None
        with _about(f"{BUNDLE}/{epoch_name(ANCHORS, epoch)}") as name:
            if (root / name).exists():
                anchor = read_plain(EventProof, parse_json(_bytes(root, name)))
        with _about(f"{BUNDLE}/{epoch_name(SETTLEMENTS, epoch)}") as name:
            given = read_plain(SettlementFile, parse_json(_bytes(root, name)))
            one = read_settlement(given, spec, deployment, table, previous, anchor)
            state = committed.get(calendar.epoch_end(epoch), one.result.model_hash)
            if state != one.result.model_hash:
                raise ValueError(
                    f"parameters {one.result.model_hash.hex()[:16]}, nodes committed to {state.hex()[:16]}"
                )
        previous = Digest(one.digest)
        yield epoch, one


@contextmanager
def _about(name: str) -> Iterator[str]:
    """Name the file in whatever its content raises."""
    try:
        yield name
    except IntegrityError:
        raise
    except (ValueError, TypeError, RecursionError, EncodingError, AssayError) as error:
        raise IntegrityError(f"{name}: {error}") from None


def _bytes(root: Path, name: str, shown: str = "") -> bytes:
    try:
        return (root / name).read_bytes()
    except OSError as error:
        raise IntegrityError(f"{shown or name}: missing or unreadable ({error.strerror})") from None


def find_node(nodes: Collection[PeerId], text: str) -> PeerId:
    """The one of a run's nodes whose peer id begins with this prefix.

    Raises:
        ConfigError: none, or several.
    """
    fits = [peer for peer in nodes if text and peer.hex().startswith(text.lower())]
    if len(fits) != 1:
        names = ", ".join(peer.hex()[:8] for peer in nodes)
        fault = "several nodes begin" if fits else "no node of this run begins"
        raise ConfigError(f"{fault} with {text!r}; there are {names}")
    return fits[0]


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node's folder in a local network."""

    folder: Path


def local_nodes(root: Path) -> dict[PeerId, LocalNode]:
    """Node folders that a local network left behind, by peer; empty if there are none.

    Their content is to be checked, never evidence.
    """
    found = {}
    for path in sorted((root / "participants").glob("node-*")):
        with suppress(ConfigError):
            record = read_record(path / "keys" / OWN_RECORD, int(time.time())).record
            found[record.peer] = LocalNode(path)
    return found
