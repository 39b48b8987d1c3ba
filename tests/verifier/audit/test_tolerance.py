"""Between classes: noise passes, every lie fails, what is nearly right is borderline, and nothing crashes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.devnet.faults.behaviours import NODE_CHEATS
from assay.protocol.messages import Outcome
from assay.protocol.params import BLOCK_SIZE, Precision, Values
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import CompressSpec, Transform
from assay.training.codec.wire import Update
from assay.training.model.loss import use_one_thread
from assay.training.transform.compress import Transition, transition
from assay.verifier.audit.limit import CAP
from assay.verifier.audit.limits import POLICIES, Limit, Limits
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.tolerance import (
    BAND,
    CAP_BAND,
    Grade,
    Grades,
    Measured,
    floor_of,
    grades,
    judge,
    measure,
)
from assay.verifier.audit.worker import RecomputeWorker
from assay.verifier.calibration.code_paths import HONEST, LEAD, LIES, Task, compute_paths
from tests.verifier.audit import test_exact as test_audit

pytestmark = pytest.mark.slow

FP32, BF16 = POLICIES[Precision.FLOAT32], POLICIES[Precision.BFLOAT16]
BLOCKS = 24
EVERY = tuple(range(BLOCKS))


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


def a_wire(values: Values = Values.SIGN, k: int = 32, rank: int = 0) -> CompressSpec:
    return CompressSpec(
        transform=Transform.DCT,
        k=k,
        rank=rank,
        values=values,
        feedback_micro=950_000,
        keeps_error=True,
        reset_rounds=32,
    )


SPARSE = [a_wire(values) for values in Values]
DENSE = [a_wire(values, BLOCK_SIZE) for values in Values] + [a_wire(Values.INT8, BLOCK_SIZE, rank=2)]
WIRES = SPARSE + DENSE


def wire_name(wire: CompressSpec) -> str:
    return f"{wire.values.name}-k{wire.k}-rank{wire.rank}"


on_every_wire = pytest.mark.parametrize("wire", WIRES, ids=wire_name)
on_sparse_wires = pytest.mark.parametrize("wire", SPARSE, ids=wire_name)


def noise(seed: int, like: np.ndarray, size: float) -> np.ndarray:
    """Of this size, relative to each block's."""
    made = np.random.default_rng(seed).standard_normal(like.shape)
    made *= np.linalg.norm(like, axis=1, keepdims=True) / np.linalg.norm(made, axis=1, keepdims=True)
    return (made * size).astype(np.float32)


