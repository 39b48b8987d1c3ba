"""Evidence file: evidence as the operator's own tool would write it."""

from __future__ import annotations

import base64
import json
from typing import Any

from assay.attestation.evidence import Evidence, Report


def write_evidence(evidence: Evidence) -> str:
    """The JSON text of evidence whose `gpus` are GPUs; `read_evidence` inverts it."""
    main = {"family": evidence.main.family.label, **_report(evidence.main)}
    return json.dumps(main | {"gpus": [_report(gpu) for gpu in evidence.gpus]}, indent=1) + "\n"


def _report(report: Report) -> dict[str, Any]:
    return {
        "report": base64.b64encode(report.body).decode(),
        "certificates": [base64.b64encode(der).decode() for der in report.certificates],
    }
