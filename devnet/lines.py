"""Lines: the events of a local run, each as one line of text.

Room: devnet (pure). The texts of the ledger service's reports, shared by the live and the line-by-line
display; nothing here knows about terminals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def round_cells(status: Mapping[str, Any]) -> tuple[str, ...]:
    """One round as the texts under `COLUMNS`; past the last training round, "closing"."""
    number, audits = status["round"], status["audits"]
    is_closing = number >= status["rounds"]
    loss = status["loss"]
    return (
        str(number),
        "closing" if is_closing else "-" if loss is None else f"{loss:.4f}",
        "-" if is_closing else f"{status['nodes']}/{status['active']}",
        "-" if is_closing else bytes_text(status["bytes"]),
        f"{status['signatures']}/{status['verifiers']}",
        f"{audits['drawn']}/{audits['passed']}/{audits['failed']}",
        str(status["slashes"]),
        money_text(status["escrow"]),
    )


def round_line(status: Mapping[str, Any]) -> str:
    """One round as a line for a log."""
    number, loss, nodes, size, certificate, _, slashes, escrow = round_cells(status)
    if loss == "closing":
        head = f"closing {number}"
    else:
        done = f"{status['round'] + 1}/{status['rounds']}"
        head = f"round {number} ({done})  loss {loss}  nodes {nodes}  {size}"
    audits = "audits {drawn} drawn {passed} passed {failed} failed".format_map(status["audits"])
    tail = f"certificate {certificate}  {audits}  slashes {slashes}  escrow {escrow} {UNIT}"
    return f"{head}  {tail}"


def event_line(report: Mapping[str, Any]) -> str:
    """A report of a payment as a line, or the kind of a report without a line of its own."""
    match report:
        case {"kind": "slashed", "node": node, "amount": amount, "burnt": burnt, **rest}:
            return one_line(
                f"node {node[:8]} slashed {money_text(amount)} {UNIT}: {money_text(burnt)} burnt, "
                f"{money_text(rest['buyer'])} to buyer, {money_text(rest['challenger'])} to challenger"
            )
        case {"kind": "epoch", "epoch": epoch, "phase": phase, "total": total}:
            return one_line(f"epoch {epoch} {phase}: {money_text(total)} {UNIT}")
        case {"kind": "refunded", "amount": amount}:
            return f"refunded {money_text(amount)} {UNIT} to the buyer"
        case _:
            return one_line(str(report.get("kind", "report")))
