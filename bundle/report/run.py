"""Run report: computes the audit report of a finished run from its folder, and writes its page.

Room: bundle (edge: reads a folder, writes a page).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.bundle.read import claimed_behaviours, local_nodes, read
from assay.bundle.report.auditors import auditors_of
from assay.bundle.report.audits import as_plain, final_audits, node_reports
from assay.node.behaviours import parse_behaviour
from assay.protocol.errors import ConfigError


def report_of(run: Path) -> dict[str, Any]:
    """All figures of a finished run's audits.

    Raises:
        ConfigError: this is no run's folder.
        IntegrityError: its chain is invalid.
    """
    delivered = read(run)
    behaviours = {}
    for peer, seat in local_nodes(run).items():
        if seat.behaviour:
            behaviours[peer] = parse_behaviour(seat.behaviour)
    reports = node_reports(
        delivered.spec, delivered.links, delivered.run_states, behaviours, claimed_behaviours(run)
    )
    audits = final_audits(delivered.run_states).values()
    auditors = auditors_of(delivered.spec, audits, claimed_behaviours(run, "verifiers"))
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
