"""Frozen bounds and numbers of what attesters and verifiers exchange: a change here changes what is refused.

`python -m tests.attestation.test_limits` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path

from assay.attestation.devices.software import SignedStatement
from assay.attestation.evidence import Collateral, Evidence
from assay.attestation.policy import AppraisalPolicy
from assay.attestation.result import AttestationResult
from tests.protocol.strategies import limits

LIMITS = Path(__file__).parents[1] / "vectors" / "attestation_limits.json"
KINDS = (Evidence, Collateral, AppraisalPolicy, AttestationResult, SignedStatement)


def test_every_bound_and_every_number_of_an_enumeration_is_the_frozen_one():
    assert limits(KINDS) == json.loads(LIMITS.read_text())


if __name__ == "__main__":
    LIMITS.write_text(json.dumps(limits(KINDS), indent=1) + "\n")
