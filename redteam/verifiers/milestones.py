"""Milestones: attacks on the score that a share of an epoch's price depends on (docs/protocol.md, 6a).

Room: redteam. Runs of four verifiers (f = 1) and one milestone, which the model misses or reaches. The chain
is what lazy verifiers know: an evaluation travels no earlier than a manifest may carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import assay.ledger.settlement.payouts
from assay.ledger.settlement.payouts import Settlement, settle
from assay.participant.links import check_place
from assay.protocol.messages import Evaluation, EvaluationCommitment, Manifest, Score
from assay.protocol.params import PPM, AcceptSpec, Milestone
from assay.protocol.permitted import may_commit_evaluation, may_open_evaluation
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.members import LIAR
from assay.testing.members import RUN_ID, VERIFIERS, a_digest
from assay.testing.messages import UNSIGNED, an_evaluation_commitment
from assay.testing.run import a_manifest, a_spec, funded_start, grow

MILESTONE_ATTACKS = Attacks(Where.CHAIN)
MOST, SHARE_PPM = 3_000_000, 250_000
REACHED, MISSED = (Score(loss_micro=MOST + by, acc_count=0, acc_norm_count=0) for by in (0, 1))
HONEST = next(one for one in VERIFIERS if one != LIAR)
LAZY = tuple(one for one in VERIFIERS if one not in (LIAR, HONEST))

# What a verifier commits to and what it opens, by the manifests since the epoch's end.
Said = tuple[EvaluationCommitment | None, Evaluation | None]
Mind = Callable[[PeerId, Sequence[Manifest]], Said]


@MILESTONE_ATTACKS.attack(
    "copy an evaluation (2 ways)", 40, "evaluations are committed to before any is opened"
)
def _copied(is_defended: bool, seed: int) -> Outcome:
    """Two of four repeat a liar's score, or its commitment and then its score, and measure nothing."""
    full = _settled(seed, dict.fromkeys(VERIFIERS, _measured(REACHED)), is_sealed=is_defended).total
    caught = 0
    for copied in (_repeated_score, _repeated_bytes):
        minds = {HONEST: _measured(REACHED), LIAR: _measured(MISSED), **dict.fromkeys(LAZY, copied)}
        caught += _settled(seed, minds, is_sealed=is_defended).total == full
    harm = "none: no copy opens" if is_defended else f"{SHARE_PPM / PPM:.0%} of the price is kept back"
    return tallied(2, caught, 0.0, harm)


@MILESTONE_ATTACKS.attack("measure nothing and say nothing", 40, "whoever states the agreed score is paid")
def _saved(is_defended: bool, seed: int) -> Outcome:
    """One of four saves the measurement, and is paid as the others are."""
    minds = {**dict.fromkeys(VERIFIERS, _measured(MISSED)), LIAR: _silent}
    paid = _pay(_settled(seed, minds, is_sealed=is_defended))
    others = [paid.get(one, 0) for one in VERIFIERS if one != LIAR]  # who measured, and did nothing else
    is_caught = paid.get(LIAR, 0) < min(others)
    return tallied(1, int(is_caught), 0.0, "none: it lacks what the others are paid for measuring")


@MILESTONE_ATTACKS.attack(
    "a score by agreement of more than f (2 ways)", 40, "none: more than f verifiers agree", has_off=False
)
def _agreed(_is_defended: bool, seed: int) -> Outcome:
    """A liar tells two others its score before they commit; or three keep a missed milestone to themselves.

    Who is told need not copy. Where all but f are silent no score is agreed, so none of them earns less than
    another, and a miss would cost verifiers the same share as nodes.
    """
    honest = _settled(seed, dict.fromkeys(VERIFIERS, _measured(REACHED)), is_sealed=True)
    told = {HONEST: _measured(REACHED), **dict.fromkeys((LIAR, *LAZY), _measured(MISSED))}
    lied = _settled(seed, told, is_sealed=True)
    silent = {HONEST: _measured(MISSED), **dict.fromkeys((LIAR, *LAZY), _silent)}
    kept = _settled(seed, silent, is_sealed=True)
    missed = _settled(seed, dict.fromkeys(VERIFIERS, _measured(MISSED)), is_sealed=True)
    assert missed.total == honest.total - honest.total * SHARE_PPM // PPM
    harm = (
        f"told: {1 - lied.total / honest.total:.0%} of the price is kept back though the model reached it; "
        f"silent: the whole price in place of {missed.total / honest.total:.0%} is paid though it missed"
    )
    succeeded = (lied.total < honest.total) + (kept.total == honest.total)
    return Outcome(attempts=2, caught=0, succeeded=succeeded, cost=0.0, harm=harm)