def a_gradient(seed: int = 1) -> np.ndarray:
    """Blocks of very different sizes, heavy in their low frequencies; the last is exactly zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((BLOCKS, BLOCK_SIZE)) * np.exp(-np.arange(BLOCK_SIZE) / 2000)
    x *= 10 ** rng.uniform(-2, 0, (BLOCKS, 1)) * 1e-3
    x[-1] = 0
    return x.astype(np.float32)


def a_momentum(seed: int = 2) -> np.ndarray:
    before = a_gradient(seed) * np.float32(3)
    return before


def opened(
    wire: CompressSpec,
    told: Transition,
    x: np.ndarray,
    *,
    limit: Limit = FP32,
    before: np.ndarray | None = None,
    blocks: tuple[int, ...] = EVERY,
) -> Finding:
    """What an auditor whose gradient is `x` finds."""
    rows = list(blocks)
    before = a_momentum() if before is None else before
    found, _ = judge(
        wire, limit, blocks, before[rows], told.after_BC[rows], told.sent, x[rows],
        floor=floor_of(x), recomputed=NO_DIGEST,
    )  # fmt: skip
    return found


def a_step(wire: CompressSpec, x: np.ndarray, before: np.ndarray | None = None) -> Transition:
    return transition(wire, a_momentum() if before is None else before, x)


# ---- honest ----


@on_every_wire
@pytest.mark.parametrize(("limit", "size"), [(FP32, 0.0), (FP32, 2e-6), (BF16, 1e-2)])
def test_a_step_matches_between_machines_whose_gradients_differ_by_noise(wire, limit, size):
    for seed in range(4):
        x = a_gradient(10 + seed)
        told = a_step(wire, x + noise(seed, x, size))

        assert opened(wire, told, x, limit=limit).outcome is Outcome.MATCH


@on_every_wire
def test_a_chain_of_honest_steps_matches_while_the_rate_falls(wire):
    """To the floor of the schedules, a tenth of the peak, and beyond."""
    before = np.zeros_like(a_gradient())
    for step in range(12):
        x = a_gradient(step) * np.float32(2.0 ** -(step / 2))
        told = a_step(wire, x + noise(step, x, 2e-6), before)

        assert opened(wire, told, x, before=before).outcome is Outcome.MATCH
        before = told.after_BC


@pytest.mark.parametrize(
    ("limit", "ratio", "outcome"),
    [(FP32, 100, Outcome.MATCH), (FP32, 1e4, Outcome.INCONCLUSIVE), (BF16, 1e4, Outcome.MATCH),
     (BF16, 1e8, Outcome.INCONCLUSIVE), (FP32, 1e33, Outcome.INCONCLUSIVE)],
)  # fmt: skip
@pytest.mark.parametrize("is_true", [True, False])
def test_a_momentum_that_drowns_the_gradient_shows_nothing(limit, ratio, outcome, is_true):
    """In float32 beta * E + x is then beta * E, whatever x is: an honest step and none at all are one."""
    wire, x = a_wire(), a_gradient()
    x[~x.any(axis=1)] = x[0]
    before = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    before *= np.float32(ratio * np.linalg.norm(x) / np.linalg.norm(before))
    told = a_step(wire, x if is_true else np.zeros_like(x), before)

    found = opened(wire, told, x, limit=limit, before=before).outcome

    assert found is (outcome if is_true or ratio > 1e5 else Outcome.MISMATCH)


@on_every_wire
def test_a_step_at_rate_zero_matches_and_a_made_up_gradient_then_does_not(wire):
    nothing = np.zeros_like(a_gradient())

    assert opened(wire, a_step(wire, nothing), nothing).outcome is Outcome.MATCH
    assert opened(wire, a_step(wire, a_gradient()), nothing).outcome is Outcome.MISMATCH


@on_sparse_wires
def test_a_near_tie_that_falls_the_other_way_matches(wire):
    x, before = a_gradient(), np.zeros_like(a_gradient())
    order = np.argsort(-np.abs(x[0]))
    x[0, order[32]] = np.nextafter(x[0, order[31]], np.float32(0))
    swapped = x.copy()
    swapped[0, order[31]], swapped[0, order[32]] = x[0, order[32]], x[0, order[31]]
    told = a_step(wire, swapped, before)

    assert not np.array_equal(told.sent.index_BK[0], a_step(wire, x, before).sent.index_BK[0])
    assert opened(wire, told, x, before=before).outcome is Outcome.MATCH


def test_a_scale_that_rounding_puts_on_a_tie_matches():
    wire, x, before = a_wire(Values.SIGN_MEAN), np.zeros_like(a_gradient()), np.zeros_like(a_gradient())
    tie = 200.5 / 256
    x[0, :32] = [*[tie] * 30, 2 * tie, 1e-9]  # their mean is above the tie by what U - q cannot hold
    told = a_step(wire, x, before)

    assert told.sent.mantissa_B.tolist() == [201]
    assert opened(wire, told, x, before=before).outcome is Outcome.MATCH


def test_blocks_that_are_dead_on_both_sides_do_not_hide_what_the_others_are():
    wire, x = a_wire(), a_gradient()
    before = a_momentum()
    x[6:], before[6:] = 0, 0
    for times, outcome in ((2, Outcome.BORDERLINE), (10**4, Outcome.MISMATCH)):
        told = a_step(wire, x + noise(1, x, times * FP32.t1 * 1e-9), before)

        assert opened(wire, told, x, before=before).outcome is outcome


def test_a_run_with_no_block_to_open_matches():
    told = a_step(a_wire(), a_gradient())

    assert opened(a_wire(), told, a_gradient(), blocks=()).outcome is Outcome.MATCH


# ---- lies ----


@on_every_wire
@pytest.mark.parametrize("limit", [FP32, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [0.18, 0.36, 1.4])
def test_another_gradient_does_not_match(wire, limit, size):
    x = a_gradient()
    finding = opened(wire, a_step(wire, x + noise(5, x, size)), x, limit=limit)

    assert finding.outcome is Outcome.MISMATCH
    assert finding.distance_ppb > 0.1e9


@on_every_wire
def test_bfloat16_does_not_match_where_float32_was_ordered(wire):
    x = a_gradient()

    assert opened(wire, a_step(wire, x + noise(5, x, 6.8e-3)), x).outcome is Outcome.MISMATCH


@on_every_wire
@pytest.mark.parametrize("limit", [FP32, BF16], ids=["float32", "bfloat16"])
def test_another_beta_does_not_match(wire, limit):
    told = a_step(replace(wire, feedback_micro=900_000), a_gradient())

    assert opened(wire, told, a_gradient(), limit=limit).outcome is Outcome.MISMATCH


@on_every_wire
@pytest.mark.parametrize("limit", [FP32, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_keeping_a_part_of_what_was_sent_does_not_match(wire, limit, share):
    x = a_gradient()
    own = a_momentum() * np.float32(0.95) + x
    told = a_step(wire, x)
    after = told.after_BC + (own - told.after_BC) * np.float32(share)

    finding = opened(wire, replace(told, after_BC=after.astype(np.float32)), x, limit=limit)

    assert finding.outcome is Outcome.MISMATCH


def consistent(
    wire: CompressSpec, told: Transition, x: np.ndarray, q: np.ndarray, sent: Update
) -> Transition:
    """Another message, with books that agree with it: the implied gradient is right."""
    own = (a_momentum() * np.float32(0.95) + x).astype(np.float64)
    after = own.copy()
    after[sent.blocks_B[:, None], sent.index_BK] -= q
    return Transition(sent, after.astype(np.float32))


def coefficients(wire: CompressSpec, told: Transition, own: np.ndarray) -> np.ndarray:
    """What a receiver sees of a message."""
    sent = told.sent
    if sent.exponent_B is not None:
        return np.ldexp(sent.value_BK.astype(np.float64), sent.exponent_B[:, None])
    return sent.value_BK * np.abs(own[sent.blocks_B[:, None], sent.index_BK]).mean(axis=1, keepdims=True)


@on_every_wire
@pytest.mark.parametrize("limit", [FP32, BF16], ids=["float32", "bfloat16"])
def test_turned_signs_do_not_match_though_the_implied_gradient_is_right(wire, limit):
    x = a_gradient()
    told = a_step(wire, x)
    q = -coefficients(wire, told, a_momentum() * np.float32(0.95) + x)
    turned = consistent(wire, told, x, q, replace(told.sent, value_BK=-told.sent.value_BK))

    assert opened(wire, turned, x, limit=limit).outcome is Outcome.MISMATCH


@on_sparse_wires
@pytest.mark.parametrize("limit", [FP32, BF16], ids=["float32", "bfloat16"])
def test_coefficients_of_the_liars_choice_do_not_match(wire, limit):
    x = a_gradient()
    own = a_momentum() * np.float32(0.95) + x
    told = a_step(wire, x)
    blocks = told.sent.blocks_B
    order = np.argsort(-np.abs(own[blocks]), axis=1)
    index = np.sort(order[:, 16:48], axis=1)  # the sixteen largest are left out
    only = np.take_along_axis(own[blocks], index, axis=1)
    few = transition(replace(wire, k=BLOCK_SIZE), np.zeros_like(own), _only(own, blocks, index))
    sent = Update(
        blocks,
        index,
        np.where(only < 0, -1, 1).astype(np.int8)
        if wire.values is Values.SIGN
        else np.take_along_axis(few.sent.value_BK, index, axis=1),
        None if wire.values is Values.SIGN else few.sent.exponent_B,
        None if wire.values is Values.SIGN else few.sent.mantissa_B,
    )
    lie = consistent(wire, told, x, coefficients(wire, Transition(sent, told.after_BC), own), sent)

    assert opened(wire, lie, x, limit=limit).outcome is Outcome.MISMATCH


def _only(own: np.ndarray, blocks: np.ndarray, index: np.ndarray) -> np.ndarray:
    kept = np.zeros_like(own)
    at = (blocks[:, None], index)
    kept[at] = own[at]
    return kept


@pytest.mark.parametrize(
    "wire", [wire for wire in WIRES if wire.values is not Values.SIGN and not wire.rank], ids=wire_name
)
@pytest.mark.parametrize("limit", [FP32, BF16], ids=["float32", "bfloat16"])
def test_a_louder_scale_does_not_match(wire, limit):
    x = a_gradient()
    told = a_step(wire, x)
    sent = replace(told.sent, exponent_B=told.sent.exponent_B + 1)
    q = coefficients(wire, replace(told, sent=sent), x)

    assert opened(wire, consistent(wire, told, x, q, sent), x, limit=limit).outcome is Outcome.MISMATCH


@on_every_wire
def test_a_block_that_is_withheld_does_not_match(wire):
    x = a_gradient()
    own = a_momentum() * np.float32(0.95) + x
    told = a_step(wire, x)
    kept = told.sent.blocks_B != 3
    parts = {
        name: part if part is None else part[kept]
        for name, part in (
            ("exponent_B", told.sent.exponent_B),
            ("mantissa_B", told.sent.mantissa_B),
        )
    }
    sent = Update(told.sent.blocks_B[kept], told.sent.index_BK[kept], told.sent.value_BK[kept], **parts)
    after = told.after_BC.copy()
    after[3] = own[3]

    assert opened(wire, Transition(sent, after), x).outcome is Outcome.MISMATCH


def test_a_message_in_a_block_of_zeros_does_not_match():
    wire, x = a_wire(), a_gradient()
    before = a_momentum()
    before[-1] = 0
    told = a_step(wire, x, before)
    sent = Update(
        np.append(told.sent.blocks_B, BLOCKS - 1),
        np.vstack([told.sent.index_BK, np.arange(32)]),
        np.vstack([told.sent.value_BK, np.ones((1, 32), np.int8)]),
    )

    assert opened(wire, replace(told, sent=sent), x, before=before).outcome is Outcome.MISMATCH


@on_every_wire
@pytest.mark.parametrize(("limit", "size"), [(FP32, 1e-3), (BF16, 0.9)])
def test_a_lie_in_a_single_block_does_not_match_and_the_block_is_named(wire, limit, size):
    x = a_gradient()
    other = x.copy()
    other[7] += noise(3, x, size)[7]

    finding = opened(wire, a_step(wire, other), x, limit=limit)

    assert (finding.outcome, finding.block) == (Outcome.MISMATCH, 7)


def test_a_block_at_the_floor_may_be_a_little_off_but_not_anything():
    wire, x, before = a_wire(Values.INT16), a_gradient(), a_momentum()
    x[5] *= np.float32(1e-3 * floor_of(x) / np.linalg.norm(x[5]))
    before[5] = 0
    for size, outcome in ((50, Outcome.MATCH), (500, Outcome.MISMATCH)):
        other = x.copy()
        other[5] += noise(1, x, 1.0)[5] * np.float32(size * FP32.t1 * 1e-9 * 1e3)

        assert opened(wire, a_step(wire, other, before), x, before=before).outcome is outcome


@on_every_wire
@pytest.mark.parametrize("limit", [FP32, BF16], ids=["float32", "bfloat16"])
def test_a_block_to_which_nothing_is_added_holds_no_lie_however_small(wire, limit):
    """Signs have no size: the least value decides as much as a large one."""
    x = a_gradient()
    other = x.copy()
    other[-1] = noise(1, x, 1.0)[5] * np.float32(1e-6)

    assert opened(wire, a_step(wire, other), x, limit=limit).outcome is Outcome.MISMATCH


@on_every_wire
def test_a_block_to_which_nothing_is_added_matches_with_the_error_of_before(wire):
    x, before = a_gradient(), a_momentum()
    before[-1] = noise(1, x, 1.0)[5]

    assert opened(wire, a_step(wire, x, before), x, before=before).outcome is Outcome.MATCH


def test_where_a_rounding_adds_something_to_a_block_its_zeros_are_none():
    wire, x, before = a_wire(), a_gradient(), a_momentum()
    other = x.copy()
    other[-1] = noise(1, x, 1.0)[5] * np.float32(1e-6)
    told, led = a_step(wire, other), np.zeros(BLOCKS)
    led[-1] = 1e-3

    found, _ = judge(
        wire, FP32, EVERY, before, told.after_BC, told.sent, x,
        floor=floor_of(x), recomputed=NO_DIGEST, widening_B=led,
    )  # fmt: skip

    assert found.outcome is Outcome.MATCH


# ---- just inside and just outside ----

LIMIT = Limit(t1=1000, t2=4000, t3=1000, t4=1000)


def measured(rho=0.0, *, count: int = 40, **changes) -> Measured:
    zeros = np.zeros(count)
    base = Measured(
        np.full(count, rho, np.float64), zeros, np.zeros(count, bool),
        zeros.copy(), zeros.copy(), zeros.copy(), np.zeros((count, 0)),
    )  # fmt: skip
    return replace(base, **changes)


def some(count: int, value: float, rest: float = 0.0, of: int = 40) -> np.ndarray:
    return np.array([value] * count + [rest] * (of - count))


def graded(one: Measured) -> Grades:
    return grades(one, LIMIT)


def test_t1_is_the_median():
    assert graded(measured(0.99e-6)).t1 is Grade.PASSED
    assert graded(measured(1.01e-6)).t1 is Grade.BORDERLINE
    assert graded(measured(0.99 * BAND * 1e-6)).t1 is Grade.BORDERLINE
    assert graded(measured(1.01 * BAND * 1e-6)).t1 is Grade.FAILED
    assert graded(measured(rho_B=some(19, 1e-3))).t1 is Grade.PASSED
    assert graded(measured(rho_B=some(21, 1e-3))).t1 is Grade.FAILED


def test_t2_is_the_95th_percentile():
    assert graded(measured(rho_B=some(2, 5e-6))).t2 is Grade.PASSED
    assert graded(measured(rho_B=some(3, 3.9e-6))).t2 is Grade.PASSED
    assert graded(measured(rho_B=some(3, 4.1e-6))).t2 is Grade.BORDERLINE
    assert graded(measured(rho_B=some(3, 4e-6 * BAND * 1.01))).t2 is Grade.FAILED


def test_no_block_may_be_far_above_t1():
    assert graded(measured(rho_B=some(1, CAP * 0.99e-6))).t2 is Grade.PASSED
    assert graded(measured(rho_B=some(1, CAP * 1.01e-6))).t2 is Grade.BORDERLINE
    assert graded(measured(rho_B=some(1, CAP * CAP_BAND * 1.01e-6))).t2 is Grade.FAILED
    small = measured(rho_B=some(1, CAP * CAP_BAND * 1.01e-6), is_small_B=some(1, True, False).astype(bool))
    assert graded(small).t2 is Grade.PASSED


def test_what_equals_a_limit_is_within_it():
    limit = LIMIT.t4 * 1e-9
    for size, grade in (
        (limit, Grade.PASSED),
        (np.nextafter(limit, 1), Grade.BORDERLINE),
        (BAND * limit, Grade.BORDERLINE),
        (np.nextafter(BAND * limit, 1), Grade.FAILED),
    ):
        assert graded(measured(value_B=some(1, size))).t4 is grade


def test_t3_allows_what_the_amplitude_is_unknown_by_and_no_more():
    for test, field in (("t3", "choice_B"), ("t4", "value_B")):
        for size, grade in (
            (0.99e-6, Grade.PASSED),
            (1.01e-6, Grade.BORDERLINE),
            (BAND * 1.01e-6, Grade.FAILED),
            (np.inf, Grade.FAILED),
        ):
            assert getattr(graded(measured(**{field: some(1, size)})), test) is grade
    doubted = measured(choice_B=some(1, 4.9e-6), doubt_B=np.ones(40))
    assert graded(doubted).t3 is Grade.PASSED
    assert graded(replace(doubted, choice_B=some(1, 5.1e-6))).t3 is Grade.BORDERLINE


def test_one_test_that_fails_by_much_outweighs_others_that_fail_by_little():
    both = measured(2e-6, value_B=some(1, 1.0))

    assert graded(both).worst is Grade.FAILED
    assert graded(measured(2e-6)).worst is Grade.BORDERLINE


@on_every_wire
def test_a_gradient_a_little_beyond_the_limit_is_borderline_and_never_a_mismatch(wire):
    x = a_gradient()
    finding = opened(wire, a_step(wire, x + noise(5, x, 3 * FP32.t1 * 1e-9)), x)

    assert finding.outcome is Outcome.BORDERLINE


# ---- what a liar may put into an opening ----


@on_every_wire
@pytest.mark.parametrize("size", [3e38, -3e38, 1e-45, 1e-38, -0.0])
@pytest.mark.parametrize("where", ["before", "after"])
def test_momentum_of_any_finite_size_ends_in_a_verdict(wire, size, where):
    x, before = a_gradient(), a_momentum()
    told = a_step(wire, x)
    (before if where == "before" else told.after_BC)[0, :2000] = np.float32(size)

    finding = opened(wire, told, x, before=before)

    assert finding.outcome is Outcome.MISMATCH
    assert 0 <= finding.distance_ppb <= 10**12


@on_every_wire
@pytest.mark.parametrize("size", [np.nan, np.inf, -np.inf])
def test_a_recompute_that_is_not_finite_is_borderline(wire, size):
    x = a_gradient()
    told = a_step(wire, x)
    x[2, 17] = size

    finding = opened(wire, told, x, blocks=(2, 5, 7))

    assert (finding.outcome, finding.block) == (Outcome.BORDERLINE, 2)  # none differs most: the first


@given(
    st.integers(0, 2**32), st.sampled_from(SPARSE), st.floats(width=32, allow_nan=False, allow_infinity=False)
)
def test_any_message_in_any_book_ends_in_a_verdict(seed, wire, size):
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(rng.random(4) < 0.7)
    index = np.sort(rng.permuted(np.tile(np.arange(BLOCK_SIZE), (len(blocks), 1)), axis=1)[:, :32], axis=1)
    value = rng.integers(1, 200, index.shape).astype(np.int32) * rng.choice([-1, 1], index.shape)
    scales = (None, None)
    if wire.values is Values.SIGN:
        value = np.sign(value).astype(np.int8)
    else:
        scales = (rng.integers(-51, -20, len(blocks)), rng.integers(128, 256, len(blocks)))
    x = rng.standard_normal((4, BLOCK_SIZE)).astype(np.float32)
    with np.errstate(all="ignore"):
        books = [(rng.standard_normal(x.shape) * size).astype(np.float32) for _ in range(2)]
    before, after = (np.where(np.isfinite(book), book, np.float32(3e38)) for book in books)

    seen = measure(wire, range(4), before, after, Update(blocks, index, value, *scales), x, floor=floor_of(x))

    assert not np.isnan(seen.rho_B).any() and not np.isnan(seen.choice_B).any()
    assert not np.isnan(seen.value_B).any()
    assert grades(seen, BF16).worst in Grade


# ---- real machines, as far as one can be several ----

PATHS = ("aten-avx2", "aten-default", "onednn-off", "mkl-compatible", "micro-4", "permuted")
STEPS = 6


@pytest.mark.slow
def test_honest_nodes_on_real_code_paths_match_and_the_lies_of_the_note_do_not(tmp_path: Path):
    task = Task("llama-130k", "float32", STEPS, segment=0)
    done, _ = compute_paths(tmp_path, task, PATHS)
    wire, drawn = task.rule.compress, tuple(range(35))
    assert len({tuple(one.x(1).ravel()[:4096]) for one in done.values()}) > 2  # they do differ
    for node in done.values():
        before = np.zeros_like(node.x(0))
        for step in range(STEPS):
            told = transition(wire, before, node.x(step))
            for auditor in done.values():
                finding = opened(wire, told, auditor.x(step), before=before, blocks=drawn)
                assert finding.outcome is Outcome.MATCH, (node.path, auditor.path, step, finding)
            if node.path == LEAD and step == STEPS - 1:
                for lie in LIES:
                    false = transition(wire, before, node.x(step, lie))
                    for limit in (FP32, BF16):
                        for auditor in done.values():
                            found = opened(
                                wire, false, auditor.x(step, HONEST), before=before, blocks=drawn, limit=limit
                            )
                            assert found.outcome is Outcome.MISMATCH, (lie, auditor.path, found)
            before = told.after_BC


def audited_by_another_class(
    folder: Path, monkeypatch, behaviour: str, limits: Limits | None
) -> list[Finding]:
    monkeypatch.setattr(test_audit, "RecomputeWorker", partial(RecomputeWorker, limits=limits))
    monkeypatch.setattr("assay.verifier.audit.worker.execution_class", lambda *_: Digest(b"x" * 32))
    return test_audit.trained_and_audited(folder, behaviour)


def test_an_examiner_with_limits_judges_a_step_of_another_class(tmp_path, monkeypatch):
    findings = audited_by_another_class(tmp_path, monkeypatch, "honest", Limits())

    assert {finding.outcome for finding in findings} == {Outcome.MATCH}


def test_an_examiner_without_limits_does_not(tmp_path, monkeypatch):
    findings = audited_by_another_class(tmp_path, monkeypatch, "honest", None)

    assert {finding.outcome for finding in findings} == {Outcome.INCONCLUSIVE}


@pytest.mark.parametrize("cheat", sorted(set(NODE_CHEATS) - test_audit.ELSEWHERE))
def test_every_lie_in_a_step_is_found_by_another_class_too(tmp_path, monkeypatch, cheat):
    findings = audited_by_another_class(tmp_path, monkeypatch, cheat, Limits())

    honest = [Outcome.MATCH] * test_audit.CHEAT_ROUND
    assert [finding.outcome for finding in findings] == [*honest, Outcome.MISMATCH]
