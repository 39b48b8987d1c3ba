"""Elementary: exp, log, sine and cosine in float64 from additions, products and quotients alone.

Room: training (pure). For tables and for the loss, of which there are few; the float32 functions of a model's
inner loops are in rows.py. numpy does here only what IEEE 754 defines element by element (+, -, *, /, whole
numbers, powers of two), so the bits are the same on every machine. Errors are below 2 units in the last place
of float64 where results are normal, far below half a unit of the float32 that they are rounded to.

Reference:
    Cody & Waite, "Software Manual for the Elementary Functions", Prentice Hall 1980 (reduction of the
    argument by a constant in parts, the upper ones short enough that their product is exact);
    the series are Taylor's, and twice the inverse hyperbolic tangent's for the logarithm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

# Upper parts have at least 21 trailing zero bits: exact times a whole number below 2^20.
_LN2 = (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33"))
_HALF_PI = (
    float.fromhex("0x1.921fb544p+0"),
    float.fromhex("0x1.0b4611a6p-34"),
    float.fromhex("0x1.3198a2e037073p-69"),
)
_QUARTERS_MAX = 1 << 20
_EXP_TERMS, _LOG_TERMS, _TURN_TERMS = 14, 12, 9


def exp64(x: Doubles) -> Doubles:
    """e to the power x, for magnitudes up to 700."""
    if not (np.abs(x) <= 700).all():
        raise ValueError("exp64: an argument is above 700 in magnitude or not a number")
    n = np.rint(x * 1.4426950408889634)
    rest = (x - n * _LN2[0]) - n * _LN2[1]
    total = np.ones_like(rest)
    for term in range(_EXP_TERMS, 0, -1):
        total = 1.0 + rest * total / term
    result: Doubles = np.ldexp(total, n.astype(np.int32))
    return result


def log64(x: Doubles) -> Doubles:
    """Natural logarithm of positive normal numbers: 2 artanh(t), t = (m - 1) / (m + 1), of m * 2^n."""
    if not ((x > 1e-300) & (x < 1e300)).all():
        raise ValueError("log64: an argument is not a positive normal number")
    m, n = np.frexp(x)
    is_low = m < 0.7071067811865476
    m, n = np.where(is_low, m * 2, m), np.where(is_low, n - 1, n).astype(np.float64)
    t = (m - 1) / (m + 1)
    square = t * t
    total = np.zeros_like(t)
    for term in range(_LOG_TERMS, 0, -1):
        total = (total + 1.0 / (2 * term + 1)) * square
    result: Doubles = n * _LN2[0] + (n * _LN2[1] + (2 * t + 2 * t * total))
    return result


def cos_sin64(x: Doubles) -> tuple[Doubles, Doubles]:
    """Cosine and sine, for magnitudes up to 2^20 quarter turns."""
    n = np.rint(x * 0.6366197723675814)
    if not (np.abs(n) <= _QUARTERS_MAX).all():
        raise ValueError("cos_sin64: an argument is above 2^20 quarter turns or not a number")
    rest = ((x - n * _HALF_PI[0]) - n * _HALF_PI[1]) - n * _HALF_PI[2]
    square = rest * rest
    cosine, sine = np.ones_like(rest), np.ones_like(rest)
    for term in range(_TURN_TERMS, 0, -1):
        cosine = 1.0 - square * cosine / ((2 * term - 1) * (2 * term))
        sine = 1.0 - square * sine / ((2 * term) * (2 * term + 1))
    sine = sine * rest
    quarter = n.astype(np.int64) % 4
    return (
        np.choose(quarter, (cosine, -sine, -cosine, sine)),
        np.choose(quarter, (sine, cosine, -sine, -cosine)),
    )
