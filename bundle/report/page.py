"""Audit page: an audit report as terminal tables or as one self-contained HTML page.

Room: bundle (pure). The page loads nothing: no script, no style sheet, no picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from rich import box
from rich.console import Group
from rich.table import Table

from assay.bundle.report.audits import CLASSES, Counts
from assay.bundle.report.run import AuditReport
from assay.orders.config_errors import one_line

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; width: 100%; margin: 1em 0 2em }
th, td { text-align: right; padding: .3em .6em; border-bottom: 1px solid #ddd }
th:first-child, td:first-child, th.text, td.text { text-align: left }
tr.caught td { background: #fdeaea } tr.missed td { background: #fff3c4 } tr.all td { font-weight: bold }
td.text { font-family: ui-monospace, monospace } footer { color: #666; font-size: 90% }
"""


def report_group(report: AuditReport) -> Group:
    """The report for a terminal."""
    title = f"Audits of {one_line(report.audits.run)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for position, name in enumerate(_HEAD):
        is_name = position < 2
        heading = name.replace("_", " ")
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=is_name, overflow="fold")
    for kind, cells in _rows(report):
        table.add_row(*cells, style={"caught": "red", "missed": "yellow", "all": "bold"}.get(kind))
    facts = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False)
    facts.add_column()
    facts.add_column(overflow="fold")
    for name, text in _facts(report):
        facts.add_row(name, text)
    auditors = Table(title="Auditors", title_justify="left", box=box.SIMPLE_HEAD)
    for position, name in enumerate(_AUDITORS):
        auditors.add_column(name, justify="left" if position in (0, 1, 6) else "right", overflow="fold")
    for is_failed, cells in _auditor_rows(report):
        auditors.add_row(*cells, style="red" if is_failed else None)
    return Group(table, "", auditors, "", facts)


def report_page(report: AuditReport) -> str:
    """The report as one HTML page."""
    head = "".join(
        f'<th class="text">{escape(name)}</th>' if i < 2 else f"<th>{escape(name)}</th>"
        for i, name in enumerate(_HEAD)
    )
    rows = "\n".join(
        f'<tr class="{kind}">'
        + "".join(
            f'<td class="text">{escape(cell)}</td>' if i < 2 else f"<td>{escape(cell)}</td>"
            for i, cell in enumerate(cells)
        )
        + "</tr>"
        for kind, cells in _rows(report)
    )
    auditor_head = "".join(f'<th class="text">{escape(name)}</th>' for name in _AUDITORS)
    auditors = "\n".join(
        f'<tr class="{"caught" if is_failed else "honest"}">'
        + "".join(f'<td class="text">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for is_failed, cells in _auditor_rows(report)
    )
    facts = "\n".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in _facts(report)
    )
    title = f"Audits of {escape(report.audits.run)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
        f"<p>Run {escape(report.audits.run_id.hex())}</p>\n"
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n"
        f"<h2>Auditors</h2>\n<table><thead><tr>{auditor_head}</tr></thead>\n"
        f"<tbody>\n{auditors}\n</tbody></table>\n"
        f"<table><tbody>\n{facts}\n</tbody></table>\n"
        "<footer>Counted from the certified chain; which nodes were told to cheat, from the local "
        "network's own files. Intervals are exact, 95 %.</footer>\n</body></html>\n"
    )


_AUDITORS = (
    "verifier",
    "behaviour",
    "verdicts",
    "not opened",
    "known answers found",
    "known answers passed",
    "faults",
)
_HEAD = ("node", "behaviour", "steps", "drawn", *CLASSES, "expected")


def _rows(report: AuditReport) -> Iterator[tuple[str, list[str]]]:
    for node in report.audits.nodes:
        is_cheat = node.label is not None and node.label.is_cheat
        kind = ("caught" if node.is_caught else "missed") if is_cheat else "honest"
        yield kind, _cells(node.peer.hex()[:8], node.behaviour or "?", node.counts)
    yield "all", _cells("all", "", report.audits.all)


def _auditor_rows(report: AuditReport) -> Iterator[tuple[bool, list[str]]]:
    for one in report.auditors.verifiers:
        numbers = (one.verdicts, one.unopened, one.known_answers_found, one.known_answers_passed)
        faults = ", ".join(f"{count} times {name}" for name, count in one.faults.items())
        head = [one.peer[:8], one_line(one.behaviour or "?")]
        yield bool(one.faults), [*head, *(str(n or "-") for n in numbers), faults or "-"]


def _cells(name: str, behaviour: str, counts: Counts) -> list[str]:
    numbers = [str(getattr(counts, key) or "-") for key in ("steps", "drawn", *CLASSES)]
    return [name, one_line(behaviour), *numbers, f"{counts.expected:.1f}"]


def _facts(report: AuditReport) -> Iterator[tuple[str, str]]:
    audits, auditors = report.audits, report.auditors
    rate, cheats, alarms = audits.rate, audits.cheats, audits.false_alarms
    if rate.measured is not None:
        z = "no chance in it" if rate.z is None else f"{rate.z:+.2f} standard deviations"
        yield "audit rate", f"{rate.measured:.1%} measured, {rate.expected:.1%} by the rule ({z})"
    names = [f"{peer[:8]} missed" for peer in cheats.missed]
    names = [f"{peer[:8]} caught" for peer in cheats.caught] + names
    yield "cheating nodes", f"{cheats.nodes}: {', '.join(names)}" if names else "none"
    if cheats.by_audit:
        low, high = cheats.caught_interval
        yield (
            "caught by audit",
            f"{cheats.caught_by_audit} of {cheats.by_audit} nodes ({low:.1%} to {high:.1%}); "
            f"{cheats.expected_by_audit:.2f} expected: sum of 1 - product(1 - rate) over false steps",
        )
    if cheats.power is not None:
        low, high = cheats.power_interval
        yield (
            "power of an audit",
            f"{cheats.power:.1%} of {cheats.steps_found + cheats.steps_missed} false steps that "
            f"were drawn and decided ({low:.1%} to {high:.1%}); the formula takes 95 %",
        )
    bound_kind = "3/n" if not alarms.accused else "exact bound"
    yield (
        "false alarms",
        f"{alarms.accused} of {alarms.judged} honest steps accused, {alarms.confirmed} confirmed; "
        f"true rate below {alarms.rate_below:.2%} ({bound_kind}, 95 %)",
    )
    looks, known_answers = auditors.replicated_audits, auditors.known_answers
    if looks.of:
        low, high = looks.interval
        yield (
            "second looks",
            f"{looks.drawn} of {looks.of} investigations ({low:.1%} to {high:.1%}); "
            f"{looks.expected:.1%} by the rule",
        )
    if known_answers.ordered:
        yield (
            "known-answer tasks",
            f"{known_answers.ordered} ordered, {known_answers.judged} drawn and shown, "
            f"{known_answers.found} found at once, {known_answers.passed_first} passed first",
        )
    if audits.unlabelled:
        yield "labels", "some nodes' behaviour is not known here; they count as honest"
