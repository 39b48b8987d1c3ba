"""Earnings: a node's paid and unpaid steps by epoch, as lines on a terminal.

Room: cli (edge: reads the books, and a chain if one is named). The values come from
ledger/queries/earned.py and ledger/queries/settled.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.bundle.books import find_books, opened, spec_of
from assay.chain.state import EpochState
from assay.chain.text.settlement_phase import appeal_text
from assay.ledger.queries.earned import Earned, Evidence, Unpaid, read_unpaid
from assay.ledger.queries.settled import appeal_by_books, read_appeal
from assay.ledger.settlement.results import run_id_of
from assay.orders.amounts import token_text
from assay.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Reasons:
    """The unpaid steps of an epoch, and until when they can be objected to."""

    epoch: Unpaid
    appeal: str


def earning_lines(found: Earned) -> Iterator[str]:
    """One line per epoch, and the sum."""
    yield f"node {found.peer.hex()}"
    for one in found.epochs:
        counted = f"epoch {one.epoch}: {one.steps} steps accepted, {one.tokens:,} tokens"
        if not one.is_settled:
            yield f"{counted}, not settled yet"
            continue
        state = "" if not one.amount else ", claimed" if one.is_claimed else ", to be claimed"
        why = f"; {one.unpaid} unpaid, see --why {one.epoch}" if one.unpaid else ""
        yield f"{counted}, {token_text(one.amount)}{state}{why}"
    yield f"total {token_text(found.total)}"


def read_reasons(run: Path, node: str, epoch: int, config: Path | None = None) -> Reasons:
    """Every unpaid step of the epoch, the digests that show why, and the deadline for objections.

    Args:
        run: Folder of the run, or its ledger.db.
        node: Peer id of the node, or the beginning of it.
        epoch: From 0.
        config: A participant's file whose endpoint is queried for the deadline; None reads the books alone.

    Raises:
        ConfigError: no such node, or the node has no step in this epoch, or it is not settled; or the
            file is of another run.
    """
    place = find_books(run)
    run_id = None if place.spec is None else run_id_of(spec_of(place))
    on_chain = None if config is None else _ask_chain(config, run_id, epoch)
    with opened(place) as db:
        found = read_unpaid(db, node, epoch)
        known_run = run_id if on_chain is None else on_chain.run_id
        booked = None if known_run is None else read_appeal(db, known_run, epoch)
    if on_chain is not None:
        ended = None if booked is None else booked.ends_at
        return Reasons(found, appeal_text(on_chain.state, on_chain.now, ended))
    if known_run is None:
        return Reasons(found, "these books do not name their run: give the run's folder, or --config")
    return Reasons(found, appeal_by_books(booked, int(time.time())))


def reason_lines(reasons: Reasons) -> Iterator[str]:
    """Each unpaid step with its evidence, and the deadline."""
    found = reasons.epoch
    for step in found.unpaid:
        yield f"round {step.round}: {step.reason.text} ({step.tokens:,} tokens)"
        yield f"    commit   {step.commit.hex()}"
        yield f"    update   {step.update.hex()}"
        yield f"    manifest {step.manifest.hex()}"
        yield from _evidence_lines(step.evidence)
        if step.fault_round is not None:
            yield f"    because of round {step.fault_round}:"
            yield from _evidence_lines(step.fault)
    yield f"{len(found.unpaid)} of {found.steps} steps in epoch {found.epoch} were not paid"
    yield f"appeal: {reasons.appeal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChainView:
    """The chain's data about one epoch."""

    run_id: bytes
    state: EpochState
    now: int


def _ask_chain(config: Path, run_id: bytes | None, epoch: int) -> _ChainView:
    from assay.chain.reader import ChainReader  # importing web3 takes a second
    from assay.cli.process import read_process_file
    from assay.participant.config import read_run

    given, _ = read_process_file(config)
    run, deployment = read_run(given)
    if run_id is not None and run_id != run.run_id:
        raise ConfigError(
            f"{config} is of run {run.run_id.hex()[:16]}, the books are of run {run_id.hex()[:16]}"
        )
    if not 0 <= epoch < run.spec.epochs:
        raise ConfigError(f"the run has {run.spec.epochs} epochs, counted from 0; there is no epoch {epoch}")
    chain = ChainReader(given.rpc_url, deployment)
    chain.check_deployment()
    return _ChainView(
        run_id=run.run_id,
        state=chain.epoch_state(run.run_id, epoch),
        now=chain.timestamp(),
    )


def _evidence_lines(found: Evidence) -> Iterator[str]:
    for draw in found.draws:
        yield f"    audit    drawn in round {draw.round}, offence {draw.offence_id.hex()}"
    for one in found.findings:
        yield (
            f"    verdict  {one.outcome} by {one.verifier.hex()[:8]} "
            f"in round {one.round}, manifest {one.manifest.hex()}"
        )
    for end in found.rulings:
        yield f"    ruling   {end.ruling} in round {end.round}, manifest {end.manifest.hex()}"
