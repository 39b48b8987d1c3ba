"""Scales: a factor per node and block, applied to amplitudes before they are aggregated.

Room: verifier (pure). On a wire with amplitudes one node's block can be 2^55 times larger than another's, so
a scale is chosen per node and block first, and only then are values brought to one fixed-point grid: clip,
then align. On a sign wire every block has the same k signs, hence the same energy, and there is nothing to
scale.

    raw        as received
    unit       L2 norm 1 per node and block: loses the amplitude, for rules that use only signs
    clipped    at most the lower median of all nodes' norms (SparseLoCo's rule): keeps the amplitude
    adaptive   the floor(2 f (n - f) / n) largest norms are cut to the next one (ARC)

A node that leaves a block out has norm 0 there. So a block that most nodes leave out does not
move under `clipped`, and a minority that fills it cannot move it.

Exactness: a factor is m * 2^s with a whole m <= 2^25. Grids: -51 for values (|v| < 2^55, as in
training/codec/values.py, so sums of 128 nodes stay below 2^62), -30 for units (|v| <= 2^30).

Shape suffixes: N = nodes by ascending peer id, B = live blocks of one update, L = blocks of the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.types import PeerId
from assay.training.codec.values import EXPONENT_MIN
from assay.training.codec.wire import Update
from assay.verifier.aggregation.gram import Ints, need_majority, whole_root

UNIT_GRID = -30
_ROOT_BITS = 30  # norms as r * 2^e with 2^29 <= r < 2^30
_RATIO_BITS = 24
_NOTHING = -(1 << 60)  # key of the norm 0


@dataclass(frozen=True, slots=True)
class Scaled:
    """Factors of one update's live blocks: a value counts as value * m * 2^s, in units of 2^grid."""

    m_B: Ints
    s_B: Ints
    grid: int = EXPONENT_MIN

    def of(self, value_BK: NDArray[Any], rows: slice) -> Ints:
        """These blocks' values on the grid, truncated toward zero."""
        product_BK = value_BK.astype(np.int64) * self.m_B[rows, None]
        up_B1 = np.maximum(self.s_B[rows, None], 0)
        down_B1 = np.clip(-self.s_B[rows, None], 0, 63)
        kept_BK: Ints = np.sign(product_BK) * (np.abs(product_BK) >> down_B1) << up_B1
        return kept_BK


Scale = Callable[[Mapping[PeerId, Update], int], dict[PeerId, Scaled]]


def has_amplitude(updates: Mapping[PeerId, Update]) -> bool:
    """Whether these updates have amplitudes; all updates of a run are of one kind."""
    return any(update.exponent_B is not None for update in updates.values())


def raw(updates: Mapping[PeerId, Update], block_count: int) -> dict[PeerId, Scaled]:
    """As received: a Byzantine node's block is as large as the wire allows. Arguments as `clipped`."""
    return {peer: _as_sent(update) for peer, update in updates.items()}


def unit(updates: Mapping[PeerId, Update], block_count: int) -> dict[PeerId, Scaled]:
    """Every live block of every node at norm 1, to 22 bits."""
    found = {}
    for peer, update in updates.items():
        root_B, shift_B = _root(_energy(update))
        m_B = np.where(root_B > 0, (1 << 53) // np.maximum(root_B, 1), 0)
        found[peer] = Scaled(m_B, shift_B - UNIT_GRID - 53, UNIT_GRID)
    return found


def clipped(updates: Mapping[PeerId, Update], block_count: int) -> dict[PeerId, Scaled]:
    """Norms above the lower median of all nodes' are cut to it; others stay as they are.

    Args:
        updates: Decoded, checked updates with amplitudes, by node.
        block_count: Blocks of the layout.

    Reference:
        Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo",
        arXiv:2508.15706; its code clips each peer to the median norm.
    """
    return _cut(updates, block_count, (len(updates) - 1) // 2)


def adaptive(updates: Mapping[PeerId, Update], block_count: int, *, f: int) -> dict[PeerId, Scaled]:
    """The floor(2 f (n - f) / n) largest norms cut to the next one.

    Raises:
        ValueError: n <= 2f.

    Reference:
        Allouah, Guerraoui, Gupta, Jellouli, Rizk & Stephan, "Adaptive Gradient Clipping for
        Robust Federated Learning", ICLR 2025, arXiv:2405.14432 (ARC).
    """
    count = len(updates)
    need_majority(count, f)
    cut = 2 * f * (count - f) // count
    return _cut(updates, block_count, count - cut - 1)


def scale_of(name: str, f: int) -> Scale:
    """The scale of this name, one of `SCALE_NAMES`."""
    scales: dict[str, Scale] = {"normalize": unit, "clipping": clipped, "arc": partial(adaptive, f=f)}
    return scales[name]


SCALE_NAMES = ("normalize", "clipping", "arc")


def _cut(updates: Mapping[PeerId, Update], block_count: int, rank: int) -> dict[PeerId, Scaled]:
    """Norms above the one of this rank, counted from below, are cut to it."""
    ordered = [update for _, update in sorted(updates.items())]
    key_NL = np.full((len(ordered), block_count), _NOTHING, np.int64)
    for row, update in enumerate(ordered):
        assert update.exponent_B is not None
        root_B, shift_B = _root(_energy(update))
        # Order of the norms: a higher exponent outweighs any root.
        key_B = (update.exponent_B - shift_B << _ROOT_BITS) + root_B
        key_NL[row, update.blocks_B] = np.where(root_B > 0, key_B, _NOTHING)
    radius_L = np.sort(key_NL, axis=0)[rank]
    found = {}
    for row, (peer, update) in enumerate(sorted(updates.items())):
        key_B, radius_B, sent = key_NL[row, update.blocks_B], radius_L[update.blocks_B], _as_sent(update)
        bits = (1 << _ROOT_BITS) - 1
        ratio_B = ((radius_B & bits) << _RATIO_BITS) // np.maximum(key_B & bits, 1)
        fall_B = (key_B >> _ROOT_BITS) - (radius_B >> _ROOT_BITS) + _RATIO_BITS
        is_cut_B = key_B > radius_B
        m_B = np.where(is_cut_B, np.where(radius_B == _NOTHING, 0, ratio_B), sent.m_B)
        found[peer] = Scaled(m_B, np.where(is_cut_B, sent.s_B - fall_B, sent.s_B))
    return found


def _as_sent(update: Update) -> Scaled:
    assert update.exponent_B is not None, "a sign wire has no amplitude to scale"
    return Scaled(np.ones_like(update.exponent_B), update.exponent_B - EXPONENT_MIN)


def _energy(update: Update) -> Ints:
    """Sum of squared values of each live block, below 2^58: 4096 values below 2^23."""
    energy_B: Ints = np.einsum("bk,bk->b", update.value_BK, update.value_BK, dtype=np.int64)
    return energy_B


def _root(energy_B: Ints) -> tuple[Ints, Ints]:
    """r and j: the root of the energy is r * 2^-j, rounded down, with 2^29 <= r < 2^30; r = 0 for 0."""
    safe_B = np.maximum(energy_B, 1)
    bits_B = np.frexp(safe_B.astype(np.float64))[1].astype(np.int64)
    bits_B -= (safe_B >> (bits_B - 1)) == 0  # the float may have been rounded up to a power of two
    shift_B = (2 * _ROOT_BITS - bits_B) // 2
    return np.where(energy_B > 0, whole_root(safe_B << 2 * shift_B), 0), shift_B
