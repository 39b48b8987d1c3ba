"""Measured: the distances of an opening are those of the definition, computed here in float64 by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.protocol.messages import Outcome
from assay.protocol.params import Precision, Values
from assay.protocol.types import NO_DIGEST
from assay.training.codec.wire import Update
from assay.training.transform.compress import Transition
from assay.verifier.audit.limits import POLICIES
from assay.verifier.audit.tolerance import FLOOR, WIDEST, Measured, floor_of, judge, measure
from tests.verifier.audit.test_tolerance import (
    EVERY,
    SPARSE,
    a_gradient,
    a_momentum,
    a_step,
    a_wire,
    noise,
    opened,
    wire_name,
)


def measured(wire, theirs, ours) -> Measured:
    """Of a node whose work was `theirs`, by an auditor who finds `ours`."""
    told = a_step(wire, theirs)
    return measure(wire, EVERY, a_momentum(), told.after_BC, told.sent, ours, floor=floor_of(ours))


def norms(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows.astype(np.float64), axis=1)


def test_the_floor_is_a_thousandth_of_the_mean_block():
    x = a_gradient()

    assert FLOOR == 1e-3
    assert floor_of(x) == pytest.approx(1e-3 * math.sqrt((norms(x) ** 2).mean()), rel=1e-9)


@pytest.mark.parametrize("wire", SPARSE, ids=wire_name)
def test_distance_and_rounding_are_relative_to_the_block_s_work(wire):
    ours = a_gradient()
    theirs = ours + noise(7, ours, 1e-3)
    found = measured(wire, theirs, ours)
    scale = np.maximum(norms(ours), floor_of(ours))

    live = norms(ours) > 0
    if wire.values is not Values.SIGN:  # there the amplitude is a guess of the auditor's
        assert found.rho_B[live] == pytest.approx((norms(theirs - ours) / scale)[live], rel=1e-2)
    due = a_momentum() * np.float32(wire.feedback_micro / 10**6) + ours
    assert found.rounding_B == pytest.approx(2.0**-23 * norms(due) / scale, rel=1e-6)
    assert found.is_small_B.tolist() == (norms(ours) <= floor_of(ours)).tolist()


@pytest.mark.parametrize("k", [16, 64])
def test_signs_leave_in_doubt_what_a_work_all_along_them_would_add_to_their_mean(k: int):
    """Work that is longer by rho along k signs moves their mean by rho / sqrt(k) of the work's length."""
    wire, ours = a_wire(k=k), a_gradient()
    found = measured(wire, ours, ours)
    due = a_momentum().astype(np.float64) * wire.feedback_micro / 10**6 + ours
    scale, top = np.maximum(norms(ours), floor_of(ours)), np.abs(due).max(axis=1)

    live = norms(due) > 0
    assert found.doubt_B[live] == pytest.approx((scale / top / math.sqrt(k))[live], rel=1e-3)
    assert not measured(a_wire(Values.INT8, k=k), ours, ours).doubt_B.any()


@pytest.mark.parametrize("wire", [wire for wire in SPARSE if wire.values is not Values.SIGN], ids=wire_name)
def test_amplitude_that_a_block_of_zeros_sends_and_takes_out_of_its_error_does_not_match(wire):
    """What is sent and what is left cancel out: only the choice shows that there was nothing to send."""
    ours, before = a_gradient(), a_momentum()
    before[-1] = 0
    told = a_step(wire, ours, before)
    last = len(EVERY) - 1
    sent = Update(
        np.append(told.sent.blocks_B, last),
        np.vstack([told.sent.index_BK, np.arange(32)]),
        np.vstack([told.sent.value_BK, told.sent.value_BK[:1]]),
        np.append(told.sent.exponent_B, told.sent.exponent_B[0]),
        np.append(told.sent.mantissa_B, told.sent.mantissa_B[0]),
    )
    after = told.after_BC.copy()
    after[last, :32] = -np.ldexp(sent.value_BK[-1].astype(np.float32), sent.exponent_B[-1])

    found = opened(wire, Transition(sent, after), ours, before=before)

    assert found.outcome is Outcome.MISMATCH
    assert opened(wire, told, ours, before=before).outcome is Outcome.MATCH


@pytest.mark.parametrize(("widening", "is_against"), [(None, True), (0.0, True), (1e-6, False)])
def test_a_block_of_zeros_is_one_elsewhere_too_unless_a_rounding_gives_it_something(widening, is_against):
    ours, theirs = a_gradient(), a_gradient()
    ours[0], theirs[0] = 0, 1e-9 * theirs[1]
    none, wire = np.zeros_like(ours), a_wire()
    told = a_step(wire, theirs, none)

    wide = None if widening is None else np.full(len(ours), widening)
    found = measure(wire, EVERY, none, told.after_BC, told.sent, ours, floor=floor_of(ours), widening_B=wide)

    assert np.isinf(found.choice_B[0]) == is_against
    assert np.isfinite(found.choice_B[1:]).all()


def test_where_nothing_can_be_told_a_step_is_neither_right_nor_wrong():
    ours = a_gradient()
    told = a_step(a_wire(), -ours)
    limit, floor = POLICIES[Precision.FLOAT32], floor_of(ours)

    for widening, outcome in ((WIDEST / 2, Outcome.MATCH), (WIDEST, Outcome.INCONCLUSIVE)):
        found, _ = judge(
            a_wire(), limit, EVERY, a_momentum(), told.after_BC, told.sent, ours,
            floor=floor, recomputed=NO_DIGEST, widening_B=np.full(len(ours), widening),
        )  # fmt: skip
        assert found.outcome is outcome
