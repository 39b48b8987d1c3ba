"""Rows: norms, causal softmax, activations and the loss, row by row, with one order and no library function.

Room: training (pure). Every line is float32, each operation rounded on its own, except sums over a row: their
terms are widened to float64 (a product of two float32 is exact there), added in 8 lanes, term i in lane
i mod 8, and the lanes added in order; what follows from a sum is computed in float64 and rounded once.

    exp    x = n ln 2 + r: polynomial in r, times 2^n.                     below 1 unit in the last place
    erf    x P(x^2) up to 475/512, 1 - exp(-x Q(x)) above.                 below 2 units
    tanh   1 - 2 / (1 + exp(2 x)).                                         below 2^-22, absolute
Zero takes the place of results of exp below 2^-126.

All arrays are C-contiguous; the Python around them (operators) checks sizes.

Reference:
    exp: Cephes, expf.c (Moshier), after Cody & Waite 1980; erf: the minimax coefficients of N. Juffa's erff.

Shape suffixes: T = rows (tokens), D = columns; X = elements, whatever their shape.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.training.compiled import (
    BOOL,
    DOUBLE,
    FILL_1,
    FILL_2,
    FILL_DOUBLE_1,
    FLOAT,
    INT,
    READ_1,
    READ_2,
    READ_DOUBLE_1,
    READ_INT64_1,
    compiled,
)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Whole = NDArray[np.int64]

_F = np.float32
_ZERO, _HALF, _ONE = _F(0), _F(0.5), _F(1)

_EXP_LOW, _EXP_HIGH = _F(-87.33654), _F(88.37626)
_LOG2_E, _LN2_HIGH, _LN2_LOW = _F(1.44269504088896341), _F(0.693359375), _F(-2.12194440e-4)
_ROUNDING = _F(12582912.0)  # 1.5 * 2^23: added and taken away again, it leaves the nearest whole number
_E0, _E1, _E2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_E3, _E4, _E5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)

_ERF_BOUND, _ERF_END = _F(0.927734375), _F(4)  # from 4 on it is 1
_N0, _N1, _N2 = _F(-5.96761703e-4), _F(4.99119423e-3), _F(-2.67681349e-2)
_N3, _N4, _N5 = _F(1.12819925e-1), _F(-3.76125336e-1), _F(1.28379166e-1)
_R0, _R1, _R2, _R3 = _F(-1.72853470e-5), _F(3.83197126e-4), _F(-3.88396438e-3), _F(2.42546219e-2)
_R4, _R5, _R6 = _F(-1.06777877e-1), _F(-6.34846687e-1), _F(-1.28717512e-1)
_TWO, _TANH_1, _TANH_3 = _F(2), _F(1.5957691216057308), _F(0.0713548162726009)  # 2 sqrt(2/pi) * (1, 0.044715)
_SLOPE_0, _SLOPE_2 = _F(0.7978845608028654), _F(0.10703222440890136)  # sqrt(2/pi) * (1, 3 * 0.044715)
_ROOT_HALF, _DENSITY = _F(0.70710678118654752), _F(0.39894228040143268)  # sqrt(1/2), 1/sqrt(2 pi)


@compiled(FLOAT, FLOAT)
def exp(x: np.float32) -> np.float32:
    """e to the power x; 0 below -87.33654, infinity above 88.37626."""
    within = min(max(x, _EXP_LOW), _EXP_HIGH)
    n = (within * _LOG2_E + _ROUNDING) - _ROUNDING
    r = (within - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    y = ((p * (r * r) + r) + _ONE) * power
    y = _ZERO if x < _EXP_LOW else y
    return _F(np.inf) if x > _EXP_HIGH else y


@compiled(FLOAT, FLOAT)
def erf(x: np.float32) -> np.float32:
    """The error function."""
    t = min(abs(x), _ERF_END)
    s = t * t
    p = (((((_N0 * s + _N1) * s + _N2) * s + _N3) * s + _N4) * s + _N5) * t + t
    q = (_R0 * t + _R1) * s + (_R2 * t + _R3)
    q = (((q * t + _R4) * t + _R5) * t + _R6) * t - t
    far = _ONE - exp(q)  # both are computed, so that a loop needs no branch
    y = far if t > _ERF_BOUND else p
    return -y if x < _ZERO else y


@compiled(None, READ_1, FILL_1)
def gelu(x_X: Floats, out_X: Floats) -> None:
    """x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2."""
    for i in range(len(x_X)):
        x = x_X[i]
        out_X[i] = (x * _HALF) * (_ONE + erf(x * _ROOT_HALF))


@compiled(None, READ_1, READ_1, FILL_1)
def gelu_back(x_X: Floats, slope_X: Floats, out_X: Floats) -> None:
    """slope * (Phi(x) + x phi(x)), phi the normal density."""
    for i in range(len(x_X)):
        x = x_X[i]
        share = _HALF * (_ONE + erf(x * _ROOT_HALF))
        out_X[i] = slope_X[i] * (share + x * (_DENSITY * exp((x * x) * -_HALF)))


@compiled(None, READ_1, READ_1, FILL_1)
def gated(gate_X: Floats, up_X: Floats, out_X: Floats) -> None:
    """(gate * sigmoid(gate)) * up."""
    for i in range(len(gate_X)):
        share = np.divide(_ONE, _ONE + exp(-gate_X[i]))
        out_X[i] = (gate_X[i] * share) * up_X[i]


@compiled(None, READ_1, READ_1, READ_1, FILL_1, FILL_1)
def gated_back(
    gate_X: Floats, up_X: Floats, slope_X: Floats, gate_slope_X: Floats, up_slope_X: Floats
) -> None:
    """The slopes of `gated` along its gate and its other factor."""
    for i in range(len(gate_X)):
        gate = gate_X[i]
        share = np.divide(_ONE, _ONE + exp(-gate))
        along = share * (_ONE + gate * (_ONE - share))
        gate_slope_X[i] = (slope_X[i] * up_X[i]) * along
        up_slope_X[i] = slope_X[i] * (gate * share)


@compiled(None, READ_1, FILL_1)
def gelu_tanh(x_X: Floats, out_X: Floats) -> None:
    """tanh(sqrt(2 / pi) (x + 0.044715 x^3)), which stands for erf in the approximate GELU."""
    for i in range(len(x_X)):
        x = x_X[i]
        out_X[i] = _ONE - np.divide(_TWO, _ONE + exp(x * (_TANH_1 + (x * x) * _TANH_3)))


@compiled(None, READ_1, READ_1, READ_1, FILL_1)
def geglu(gate_X: Floats, up_X: Floats, tanh_X: Floats, out_X: Floats) -> None:
    """(gate * (1 + tanh) / 2) * up."""
    for i in range(len(gate_X)):
        out_X[i] = ((gate_X[i] * _HALF) * (_ONE + tanh_X[i])) * up_X[i]


@compiled(None, READ_1, READ_1, READ_1, READ_1, FILL_1, FILL_1)
def geglu_back(
    gate_X: Floats, up_X: Floats, tanh_X: Floats, slope_X: Floats, gate_slope_X: Floats, up_slope_X: Floats
) -> None:
    """The slopes of `geglu` along its gate, of which tanh is a function, and along its other factor."""
    for i in range(len(gate_X)):
        half, tanh = gate_X[i] * _HALF, tanh_X[i]
        inner = _SLOPE_0 + (gate_X[i] * gate_X[i]) * _SLOPE_2
        along = _HALF * (_ONE + tanh) + (half * (_ONE - tanh * tanh)) * inner
        gate_slope_X[i] = (slope_X[i] * up_X[i]) * along
        up_slope_X[i] = slope_X[i] * (half * (_ONE + tanh))


@compiled(DOUBLE, READ_1, READ_1, INT)
def _sum(a_D: Floats, b_D: Floats, count: int) -> float:
    """Sum of the first `count` products, in 8 lanes; those past the last multiple of 8 come at the end."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = count // 8 * 8
    for i in range(0, whole, 8):
        s0 += np.float64(a_D[i]) * np.float64(b_D[i])
        s1 += np.float64(a_D[i + 1]) * np.float64(b_D[i + 1])
        s2 += np.float64(a_D[i + 2]) * np.float64(b_D[i + 2])
        s3 += np.float64(a_D[i + 3]) * np.float64(b_D[i + 3])
        s4 += np.float64(a_D[i + 4]) * np.float64(b_D[i + 4])
        s5 += np.float64(a_D[i + 5]) * np.float64(b_D[i + 5])
        s6 += np.float64(a_D[i + 6]) * np.float64(b_D[i + 6])
        s7 += np.float64(a_D[i + 7]) * np.float64(b_D[i + 7])
    total = ((((((s0 + s1) + s2) + s3) + s4) + s5) + s6) + s7
    for i in range(whole, count):
        total += np.float64(a_D[i]) * np.float64(b_D[i])
    return total


