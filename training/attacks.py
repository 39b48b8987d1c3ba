"""Attacks: what liars who know everything would send, as legal updates.

Room: training (pure, seeded). For tests and for `assay sim train`; no node runs these.
On a sign wire an attacker has no amplitude to blow up and no NaN to send: k indices
and k signs a block is all there is to choose. Liars see the honest updates of the
round before they send, and act together: the worst case, which a network that hides
updates until commits are in makes harder.

Names as in byzfl where the attack is there. A value-domain attack is sent as the k
largest coefficients of what it would have sent, ties to the lower index.

Shape suffixes: N = blocks, C = 4096, K = sent per block, H = honest nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.params import BLOCK_SIZE
from training.wire import Update

ALIE_DEVIATIONS = 1.5
SINGLE_BLOCK_SHARE = 8  # one block of so many is attacked, at least one

Dense = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the liars of one round know.

    honest: updates of the honest nodes. own: what each liar would have sent if honest.
    direction_NC: where the model would go, mean momentum of the honest nodes with this round's
        gradient, before anything is sent; float32. Only `adaptive` looks at it.
    """

    honest: Sequence[Update]
    own: Sequence[Update]
    block_count: int
    k: int
    seed: int
    direction_NC: NDArray[np.float32] | None = None


def sign_flip(scene: Scene) -> tuple[Update, ...]:
    """Each liar sends the opposite of what it should (Allen-Zhu et al., arXiv:2012.14368)."""
    return tuple(Update(own.blocks_B, own.index_BK, -own.value_BK) for own in scene.own)


def inner_product(scene: Scene) -> tuple[Update, ...]:
    """All send the opposite of the honest mean (IPM; Xie, Koyejo & Gupta, arXiv:1903.03936)."""
    return _all_send(scene, -_honest_sum(scene))


def little_is_enough(scene: Scene) -> tuple[Update, ...]:
    """All send the mean less 1.5 deviations (ALIE; Baruch, Baruch & Goldberg, arXiv:1902.06156)."""
    total, square = _honest_sum(scene), _honest_count(scene)
    count = len(scene.honest)
    mean = total / count
    deviation = np.sqrt(square / count - mean**2)
    return _all_send(scene, mean - ALIE_DEVIATIONS * deviation)


def mimic(scene: Scene) -> tuple[Update, ...]:
    """All copy one honest node and so drown the others (Karimireddy et al., arXiv:2006.09365)."""
    victim = scene.honest[scene.seed % len(scene.honest)]
    return (victim,) * len(scene.own)


def free_rider(scene: Scene) -> tuple[Update, ...]:
    """Each liar copies another honest node's update, to be paid without work."""
    return tuple(scene.honest[(scene.seed + i) % len(scene.honest)] for i in range(len(scene.own)))


def gaussian(scene: Scene) -> tuple[Update, ...]:
    """Each liar sends the k largest of normal noise: uniform indices and signs."""
    rng = np.random.default_rng(scene.seed)
    shape = (scene.block_count, BLOCK_SIZE)
    return tuple(_strongest(scene, rng.standard_normal(shape)) for _ in scene.own)


def ghost(scene: Scene) -> tuple[Update, ...]:
    """All send the same random signs on indices that no honest node sends, so nobody contradicts."""
    noise = np.random.default_rng(scene.seed).standard_normal((scene.block_count, BLOCK_SIZE))
    is_free = _honest_count(scene) == 0
    return _all_send(scene, np.where(is_free, noise, noise * 1e-6))


