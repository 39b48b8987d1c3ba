"""Scene: what the attackers of a simulated round see, and how they encode their updates.

Room: simulation (pure, seeded). For tests and for `assay sim train`; no node runs these. On a sign wire an
attacker has no amplitude to enlarge: it chooses k indices and k signs a block. With amplitudes it also
chooses levels and a scale within the wire's window; neither has a code for NaN or Inf. Attackers see the
honest updates of the round before they send, and collude: the worst case, which a network that hides updates
until commits are in makes harder.

Shape suffixes: N = blocks, C = 4096, K = sent per block, H = honest nodes, B = live blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIZE, RunSpec
from assay.protocol.types import Digest, PeerId
from assay.training.codec.wire import Update
from assay.training.layout import Layout
from assay.verifier.aggregation.reputation import Reputation

Dense = NDArray[np.float64]
Blocks = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What a verifier aggregates the round with, so that attackers can do so for what they might send.

    run, layout, parent, f: as in `combine`. reputation: before the round; anyone can rebuild it.
    honest, own: the nodes of `Scene.honest` and `Scene.own`, in that order.
    unsent_NC: what each of them has not sent after its honest update; float32.
    """

    run: RunSpec
    layout: Layout
    parent: Digest
    f: int
    reputation: Reputation
    honest: Sequence[PeerId]
    own: Sequence[PeerId]
    unsent_NC: Mapping[PeerId, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the attackers of one round know.

    honest: updates of the honest nodes. own: each attacker's honest update.
    direction_NC: where the model would go, mean momentum of the honest nodes with this round's
    gradient, before anything is sent; float32. Only the attacks of `adaptive` and `searched` use it.
    round: number of the round. foresight: only the attacks of `searched` use it.
    """

    honest: Sequence[Update]
    own: Sequence[Update]
    block_count: int
    k: int
    seed: int
    direction_NC: NDArray[np.float32] | None = None
    round: int = 0
    foresight: Foresight | None = None


def honest_sum(scene: Scene, power: int = 1) -> Dense:
    """Sum of what honest nodes send, or of its squares. Shape (N, C)."""
    total = np.zeros((scene.block_count, BLOCK_SIZE))
    for update in scene.honest:
        total[update.blocks_B[:, None], update.index_BK] += _coefficients(update) ** power
    return total


def honest_moments(scene: Scene) -> tuple[Dense, Dense]:
    """Mean and standard deviation of what honest nodes send. Shape (N, C) each."""
    count = len(scene.honest)
    mean = honest_sum(scene) / count
    return mean, np.sqrt(honest_sum(scene, power=2) / count - mean**2)


def honest_votes(scene: Scene) -> Dense:
    """Sum of honest signs. Shape (N, C)."""
    total = np.zeros((scene.block_count, BLOCK_SIZE))
    for update in scene.honest:
        total[update.blocks_B[:, None], update.index_BK] += np.sign(update.value_BK)
    return total


def honest_count(scene: Scene) -> Dense:
    """How many honest nodes sent a coefficient. Shape (N, C)."""
    count = np.zeros((scene.block_count, BLOCK_SIZE))
    for update in scene.honest:
        count[update.blocks_B[:, None], update.index_BK] += 1
    return count


def is_live(scene: Scene) -> NDArray[np.bool_]:
    """Blocks that an honest node would send: an attack on a dead block would be detected at once."""
    live = np.zeros(scene.block_count, bool)
    for update in (*scene.honest, *scene.own):
        live[update.blocks_B] = True
    return live


def all_send(scene: Scene, wanted_NC: Dense) -> tuple[Update, ...]:
    """Every attacker sends the same."""
    return (strongest(scene, wanted_NC),) * len(scene.own)


def strongest(scene: Scene, wanted_NC: Dense) -> Update:
    """The k largest coefficients of every live block."""
    blocks = np.flatnonzero(is_live(scene))
    index_BK = np.argsort(-np.abs(wanted_NC[blocks]), axis=1, kind="stable")[:, : scene.k]
    return update_at(scene, blocks, index_BK, np.take_along_axis(wanted_NC[blocks], index_BK, axis=1))


def update_at(scene: Scene, blocks_B: Blocks, index_BK: Blocks, value_BK: Dense) -> Update:
    """The signs of these values at these positions, in wire order; zero goes as +.

    On a wire with amplitudes each block has an honest one's scale and median level.
    """
    order = np.argsort(index_BK, axis=1)
    sign_BK = np.where(np.take_along_axis(value_BK, order, axis=1) < 0, -1, 1).astype(np.int8)
    index_BK = np.take_along_axis(index_BK, order, axis=1)
    if scene.own[0].exponent_B is None:
        return Update(blocks_B, index_BK, sign_BK)
    size_N, exponent_N, mantissa_N = (np.zeros(scene.block_count, np.int64) for _ in range(3))
    for update in (*scene.honest, *scene.own):
        assert update.exponent_B is not None and update.mantissa_B is not None
        size_BK = np.sort(np.abs(update.value_BK), axis=1)
        middle_B = size_BK[:, size_BK.shape[1] // 2]
        size_N[update.blocks_B] = np.where(middle_B > 0, middle_B, size_BK[:, -1])
        exponent_N[update.blocks_B] = update.exponent_B
        mantissa_N[update.blocks_B] = update.mantissa_B
    loud_BK = (sign_BK * size_N[blocks_B, None]).astype(np.int32)
    return Update(blocks_B, index_BK, loud_BK, exponent_N[blocks_B], mantissa_N[blocks_B])


def joined(before: Update, after: Update, first: int) -> Update:
    """`before` up to a block, `after` from there on."""
    left, right = before.blocks_B < first, after.blocks_B >= first

    def both(one: NDArray[Any] | None, other: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if one is None or other is None else np.concatenate([one[left], other[right]])

    return Update(
        np.concatenate([before.blocks_B[left], after.blocks_B[right]]),
        np.concatenate([before.index_BK[left], after.index_BK[right]]),
        np.concatenate([before.value_BK[left], after.value_BK[right]]),
        both(before.exponent_B, after.exponent_B),
        both(before.mantissa_B, after.mantissa_B),
    )


def _coefficients(update: Update) -> Dense:
    values: Dense = update.value_BK.astype(np.float64)
    return values if update.exponent_B is None else np.ldexp(values, update.exponent_B[:, None])