@compiled(None, READ_2, BOOL, DOUBLE, FILL_1, FILL_1)
def statistics(x_TD: Floats, is_centred: bool, epsilon: float, mean_T: Floats, scale_T: Floats) -> None:
    """By row: mean (0 unless centred), and 1 / sqrt(mean square of x - mean, plus epsilon)."""
    width = x_TD.shape[1]
    one_D, centred_D = np.ones(width, np.float32), np.empty(width, np.float32)
    for t in range(len(x_TD)):
        mean = np.float32(_sum(x_TD[t], one_D, width) / width) if is_centred else _ZERO
        for j in range(width):
            centred_D[j] = x_TD[t, j] - mean
        mean_T[t] = mean
        square = _sum(centred_D, centred_D, width) / width
        scale_T[t] = np.float32(1.0 / math.sqrt(square + epsilon))


@compiled(None, READ_2, READ_1, READ_1, READ_1, FILL_2)
def normed(x_TD: Floats, mean_T: Floats, scale_T: Floats, weight_D: Floats, out_TD: Floats) -> None:
    """((x - mean) * scale) * weight."""
    for t in range(len(x_TD)):
        for j in range(x_TD.shape[1]):
            out_TD[t, j] = ((x_TD[t, j] - mean_T[t]) * scale_T[t]) * weight_D[j]


