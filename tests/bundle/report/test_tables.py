"""Report tables: in a terminal, text stands on the left and numbers on the right."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from assay.bundle.report.page import report_group
from assay.bundle.report.run import report_of


def test_columns_of_numbers_are_aligned_on_the_right_and_text_on_the_left(recorded_run: Path) -> None:
    parts = report_group(report_of(recorded_run)).renderables
    audits, auditors = (part for part in parts if isinstance(part, Table) and part.show_header)

    sides = {str(column.header): column.justify for column in auditors.columns}
    assert [name for name, side in sides.items() if side == "left"] == ["verifier", "behaviour", "faults"]
    assert {*sides.values()} == {"left", "right"}
    assert [column.justify for column in audits.columns][:3] == ["left", "left", "right"]
    assert {column.justify for column in audits.columns[2:]} == {"right"}
    assert [column.no_wrap for column in audits.columns][:3] == [True, True, False]
