"""The forward transform: that of every block cut out, wherever the block lies in the flat vector."""

from __future__ import annotations

import numpy as np
import pytest

from assay.protocol.params import BLOCK_SIZE
from assay.training.exact import BASIS_BITS, BASIS_SS
from assay.training.layout import Layout, to_blocks
from assay.training.transform.blocked_dct import length, transformed_blocks
from assay.training.transform.dct import block_spectra

SHAPES = [
    ((64, 64),),
    ((128, 192), (64, 640)),  # whole blocks, several to a row
    ((64 * 70, 64), (64, 64 * 70)),  # more blocks than one group, by column and by row
    ((100, 70), (3, 5), (64, 65), (65, 64)),  # padded
    ((10,), (64,), (130,)),  # vectors alone
    ((37,), (128, 128), (64,), (30, 200), (1,)),
]
# Orthonormal DCT-II in float64: row = frequency, column = position.
_FREQUENCY, _POSITION = np.arange(64)[:, None], np.arange(64)[None]
BASIS = np.sqrt(2 / 64) * np.cos(np.pi * (2 * _POSITION + 1) * _FREQUENCY / 128)
BASIS[0] = np.sqrt(1 / 64)


def a_layout(shapes: tuple[tuple[int, ...], ...]) -> Layout:
    return Layout(tuple(str(i) for i in range(len(shapes))), shapes)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("factor", [1.0, 3e-4])
def test_every_block_is_transformed_where_it_lies(shapes, factor):
    layout = a_layout(shapes)
    flat = np.random.default_rng(1).standard_normal(layout.parameters).astype(np.float32)
    before = flat.copy()

    blocks = transformed_blocks(layout, flat, factor)

    expected = BASIS @ to_blocks(layout, flat).astype(np.float64) @ BASIS.T * factor
    assert blocks.shape == (layout.blocks, BLOCK_SIZE) and blocks.dtype == np.float32
    assert np.abs(blocks - expected.reshape(-1, BLOCK_SIZE)).max() < 3e-6 * factor
    assert np.array_equal(flat, before)
    room = np.full_like(blocks, np.nan)
    assert transformed_blocks(layout, flat, factor, room) is room and np.array_equal(blocks, room)
    with pytest.raises(ValueError, match="room of shape"):
        transformed_blocks(layout, flat, factor, np.zeros((layout.blocks + 1, BLOCK_SIZE), np.float32))


def test_the_transform_undoes_the_inverse_of_the_receivers():
    """They hold the basis in 14 bits and a sign; the sender need not, it only has to mean the same basis."""
    assert np.abs(BASIS - BASIS_SS / (1 << BASIS_BITS)).max() <= 2.0 ** -(BASIS_BITS + 1)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (5, 0), (63, 63), (31, 32)])
def test_one_frequency_comes_out_as_itself(place):
    wave = np.outer(BASIS[place[0]], BASIS[place[1]]).astype(np.float32)

    spectrum = transformed_blocks(a_layout(((64, 64),)), wave.reshape(-1), 1.0).reshape(64, 64)

    expected = np.zeros((64, 64))
    expected[place] = 1
    assert np.abs(spectrum - expected).max() < 1e-6


def test_errors_stay_within_a_few_roundings_for_numbers_of_any_size():
    """The factors are turns, so nothing grows on the way: the error is one of the block's length."""
    rng = np.random.default_rng(2)
    blocks = rng.standard_normal((200, 64, 64)) * np.exp(4 * rng.standard_normal((200, 64, 64)))
    flat = blocks.astype(np.float32).reshape(-1)
    exact = (BASIS @ flat.reshape(-1, 64, 64).astype(np.float64) @ BASIS.T).reshape(-1, BLOCK_SIZE)
    layout = a_layout(((200 * 64, 64),))

    error = np.linalg.norm(transformed_blocks(layout, flat, 1.0) - exact, axis=1)

    assert (error / np.linalg.norm(exact, axis=1)).max() < 2.0**-21


def test_a_block_of_zeros_stays_one_beside_a_full_one():
    flat = np.zeros((64, 192), np.float32)
    flat[:, 64:128] = 3.0

    blocks = transformed_blocks(a_layout(((64, 192),)), flat.reshape(-1), 1.0)

    assert not blocks[[0, 2]].any() and blocks[1, 0] == 192 and not blocks[1, 1:].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_its_own_block_and_in_no_other(bad):
    flat = np.ones((128, 128), np.float32)
    flat[70, 3] = bad

    blocks = transformed_blocks(a_layout(((128, 128),)), flat.reshape(-1), 1.0)

    assert not np.isfinite(blocks[2]).any() and np.isfinite(blocks[[0, 1, 3]]).all()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 100_001])
def test_a_length_is_exact_but_for_its_own_rounding(count):
    flat = np.random.default_rng(count).standard_normal(count).astype(np.float32)

    assert length(flat) == pytest.approx(float(np.sqrt((flat.astype(np.float64) ** 2).sum())), rel=1e-14)


@pytest.mark.parametrize("shape", [(5, 4096), (7, 4096), (6, 4095), (6, 64, 64)])
def test_room_that_does_not_fit_is_refused_before_anything_is_written(shape):
    out = np.zeros(shape, np.float32)

    with pytest.raises(ValueError, match="coefficients of shape"):
        block_spectra(np.ones((128, 192), np.float32), 1.0, out)

    assert not out.any()


def test_what_nobody_may_write_and_what_lies_oddly_is_read_all_the_same():
    layout = a_layout(((64, 128),))
    raw = np.random.default_rng(3).bytes(4 * 64 * 128 + 1)
    flat = np.nan_to_num(np.frombuffer(raw, "<f4", offset=1, count=64 * 128), posinf=1, neginf=1)
    bytes_ = b"\0" + flat.tobytes()
    odd = np.frombuffer(bytes_, "<f4", offset=1)
    assert not odd.flags.aligned and not odd.flags.writeable

    assert np.array_equal(
        transformed_blocks(layout, odd, 1e-30), transformed_blocks(layout, flat, 1e-30), equal_nan=True
    )
