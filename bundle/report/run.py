"""Run report: computes the audit report of a finished run from its folder, and writes its page.

Room: bundle (edge: reads a folder, writes a page).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.bundle.read import read
from assay.bundle.report.auditors import auditors_of
from assay.bundle.report.audits import as_plain, final_audits, node_reports
from assay.bundle.report.labels import read_labels
from assay.protocol.errors import ConfigError


def report_of(run: Path) -> dict[str, Any]:
    """All figures of a finished run's audits.

    Raises:
        ConfigError: this is no run's folder.
        IntegrityError: its chain is invalid.
    """
    delivered, labels = read(run), read_labels(run)
    reports = node_reports(delivered.spec, delivered.links, delivered.run_states, labels.nodes)
    audits = final_audits(delivered.run_states).values()
    auditors = auditors_of(delivered.spec, audits, labels.verifiers)
    return {**as_plain(delivered.spec, delivered.run_id, reports), **auditors}


def write_page(path: Path, page: str) -> None:
    """Write the page, replacing a file of that name.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(page)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
