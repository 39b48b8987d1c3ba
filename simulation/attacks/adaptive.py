"""Adaptive: attacks that know the aggregation rule and the honest nodes' next updates.

Room: simulation (pure, seeded). `adaptive` is the optimum against one round of the mean over senders. The
others try to keep their reputation meanwhile (verifier/aggregation/reputation.py): they spend some votes on
agreement and attack with the rest. Their shares are the worst of a sweep (docs/results/robustness.md); none
is proved to be the worst possible.

Shape suffixes: N = blocks, C = 4096, B = live blocks.
"""

from __future__ import annotations

import numpy as np

from assay.protocol.params import BLOCK_SIZE
from assay.simulation.attacks.scene import Dense, Scene, honest_count, honest_votes, is_live, update_at
from assay.training.codec.wire import Update

EVASIVE_SHARE = 0.25  # of its votes an evasive attacker spends on agreeing
FRONT_SHARE = 0.6  # of its votes a front-runner spends on helping
SLEEP_ROUNDS, LIE_ROUNDS = 24, 8


def adaptive(scene: Scene) -> tuple[Update, ...]:
    """The strongest attack on the mean over senders: least progress along `direction_NC`.

    At an index that c honest nodes sent with sum S (signed along the direction), the m-th
    attacker's vote against moves the mean from (S - m + 1) / (c + m - 1) to (S - m) / (c + m). These
    steps shrink with m, so taking the k * f votes worth most in each block (step times
    the direction's size there) is optimal for the block, not a heuristic. An index nobody
    sent is worth most: there one vote alone turns 0 into -1.

    Raises:
        ValueError: the scene has no direction.
    """
    liars, direction = len(scene.own), _direction(scene)
    along, count = honest_votes(scene) * np.sign(direction), honest_count(scene)
    worth = np.stack(
        [
            np.abs(direction) * (_mean_after(along, count, m) - _mean_after(along, count, m + 1))
            for m in range(liars)
        ],
        axis=1,
    ).reshape(scene.block_count, -1)  # (N, attackers * C): all first votes, then all second ones
    blocks = np.flatnonzero(is_live(scene))
    best = np.argsort(-worth[blocks], axis=1, kind="stable")[:, : scene.k * liars]
    index = np.sort(
        best % BLOCK_SIZE, axis=1
    )  # votes on one index are neighbours: they go to different attackers
    return tuple(
        update_at(scene, blocks, mine, -np.take_along_axis(direction[blocks], mine, axis=1))
        for mine in (index[:, liar::liars] for liar in range(liars))
    )


def evasive(scene: Scene) -> tuple[Update, ...]:
    """Agree where most honest nodes agree, and attack where no honest node sends.

    A quarter of the votes repeats what most honest nodes send. The others go against the
    direction, where it is largest among what no honest node sends; the attackers divide those.
    """
    total, count = honest_votes(scene), honest_count(scene)
    copied = round(scene.k * EVASIVE_SHARE)
    blocks = np.flatnonzero(is_live(scene))
    common = np.argsort(-np.abs(total[blocks]), axis=1, kind="stable")[:, :copied]
    free = _free(scene, count)[:, : (scene.k - copied) * len(scene.own)]
    direction = _direction(scene)[blocks]
    sent = []
    for liar in range(len(scene.own)):
        lie = free[:, liar :: len(scene.own)]
        signs = np.take_along_axis(total[blocks], common, axis=1), -np.take_along_axis(direction, lie, axis=1)
        sent.append(
            update_at(scene, blocks, np.concatenate([common, lie], axis=1), np.concatenate(signs, axis=1))
        )
    return tuple(sent)


def front_runner(scene: Scene, share: float = FRONT_SHARE) -> tuple[Update, ...]:
    """Send early what honest nodes will send later, and attack with the rest.

    This share of the votes goes along the direction where it is largest among what nobody sends yet, so later
    rounds support them, better than honest ones; the others go against it at the next largest.
    """
    liars, helped = len(scene.own), round(scene.k * share)
    blocks = np.flatnonzero(is_live(scene))
    free = _free(scene, honest_count(scene))[:, : scene.k * liars]
    direction = _direction(scene)[blocks]
    sent = []
    for liar in range(liars):
        index = np.concatenate(
            [free[:, liar : helped * liars : liars], free[:, helped * liars + liar :: liars]], axis=1
        )
        along = np.take_along_axis(direction, index, axis=1)
        along[:, helped:] *= -1
        sent.append(update_at(scene, blocks, index, along))
    return tuple(sent)


def sleeper(scene: Scene) -> tuple[Update, ...]:
    """Honest for 24 rounds, then 8 rounds of `adaptive`, and again."""
    if scene.round % (SLEEP_ROUNDS + LIE_ROUNDS) < SLEEP_ROUNDS:
        return tuple(scene.own)
    return adaptive(scene)


def _mean_after(along: Dense, count: Dense, votes: int) -> Dense:
    """Mean over senders, along the direction, after this many votes against it."""
    mean: Dense = (along - votes) / np.maximum(count + votes, 1)
    return mean


def _direction(scene: Scene) -> Dense:
    if scene.direction_NC is None:
        raise ValueError("this attack needs the direction of the honest update")
    return scene.direction_NC.astype(np.float64)


def _free(scene: Scene, count: Dense) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """By live block, the coefficients no honest node sends, by falling size of the direction. Shape (B, C).

    Raises:
        ValueError: the wire is dense, so that every coefficient is sent.
    """
    blocks = np.flatnonzero(is_live(scene))
    if np.any(np.count_nonzero(count[blocks] == 0, axis=1) < scene.k * len(scene.own)):
        raise ValueError(
            f"{len(scene.own)} attackers of {scene.k} coefficients each: honest nodes leave too few unused"
        )
    size = np.where(count[blocks] == 0, np.abs(_direction(scene)[blocks]), -1.0)
    order: np.ndarray[tuple[int, int], np.dtype[np.int64]] = np.argsort(-size, axis=1, kind="stable")
    return order
