"""A base in few bits: what is stored decodes to the same values in numpy and torch, the nearest there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from hypothesis import given
from hypothesis import strategies as st

from assay.training.frozen import Frozen
from assay.training.layout import Layout, layout_of
from assay.training.model.presets import llama_spec
from assay.training.model.rounded_linear import rounded_linear
from assay.training.rounded import CODES, GROUP, SCALES, encode, is_rounded, parts, stored_bytes

MODEL = llama_spec(vocabulary=70, layers=2, width=64, heads=4, kv_heads=2, hidden=160, context=16)
LAYOUT = layout_of(MODEL)
MATRIX = Layout(("layer0.m",), ((3, 100),))


def values(layout: Layout, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(layout.parameters).astype(np.float32) * np.float32(
        0.02
    )


def decoded(layout: Layout, flat: np.ndarray, bits: int) -> np.ndarray:
    return Frozen(layout, encode(layout, flat, bits), bits).values()


@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_not_a_layers_matrix_stays_as_it_is(bits: int):
    flat = values(LAYOUT)
    before, after = LAYOUT.views(flat), LAYOUT.views(decoded(LAYOUT, flat, bits))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name, one in before.items() if is_rounded(name, one.shape)}
    assert len(changed) == 2 * 7


@pytest.mark.parametrize(("bits", "share"), [(8, 1 / 250), (4, 1 / 13.9)])
def test_every_value_is_at_most_half_a_step_of_its_group_away(bits: int, share: float):
    """A step is the group's largest value over 127 or 7, and up to 1/128 more as scales have 8 bits."""
    flat = values(MATRIX, 3)
    off = np.zeros((3, 128), np.float32)
    off[:, :100] = np.abs(decoded(MATRIX, flat, bits) - flat).reshape(3, 100)
    most = np.zeros((3, 128), np.float32)
    most[:, :100] = np.abs(flat).reshape(3, 100)
    most = most.reshape(3, 2, GROUP).max(axis=2)
    assert (off.reshape(3, 2, GROUP).max(axis=2) <= most * share * 1.008).all()
    assert off.max() > 0


@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 4]), st.integers(-60, 60))
def test_products_of_codes_and_scales_are_exact(seed: int, bits: int, exponent: int):
    flat = values(MATRIX, seed) * np.float32(2.0**exponent)
    stored = encode(MATRIX, flat, bits)
    held, found = parts(MATRIX, stored, bits), decoded(MATRIX, flat, bits).reshape(3, 100)
    codes, scales = held["layer0.m" + CODES], held["layer0.m" + SCALES].astype(np.float64)
    code = codes.view(np.int8) if bits == 8 else np.concatenate([codes % 16, codes // 16], 2).astype(int) - 8
    product = (code * scales[:, :, None]).reshape(3, -1)
    assert np.array_equal(product[:, :100], found.astype(np.float64)) and not product[:, 100:].any()
    assert np.abs(code).max() in range(2 ** (bits - 2), 2 ** (bits - 1))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_gradients_are_those_of_the_decoded_matrix(bits: int, dtype: torch.dtype):
    layout = Layout(("layer0.m",), ((48, 100),))
    stored = encode(layout, values(layout), bits)
    on, matrix = (
        Frozen(layout, stored, bits).on("cpu"),
        torch.from_numpy(decoded(layout, values(layout), bits)),
    )
    matrix, bias = matrix.reshape(48, 100), torch.arange(48.0)
    found, wanted = [], []
    for into, product in (
        (found, lambda x: rounded_linear(x, on["layer0.m" + CODES], on["layer0.m" + SCALES], bias)),
        (wanted, lambda x: F.linear(x, matrix, bias)),
    ):
        x = torch.randn(2, 5, 100, generator=torch.Generator().manual_seed(1)).requires_grad_(True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            y = product(x)
        y.float().square().sum().backward()
        into += [y, x.grad]
    assert found[0].dtype == dtype and found[1].dtype == torch.float32
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("bits", [8, 4])
def test_it_takes_a_quarter_or_an_eighth_and_the_scales(bits: int):
    big = layout_of(replace(MODEL, width=1024, hidden=4096, layers=8, vocabulary=256))
    share = stored_bytes(big, bits) / (4 * big.parameters)
    assert bits / 32 < share < bits / 32 + 0.015
    assert stored_bytes(big, 0) == 4 * big.parameters
    assert len(encode(LAYOUT, values(LAYOUT), bits)) == stored_bytes(LAYOUT, bits)


def test_a_group_of_zeros_or_next_to_nothing_is_zero():
    flat = values(MATRIX)
    flat[:100] = np.float32(1e-38)
    found = decoded(MATRIX, flat, 8)
    assert not found[:100].any() and np.count_nonzero(found[100:]) > 190


@pytest.mark.parametrize("value", [np.inf, np.nan, -3e38])
def test_what_no_code_can_say_is_refused(value: float):
    flat = values(MATRIX)
    flat[7] = value
    with pytest.raises(ValueError, match=r"layer0\.m has values that no scale of at most 2\^100 reaches"):
        encode(MATRIX, flat, 8)


@pytest.mark.parametrize(
    ("half", "holds"), [(0, True), (1, False), (0x0D80, True), (0x0D7F, False), (0x7F80, False)]
)
def test_a_stored_scale_out_of_bounds_is_refused(half: int, holds: bool):
    """Denormal products would differ between processors that flush them and others."""
    stored = encode(MATRIX, values(MATRIX), 8)
    stored[:2] = np.array([half], "<u2").view(np.uint8)
    if holds:
        Frozen(MATRIX, stored, 8)
        return
    with pytest.raises(ValueError, match=r"layer0\.m\.scales are not all 0 or from"):
        Frozen(MATRIX, stored, 8)


def test_another_size_or_type_is_refused():
    stored = encode(MATRIX, values(MATRIX), 8)
    for wrong in (stored[:-1], stored.view(np.int8), values(MATRIX)):
        with pytest.raises(ValueError, match=f"expected {len(stored)} uint8"):
            Frozen(MATRIX, wrong, 8)
