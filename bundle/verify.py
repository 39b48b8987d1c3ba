"""Verify: checks a delivered run offline, without trusting whoever delivered it.

Room: bundle (edge: reads a folder). Everything is recomputed from what cannot be forged without a quorum of
verifiers' keys or the buyer's: manifests are checked, updates aggregated, parameters replayed, settlements
recomputed; then the whole bundle is written a second time and must be equal byte for byte.

    index <- buyer's signature; links <- certificates; updates <- commits;
    aggregates <- updates; weights <- aggregates; payouts <- links; results <- hot keys
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.bundle.check_anchor import anchored_line
from assay.bundle.check_registry import read_registry_claims
from assay.bundle.finished import Anchored, Finished, Registered, Settled
from assay.bundle.inputs import RunInputs, read_inputs
from assay.bundle.read import read_result_anchor
from assay.bundle.registry.files import FOLDER, PROVENANCE
from assay.bundle.release import BadReleaseError
from assay.bundle.write import ANCHOR, read_anchor, write_bundle
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.event_proof import EventProof, read_event
from assay.chain.proofs.result_anchor import ANCHORS, check_result_anchor
from assay.chain.statements import EpochResult, verify_certificate
from assay.ledger.settlement.payouts import Settlement, settle
from assay.ledger.settlement.results import epoch_end, epoch_result, result_digest, run_id_of
from assay.participant.index import IntegrityError, check_index
from assay.participant.links import extend
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, digest
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import AssayError, ConfigError
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec, check_spec
from assay.protocol.state_transition import RunState, start
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.codec.contribution import decode_contribution
from assay.training.fragments import check_fragments
from assay.training.layout import layout_of
from assay.training.model.initial import BASE, starting_parameters
from assay.training.optimiser.outer import apply, public_digest, start_public
from assay.verifier.aggregation.combine import combine, tolerated
from assay.verifier.aggregation.registry import check_aggregation
from assay.verifier.aggregation.reputation import Reputation


def verify_run(folder: Path) -> Iterator[str]:
    """Check a run's folder; yields one line for each check passed.

    Raises:
        IntegrityError: the first check that fails; the message begins with the file's name.
        ConfigError: this is no run's folder.
    """
    bundle = folder / "bundle"
    if not bundle.is_dir():
        raise ConfigError(f"{folder}: no delivered run, expected a folder with `bundle` in it")
    spec = _spec(bundle / "spec.cbor")
    count = check_index(folder, spec.buyer)
    yield f"index: {count} files as the buyer {evm_address(spec.buyer)} signed them"
    deployment = Deployment.from_json((bundle / "deployment.json").read_text())
    if deployment.deployment_id != spec.deployment_id:
        raise IntegrityError("bundle/deployment.json: another deployment than the spec's")
    run_id = run_id_of(spec)
    yield f"run {run_id.hex()}, spec hash {digest(spec).hex()}: compare them with the chain's"

    inputs = _inputs(spec, bundle)
    yield f"data: {len(inputs.manifest.sources)} sources, {inputs.manifest.tokens} tokens, as the spec says"
    replay = _Replay(spec, run_id, bundle, inputs)
    for round_id in range(spec.last_round + 1):
        replay.take(round_id)
    quorum_size = min(len(link.certificate.verifiers) for link in replay.links)
    of_all = f"at least {quorum_size} of {len(spec.verifiers)} verifiers"
    yield f"chain: {len(replay.links)} manifests, each certified by {of_all}"
    updates = sum(len(link.manifest.commits) for link in replay.links)
    yield f"updates: {updates} signed contributions, each aggregate recomputed from them"
    start_words = "the seed" if inputs.base is None else "the imported parameters"
    yield f"parameters: replayed from {start_words}, state {public_digest(replay.public).hex()}"

    settled = dict(_settled(spec, deployment, bundle, replay))
    total = sum(one.settlement.total for one in settled.values())
    yield f"settlements: {len(settled)} epochs, {total} units, roots recomputed and signed by a quorum"
    yield _anchor_words(settled)
    told = read_registry_claims(bundle, spec, run_id, deployment, inputs, settled[spec.epochs - 1])
    if told.registered is None:
        yield "registry: the model was not on record when it was delivered"
    else:
        record = told.registered.record_id.hex()
        yield f"registry: record {record}, signed by a quorum: compare it with the chain's"
    if told.log_point is not None:
        size, signers = told.log_point.size, len(told.log_point.cosigners)
        yield f"books: {size} leaves at a checkpoint cosigned by {signers} of {len(spec.verifiers)} verifiers"
    finished = Finished(
        spec=spec,
        run_id=run_id,
        deployment=deployment,
        links=tuple(replay.links),
        settled=settled,
        theta=replay.public.theta_P,
        state=public_digest(replay.public),
        inputs=inputs,
        load=replay.load,
        anchor=_anchor(bundle / ANCHOR, spec),
        registered=told.registered,
        declarations=told.declarations,
        log_point=told.log_point,
        release=told.release,
    )
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / "bundle"
        try:
            write_bundle(again, finished)
        except BadReleaseError as error:
            raise IntegrityError(f"bundle/{FOLDER}/{PROVENANCE}: {error}") from None
        files = _compare(again, bundle)
    yield f"bundle: written again from the certified chain, all {files} files the same byte for byte"
    _check_summary(folder / "summary.json", spec, run_id, settled, told.registered)
    yield "summary: money as settled, the model's record as registered"
    if finished.anchor is not None:
        yield anchored_line(folder, finished.anchor)


def _anchor(path: Path, spec: RunSpec) -> Anchored | None:
    if not path.exists():
        return None
    try:
        found = read_anchor(path.read_text())
        if found.ledger_service != evm_address(spec.money.treasury):
            raise ValueError(f"of {found.ledger_service}, who is not the run's keeper")
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"bundle/{ANCHOR}: {error}") from None
    return found


def _inputs(spec: RunSpec, bundle: Path) -> RunInputs:
    try:
        return read_inputs(spec, bundle / "data", bundle / BASE)
    except ConfigError as error:
        raise IntegrityError(f"bundle: {error}") from None


class _Replay:
    """State of a replay of the run from its first manifest."""

    def __init__(self, spec: RunSpec, run_id: Digest, bundle: Path, inputs: RunInputs) -> None:
        self.spec, self.layout, self._bundle = spec, layout_of(spec.model), bundle
        self.run_state: RunState = start(spec, run_id)
        self.links: list[CertifiedManifest] = []
        self.settlements: dict[int, Settlement] = {}
        theta_P = starting_parameters(spec, None) if inputs.base is None else inputs.base
        self.public = start_public(spec, theta_P)
        self.states: dict[int, Digest] = {0: public_digest(self.public)}
        self._reputation = Reputation()
        self._blobs: dict[Digest, bytes] = {}

    def load(self, name: Digest) -> bytes:
        """A blob, checked."""
        return self._blobs[name]

    def take(self, round_id: int) -> None:
        """Check one certified manifest and what it names, and apply it."""
        name = f"bundle/links/{round_id:06d}.cbor"
        try:
            link = decode(CertifiedManifest, (self._bundle / "links" / f"{round_id:06d}.cbor").read_bytes())
            f = tolerated(self.run_state)
            self.run_state = extend(self.run_state, link)
        except (OSError, AssayError) as error:
            raise IntegrityError(f"{name}: {error}") from None
        self.links.append(link)
        for epoch in range(self.spec.epochs):
            if self.spec.settled_at(epoch) == round_id:
                self.settlements[epoch] = settle(self.run_state, epoch)
        self._step(round_id, f, link)

    def _step(self, round_id: int, f: int, link: CertifiedManifest) -> None:
        manifest = link.manifest
        updates = {}
        for signed in manifest.commits:
            commit = signed.commit
            if commit.state not in (NO_DIGEST, self.states[round_id]):
                raise IntegrityError(
                    f"bundle/links/{round_id:06d}.cbor: a commit on other parameters than replayed"
                )
            body = self._blob("updates", commit.update)
            updates[commit.node] = decode_contribution(self.spec, self.layout, round_id, body)
        combined = combine(self.spec, self.layout, manifest.parent, f, self._reputation, updates)
        aggregate, self._reputation = combined.body, combined.reputation
        if (blob_digest(aggregate) if aggregate else NO_DIGEST) != manifest.aggregate:
            raise IntegrityError(
                f"bundle/links/{round_id:06d}.cbor: its aggregate does not follow from its updates"
            )
        if aggregate:
            self._blob("aggregates", manifest.aggregate)
        self.public = apply(self.spec, self.layout, self.public, round_id, aggregate)
        self.states[round_id + 1] = public_digest(self.public)

    def _blob(self, kind: str, name: Digest) -> bytes:
        path = self._bundle / kind / f"{name.hex()}.bin"
        body = path.read_bytes() if path.is_file() else None
        if body is None or blob_digest(body) != name:
            raise IntegrityError(
                f"bundle/{kind}/{name.hex()}.bin: {'missing' if body is None else 'altered'}"
            )
        self._blobs[name] = body
        return body


def _spec(path: Path) -> RunSpec:
    try:
        spec = decode(RunSpec, path.read_bytes())
        check_spec(spec)
        check_aggregation(spec.rule)
        check_fragments(layout_of(spec.model), spec.rule.fragments)
    except (OSError, AssayError, ValueError) as error:
        raise IntegrityError(f"bundle/spec.cbor: {error}") from None
    return spec


def _settled(
    spec: RunSpec, deployment: Deployment, bundle: Path, replay: _Replay
) -> Iterator[tuple[int, Settled]]:
    """Every epoch's result, recomputed, and the quorum's signatures on it."""
    hot_keys = [evm_address(member.hot) for member in spec.verifiers]
    previous = NO_DIGEST
    for epoch, settlement in sorted(replay.settlements.items()):
        name = f"settlements/epoch-{epoch:03d}.json"
        result = epoch_result(spec, settlement, replay.states[epoch_end(spec, epoch)], previous)
        previous = result_digest(deployment, result)
        try:
            told: dict[str, Any] = parse_json((bundle / name).read_text())
            certificate = bytes.fromhex(told["certificate"])
            verify_certificate(previous, certificate, hot_keys)
        except (OSError, ValueError, KeyError, TypeError, AssayError) as error:
            raise IntegrityError(f"bundle/{name}: {error}") from None
        yield (
            epoch,
            Settled(
                settlement=settlement,
                result=result,
                digest=previous,
                certificate=certificate,
                anchor=_result_anchor(bundle, epoch, deployment, result),
            ),
        )


def _result_anchor(
    bundle: Path, epoch: int, deployment: Deployment, result: EpochResult
) -> EventProof | None:
    try:
        proof = read_result_anchor(bundle, epoch)
        if proof is not None:
            check_result_anchor(proof, deployment, result)
    except (ValueError, AssayError) as error:
        raise IntegrityError(f"bundle/{ANCHORS}/epoch-{epoch:03d}.json: {error}") from None
    return proof


def _anchor_words(settled: dict[int, Settled]) -> str:
    """The blocks in which results became final, as text: what is left to compare."""
    proofs = [one.anchor for one in settled.values() if one.anchor is not None]
    if not proofs:
        return "finality: of no result is there a proof that the chain has it"
    block = read_event(proofs[-1]).block
    return (
        f"finality: {len(proofs)} of {len(settled)} results are final on chain, the last in block "
        f"{block.number} (0x{block.hash.hex()}): compare that hash with the chain's"
    )


def _compare(made: Path, given: Path) -> int:
    """Number of files, if both folders have the same files with the same bytes."""
    ours = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    theirs = {path.relative_to(given) for path in given.rglob("*") if path.is_file()}
    for name in sorted(ours | theirs):
        if name not in theirs:
            raise IntegrityError(f"bundle/{name}: missing")
        if name not in ours:
            raise IntegrityError(f"bundle/{name}: does not belong to this run")
        if (made / name).read_bytes() != (given / name).read_bytes():
            raise IntegrityError(f"bundle/{name}: differs from what the certified chain says")
    return len(ours)


def _check_summary(
    path: Path, spec: RunSpec, run_id: Digest, settled: dict[int, Settled], registered: Registered | None
) -> None:
    try:
        summary = parse_json(path.read_text())
        record = None if registered is None else registered.record_id.hex()
        paid = {
            role: sum(one.settlement.paid(role) for one in settled.values())
            for role in ("operator", "verifier", "fee")
        }
        told = summary["money"]
        is_same = (
            summary["run_id"] == run_id.hex()
            and summary["rounds_finalised"] == spec.rounds
            and summary["record"] == record
            and (told["paid_operators"], told["paid_verifiers"], told["fees"])
            == (paid["operator"], paid["verifier"], paid["fee"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"summary.json: {error}") from None
    if not is_same:
        raise IntegrityError("summary.json: differs from the settlements or the model's record")
