"""Searched: attacks that compute the run's rule for what they might send, and send what does most.

Room: simulation (pure, seeded). The rule is the verifiers' own code on the messages of the round and the
reputation before it, all of which a white-box attacker knows (scene.py, `Foresight`).

Shape suffixes: N = blocks, C = 4096, S = 64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.types import PeerId
from assay.protocol.update_rule import BLOCK_SIDE, Outer, Transform
from assay.simulation.attacks.adaptive import adaptive, front_runner
from assay.simulation.attacks.scene import (
    Foresight,
    Scene,
    all_send,
    honest_moments,
    is_live,
    joined,
    update_at,
)
from assay.training.codec.wire import Update
from assay.training.exact import inverse_values
from assay.training.optimiser.aggregate import decode_round, decode_step
from assay.verifier.aggregation.combine import combine, observed
from assay.verifier.aggregation.gram import Ints
from assay.verifier.aggregation.registry import uses_reputation
from assay.verifier.aggregation.reputation import (
    WINDOW,
    RememberedUpdate,
    Reputation,
    RoundAgreement,
    admitted,
)

# Deviations tried first; then the middles between the best one and its neighbours.
DEVIATIONS = (-4.0, -1.5, -0.5, 0.5, 1.5, 4.0)
SHARES = (0.125, 0.25, 0.5, 1.0)  # of the blocks, in which a banker may lie
_LOUDEST = 1 << 14  # of a coefficient, for `inverse_values`


def optimised_little_is_enough(scene: Scene) -> tuple[Update, ...]:
    """`little_is_enough` with the deviations, of either sign, by which the round makes least progress.

    Reference:
        Shejwalkar & Houmansadr, "Manipulating the Byzantine", NDSS 2021 (the search); byzfl's
        Optimal_ALittleIsEnough.

    Raises:
        ValueError: the scene has no direction, or no foresight.
    """
    mean, deviation = honest_moments(scene)

    def sent_at(deviations: float) -> tuple[Update, ...]:
        return all_send(scene, mean - deviations * deviation)

    def tried(*deviations: float) -> dict[float, float]:
        return dict(zip(deviations, progress(scene, [sent_at(z) for z in deviations]), strict=True))

    found = tried(*DEVIATIONS)
    best = min(found, key=lambda z: found[z])
    found |= tried(*((low + high) / 2 for low, high in pairwise(DEVIATIONS) if best in (low, high)))
    return sent_at(min(found, key=lambda z: found[z]))


def banker(scene: Scene) -> tuple[Update, ...]:
    """Earn a score by honest work, and spend it: `adaptive` in as many blocks as leave the attacker heard.

    A lie does not change whether its own round hears it, but what later rounds say of it does. So each
    attacker lies in the largest share of the blocks with which it would still be heard once its message has
    been compared with later ones, as far as these can be foreseen. Who is not heard now is honest.

    Raises:
        ValueError: the scene has no direction, or no foresight.
    """
    is_heard = heard(scene, scores_now(scene, scene.own))
    lies, sent = adaptive(scene), list(scene.own)
    firsts = (scene.block_count - round(scene.block_count * share) for share in SHARES)
    tries = [
        tuple(joined(own, lie, first) for own, lie in zip(scene.own, lies, strict=True)) for first in firsts
    ]
    for tried, later in zip(tries, scores_later(scene, tries), strict=True):
        for liar, stays in enumerate(heard(scene, later)):
            if is_heard[liar] and stays:
                sent[liar] = tried[liar]
    return tuple(sent)


def front_banker(scene: Scene) -> tuple[Update, ...]:
    """A `banker` that earns more than honest work does: it sends early what honest nodes will send later.

    Raises:
        ValueError: as of `banker`; or the wire is dense.
    """
    return banker(replace(scene, own=front_runner(scene, share=1.0)))


def progress(scene: Scene, tries: Sequence[Sequence[Update]]) -> list[float]:
    """For each try of the attackers, how far the run's rule moves the model along `direction_NC`.

    Unit: the direction's times the step's, where steps of signs are of size 1.

    Raises:
        ValueError: the scene has no direction, or no foresight.
    """
    if scene.direction_NC is None:
        raise ValueError("this attack needs the direction of the honest update")
    known = _foresight(scene)
    rule = known.run.rule
    along_NC = scene.direction_NC.astype(np.float64)
    is_sign = rule.outer.kind is Outer.SIGN
    if is_sign and rule.compress.transform is Transform.DCT:
        unit = max(float(np.abs(along_NC).max()), 1e-30) / _LOUDEST
        whole_NSS, shift = inverse_values(_squares(np.rint(along_NC / unit).astype(np.int32)))
        along_NC = np.ldexp(whole_NSS * unit, -shift).reshape(along_NC.shape)
    found = []
    for sent in tries:
        updates = _updates(scene, sent)
        body = combine(known.run, known.layout, known.parent, known.f, known.reputation, updates).body
        if not body:
            found.append(0.0)
        elif is_sign:
            found.append(float((_squares(along_NC) * decode_step(rule, body, scene.block_count)).sum()))
        else:
            mean = decode_round(rule, body, scene.block_count)
            assert mean.exponent_N is not None
            found.append(
                sum(
                    float((np.ldexp(value_NC, mean.exponent_N[some, None]) * along_NC[some]).sum())
                    for some, value_NC in mean.dense()
                )
            )
    return found


def scores_now(scene: Scene, sent: Sequence[Update]) -> Reputation:
    """The reputation by which verifiers judge this round, if the attackers send these.

    Raises:
        ValueError: the scene has no foresight.
    """
    known = _foresight(scene)
    return observed(known.run, known.layout, known.reputation, _updates(scene, sent))


def scores_later(scene: Scene, tries: Sequence[Sequence[Update]]) -> list[Reputation]:
    """For each try, what `scores_now` becomes until its last message is forgotten, if all now said no more.

    Every node is taken to repeat, for as long, the largest of what it has not sent yet.
    """
    known, reputations = _foresight(scene), [scores_now(scene, sent) for sent in tries]
    coming = {peer: _largest(scene, known.unsent_NC[peer]) for peer in (*known.honest, *known.own)}

    def net_of(one: Mapping[PeerId, RememberedUpdate]) -> Ints:
        return observed(known.run, known.layout, Reputation(past=(one,)), coming).window[-1].net_NN

    if not reputations[0].past:  # the rule uses none
        return reputations
    before, peers = [net_of(one) for one in reputations[0].past[:-1]], tuple(sorted(coming))
    found = []
    for now in reputations:
        nets = np.array([*before, net_of(now.past[-1])])
        ahead = [RoundAgreement(peers, nets[oldest:].sum(axis=0)) for oldest in range(len(nets))]
        found.append(replace(now, window=(*now.window, *ahead)[-WINDOW:]))
    return found


def heard(scene: Scene, reputation: Reputation) -> tuple[bool, ...]:
    """Of each attacker, whether its update counts in a round judged by this reputation."""
    known = _foresight(scene)
    if not uses_reputation(known.run.rule.aggregation.name):
        return (True,) * len(known.own)
    counted = admitted(reputation, f=known.f, stratum_of=known.run.stratum_of)
    return tuple(peer in counted for peer in known.own)


def _largest(scene: Scene, unsent_NC: NDArray[np.float32]) -> Update:
    """The k largest coefficients of every live block, in any order among equals."""
    blocks = np.flatnonzero(is_live(scene))
    unsent_BC = unsent_NC[blocks].astype(np.float64)
    index_BK = np.argpartition(-np.abs(unsent_BC), scene.k - 1, axis=1)[:, : scene.k]
    return update_at(scene, blocks, index_BK, np.take_along_axis(unsent_BC, index_BK, axis=1))


def _squares(of_NC: NDArray[Any]) -> NDArray[Any]:
    return of_NC.reshape(-1, BLOCK_SIDE, BLOCK_SIDE)


def _updates(scene: Scene, sent: Sequence[Update]) -> dict[PeerId, Update]:
    known = _foresight(scene)
    return dict(zip((*known.honest, *known.own), (*scene.honest, *sent), strict=True))


def _foresight(scene: Scene) -> Foresight:
    if scene.foresight is None:
        raise ValueError("this attack needs what the verifiers compute with")
    return scene.foresight
