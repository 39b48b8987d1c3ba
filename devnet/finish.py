"""Finish: writes the summary and the signed index of a finished local run.

Room: devnet (edge). Every figure is read from the delivered bundle, not from what processes reported while
they ran.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from assay.bundle.read import Delivered, read
from assay.bundle.registry.files import FOLDER, RECORD
from assay.bundle.report.charts import MICRO
from assay.bundle.report.labels import Labels, write_labels
from assay.bundle.report.training import training_report
from assay.devnet.faults.behaviours import Behaviour, parse_behaviour
from assay.devnet.provision import ProvisionedNetwork
from assay.devnet.summary import (
    AuditTotals,
    BooksCheck,
    Losses,
    NodeResult,
    Summary,
    VerifierResult,
    WireFigures,
    finite,
    summary_json,
    wire_figures,
)
from assay.ledger.queries.report import NodeFigures, SettledFigures
from assay.observer.ledger_service.status import AgreementReport
from assay.participant.files.index import write_index
from assay.protocol.identity import peer_of
from assay.protocol.messages import Commit
from assay.protocol.types import PeerId
from assay.training.layout import layout_of


def finish(
    network: ProvisionedNetwork, settled: SettledFigures, agreement: AgreementReport, wall_s: float
) -> Summary:
    """Write `summary.json`, collect the run's inputs, sign the index; return the summary.

    Raises:
        AssayError: the bundle is not there.
    """
    root, spec = network.root, network.spec
    delivered = read(root)
    links = delivered.links
    commits = [[signed.commit for signed in link.manifest.commits] for link in links]
    rounds = settled.ending.rounds
    training = commits[:rounds]
    held_out = training_report(delivered).held_out
    accepted = [commit for group in commits for commit in group]
    verdicts = [signed.verdict for link in links for signed in link.manifest.verdicts]
    behaviours, auditors = _behaviours(network)
    labels = {peer: behaviour.label() for peer, behaviour in behaviours.items()}
    write_labels(root, Labels(nodes=labels, verifiers=auditors))
    summary = Summary(
        run_id=network.run_id.hex(),
        deployment_id=spec.deployment_id.hex(),
        rounds=spec.rounds,
        rounds_finalised=sum(link.manifest.round < rounds for link in links),
        ending=settled.ending,
        unsettled_steps=settled.unsettled_steps,
        wall_s=round(wall_s, 1),
        params=layout_of(spec.model).parameters,
        loss=Losses(
            first=finite(_mean_loss(training[0] if training else [])),
            last=finite(_mean_loss(training[-1] if training else [])),
            validation_first=None if held_out is None else held_out.first_micro / MICRO,
            validation_last=None if held_out is None else held_out.last_micro / MICRO,
            is_minimised=not spec.compute.is_grpo,
        ),
        state_agreement=agreement.ok,
        record=_record(root / "bundle" / FOLDER / RECORD),
        wire=_wire(delivered, accepted),
        audits=AuditTotals(
            **asdict(settled.audits),
            opening_bytes_max=max((verdict.opening_bytes for verdict in verdicts), default=0),
        ),
        nodes=tuple(
            _node_result(one, behaviours[PeerId(bytes.fromhex(one.peer))].name) for one in settled.nodes
        ),
        verifiers=tuple(
            VerifierResult(behaviour=auditors[PeerId(bytes.fromhex(one.peer))], **asdict(one))
            for one in settled.verifiers
        ),
        money=settled.money,
        ledger=BooksCheck(
            trial_balance=settled.trial_balance, chain_matches_books=settled.chain_matches_books
        ),
    )
    (root / "summary.json").write_text(summary_json(summary) + "\n")
    _copy_books(network.member("ledger").folder / "ledger.db", root / "ledger.db")
    write_index(root, network.member("buyer").keys.account_key)
    return summary


def _behaviours(network: ProvisionedNetwork) -> tuple[dict[PeerId, Behaviour], dict[PeerId, str]]:
    """The scenario's behaviours of all nodes, and of all verifiers."""
    texts = {
        role: {peer_of(member.keys.peer): member.behaviour for member in network.seats if member.role == role}
        for role in ("node", "verifier")
    }
    return {peer: parse_behaviour(text) for peer, text in texts["node"].items()}, texts["verifier"]


def _node_result(figures: NodeFigures, behaviour: str) -> NodeResult:
    plain = asdict(figures)
    del plain["unpaid"]  # listed in the books, and by `assay ledger faults`
    return NodeResult(behaviour=behaviour, **plain)


def _record(path: Path) -> str | None:
    return str(json.loads(path.read_text())["record_id"]) if path.is_file() else None


def _copy_books(source: Path, target: Path) -> None:
    """Copy the books into one file, including what SQLite keeps beside the original."""
    with closing(sqlite3.connect(source)) as books, closing(sqlite3.connect(target)) as copy:
        books.backup(copy)


def _mean_loss(commits: list[Commit]) -> float:
    if not commits:
        return float("nan")
    return sum(commit.loss_micro for commit in commits) / len(commits) / 1e6


def _wire(delivered: Delivered, commits: list[Commit]) -> WireFigures:
    from assay.training.codec.contribution import decode_contribution

    spec, layout = delivered.spec, layout_of(delivered.spec.model)
    coefficients = sum(
        decode_contribution(spec, layout, int(commit.round), delivered.update(commit)).index_BK.size
        for commit in commits
    )
    return wire_figures(
        len(commits), sum(commit.update_bytes for commit in commits), coefficients, layout.parameters
    )
