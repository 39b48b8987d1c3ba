"""Fragments: the parts of a model that are synced in turn, one per round (Streaming DiLoCo).

Room: training (pure). Layers are assigned to fragments in rotation, so that every fragment holds layers from
all depths; tensors outside layers likewise. Vectors share their blocks, so all of them are in fragment 0. A
block belongs to one fragment. The blocks of a packed layout, which hold parts of several tensors, are
assigned in rotation.

Reference:
    Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv:2501.18512.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from assay.protocol.update_rule import BLOCK_SIDE as S
from assay.training.layout import Layout, from_blocks

_LAYER = re.compile(r"layer(\d+)\.")


def fragment_blocks(layout: Layout, fragments: int) -> NDArray[np.int64]:
    """The fragment of every block. Shape (N,)."""
    if layout.is_packed:
        return np.arange(layout.blocks, dtype=np.int64) % fragments
    found: list[int] = []
    outside = 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if len(shape) != 2:
            continue
        layer = _LAYER.match(name)
        if layer:
            place = int(layer.group(1))
        else:
            place, outside = outside, outside + 1
        found += [place % fragments] * (-(-shape[0] // S) * -(-shape[1] // S))
    found += [0] * (layout.blocks - len(found))
    return np.array(found, np.int64)


def check_fragments(layout: Layout, fragments: int) -> None:
    """Do nothing if every fragment has a block: a round of an empty one would send nothing.

    Raises:
        ValueError: which have none.
    """
    if fragments == 1:
        return
    empty = sorted(set(range(fragments)) - set(fragment_blocks(layout, fragments).tolist()))
    if empty:
        raise ValueError(f"{fragments} fragments are too many for this model: {empty} would be empty")


def fragment_positions(layout: Layout, fragments: int, fragment: int) -> NDArray[np.bool_]:
    """Which parameters belong to a fragment. Shape (P,)."""
    is_in = (fragment_blocks(layout, fragments) == fragment).astype(np.int8)
    blocks = np.broadcast_to(is_in[:, None, None], (layout.blocks, S, S))
    return from_blocks(layout, np.ascontiguousarray(blocks)).astype(bool)
