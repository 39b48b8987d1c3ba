"""Auditor report: results of a finished run's auditors, and of the known-answer tasks that tested them.

Room: bundle (pure).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from assay.protocol.audits import Audit, AuditStatus, FaultKind
from assay.protocol.messages import Outcome
from assay.protocol.params import PPM, RunSpec
from assay.protocol.types import PeerId
from assay.verifier.audit.intervals import exact_interval


def auditors_of(spec: RunSpec, audits: Collection[Audit], behaviours: Mapping[PeerId, str]) -> dict[str, Any]:
    """Statistics of a run's auditors, for JSON, table and page.

    Args:
        spec: The run.
        audits: In their final status.
        behaviours: Test behaviours of verifiers, if known.
    """
    known_answers = [
        audit for audit in audits if audit.is_known_answer and audit.ruling is not AuditStatus.DISMISSED
    ]
    found = sum(audit.ruling is AuditStatus.KNOWN_ANSWER and not _passed(audit) for audit in known_answers)
    drawn = [audit.auditors_wanted for audit in audits if audit.auditors_wanted]
    again = drawn.count(2)
    return {
        "verifiers": [
            {
                "peer": member.peer.hex(),
                "behaviour": behaviours.get(member.peer, ""),
                **_record(member.peer, audits, known_answers),
            }
            for member in spec.verifiers
        ],
        "replicated_audits": {
            "drawn": again,
            "of": len(drawn),
            "interval": exact_interval(again, len(drawn)),
            "expected": spec.audit.replication_ppm / PPM,
        },
        "known_answers": {
            "ordered": spec.audit.known_answer_count,
            "judged": len(known_answers),
            "found": found,
            "passed_first": sum(map(_passed, known_answers)),
        },
    }


def _record(peer: PeerId, audits: Collection[Audit], known_answers: Collection[Audit]) -> dict[str, Any]:
    verdicts = [v for audit in audits for v in audit.verdicts if v.verifier == peer]
    faults = Counter(f.failing for audit in audits for f in audit.faults if f.verdict.verifier == peer)
    outcomes = [v.outcome for audit in known_answers for v in audit.verdicts if v.verifier == peer]
    return {
        "verdicts": len(verdicts),
        "unopened": sum(peer in audit.silent for audit in audits),
        "known_answers_found": outcomes.count(Outcome.MISMATCH),
        "known_answers_passed": outcomes.count(Outcome.MATCH),
        "faults": {failing.value: faults[failing] for failing in FaultKind if faults[failing]},
    }


def _passed(audit: Audit) -> bool:
    return any(fault.failing is FaultKind.PASSED for fault in audit.faults)
