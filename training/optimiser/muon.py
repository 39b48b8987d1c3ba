"""Muon: an inner step whose matrices move by their momentum's nearest orthogonal matrix.

Room: training (pure). Matrices take Muon's step; embedding, positions, head, norms and biases take Adam's,
from moments in the same two vectors. All of it is float32 in one order, products by the reference class's
kernel, so equal gradients give equal bits on any machine and an audit needs no second way to compute it.

A momentum that is made orthogonal has no size, so a false one of 1e30 would decide every later step of its
node and leave no bit for a gradient. Before a step uses its moments they are therefore shortened to what
steps of the present gradient's size can have left:

    matrix  |M| <= |g| / (1 - beta1)        the rest  |m| <= |g| ROOM,  sum v <= |g|^2 ROOM^2

A false direction then has at most 1 / (1 - beta1) of a step's weight, and loses 1 - beta1 of it each step.

Reference:
    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024: coefficients, five steps,
    Nesterov momentum; Liu et al., "Muon is Scalable for LLM Training", arXiv:2502.16982: weight decay,
    0.2 sqrt(longer side).
Shape suffixes: P = parameters, R = rows, C = columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.protocol.update_rule import PPM, LocalSpec
from assay.training.compiled import FILL_2, compiled
from assay.training.layout import Layout
from assay.training.optimiser.matrices import matrices, rest_of
from assay.training.reference.product import Shape, multiply
from assay.training.transform.blocked_dct import length

Floats = NDArray[np.float32]
NEWTON_SCHULZ_STEPS = 5
_A, _B, _C = (np.float32(one) for one in (3.4445, -4.7750, 2.0315))
_SCALE = 0.2  # of a step's root mean square, as large as Adam's usually is
_TILE = 32  # both halves of one fit into a core's first cache
ROOM = 10.0  # times the present gradient, that the moments of the rest may hold


def momenta(
    local: LocalSpec, layout: Layout, moments: tuple[Floats, ...], slope_P: Floats
) -> tuple[Floats, Floats]:
    """The moments after a step: Muon's momentum and Adam's first in one vector, Adam's second in the other.

    Args:
        local: The optimiser's constants.
        layout: Order and shapes of the parameters.
        moments: Before the step; any finite values. Not modified.
        slope_P: The clipped gradient.
    """
    first_P, keeps1, keeps2 = moments[0].copy(), local.beta1_micro / PPM, local.beta2_micro / PPM
    beta1, beta2 = np.float32(keeps1), np.float32(keeps2)
    for matrix in matrices(layout):
        limit = length(matrix.of(slope_P).reshape(-1)) / (1 - keeps1)
        matrix.of(first_P)[:] *= _share(matrix.of(first_P), limit)
    is_rest_P = rest_of(layout)
    rest, first = slope_P[is_rest_P], first_P[is_rest_P]
    second = np.maximum(moments[1][is_rest_P], np.float32(0))
    limit = ROOM * length(rest)
    share = _share(np.sqrt(second), limit)
    first_P = first_P * beta1 + slope_P
    first_P[is_rest_P] = first * _share(first, limit) * beta1 + rest * np.float32(1 - keeps1)
    second_P = np.zeros_like(slope_P)
    second_P[is_rest_P] = second * (share * share) * beta2 + (rest * rest) * np.float32(1 - keeps2)
    return first_P, second_P


def muon_step(local: LocalSpec, layout: Layout, first_P: Floats, slope_P: Floats) -> Floats:
    """What Muon's matrices move by at a rate of 1; zero elsewhere.

    Args:
        local: The optimiser's constants.
        layout: Order and shapes of the parameters.
        first_P: The momentum after the step.
        slope_P: The clipped gradient, which Nesterov's look ahead adds once more.
    """
    ahead_P = slope_P + first_P * np.float32(local.beta1_micro / PPM)
    step_P = np.zeros_like(slope_P)
    for matrix in matrices(layout):
        size = np.float32(_SCALE * math.sqrt(max(matrix.rows, matrix.columns)))
        matrix.of(step_P)[:] = orthogonalised(matrix.of(ahead_P)) * size
    return step_P


def orthogonalised(matrix_RC: Floats) -> Floats:
    """A matrix near U V' of the singular value decomposition U S V'; zeros stay zeros. Shape (R, C).

    Five steps of X <- a X + (b S + c S S) X with S = X X', from X of length 1 and with rows as its shorter
    side. They bring every singular value above about 1e-3 to between 0.7 and 1.2.
    """
    is_tall = matrix_RC.shape[0] > matrix_RC.shape[1]
    x_RC = np.ascontiguousarray(matrix_RC.T if is_tall else matrix_RC)
    x_RC = x_RC * np.float32(1 / max(length(x_RC.reshape(-1)), 1e-30))
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram_RR = _symmetric(x_RC, x_RC.T)
        inner_RR = gram_RR * _B + _symmetric(gram_RR, gram_RR) * _C
        next_RC = x_RC * _A
        multiply(inner_RR[None], x_RC[None], next_RC[None], adds=True)
        x_RC = next_RC
    return x_RC.T if is_tall else x_RC


def _symmetric(a_RC: Floats, b_CR: Floats) -> Floats:
    """A product that is known to be symmetric: its lower half is computed, and mirrored."""
    product_RR = np.empty((a_RC.shape[0], b_CR.shape[1]), np.float32)
    multiply(a_RC[None], b_CR[None], product_RR[None], Shape.LOWER_RESULT)
    _mirror(product_RR)
    return product_RR


@compiled(None, FILL_2)
def _mirror(square_RR: Floats) -> None:
    """Fill what is above the diagonal with what is below it, tile by tile; no zero keeps its minus."""
    size = len(square_RR)
    for top in range(0, size, _TILE):
        for left in range(0, top + 1, _TILE):
            for i in range(top, min(top + _TILE, size)):
                for j in range(left, min(left + _TILE, i + 1)):
                    one = square_RR[i, j] + np.float32(0)
                    square_RR[i, j], square_RR[j, i] = one, one


def _share(part: Floats, limit: float) -> np.float32:
    """1, or the share of an array that has a length of `limit`."""
    size = length(part.reshape(-1))
    return np.float32(1 if size <= limit or not size else limit / size)