@compiled(None, READ_2, BOOL, READ_1, READ_1, READ_1, READ_2, FILL_2)
def normed_back(
    x_TD: Floats,
    is_centred: bool,
    mean_T: Floats,
    scale_T: Floats,
    weight_D: Floats,
    slope_TD: Floats,
    out_TD: Floats,
) -> None:
    """scale * ((g - mean g) - z * mean(g z)), where g = slope * weight and z = (x - mean) * scale.

    The mean of g is left out unless centred.
    """
    width = x_TD.shape[1]
    one_D = np.ones(width, np.float32)
    g_D, z_D = np.empty(width, np.float32), np.empty(width, np.float32)
    for t in range(len(x_TD)):
        scale = scale_T[t]
        for j in range(width):
            g_D[j] = slope_TD[t, j] * weight_D[j]
            z_D[j] = (x_TD[t, j] - mean_T[t]) * scale
        mean = np.float32(_sum(g_D, one_D, width) / width) if is_centred else _ZERO
        along = np.float32(_sum(g_D, z_D, width) / width)
        for j in range(width):
            out_TD[t, j] = scale * ((g_D[j] - mean) - z_D[j] * along)


@compiled(None, READ_2, READ_1, READ_1, READ_2, FILL_1)
def normed_weight_back(
    x_TD: Floats, mean_T: Floats, scale_T: Floats, slope_TD: Floats, out_D: Floats
) -> None:
    """Add slope * ((x - mean) * scale) to `out`, row after row."""
    for t in range(len(x_TD)):
        for j in range(x_TD.shape[1]):
            out_D[j] += slope_TD[t, j] * ((x_TD[t, j] - mean_T[t]) * scale_T[t])


@compiled(None, FILL_2, INT, FLOAT)
def causal_softmax(score_RT: Floats, length: int, scale: np.float32) -> None:
    """In place: row r is the softmax of its first (r mod length) + 1 scores times the scale, then zeros."""
    one_T = np.ones(length, np.float32)
    for r in range(len(score_RT)):
        row, seen = score_RT[r], r % length + 1
        top = row[0] * scale
        for j in range(seen):
            row[j] = row[j] * scale
            top = max(top, row[j])
        for j in range(seen):
            row[j] = exp(row[j] - top)
        share = np.float32(1.0 / _sum(row, one_T, seen))
        for j in range(seen):
            row[j] = row[j] * share
        row[seen:] = _ZERO


@compiled(None, READ_2, INT, FLOAT, FILL_2)
def causal_softmax_back(p_RT: Floats, length: int, scale: np.float32, slope_RT: Floats) -> None:
    """In place: from the slope along the probabilities to the one along the scores before the scale."""
    for r in range(len(p_RT)):
        seen = r % length + 1
        along = np.float32(_sum(p_RT[r], slope_RT[r], seen))
        for j in range(seen):
            slope_RT[r, j] = (p_RT[r, j] * (slope_RT[r, j] - along)) * scale
        slope_RT[r, seen:] = _ZERO


@compiled(None, READ_2, READ_1, FILL_DOUBLE_1)
def partition(logit_TV: Floats, top_T: Floats, total_T: Doubles) -> None:
    """By row: the sum of exp(logit - top)."""
    wide = logit_TV.shape[1]
    one_V, power_V = np.ones(wide, np.float32), np.empty(wide, np.float32)
    for t in range(len(logit_TV)):
        for j in range(wide):
            power_V[j] = exp(logit_TV[t, j] - top_T[t])
        total_T[t] = _sum(power_V, one_V, wide)


@compiled(None, READ_2, READ_1, READ_DOUBLE_1, READ_INT64_1, FLOAT, FILL_2)
def loss_back(
    logit_TV: Floats, top_T: Floats, total_T: Doubles, target_T: Whole, share: np.float32, out_TV: Floats
) -> None:
    """share * (softmax - 1 at the target); 0 where the target is below 0, which is a masked one."""
    for t in range(len(logit_TV)):
        if target_T[t] < 0:
            out_TV[t] = 0
            continue
        part = np.float32(1.0 / total_T[t])
        for j in range(logit_TV.shape[1]):
            out_TV[t, j] = share * (exp(logit_TV[t, j] - top_T[t]) * part)
        target = target_T[t]
        out_TV[t, target] = share * (exp(logit_TV[t, target] - top_T[t]) * part - _ONE)


@compiled(None, READ_2, READ_INT64_1, FILL_2)
def add_rows(row_TD: Floats, place_T: Whole, out_VD: Floats) -> None:
    """Add every row to the row of `out` at its place, in order."""
    for t in range(len(row_TD)):
        for j in range(row_TD.shape[1]):
            out_VD[place_T[t], j] += row_TD[t, j]
