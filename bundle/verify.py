"""Verify: checks a delivered run offline, without trusting whoever delivered it.

Room: bundle (edge: reads a folder). Everything is recomputed from what cannot be forged without a quorum of
verifiers' keys or the buyer's: manifests are checked, updates aggregated, parameters replayed, settlements
recomputed; then the whole bundle is written a second time and must be equal byte for byte.

    index <- buyer's signature; links <- certificates; updates <- commits;
    aggregates <- updates; weights <- aggregates; payouts <- links; results <- hot keys
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.bundle.check.anchor import check_books
from assay.bundle.check.registry import read_registry_claims
from assay.bundle.finished import Anchored, Finished, HeldOut, LogPoint, Registered
from assay.bundle.held_out import check_held_out, check_milestone, held_out_loss
from assay.bundle.inputs import RunInputs, check_item_texts, read_inputs
from assay.bundle.milestone import milestone_text
from assay.bundle.read import BUNDLE, REPORT, Delivered
from assay.bundle.registry.files import FOLDER, PROVENANCE
from assay.bundle.release import BadReleaseError
from assay.bundle.report.charts import AGREED
from assay.bundle.report.loss_kind import loss_kind
from assay.bundle.report.picture import PICTURE_BYTES_MAX, check_other_version
from assay.bundle.report.training import claimed
from assay.bundle.report.training_page import loss_text, share_text
from assay.bundle.settlement_file import SETTLEMENTS, epoch_name
from assay.bundle.successor import check_predecessor
from assay.bundle.write import ANCHOR, PICTURES, REPORT_PAGE, write_bundle
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.event_proof import BlockPoint, read_event
from assay.ledger.settlement.ending import ending_of
from assay.participant.files.index import IntegrityError, check_index, files_in, signer_text
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import digest
from assay.protocol.encoding.json_text import parse_json, read_plain
from assay.protocol.errors import AssayError, ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.codec.contribution import decode_contribution
from assay.training.fragments import check_fragments
from assay.training.layout import layout_of
from assay.training.model.initial import BASE
from assay.training.optimiser.outer import OuterState, apply, public_digest, start_public
from assay.verifier.aggregation.combine import combine, tolerated
from assay.verifier.aggregation.registry import check_aggregation
from assay.verifier.aggregation.reputation import Reputation

OnParameters = Callable[[int, NDArray[np.float32]], None]  # a round, and theta that it begins with
PAGE_BYTES_MAX = 1 << 24
SUMMARY, BOOKS = "summary.json", "ledger.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a delivered run proves, after every check passed."""

    delivered: Delivered
    inputs: RunInputs
    index_files: int
    bundle_files: int
    state: Digest  # of the delivered parameters and the outer optimiser's buffers
    final: tuple[BlockPoint, ...]  # blocks in which results became final; shorter than the epochs if unproved
    registered: Registered | None
    log_point: LogPoint | None
    anchor: Anchored | None
    anchored: str  # how the books compare with the anchor; empty without one, or without books
    drawn_by: str  # another version of matplotlib, whose pictures were not compared; empty if they were
    held_out: HeldOut | None
    is_measured: bool  # whether held-out loss and accuracy were measured again
    is_start_checked: bool  # whether it was compared with the run that this one continues


