"""Lines: the events of a local run, each as one line of text.

Room: devnet (pure). The texts of the ledger service's reports, shared by the live and the line-by-line
display; nothing here knows about terminals.
"""

from __future__ import annotations

from assay.ledger.queries.report import RoundFigures
from assay.ledger.settlement.ending import Ending
from assay.observer.ledger_service.status import EpochReport, RefundReport, SlashReport
from assay.orders.amounts import UNIT, bytes_text, money_text
from assay.orders.config_errors import one_line

COLUMNS = ("round", "loss", "nodes", "bytes", "cert", "drawn/passed/failed", "slashes", "escrow")


def duration_text(seconds: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3:05, 1:02:03."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def round_cells(figures: RoundFigures) -> tuple[str, ...]:
    """One round as the texts under `COLUMNS`; past the last training round, "closing"."""
    audits, loss = figures.audits, figures.loss
    is_closing = figures.round >= figures.rounds
    return (
        str(figures.round),
        "closing" if is_closing else "-" if loss is None else f"{loss:.4f}",
        "-" if is_closing else f"{figures.nodes}/{figures.active}",
        "-" if is_closing else bytes_text(figures.bytes),
        f"{figures.signatures}/{figures.verifiers}",
        f"{audits.drawn}/{audits.passed}/{audits.failed}",
        str(figures.slashes),
        money_text(figures.escrow),
    )


def round_line(figures: RoundFigures) -> str:
    """One round as a line for a log."""
    number, loss, nodes, size, certificate, _, slashes, escrow = round_cells(figures)
    if loss == "closing":
        head = f"closing {number}"
    else:
        done = f"{figures.round + 1}/{figures.rounds}"
        head = f"round {number} ({done})  loss {loss}  nodes {nodes}  {size}"
    audits = figures.audits
    counts = f"audits {audits.drawn} drawn {audits.passed} passed {audits.failed} failed"
    return f"{head}  certificate {certificate}  {counts}  slashes {slashes}  escrow {escrow} {UNIT}"


def event_line(report: Ending | SlashReport | EpochReport | RefundReport) -> str:
    """A report of a payment, or of an early end, as a line."""
    match report:
        case Ending():
            return f"training ended after {report.text}"
        case SlashReport():
            return one_line(
                f"node {report.node[:8]} slashed {money_text(report.amount)} {UNIT}: "
                f"{money_text(report.burnt)} burnt, {money_text(report.buyer)} to buyer, "
                f"{money_text(report.challenger)} to challenger"
            )
        case EpochReport():
            return one_line(f"epoch {report.epoch} {report.phase}: {money_text(report.total)} {UNIT}")
        case RefundReport():
            return f"refunded {money_text(report.amount)} {UNIT} to the buyer"
