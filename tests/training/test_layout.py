"""Where every parameter lives: cutting into blocks and back, at awkward sizes too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.layout import Layout, from_blocks, layout_of, to_blocks
from assay.training.model.presets import gpt_spec

SIZES = st.integers(1, 150) | st.sampled_from([63, 64, 65, 127, 128, 129])
SHAPES = st.lists(st.tuples(SIZES) | st.tuples(SIZES, SIZES), min_size=1, max_size=6)


def a_layout(shapes) -> Layout:
    return Layout(tuple(f"p{i}" for i in range(len(shapes))), tuple(shapes))


@settings(deadline=None, max_examples=60)
@given(SHAPES)
def test_cutting_into_blocks_and_back_changes_nothing(shapes):
    layout = a_layout(shapes)
    flat = np.arange(1, layout.parameters + 1, dtype=np.float32)

    blocks = to_blocks(layout, flat)

    assert blocks.shape == (layout.blocks, 64, 64)
    assert np.array_equal(from_blocks(layout, blocks), flat)
    assert np.count_nonzero(blocks) == layout.parameters  # padding is zero, and nothing is there twice


@settings(deadline=None, max_examples=30)
@given(SHAPES)
def test_what_lies_in_the_padding_is_dropped(shapes):
    layout = a_layout(shapes)
    flat = np.arange(1, layout.parameters + 1, dtype=np.float32)
    blocks = to_blocks(layout, flat)
    blocks[blocks == 0] = -1

    assert np.array_equal(from_blocks(layout, blocks), flat)


def test_signs_come_back_as_signs():
    layout = a_layout([(70, 3), (5,)])
    signs = np.random.default_rng(1).integers(-1, 2, (layout.blocks, 64, 64)).astype(np.int8)

    assert from_blocks(layout, signs).dtype == np.int8


def test_matrices_are_tiled_row_by_row_and_vectors_share_blocks():
    layout = a_layout([(65, 130), (64,), (3,), (65,)])
    assert layout.blocks == 2 * 3 + 1

    flat = np.zeros(layout.parameters, np.float32)
    flat[0], flat[64 * 130 + 129] = 1, 2  # the matrix's first value and its last
    at = 65 * 130
    flat[at], flat[at + 64], flat[at + 67], flat[at + 67 + 64] = (
        3,
        4,
        5,
        6,
    )  # each vector's first; the last's last

    blocks = to_blocks(layout, flat)

    where = {int(blocks[i]): tuple(map(int, i)) for i in zip(*np.nonzero(blocks), strict=True)}
    assert where == {1: (0, 0, 0), 2: (5, 0, 1), 3: (6, 0, 0), 4: (6, 1, 0), 5: (6, 2, 0), 6: (6, 3, 0)}


@pytest.mark.parametrize(
    ("model", "parameters", "blocks"),
    [
        (gpt_spec(layers=4, width=128, heads=4, context=128), 870_656, 213),
        (gpt_spec(layers=1, width=40, heads=2, context=16), 40_560, 19),
    ],
)
def test_models_have_the_sizes_that_others_count_on(model, parameters, blocks):
    layout = layout_of(model)

    assert (layout.parameters, layout.blocks) == (parameters, blocks)
    assert len(set(layout.names)) == len(layout.names) == len(layout.shapes)


def test_offsets_cover_the_flat_vector_without_gap_or_overlap():
    layout = layout_of(gpt_spec(layers=2, width=40, heads=2, context=16))
    at = 0
    for start, shape in layout.offsets().values():
        assert start == at
        at += math.prod(shape)
    assert at == layout.parameters
