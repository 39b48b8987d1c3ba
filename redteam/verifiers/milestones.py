"""Milestones: attacks on the score that a share of an epoch's price depends on (docs/protocol.md, 6a).

Room: redteam. Runs of four verifiers (f = 1) and one milestone, which the model misses or reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from assay.ledger.settlement.payouts import Settlement, settle
from assay.participant.links import check_place
from assay.protocol.messages import Evaluation, Score
from assay.protocol.params import PPM, AcceptSpec, Milestone
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId
from assay.redteam.attack import Attacks, Outcome, Where
from assay.redteam.members import LIAR
from assay.testing.members import RUN_ID, VERIFIERS
from assay.testing.messages import UNSIGNED
from assay.testing.run import a_manifest, a_spec, funded_start, grow

MILESTONE_ATTACKS = Attacks(Where.CHAIN)
MOST, SHARE_PPM = 3_000_000, 250_000
REACHED, MISSED = (Score(loss_micro=MOST + by, acc_count=0, acc_norm_count=0) for by in (0, 1))


@MILESTONE_ATTACKS.attack(
    "an evaluation that nobody made (2 ways)", 40, "none: more than f lazy or silent verifiers", has_off=False
)
def _unmeasured(is_defended: bool, seed: int) -> Outcome:
    """One of four lies for its buyer and one copies it; or three keep a missed milestone to themselves.

    Silence costs nobody anything, and a miss costs verifiers the same share as nodes.
    """
    copier = VERIFIERS[1]
    honest = dict.fromkeys(VERIFIERS, REACHED)
    copied = _settled(seed, {**honest, LIAR: MISSED, copier: MISSED})
    silent = _settled(seed, {VERIFIERS[3]: MISSED})
    told = _settled(seed, dict.fromkeys(VERIFIERS, MISSED))
    full = _settled(seed, honest).total
    assert told.total == full - full * SHARE_PPM // PPM
    succeeded = (copied.total < full) + (silent.total == full)
    harm = (
        f"copied: {1 - copied.total / full:.0%} of the price is kept back though the model reached it; "
        f"silent: the whole price in place of {told.total / full:.0%} is paid though it missed"
    )
    return Outcome(attempts=2, caught=0, succeeded=succeeded, cost=0.0, harm=harm)


def _settled(seed: int, scores: Mapping[PeerId, Score]) -> Settlement:
    """The pay of an epoch with a milestone of which these verifiers state these scores."""
    spec = a_spec(seed=seed, rounds=12)
    accept = AcceptSpec(
        share_ppm=SHARE_PPM, sequences=2, milestones=(Milestone(epoch=1, most_loss_micro=MOST),)
    )
    run_state = grow(funded_start(replace(spec, money=replace(spec.money, accept=accept))), 8)
    stated = (
        Evaluation(run_id=RUN_ID, epoch=1, verifier=verifier, score=scores[verifier])
        for verifier in VERIFIERS
        if verifier in scores
    )
    manifest = a_manifest(run_state, evaluations=tuple(map(UNSIGNED.evaluation, stated)))
    check_place(run_state, manifest)
    run_state = advance(run_state, manifest)
    return settle(grow(run_state, run_state.calendar.settled_at(1) + 1 - int(run_state.round)), 1)
