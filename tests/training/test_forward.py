"""The forward transform: that of every block cut out, wherever the block lies in the flat vector."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.params import BLOCK_SIZE
from training.exact import BASIS_BITS, BASIS_SS
from training.forward import transformed_blocks
from training.layout import Layout, to_blocks

SHAPES = [
    ((64, 64),),
    ((128, 192), (64, 640)),  # whole blocks, several to a row
    ((64 * 70, 64), (64, 64 * 70)),  # more blocks than one group, by column and by row
    ((100, 70), (3, 5), (64, 65), (65, 64)),  # padded
    ((10,), (64,), (130,)),  # vectors alone
    ((37,), (128, 128), (64,), (30, 200), (1,)),
]


def a_layout(shapes: tuple[tuple[int, ...], ...]) -> Layout:
    return Layout(tuple(str(i) for i in range(len(shapes))), shapes)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("factor", [1.0, 3e-4])
def test_every_block_is_transformed_where_it_lies(shapes, factor):
    layout = a_layout(shapes)
    flat = np.random.default_rng(1).standard_normal(layout.parameters).astype(np.float32)
    before = flat.copy()

    blocks = transformed_blocks(layout, flat, factor)

    basis = BASIS_SS / (1 << BASIS_BITS)
    expected = basis @ to_blocks(layout, flat).astype(np.float64) @ basis.T * factor
    assert blocks.shape == (layout.blocks, BLOCK_SIZE) and blocks.dtype == np.float32
    assert np.abs(blocks - expected.reshape(-1, BLOCK_SIZE)).max() < 1e-5 * factor
    assert np.array_equal(flat, before)
    assert np.array_equal(blocks, transformed_blocks(layout, flat, factor))
