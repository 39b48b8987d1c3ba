"""Run report: computes the audit report of a finished run from its folder, and writes its page.

Room: bundle (edge: reads a folder, writes a page).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from assay.bundle.read import read
from assay.bundle.report.auditors import AuditorsReport, auditors_of
from assay.bundle.report.audits import AuditFigures, audit_figures, final_audits, node_reports
from assay.bundle.report.labels import read_labels
from assay.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All figures of a finished run's audits, and of its auditors."""

    audits: AuditFigures
    auditors: AuditorsReport


def report_of(run: Path) -> AuditReport:
    """The audit report of a finished run.

    Raises:
        ConfigError: this is no run's folder.
        IntegrityError: its chain is invalid.
    """
    delivered, labels = read(run), read_labels(run)
    reports = node_reports(delivered.links, delivered.run_states, labels.nodes)
    audits = final_audits(delivered.run_states).values()
    return AuditReport(
        audits=audit_figures(delivered.spec, delivered.run_id, reports),
        auditors=auditors_of(delivered.run_states[-1], audits, labels.verifiers),
    )


def write_page(path: Path, page: str) -> None:
    """Write the page, replacing a file of that name.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(page)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
