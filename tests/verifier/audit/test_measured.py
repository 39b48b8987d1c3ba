"""Measured: the distances of an opening are those of the definition, computed here in float64 by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.protocol.params import Values
from assay.verifier.audit.tolerance import FLOOR, Measured, floor_of, measure
from tests.verifier.audit.test_tolerance import (
    EVERY,
    SPARSE,
    a_gradient,
    a_momentum,
    a_step,
    a_wire,
    noise,
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
