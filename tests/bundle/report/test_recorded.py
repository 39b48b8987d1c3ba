"""The report of the recorded run is the recorded one: `python -m tests.bundle.report.test_recorded RUN`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from assay.bundle.report.page import report_page
from assay.bundle.report.run import report_of
from assay.cli.result import document

FIGURES = Path(__file__).parents[2] / "vectors" / "golden_report.json"
PAGE = FIGURES.with_suffix(".html")


def figures(text: str) -> Any:
    """The document, with the digits that every machine's functions give alike."""
    return json.loads(text, parse_float=lambda number: round(float(number), 9))


def test_the_report_of_the_recorded_run_has_the_recorded_figures(recorded_run: Path) -> None:
    text = document(report_of(recorded_run))

    assert figures(text) == figures(FIGURES.read_text())
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False)


def test_its_page_is_the_recorded_one(recorded_run: Path) -> None:
    assert report_page(report_of(recorded_run)) == PAGE.read_text()


if __name__ == "__main__":
    report = report_of(Path(sys.argv[1]))
    FIGURES.write_text(document(report) + "\n")
    PAGE.write_text(report_page(report))
