"""Evidence files: what an accused node shows jurors of one operator of its step, as it lies on disk.

Room: participant (pure). `assay appeal open` writes them into the node's folder, the node's process serves
them to verifiers and jurors, and a verifier keeps what it was sent in a folder of the same name, beside the
notice that the node signed for it.

    folder/appeals/CASE-OPERATOR.evidence
    folder/appeals/CASE-OPERATOR.notice
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = "appeals"


def evidence_path(folder: Path, case_id: bytes, index: int) -> Path:
    """Where the evidence about one operator of a case lies."""
    return folder / FOLDER / f"{case_id.hex()}-{index}.evidence"


def notice_path(evidence: Path) -> Path:
    """Where the notice lies that came with this file of evidence."""
    return evidence.with_suffix(".notice")


def cases_shown(folder: Path) -> set[bytes]:
    """The cases that there is evidence about in a participant's folder."""
    names = (path.name.partition("-")[0] for path in evidence_files(folder))
    return {bytes.fromhex(name) for name in names if re.fullmatch("[0-9a-f]{64}", name)}


def evidence_files(folder: Path) -> list[Path]:
    """All evidence in a participant's folder."""
    return sorted((folder / FOLDER).glob("*.evidence"))