def _pay(table: Settlement) -> dict[PeerId, int]:
    return {row.peer: row.amount for row in table.rows if row.role == "verifier"}


def _evaluation(verifier: PeerId, score: Score) -> Evaluation:
    salt = a_digest("salt", verifier.hex())
    return Evaluation(run_id=RUN_ID, epoch=1, verifier=verifier, score=score, salt=salt)


def _measured(score: Score) -> Mind:
    """What it found, or was told, at once."""

    def mind(verifier: PeerId, _seen: Sequence[Manifest]) -> Said:
        found = _evaluation(verifier, score)
        return an_evaluation_commitment(found), found

    return mind


def _silent(_verifier: PeerId, _seen: Sequence[Manifest]) -> Said:
    return None, None


def _repeated_score(verifier: PeerId, seen: Sequence[Manifest]) -> Said:
    """The liar's score in its own name, once it is known."""
    found = next((one for one in _opened(seen) if one.verifier == LIAR), None)
    if found is None:
        return None, None
    own = _evaluation(verifier, found.score)
    return an_evaluation_commitment(own), own


def _repeated_bytes(verifier: PeerId, seen: Sequence[Manifest]) -> Said:
    """The liar's commitment in its own name, and then its evaluation, salt and all."""
    sealed = (one.commitment for manifest in seen for one in manifest.evaluation_commitments)
    bound = next((replace(one, verifier=verifier) for one in sealed if one.verifier == LIAR), None)
    found = next((replace(one, verifier=verifier) for one in _opened(seen) if one.verifier == LIAR), None)
    return bound, found


def _opened(seen: Sequence[Manifest]) -> list[Evaluation]:
    return [signed.evaluation for manifest in seen for signed in manifest.evaluations]


def _may_state(run_state: RunState, found: Evaluation) -> bool:
    """The rule without commitments: a verifier's first counts."""
    return run_state.is_measured(found.epoch) and (found.epoch, found.verifier) not in run_state.evaluations


def _settled(seed: int, minds: Mapping[PeerId, Mind], *, is_sealed: bool) -> Settlement:
    """The pay of an epoch with a milestone, by verifiers of these minds; by commitments, or openly."""
    spec = a_spec(seed=seed, rounds=12)
    accept = AcceptSpec(
        share_ppm=SHARE_PPM,
        sequences=2,
        milestones=(Milestone(epoch=1, most_loss_micro=MOST),),
    )
    may_open = may_open_evaluation if is_sealed else _may_state
    run_state = grow(funded_start(replace(spec, money=replace(spec.money, accept=accept))), 8)
    seen: list[Manifest] = []
    while run_state.round <= run_state.calendar.settled_at(1):
        said = [minds[verifier](verifier, seen) for verifier in VERIFIERS]
        sealed = (one for one, _ in said if one is not None and may_commit_evaluation(run_state, one))
        found = (one for _, one in said if one is not None and may_open(run_state, one))
        manifest = a_manifest(
            run_state,
            evaluation_commitments=tuple(map(UNSIGNED.evaluation_commitment, sealed)) if is_sealed else (),
            evaluations=tuple(map(UNSIGNED.evaluation, found)),
        )
        if is_sealed:
            check_place(run_state, manifest)
        run_state = advance(run_state, manifest)
        seen.append(manifest)
    with without(assay.ledger.settlement.payouts, "evaluation_weight", lambda _: 0, unless=is_sealed):
        return settle(run_state, 1)
