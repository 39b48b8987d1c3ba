"""The transforms on a device have the host's bits, on torch's CPU device and on CUDA where there is one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.update_rule import RuleSpec, Transform, Values
from assay.testing.members import a_digest
from assay.testing.specs import a_rule
from assay.training.layout import Layout
from assay.training.optimiser import carry
from assay.training.transform import blocked_dct, compress, equalise, on_device
from tests.training.transform.test_blocked_dct import SHAPES, a_layout

DEMO = a_rule()
LR = np.float32(1e-3)
KINDS = ("heavy", "ties", "zeros", "small", "rows", "large")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, cuda])])
shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 150), st.integers(1, 150)),
        st.tuples(st.integers(1, 200)),
        st.sampled_from([(64, 128), (64, 128), (7, 9), (7, 9)]),  # several matrices of one shape
    ),
    min_size=1,
    max_size=6,
).map(tuple)
layouts = st.builds(
    lambda sizes, is_packed: replace(a_layout(sizes), is_packed=is_packed), shapes, st.booleans()
)
kinds = st.sampled_from(KINDS)


def some_floats(seed: int, count: int, kind: str) -> np.ndarray:
    """Float32 of one kind; with some zeros of both signs, and some below the smallest normal one, in each."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal(count) * np.exp(rng.standard_normal(count) * 2)
    if kind == "ties":
        found = rng.integers(-3, 4, count) / 4
    if kind == "zeros":
        found[rng.random(count) < 0.999] = 0
    if kind == "small":
        found *= 1e-40
    if kind == "rows":
        found *= np.exp(4 * np.sin(np.arange(count) // 50))
    if kind == "large":
        found *= 1e15
    whole = found.astype(np.float32)
    whole[rng.random(count) < 0.01] = np.float32(-0.0)
    whole[rng.random(count) < 0.01] = np.float32(3e-45)
    return whole


def there(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """A copy on the device."""
    return torch.from_numpy(array.copy()).to(device)


def same(device_NC: torch.Tensor, host_NC: np.ndarray) -> bool:
    return device_NC.cpu().numpy().tobytes() == host_NC.tobytes()


def ruled(clip: float = 1.0, equalises: bool = True) -> RuleSpec:
    return replace(DEMO, local=replace(DEMO.local, clip_micro=int(clip * 1e6), equalises=equalises))


@devices
@settings(deadline=None, max_examples=40)
@given(layouts, kinds, st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 1e9]), st.booleans())
@example(a_layout(SHAPES[2]), "rows", 0, 1.0, True)
@example(a_layout(SHAPES[5]), "heavy", 0, 1.0, True)
def test_blocks_of_a_gradient(
    device: str, layout: Layout, kind: str, seed: int, clip: float, equalises: bool
):
    gradient_P, rule = some_floats(seed, layout.parameters, kind), ruled(clip, equalises)

    x_NC = on_device.gradient_blocks(rule, layout, there(gradient_P, device), LR)

    assert same(x_NC, compress.gradient_blocks(rule, layout, gradient_P, LR))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rule", [ruled(), ruled(0.0, False)], ids=["demo", "plain"])
def test_a_gradient_that_is_not_finite_leads_to_lengths_that_are_not(bad: float, rule: RuleSpec):
    layout = a_layout(SHAPES[5])
    for at in (0, layout.parameters - 1, 5_000):
        gradient_P = some_floats(1, layout.parameters, "heavy")
        gradient_P[at] = bad
        found = on_device.row_lengths(on_device.gradient_blocks(rule, layout, there(gradient_P), LR))
        assert not np.isfinite(found).all()
        with np.errstate(all="ignore"):
            assert not np.isfinite(compress.gradient_blocks(rule, layout, gradient_P, LR)).all()


@devices
@settings(deadline=None, max_examples=20)
@given(layouts, kinds, st.integers(0, 2**32))
def test_factors_of_rows_and_columns(device: str, layout: Layout, kind: str, seed: int):
    gradient_P = some_floats(seed, layout.parameters, kind)

    found = on_device.equalising(layout, there(gradient_P, device))

    for one, expected in zip(found, equalise.equalising(layout, gradient_P), strict=True):
        assert all(same(*pair) for pair in zip(one, expected, strict=True))
    for part in (part for part in layout.views(gradient_P).values() if part.ndim > 1):
        row_R, column_K = (np.zeros(side) for side in part.shape)
        equalise._squares(part, row_R, column_K)
        rows_MR, columns_MK = on_device._squares([there(part, device)])
        assert rows_MR.tobytes() == row_R.tobytes()
        assert np.abs(columns_MK[0] - column_K).max() <= on_device._doubt(2 * len(row_R)) * column_K.max()


@devices
@pytest.mark.parametrize("values", list(Values))
@settings(deadline=None, max_examples=10)
@given(
    kinds, kinds, st.integers(1, 40), st.sampled_from([1, 32, 500, 4095]), st.booleans(), st.integers(0, 99)
)
def test_what_is_sent_and_what_is_retained(
    device: str, values: Values, kind: str, before: str, blocks: int, k: int, keeps: bool, seed: int
):
    rule = replace(DEMO.compress, k=k, values=values, keeps_error=keeps)
    x_NC = some_floats(seed, blocks * BLOCK_SIZE, kind).reshape(blocks, -1)
    x_NC[seed % blocks] = 0
    error_NC = some_floats(seed + 1, x_NC.size, before).reshape(x_NC.shape)
    held = there(error_NC, device)

    sent = on_device.transition(rule, held, there(x_NC, device))

    moved = compress.transition(rule, error_NC, x_NC)
    assert same(held, moved.after_BC)
    for name in ("blocks_B", "index_BK", "value_BK", "exponent_B", "mantissa_B"):
        assert np.array_equal(getattr(sent, name), getattr(moved.sent, name)), name
        assert getattr(sent, name) is None or getattr(sent, name).dtype == getattr(moved.sent, name).dtype


def test_an_error_that_overflows_is_chosen_and_stays():
    error_NC = some_floats(0, 2 * BLOCK_SIZE, "heavy").reshape(2, -1)
    error_NC[1, 5::500] = 3e38
    held = there(error_NC)

    sent = on_device.transition(DEMO.compress, held, there(error_NC))

    moved = compress.transition(DEMO.compress, error_NC, error_NC)
    assert np.isinf(moved.after_BC[1, 5::500]).all()
    assert sent.blocks_B.tolist() == moved.sent.blocks_B.tolist() == [0]
    assert same(held, moved.after_BC)


@devices
@settings(deadline=None, max_examples=20)
@given(kinds, st.integers(1, 150), st.integers(0, 2**32))
@example("heavy", 32 * 64 + 31, 0)
def test_lengths_sketches_and_what_is_left_of_an_error(device: str, kind: str, blocks: int, seed: int):
    x_NC = some_floats(seed, blocks * BLOCK_SIZE, kind).reshape(blocks, -1)
    held, pattern = there(x_NC, device), a_digest("pattern")
    share_N = np.random.default_rng(seed).choice(np.array([1, 0.5, 2.0**-30, 0], np.float32), blocks)

    assert on_device.row_lengths(held).tobytes() == blocked_dct.row_lengths(x_NC).tobytes()
    assert on_device.work_sketch(pattern, held) == compress.work_sketch(pattern, x_NC)
    on_device.leave(held, share_N)
    carry.leave(x_NC, share_N)
    assert same(held, x_NC)


@settings(deadline=None, max_examples=60)
@given(kinds, st.integers(1, 300_000), st.integers(0, 2**32))
def test_the_hosts_length_lies_between_two_that_are_near(kind: str, count: int, seed: int):
    gradient_P = some_floats(seed, count, kind)
    expected = blocked_dct.length(gradient_P)

    shorter, longer = on_device._lengths(there(gradient_P))

    assert shorter <= expected <= longer <= shorter * (1 + 1e-10)


def test_a_factor_that_two_lengths_do_not_decide_is_the_hosts(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []

    def counted(gradient_P: np.ndarray) -> float:
        asked.append(1)
        return blocked_dct.length(gradient_P)

    monkeypatch.setattr(on_device, "length", counted)
    rule, rng = ruled(0.001), np.random.default_rng(0)
    gradients = [rng.standard_normal(64 * 64).astype(np.float32) for _ in range(20)]
    layout = a_layout(((64, 64),))
    for wide in (0, 2.0**-22):  # at a doubt of some float32's last bits most are undecided
        monkeypatch.setattr(on_device, "_ULP", wide / on_device._CHUNK or 2.0**-53)
        for gradient_P in gradients:
            x_NC = on_device.gradient_blocks(rule, layout, there(gradient_P), LR)
            assert same(x_NC, compress.gradient_blocks(rule, layout, gradient_P, LR))
        assert bool(asked) == bool(wide)


def test_columns_that_a_sum_in_any_order_does_not_decide_are_the_hosts(monkeypatch: pytest.MonkeyPatch):
    layout = a_layout(((300, 50), (300, 50), (7, 3)))
    gradient_P = some_floats(0, layout.parameters, "rows")
    expected = equalise.equalising(layout, gradient_P)
    true = on_device._squares

    def moved(matrices):
        rows_MR, columns_MK = true(matrices)
        return rows_MR, columns_MK * (1 + 2.0**-25)  # by more than what decides many float32

    monkeypatch.setattr(on_device, "_squares", moved)
    for doubt, is_enough in ((2.0**-24, True), (0.0, False)):
        monkeypatch.setattr(on_device, "_doubt", lambda _, doubt=doubt: doubt)
        found = on_device.equalising(layout, there(gradient_P))
        columns = zip(found, expected, strict=True)
        assert all(same(one[1], host[1]) for one, host in columns) is is_enough


def test_only_rules_of_a_sparse_gradient_in_the_dct_are_covered():
    assert on_device.covers(DEMO)
    assert not any(on_device.covers(a_rule(name)) for name in ("muloco", "sparseloco", "diloco", "fedavg"))
    for change in ({"transform": Transform.NONE}, {"k": BLOCK_SIZE}, {"rank": 2}):
        assert not on_device.covers(replace(DEMO, compress=replace(DEMO.compress, **change)))
    assert not on_device.covers(replace(DEMO, fragments=2))
