"""Scene: what the liars of a round see, and how they say what they want to.

Room: training (pure, seeded). For tests and for `assay sim train`; no node runs these.
On a sign wire an attacker has no amplitude to blow up and no NaN to send: k indices
and k signs a block is all there is to choose. Liars see the honest updates of the
round before they send, and act together: the worst case, which a network that hides
updates until commits are in makes harder.

Shape suffixes: N = blocks, C = 4096, K = sent per block, H = honest nodes, B = live blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.params import BLOCK_SIZE
from training.wire import Update

Dense = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the liars of one round know.

    honest: updates of the honest nodes. own: what each liar would have sent if honest.
    direction_NC: where the model would go, mean momentum of the honest nodes with this round's
        gradient, before anything is sent; float32. Only the attacks of `adaptive` look at it.
    round: number of the round.
    """

    honest: Sequence[Update]
    own: Sequence[Update]
    block_count: int
    k: int
    seed: int
    direction_NC: NDArray[np.float32] | None = None
    round: int = 0


def honest_sum(scene: Scene) -> Dense:
    """Sum of honest signs. Shape (N, C)."""
    total = np.zeros((scene.block_count, BLOCK_SIZE))
    for update in scene.honest:
        total[update.blocks_B[:, None], update.index_BK] += update.value_BK
    return total


def honest_count(scene: Scene) -> Dense:
    """How many honest nodes sent a coefficient. Shape (N, C)."""
    count = np.zeros((scene.block_count, BLOCK_SIZE))
    for update in scene.honest:
        count[update.blocks_B[:, None], update.index_BK] += 1
    return count


def is_live(scene: Scene) -> NDArray[np.bool_]:
    """Blocks that anybody would send: a lie about a dead block would be seen at once."""
    live = np.zeros(scene.block_count, bool)
    for update in (*scene.honest, *scene.own):
        live[update.blocks_B] = True
    return live


def all_send(scene: Scene, wanted_NC: Dense) -> tuple[Update, ...]:
    return (strongest(scene, wanted_NC),) * len(scene.own)


def strongest(scene: Scene, wanted_NC: Dense) -> Update:
    """The k largest coefficients of every live block; what is zero goes as +."""
    blocks = np.flatnonzero(is_live(scene))
    order = np.argsort(-np.abs(wanted_NC[blocks]), axis=1, kind="stable")
    index_BK = np.sort(order[:, : scene.k], axis=1)
    picked = np.take_along_axis(wanted_NC[blocks], index_BK, axis=1)
    return Update(blocks, index_BK, np.where(picked < 0, -1, 1).astype(np.int8))


def update_at(blocks_B: NDArray[np.int64], index_BK: NDArray[np.int64], value_BK: Dense) -> Update:
    """The signs of these values at these places, in the order the wire wants; zero goes as +."""
    order = np.argsort(index_BK, axis=1)
    sign_BK = np.where(value_BK < 0, -1, 1).astype(np.int8)
    return Update(
        blocks_B, np.take_along_axis(index_BK, order, axis=1), np.take_along_axis(sign_BK, order, axis=1)
    )