def verify(
    delivered: Delivered,
    *,
    data: Path | None = None,
    predecessor: Delivered | None = None,
    on_round: Callable[[int], None] = lambda _: None,
) -> Report:
    """Check everything of a delivered run that `read` has not.

    Args:
        delivered: The run.
        data: A folder with its data, to measure held-out loss and accuracy again.
        predecessor: The run that it continues, whose last parameters it has to begin with.
        on_round: Called with each round that was replayed; this takes the longest.

    Raises:
        IntegrityError: the first check that fails; the message begins with the file's name.
        ConfigError: `data` has other data, or not all of it.
    """
    root, spec = delivered.root, delivered.spec
    if predecessor is not None:
        check_predecessor(spec, predecessor)
    index_files = check_index(root, spec.signer)
    _check_rules(spec)
    if delivered.report is None:
        raise IntegrityError(
            f"{BUNDLE}/{REPORT}: missing; a bundle that was written before there were training reports is "
            "verified with the version of Assay that wrote it"
        )
    held_out = claimed(delivered.report, spec).held_out
    inputs = _inputs(delivered)
    public = replay(
        delivered, inputs, on_round, None if data is None else _milestones(delivered, inputs, data)
    )
    claims = read_registry_claims(delivered, inputs)
    finished = Finished(
        spec=spec,
        run_id=delivered.run_id,
        deployment=delivered.deployment,
        links=delivered.links,
        ending=ending_of(delivered.run_states[-1]),
        settled=delivered.settled,
        theta=public.theta_P,
        state=public_digest(public),
        inputs=inputs,
        load=delivered.load,
        anchor=_anchor(delivered),
        registered=claims.registered,
        declarations=claims.declarations,
        log_point=claims.log_point,
        release=claims.release,
        held_out=held_out,
        task_lists=tuple(filter(None, map(delivered.task_list, delivered.run_states[-1].nodes))),
    )
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / BUNDLE
        try:
            write_bundle(again, finished, has_agreed=_has_agreed(delivered.bundle))
        except BadReleaseError as error:
            raise IntegrityError(f"{BUNDLE}/{FOLDER}/{PROVENANCE}: {error}") from None
        bundle_files, drawn_by = _compare(again, delivered.bundle)
    if data is not None and held_out is not None:
        check_held_out(held_out, held_out_loss(spec, inputs, public.theta_P, data))
    if (root / SUMMARY).is_file():  # only a network on one machine has one; the index lists it
        _check_summary(delivered, claims.registered)
    has_books = (root / BOOKS).is_file()  # likewise; a buyer has only their checkpoint and anchor
    proofs = [one.anchor for one in delivered.settled.values() if one.anchor is not None]
    return Report(
        delivered=delivered,
        inputs=inputs,
        index_files=index_files,
        bundle_files=bundle_files,
        state=finished.state,
        final=tuple(read_event(proof).block for proof in proofs),
        registered=claims.registered,
        log_point=claims.log_point,
        anchor=finished.anchor,
        anchored=check_books(root, claims.log_point, finished.anchor) if has_books else "",
        drawn_by=drawn_by,
        held_out=held_out,
        is_measured=data is not None,
        is_start_checked=predecessor is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The figures of a report: what an auditor compares with the chain's."""

    run_id: Digest
    spec_hash: Digest
    buyer: str
    signed_by: str  # address of the key that signed the index: the buyer, or what the spec names for it
    files: int  # under the buyer's signature
    manifests: int
    signers: int  # the fewest under any manifest's certificate
    verifiers: int
    updates: int
    tokens: int  # of the data
    state: Digest  # of the delivered parameters and outer buffers
    epochs: int
    paid: int  # token units
    final_epochs: int  # whose results are proved final on chain
    final_block: int | None
    record: Digest | None  # of the registered model
    books_size: int | None  # leaves under a cosigned checkpoint
    bundle_files: int
    anchor_block: int | None
    continues: Digest | None  # the run that it continues
    rounds_before: int  # trained by that run, and those that it continued
    is_start_checked: bool  # whether its start was compared with that run's chain

    @classmethod
    def of(cls, report: Report) -> Verified:
        """The figures of a report."""
        run, spec = report.delivered, report.delivered.spec
        return cls(
            run_id=run.run_id,
            spec_hash=digest(spec),
            buyer=evm_address(spec.buyer),
            signed_by=evm_address(spec.signer),
            files=report.index_files,
            manifests=len(run.links),
            signers=min(len(link.certificate.verifiers) for link in run.links),
            verifiers=len(spec.verifiers),
            updates=sum(len(link.manifest.commits) for link in run.links),
            tokens=report.inputs.manifest.tokens,
            state=report.state,
            epochs=len(run.settled),
            paid=sum(table.total for table in run.tables.values()),
            final_epochs=len(report.final),
            final_block=report.final[-1].number if report.final else None,
            record=None if report.registered is None else Digest(report.registered.record_id),
            books_size=None if report.log_point is None else report.log_point.size,
            bundle_files=report.bundle_files,
            anchor_block=None if report.anchor is None else report.anchor.block_number,
            continues=spec.predecessor.run_id if spec.is_continued else None,
            rounds_before=spec.predecessor.rounds,
            is_start_checked=report.is_start_checked,
        )


def report_lines(report: Report) -> Iterator[str]:
    """The report for a person, one line for each check."""
    run, inputs = report.delivered, report.inputs
    spec, members = run.spec, len(run.spec.verifiers)
    signer = signer_text(evm_address(spec.buyer), evm_address(spec.signer))
    yield f"index: {report.index_files} files as {signer} signed them"
    yield f"run {run.run_id.hex()}, spec hash {digest(spec).hex()}: compare them with the chain's"
    yield f"data: {len(inputs.manifest.sources)} sources, {inputs.manifest.tokens} tokens, as the spec says"
    signers = min(len(link.certificate.verifiers) for link in run.links)
    yield f"chain: {len(run.links)} manifests, each certified by at least {signers} of {members} verifiers"
    yield f"rounds: {ending_of(run.run_states[-1]).text}"
    updates = sum(len(link.manifest.commits) for link in run.links)
    yield f"updates: {updates} signed contributions, each aggregate recomputed from them"
    start = "the seed" if inputs.base is None or spec.model.is_adapted else "the imported parameters"
    if spec.is_continued:
        yield predecessor_line(spec, is_checked=report.is_start_checked)
    yield f"parameters: replayed from {start}, state {report.state.hex()}"
    total = sum(table.total for table in run.tables.values())
    yield f"settlements: {len(run.settled)} epochs, {total} units, roots recomputed and signed by a quorum"
    if report.final:
        last = report.final[-1]
        yield (
            f"finality: {len(report.final)} of {len(run.settled)} results are final on chain, the last in "
            f"block {last.number} (0x{last.hash.hex()}): compare that hash with the chain's"
        )
    else:
        yield "finality: no proof that any result is final on chain"
    if report.held_out is not None:
        loss, tokens = loss_text(report.held_out.last_micro), report.held_out.tokens
        how = (
            "measured here again" if report.is_measured else "by the buyer; `--data FOLDER` measures it again"
        )
        kind = loss_kind(spec).held_out
        yield f"held-out {kind.name}: {loss} {kind.unit} on {tokens:,} tokens, {how}"
        if (right := report.held_out.accuracy) is not None:
            acc, acc_norm = (share_text(one, right.items) for one in (right.acc_last, right.acc_norm_last))
            yield f"choices: acc {acc}, acc_norm {acc_norm}, {how}"
    yield from milestone_lines(run, is_measured=report.is_measured)
    if report.registered is None:
        yield "registry: the model was not on record when it was delivered"
    else:
        record = report.registered.record_id.hex()
        yield f"registry: record {record}, signed by a quorum: compare it with the chain's"
    if report.log_point is not None:
        size, cosigners = report.log_point.size, len(report.log_point.cosigners)
        held = f", with the root that {BOOKS} has" if (run.root / BOOKS).is_file() else ""
        yield (
            f"books: {size} leaves at a checkpoint cosigned by {cosigners} of {len(spec.judges)} "
            f"verifiers{held}"
        )
    elif (run.root / BOOKS).is_file():
        yield "books: not checked against a checkpoint: none that a quorum cosigned was delivered"
    count = report.bundle_files
    pictures = f" but pictures by {report.drawn_by}, which were not compared" if report.drawn_by else ""
    yield f"bundle: written again from the certified chain, all {count} files equal byte for byte{pictures}"
    if (run.root / SUMMARY).is_file():
        yield "summary: money as settled, the model's record as registered"
    if report.anchor is not None:
        block = f"block {report.anchor.block_number} ({report.anchor.block_hash.hex()[:16]})"
        yield (
            f"anchor: {report.anchored or 'books elsewhere'} in {block} "
            f"by {report.anchor.ledger_service}, block and transaction as the buyer states them; "
            "`assay ledger audit --rpc` asks the chain itself"
        )


def predecessor_line(spec: RunSpec, *, is_checked: bool) -> str:
    """Which run a run continues, and whether its start was compared with it."""
    named = spec.predecessor
    how = "compared with its chain" if is_checked else "`--predecessor FOLDER` compares them with its chain"
    return (
        f"start: continues run {named.run_id.hex()} from manifest {named.manifest.hex()}, "
        f"after {named.rounds} rounds, parameters {spec.model.base.hex()}, {how}"
    )


def _milestones(delivered: Delivered, inputs: RunInputs, data: Path) -> OnParameters:
    """Measures the model where verifiers agreed on its score."""
    agreed = {
        delivered.calendar.epoch_end(epoch): (epoch, table.score)
        for epoch, table in delivered.tables.items()
        if table.score is not None
    }

    def measure(round_id: int, theta_P: NDArray[np.float32]) -> None:
        if round_id in agreed:
            check_milestone(delivered.spec, inputs, theta_P, data, *agreed[round_id])

    return measure


def milestone_lines(delivered: Delivered, *, is_measured: bool) -> Iterator[str]:
    """What verifiers measured of each milestone, and what follows for the price."""
    how = "measured here again" if is_measured else "agreed by verifiers; `--data FOLDER` measures it again"
    for epoch, table in delivered.tables.items():
        if text := milestone_text(delivered, epoch):
            yield f"milestone of epoch {epoch}: {text}" + ("" if table.score is None else f"; {how}")


def replay(
    delivered: Delivered,
    inputs: RunInputs,
    on_round: Callable[[int], None],
    on_parameters: OnParameters | None = None,
) -> OuterState:
    """The parameters after the last round, each aggregate recomputed from the updates that it combines.

    `on_parameters` is told of the parameters that each round begins with, from round 1 on.

    Raises:
        IntegrityError: a blob is missing or altered, or an aggregate, a commit or a result has other
            parameters than the updates lead to.
    """
    spec, layout = delivered.spec, layout_of(delivered.spec.model)
    public = start_public(spec, inputs.start(spec), inputs.buffers)
    reputation, states = Reputation(), [public_digest(public)]
    for round_id, link in enumerate(delivered.links):
        manifest, name = link.manifest, f"{BUNDLE}/links/{round_id:06d}.cbor"
        updates = {}
        for signed in manifest.commits:
            if signed.commit.state not in (NO_DIGEST, states[round_id]):
                raise IntegrityError(f"{name}: a commit on other parameters than replayed")
            body = delivered.update(signed.commit)
            updates[signed.commit.node] = decode_contribution(spec, layout, round_id, body)
        f = tolerated(delivered.run_states[round_id])
        combined = combine(spec, layout, manifest.parent, f, reputation, updates)
        aggregate, reputation = combined.body, combined.reputation
        if (blob_digest(aggregate) if aggregate else NO_DIGEST) != manifest.aggregate:
            raise IntegrityError(f"{name}: its aggregate does not follow from its updates")
        public = apply(spec, layout, public, round_id, delivered.aggregate(round_id))
        states.append(public_digest(public))
        if on_parameters is not None:
            on_parameters(round_id + 1, public.theta_P)
        on_round(round_id)
    for epoch, one in delivered.settled.items():
        state = states[delivered.calendar.epoch_end(epoch)]
        if one.result.model_hash != state:
            given = one.result.model_hash.hex()[:16]
            name = f"{BUNDLE}/{epoch_name(SETTLEMENTS, epoch)}"
            raise IntegrityError(f"{name}: parameters {given}, the updates lead to {state.hex()[:16]}")
    return public


def _check_rules(spec: RunSpec) -> None:
    try:
        check_aggregation(spec.rule)
        check_fragments(layout_of(spec.model), spec.rule.fragments)
    except (AssayError, ValueError) as error:
        raise IntegrityError(f"{BUNDLE}/spec.cbor: {error}") from None


def _inputs(delivered: Delivered) -> RunInputs:
    data = delivered.bundle / "data"
    try:
        inputs = read_inputs(delivered.spec, data, delivered.bundle / BASE)
        check_item_texts(inputs, data)
        return inputs
    except ConfigError as error:
        raise IntegrityError(f"{BUNDLE}: {error}") from None


def _anchor(delivered: Delivered) -> Anchored | None:
    path = delivered.bundle / ANCHOR
    if not path.exists():
        return None
    try:
        found = read_plain(Anchored, parse_json(path.read_text()))
        if found.ledger_service != evm_address(delivered.spec.money.treasury):
            raise ValueError(f"by {found.ledger_service}, which is not the run's ledger service")
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{BUNDLE}/{ANCHOR}: {error}") from None
    return found


def _has_agreed(bundle: Path) -> bool:
    """Whether its page draws the agreed loss, as those of earlier versions do not; all else is compared."""
    try:
        with open(bundle / REPORT_PAGE, "rb") as file:
            return AGREED.encode() in file.read(PAGE_BYTES_MAX)
    except OSError:
        return True


def _compare(made: Path, given: Path) -> tuple[int, str]:
    """Number of files, and who drew pictures that were not compared, if both folders are otherwise equal.

    Each file has the same bytes in both, or is a picture that another version of matplotlib drew.
    """
    try:
        ours, theirs = set(files_in(made)), set(files_in(given))
    except IntegrityError as error:
        raise IntegrityError(f"bundle/{error}") from None
    drawn_by = ""
    for name in sorted(ours | theirs):
        if name not in theirs:
            raise IntegrityError(f"bundle/{name}: missing")
        if name not in ours:
            raise IntegrityError(f"bundle/{name}: does not belong to this run")
        if (made / name).read_bytes() == (given / name).read_bytes():
            continue
        if name not in PICTURES:
            raise IntegrityError(f"bundle/{name}: differs from what the certified chain says")
        drawn_by = _drawn_by(given / name, f"bundle/{name}", (made / REPORT).read_bytes())
    return len(ours), drawn_by


def _drawn_by(path: Path, name: str, report: bytes) -> str:
    try:
        if (size := path.stat().st_size) > PICTURE_BYTES_MAX:
            raise ValueError(f"{size} bytes, expected at most {PICTURE_BYTES_MAX}")
        return check_other_version(path.read_bytes(), hashlib.sha256(report).hexdigest())
    except ValueError as error:
        raise IntegrityError(f"{name}: {error}") from None


def _check_summary(delivered: Delivered, registered: Registered | None) -> None:
    paid = {
        role: sum(table.paid(role) for table in delivered.tables.values())
        for role in ("operator", "verifier", "fee")
    }
    expected = (
        delivered.run_id.hex(),
        delivered.calendar.rounds,
        None if registered is None else registered.record_id.hex(),
        *paid.values(),
    )
    try:
        summary = parse_json((delivered.root / SUMMARY).read_text())
        money = summary["money"]
        given = (
            summary["run_id"],
            summary["rounds_finalised"],
            summary["record"],
            *(money[name] for name in ("paid_operators", "paid_verifiers", "fees")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{SUMMARY}: {error}") from None
    if given != expected:
        raise IntegrityError(f"{SUMMARY}: differs from the settlements or the model's record")