def single_block(scene: Scene) -> tuple[Update, ...]:
    """Honest in most blocks, inner-product manipulation in the last eighth: hidden from whole norms."""
    first = scene.block_count - max(1, scene.block_count // SINGLE_BLOCK_SHARE)
    return tuple(_joined(own, lie, first) for own, lie in zip(scene.own, inner_product(scene), strict=True))


def split(scene: Scene) -> tuple[Update, ...]:
    """The liars flip disjoint parts of the k * f largest honest coefficients: no vote is spent twice."""
    total = _honest_sum(scene)
    order = np.argsort(-np.abs(total), axis=1, kind="stable")[:, : scene.k * len(scene.own)]
    blocks = np.flatnonzero(_is_live(scene))
    updates = []
    for liar in range(len(scene.own)):
        index_BK = np.sort(order[blocks, liar :: len(scene.own)], axis=1)
        value_BK = -np.sign(np.take_along_axis(total[blocks], index_BK, axis=1)).astype(np.int8)
        updates.append(Update(blocks, index_BK, np.where(value_BK == 0, 1, value_BK).astype(np.int8)))
    return tuple(updates)


def adaptive(scene: Scene) -> tuple[Update, ...]:
    """The best the liars can do against the mean over senders: least progress along `direction_NC`.

    At an index that c honest nodes sent with sum S (signed along the direction), the m-th
    liar's vote against moves the mean from (S - m + 1) / (c + m - 1) to (S - m) / (c + m). These
    steps shrink with m, so taking the k * f votes worth most in each block (step times
    the direction's size there) is optimal for the block, not a heuristic. An index nobody
    sent is worth most: there one vote alone turns 0 into -1.

    Raises:
        ValueError: the scene has no direction.
    """
    if scene.direction_NC is None:
        raise ValueError("the adaptive attack needs the direction it works against")
    liars = len(scene.own)
    direction = scene.direction_NC.astype(np.float64)
    along, count = _honest_sum(scene) * np.sign(direction), _honest_count(scene)
    worth = np.stack(
        [
            np.abs(direction) * (_mean_after(along, count, m) - _mean_after(along, count, m + 1))
            for m in range(liars)
        ],
        axis=1,
    ).reshape(scene.block_count, -1)  # (N, liars * C): all first votes, then all second ones
    blocks = np.flatnonzero(_is_live(scene))
    best = np.argsort(-worth[blocks], axis=1, kind="stable")[:, : scene.k * liars]
    index = np.sort(
        best % BLOCK_SIZE, axis=1
    )  # votes on one index are neighbours: they go to different liars
    against = np.where(direction > 0, -1, 1).astype(np.int8)
    return tuple(
        Update(blocks, index[:, i::liars], np.take_along_axis(against[blocks], index[:, i::liars], axis=1))
        for i in range(liars)
    )


def _mean_after(along: Dense, count: Dense, votes: int) -> Dense:
    """Mean over senders, along the direction, after so many votes against it."""
    mean: Dense = (along - votes) / np.maximum(count + votes, 1)
    return mean


def _honest_sum(scene: Scene) -> Dense:
    """Sum of honest signs. Shape (N, C)."""
    total = np.zeros((scene.block_count, BLOCK_SIZE))
    for update in scene.honest:
        total[update.blocks_B[:, None], update.index_BK] += update.value_BK
    return total


def _honest_count(scene: Scene) -> Dense:
    """How many honest nodes sent a coefficient. Shape (N, C)."""
    count = np.zeros((scene.block_count, BLOCK_SIZE))
    for update in scene.honest:
        count[update.blocks_B[:, None], update.index_BK] += 1
    return count


def _is_live(scene: Scene) -> NDArray[np.bool_]:
    """Blocks that anybody would send: a lie about a dead block would be seen at once."""
    live = np.zeros(scene.block_count, bool)
    for update in (*scene.honest, *scene.own):
        live[update.blocks_B] = True
    return live


def _all_send(scene: Scene, wanted_NC: Dense) -> tuple[Update, ...]:
    return (_strongest(scene, wanted_NC),) * len(scene.own)


def _strongest(scene: Scene, wanted_NC: Dense) -> Update:
    """The k largest coefficients of every live block; what is zero goes as +."""
    blocks = np.flatnonzero(_is_live(scene))
    order = np.argsort(-np.abs(wanted_NC[blocks]), axis=1, kind="stable")
    index_BK = np.sort(order[:, : scene.k], axis=1)
    picked = np.take_along_axis(wanted_NC[blocks], index_BK, axis=1)
    return Update(blocks, index_BK, np.where(picked < 0, -1, 1).astype(np.int8))


def _joined(before: Update, after: Update, first: int) -> Update:
    """`before` up to a block, `after` from there on."""
    left, right = before.blocks_B < first, after.blocks_B >= first
    return Update(
        np.concatenate([before.blocks_B[left], after.blocks_B[right]]),
        np.concatenate([before.index_BK[left], after.index_BK[right]]),
        np.concatenate([before.value_BK[left], after.value_BK[right]]),
    )
