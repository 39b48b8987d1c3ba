"""Evidence that cannot be shown costs a discount and nothing else."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.attestation.evidence import REPORT_BYTES_MAX, DeviceFamily, Evidence, Report
from assay.node.attestation import keep_attested
from assay.protocol.state_transition import advance
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import NODES, a_history, a_manifest


class Loud:
    """An attester with more GPUs than fit."""

    family = DeviceFamily.TDX

    def evidence(self, _binding: object) -> Evidence:
        """As large as each part may be."""
        gpu = Report(family=DeviceFamily.NVIDIA_CC, body=bytes(REPORT_BYTES_MAX), certificates=())
        return Evidence(main=Report(family=DeviceFamily.TDX, body=b"quote", certificates=()), gpus=(gpu,) * 8)


def test_evidence_too_long_to_show_is_said_and_ends_no_process(caplog: pytest.LogCaptureFixture) -> None:
    first = a_history()
    run_state = advance(first, a_manifest(first, NODES))

    async def grown(_beyond: int) -> Any:
        return run_state

    me: Any = SimpleNamespace(spec=run_state.spec, run_id=RUN_ID, me=peer("nora"), domain=a_digest("unused"))
    follower: Any = SimpleNamespace(grown=grown, run_state=run_state)
    nobody: Any = None
    with caplog.at_level(logging.ERROR):
        trio.run(keep_attested, me, nobody, follower, Loud())

    assert "evidence is too long to show" in caplog.text
