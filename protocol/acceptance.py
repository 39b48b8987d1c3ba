"""Acceptance: what the verifiers' evaluations of the model after an epoch add up to.

Room: protocol (pure). A run may tie a share of an epoch's price to held-out loss and accuracy after it
(`AcceptSpec`, docs/protocol.md section 6a). Each verifier measures both in the reference class, so honest
scores are equal to the last digit; manifests carry them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.messages import LOSS_MICRO_MAX, Score
from assay.protocol.types import PeerId

_MICRO = 10**6


def agreed_score(scores: Mapping[PeerId, Score], verifiers: Sequence[PeerId]) -> Score | None:
    """The score that more than f of `verifiers` measured, each of its figures the same; None if none is.

    One of more than f is honest, and all honest ones measure the same: with at most f liars there is no
    second such score, and n - f > f honest ones make it whatever the liars say.
    """
    counted = Counter(scores[peer] for peer in verifiers if peer in scores).most_common(1)
    return counted[0][0] if counted and counted[0][1] > faults_tolerated(len(verifiers)) else None


def mean_micro(losses: Iterable[float], targets: int) -> int:
    """The mean loss in millionths of a nat, rounded to even, of sequences with `targets` targets in all.

    Losses are added in order, in float64. 0 without any target; `LOSS_MICRO_MAX` if it is more.
    """
    total = 0.0
    for loss in losses:
        total += loss
    mean = total / max(targets, 1) * _MICRO
    return round(mean) if mean < LOSS_MICRO_MAX else LOSS_MICRO_MAX
