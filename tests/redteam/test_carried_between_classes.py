"""Between execution classes honest blocks near the bound of their error match, on either side of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.messages import Outcome
from assay.protocol.types import Digest
from assay.redteam.nodes.test_bed import lab_of
from assay.training.optimiser.carry import mean_block
from assay.training.transform.blocked_dct import row_lengths
from assay.verifier.audit.limits import shipped

pytestmark = pytest.mark.slow


def test_honest_blocks_just_above_and_just_below_their_bound_match():
    lab = lab_of(0)
    steps, honest, rule = lab.trainer.steps, lab.before, lab.spec.rule
    earlier = steps.record(lab.round - 1)
    assert earlier is not None
    x = lab.truth()
    lengths = row_lengths(x)
    beta = rule.compress.feedback_micro / 1e6
    room = sum(beta**n for n in range(rule.compress.reset_rounds))
    bound = np.maximum(lengths, mean_block(rule, lengths)) * room / beta
    drawn = np.random.default_rng(0).standard_normal(x.shape)
    sizes = bound * np.where(np.arange(len(x)) % 2, 0.95, 1.05) / np.linalg.norm(drawn, axis=1)
    before = replace(honest, error_NC=(drawn * sizes[:, None]).astype(np.float32))
    steps.keep(earlier, before, steps.tree(before))
    lab.recompute_worker.limits = shipped()
    try:
        claim = replace(lab.claim(x, before=before), before=before)
        commit = replace(lab.keep(claim), exec_class=Digest(b"\x07" * 32))
        blocks = lab.drawn(claim.update)
        opening = steps.opening(lab.round, blocks)
        found = lab.recompute_worker.examine(commit, claim.update, opening, blocks)
    finally:
        lab.recompute_worker.limits = None
        steps.keep(earlier, honest, steps.tree(honest))

    assert found.outcome is Outcome.MATCH
