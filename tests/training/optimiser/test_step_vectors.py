"""Frozen bits of the update rule: what another implementation can check its arithmetic against."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from assay.protocol.auditing.draws import opened_segment
from assay.protocol.types import Digest
from assay.protocol.update_rule import Curve, ScheduleSpec
from assay.testing.members import peer
from assay.testing.specs import a_rule
from assay.training.fragments import fragment_blocks
from assay.training.optimiser.carry import begins_anew, is_renewed
from assay.training.optimiser.inner import InnerState, fresh, inner_step, roots_of
from assay.training.optimiser.momentum_root import zero_root
from assay.training.optimiser.node_state import NodeState, commit
from assay.training.optimiser.schedule import rate_nano
from tests.training.optimiser.test_outer import LAYOUT, SIZE, many_states

VECTORS = Path(__file__).parents[2] / "vectors" / "rule.json"
RUN_ID = Digest(hashlib.sha256(b"run").digest())
SEEDS = tuple(Digest(hashlib.sha256(b"seed %d" % n).digest()) for n in range(12))


def ramp(step: int) -> np.ndarray:
    """Whole multiples of 2^-10 in [-1, 1): no machine computes these otherwise."""
    return ((np.arange(SIZE) * step % 2048 - 1024) / 1024).astype(np.float32)


def renewed(fragments: int, base: int, round_id: int) -> list[int]:
    """Blocks that begin anew in a step, of every fragment; with -1 the inner state, too."""
    rule = a_rule("streaming-diloco", fragments=fragments, apply_lag=0, reset_rounds=8)
    every = np.arange(LAYOUT.blocks)
    found = np.flatnonzero(is_renewed(rule, base, round_id, every, fragment_blocks(LAYOUT, fragments)))
    return [-1] * begins_anew(rule, base, round_id) + found.tolist()


def vectors() -> dict[str, object]:
    """Everything of the rule that must never change, from integers alone."""
    wsd = ScheduleSpec(curve=Curve.WSD, peak_nano=10**6, floor_ppm=100_000, warmup_rounds=3, decay_rounds=4)
    state = InnerState(ramp(7), (ramp(11), np.abs(ramp(13))), 5)
    error = np.resize(ramp(17), (LAYOUT.blocks, 4096))
    sgd = a_rule("fedavg", clip_micro=0, inner_decay_micro=100_000, proximal_micro=1000).local
    stepped = inner_step(sgd, LAYOUT, np.float32(0.25), fresh(sgd, ramp(3)), ramp(5), ramp(9))
    methods = ("demo", "sparseloco", "diloco", "streaming-diloco", "fedavg")
    return {
        "outer steps": many_states(),
        "inner state": roots_of(RUN_ID, LAYOUT, state).digest.hex(),
        "inner SGD step": roots_of(RUN_ID, LAYOUT, stepped).digest.hex(),
        "private roots": {
            name: commit(RUN_ID, a_rule(name), LAYOUT, NodeState(error, state, 3)).hex() for name in methods
        },
        "starting roots": {name: zero_root(RUN_ID, a_rule(name), LAYOUT.blocks).hex() for name in methods},
        "wsd": [rate_nano(wsd, 10, r) for r in range(11)],
        "wsd by step": [rate_nano(wsd, 40, n, 4) for n in (0, 11, 12, 23, 24, 39)],
        "fragments": fragment_blocks(LAYOUT, 3).tolist(),
        "renewed": {
            f"{fragments} fragments, base {base}, round {base + missed}": renewed(
                fragments, base, base + missed
            )
            for fragments in (1, 3)
            for base in (0, 5, 8, 23)
            for missed in (0, 1, 4, 30)
        },
        "segments": [opened_segment(seed, peer("nora"), 5) for seed in SEEDS],
    }


def test_the_rules_arithmetic_digests_and_draws_are_the_frozen_ones():
    assert vectors() == json.loads(VECTORS.read_text())


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n")
