"""Tables: terminal tables of a finished run: work, payments, and paths.

Room: devnet (pure). From a summary to rich tables; amounts are exact to the last unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from assay.devnet.lines import duration_text
from assay.devnet.summary import Summary, invariants
from assay.orders.amounts import UNIT, bytes_text, money_text
from assay.orders.config_errors import one_line


def report(summary: Summary, places: Mapping[str, Path]) -> Group:
    """All tables below, and finally whether all invariants hold."""
    broken = invariants(summary)
    verdict = [Text(f"* {one_line(violation)}", style="bold red") for violation in broken]
    if not broken:
        verdict = [Text("every invariant holds", style="bold green")]
    tables = (
        training_table(summary),
        nodes_table(summary),
        verifiers_table(summary),
        money_table(summary),
        places_table(places),
    )
    return Group(*(part for table in tables for part in (table, "")), *verdict)


def training_table(summary: Summary) -> Table:
    """The training: rule, data, losses and traffic."""
    loss, wire, audits = summary.loss, summary.wire, summary.audits
    table = _table("Training", "", "")
    table.add_row("parameters", f"{summary.params:,}")
    table.add_row("rounds", f"{summary.rounds_finalised} of {summary.rounds} final")
    table.add_row("trained for", summary.ending.text)
    table.add_row("validation loss", f"{_loss(loss.validation_first)} -> {_loss(loss.validation_last)} nats")
    table.add_row("same parameters everywhere", "yes" if summary.state_agreement else "NO")
    table.add_row("update per node and round", bytes_text(wire.bytes_per_node_round))
    table.add_row("bits per coefficient", f"{wire.bits_per_coefficient:.2f}")
    table.add_row("less than a float32 gradient", f"{wire.reduction_vs_fp32_gradient:,.0f} times")
    table.add_row("audits", f"{audits.drawn} drawn, {audits.passed} passed, {audits.failed} failed")
    table.add_row("model on record", (summary.record or "NO")[:16])
    table.add_row("time", duration_text(summary.wall_s))
    return table


def nodes_table(summary: Summary) -> Table:
    """Work, losses and pay of each node."""
    names = ("node", "behaviour", "accepted", "passed", "failed", "slashed", "paid")
    table = _table(f"Nodes (audits passed and failed; {UNIT})", *names)
    for node in summary.nodes:
        table.add_row(
            node.peer[:8],
            one_line(node.behaviour),
            str(node.accepted),
            str(node.audits_passed),
            str(node.audits_failed or "-"),
            money_text(node.slashed) if node.slashed else "-",
            money_text(node.paid),
            style="red" if node.slashed else None,
        )
    return table


def verifiers_table(summary: Summary) -> Table:
    """Work and pay of each verifier."""
    table = _table(f"Verifiers ({UNIT})", "verifier", "behaviour", "votes", "audits", "slashed", "paid")
    for one in summary.verifiers:
        slashed = money_text(one.slashed) if one.slashed else "-"
        table.add_row(
            one.peer[:8],
            one_line(one.behaviour),
            str(one.votes),
            str(one.audits),
            slashed,
            money_text(one.paid),
            style="red" if one.slashed else None,
        )
    return table


def money_table(summary: Summary) -> Table:
    """Sources and destinations of every token unit."""
    money = summary.money
    table = _table(f"Money ({UNIT})", "", "")
    for title, total, parts in (
        ("funded", "funded", ("paid_operators", "paid_verifiers", "fees", "refunded")),
        ("slashed", "slashed", ("burnt", "to_buyer", "to_challengers")),
    ):
        table.add_row(title, money_text(getattr(money, total)), style="bold")
        for part in parts:
            table.add_row(
                f"  {part.replace('paid_', 'paid to ').replace('_', ' ')}", money_text(getattr(money, part))
            )
    return table


def places_table(places: Mapping[str, Path]) -> Table:
    """Paths by name, relative to the current folder if that is shorter."""
    table = _table("Where things are", "", "")
    table.columns[1].justify = "left"
    table.columns[1].overflow = "fold"
    here = Path.cwd()
    for name, path in places.items():
        shown = path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path
        table.add_row(name, one_line(str(shown)))
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if any(names) else box.SIMPLE,
        show_header=any(names),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, name in enumerate(names):
        is_text = index == 0 or name == "behaviour"
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    return table


def _loss(nats: float | None) -> str:
    return "not finite" if nats is None else f"{nats:.4f}"
