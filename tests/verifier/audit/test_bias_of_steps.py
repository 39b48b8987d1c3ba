"""Bias of steps: a recompute in another class asks the bias memory of each step that matches, of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.devnet.faults.behaviours import NODE_CHEATS
from assay.protocol.messages import Commit, Outcome
from assay.verifier.audit.bias_memory import BiasMemory
from assay.verifier.audit.limits import Limits
from tests.verifier.audit import test_exact
from tests.verifier.audit.test_tolerance import audited_by_another_class

pytestmark = pytest.mark.slow


class Suspicious(BiasMemory):
    """Finds every node biased, and keeps the commits that it was asked about."""

    asked: list[Commit]

    def is_biased(self, commit, measured, blocks, limit):
        self.asked.append(commit)
        return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Commit]:
    """Commits that the memory was asked about."""
    commits: list[Commit] = []
    monkeypatch.setattr(Suspicious, "asked", commits, raising=False)
    monkeypatch.setattr("assay.verifier.audit.worker.BiasMemory", Suspicious)
    return commits


def test_steps_that_match_are_biased_if_the_memory_says_so_and_it_is_asked_about_no_other(
    tmp_path: Path, monkeypatch, asked
):
    cheat = min(set(NODE_CHEATS) - test_exact.ELSEWHERE)
    findings = audited_by_another_class(tmp_path, monkeypatch, cheat, Limits())

    outcomes = [finding.outcome for finding in findings]
    assert outcomes == [Outcome.MATCH] * (len(findings) - 1) + [Outcome.MISMATCH] and len(asked) > 0
    assert [finding.is_biased for finding in findings] == [True] * len(asked) + [False]
