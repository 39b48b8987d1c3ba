"""Read: loads the certified chain of a delivered run and checks every manifest, without torch.

Room: bundle (edge: reads a folder). Receipts, reports and replays start here. Nothing in the folder is
trusted but the spec, whose digest the run id names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.bundle.receipt_pay import Pay, read_result
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.event_proof import EventProof
from assay.chain.proofs.result_anchor import ANCHORS, read_anchor_json
from assay.chain.statements import verify_certificate
from assay.ledger.settlement.payouts import Settlement, settle
from assay.ledger.settlement.results import run_id_of
from assay.orders.toml import read_toml
from assay.participant.index import IntegrityError
from assay.participant.links import extend
from assay.protocol.encoding.codec import decode
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import AssayError, ConfigError
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec, check_spec
from assay.protocol.state_transition import RunState, start
from assay.protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A finished run's chain. run_states[r] is before the manifest of round r, the last one after all."""

    root: Path
    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    links: tuple[CertifiedManifest, ...]
    run_states: tuple[RunState, ...]
    pays: Mapping[int, Pay]

    @property
    def bundle(self) -> Path:
        """The bundle's folder."""
        return self.root / "bundle"

    @property
    def tables(self) -> dict[int, Settlement]:
        """Payout tables by epoch, recomputed from the chain."""
        return {epoch: pay.settlement for epoch, pay in self.pays.items()}


def open_delivered(root: Path) -> Delivered:
    """Read and check the chain of a run's folder.

    Raises:
        ConfigError: this is no run's folder.
        IntegrityError: a certified manifest or a settlement is invalid; the message begins with its file.
    """
    bundle = root / "bundle"
    if not bundle.is_dir():
        raise ConfigError(f"{root}: no delivered run, expected a folder with `bundle` in it")
    try:
        spec = decode(RunSpec, (bundle / "spec.cbor").read_bytes())
        check_spec(spec)
    except (OSError, AssayError, ValueError) as error:
        raise IntegrityError(f"bundle/spec.cbor: {error}") from None
    try:
        deployment = Deployment.from_json((bundle / "deployment.json").read_text())
    except (OSError, ValueError, AssayError) as error:
        raise IntegrityError(f"bundle/deployment.json: {error}") from None
    if deployment.deployment_id != spec.deployment_id:
        raise IntegrityError("bundle/deployment.json: another deployment than the spec's")
    run_id = run_id_of(spec)
    links, run_states = [], [start(spec, run_id)]
    for round_id in range(spec.last_round + 1):
        name = f"links/{round_id:06d}.cbor"
        try:
            link = decode(CertifiedManifest, (bundle / name).read_bytes())
            run_states.append(extend(run_states[-1], link))
        except (OSError, AssayError) as error:
            raise IntegrityError(f"bundle/{name}: {error}") from None
        links.append(link)
    return Delivered(
        root=root,
        spec=spec,
        run_id=run_id,
        deployment=deployment,
        links=tuple(links),
        run_states=tuple(run_states),
        pays=dict(_pays(bundle, spec, run_id, deployment, run_states)),
    )


def read_result_anchor(bundle: Path, epoch: int) -> EventProof | None:
    """Proof that an epoch's result is final, as a bundle holds it; None if it has none.

    Raises:
        ValueError: the file is no anchor.
    """
    path = bundle / ANCHORS / f"epoch-{epoch:03d}.json"
    if not path.exists():
        return None
    try:
        return read_anchor_json(parse_json(path.read_bytes()))
    except (OSError, RecursionError) as error:
        raise ValueError(f"cannot be read ({error})") from None


def find_node(spec: RunSpec, text: str) -> PeerId:
    """The one node of the run whose peer id begins with this prefix.

    Raises:
        ConfigError: none, or several.
    """
    fits = [member.peer for member in spec.nodes if text and member.peer.hex().startswith(text.lower())]
    if len(fits) != 1:
        names = ", ".join(member.peer.hex()[:8] for member in spec.nodes)
        words = "several nodes begin" if fits else "no node of this run begins"
        raise ConfigError(f"{words} with {text!r}; there are {names}")
    return fits[0]


def _pays(
    bundle: Path, spec: RunSpec, run_id: Digest, deployment: Deployment, run_states: list[RunState]
) -> Iterator[tuple[int, Pay]]:
    hot = [evm_address(member.hot) for member in spec.verifiers]
    for epoch in range(spec.epochs):
        name = f"bundle/settlements/epoch-{epoch:03d}.json"
        table = settle(run_states[spec.settled_at(epoch) + 1], epoch)
        try:
            told = parse_json((bundle.parent / name).read_text())
            result, certificate = read_result(told["result"]), bytes.fromhex(told["certificate"])
            made = (run_id, epoch, table.tree().root, table.table_hash, table.total)
            if (result.run_id, result.epoch, result.root, result.table_hash, result.total) != made:
                raise ValueError("differs from what the certified chain says")
            verify_certificate(deployment.digest(result), certificate, hot)
            anchor = read_result_anchor(bundle, epoch)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssayError) as error:
            raise IntegrityError(f"{name}: {error}") from None
        yield epoch, Pay(result=result, certificate=certificate, settlement=table, anchor=anchor)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node's folder in a local network."""

    folder: Path


def local_nodes(root: Path) -> dict[PeerId, LocalNode]:
    """Node folders that a local network left behind, by peer; empty if there are none.

    Their content is to be checked, never evidence.
    """
    try:
        ports = {port: PeerId(bytes.fromhex(p)) for p, (_, port) in _json(root / "peers.json").items()}
        found = {}
        for path in sorted((root / "participants").glob("node-*/config.toml")):
            given = read_toml(path)
            if given.get("port") in ports:
                found[ports[given["port"]]] = LocalNode(path.parent)
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        return {}
    return found


def _json(path: Path) -> Any:
    return parse_json(path.read_bytes())
