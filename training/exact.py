"""Exact: the arithmetic after which every machine holds the same bits.

Room: training (pure). Nothing here may depend on threads, BLAS, instruction set
or order. Integers below 2^53 are exact in float64 in any order of summation, so
the inverse DCT runs through an ordinary matrix product on integer values; the
parameter update is two separately rounded float32 operations.

Shape suffixes: N = blocks, S = 64, P = parameters.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from protocol.params import BLOCK_SIDE as S
from protocol.params import BLOCK_SIZE, PPM, DemoSpec

BASIS_BITS = 14
VALUE_MAX = 1 << 14  # largest magnitude of an aggregate's coefficient
# 64 * 2^14 * 2^14 = 2^34 after one stage; shifted to 2^20; 64 * 2^20 * 2^14 = 2^40 after two: exact.
BASIS_SHA256 = "af3ad62a5e428d43235e775d8c352afdf2fa21852097d18ee62b1235b2811fcb"


def _basis() -> NDArray[np.float64]:
    """Orthonormal DCT-II basis times 2^14, rounded: row = frequency, column = position."""
    frequency = np.arange(S)[:, None]
    position = np.arange(S)[None, :]
    angle = np.pi * (2 * position + 1) * frequency / (2 * S)
    scale = np.where(frequency == 0, math.sqrt(1 / S), math.sqrt(2 / S))
    table: NDArray[np.float64] = np.rint((1 << BASIS_BITS) * scale * np.cos(angle))
    return table


BASIS_SS = _basis()
if hashlib.sha256(BASIS_SS.astype("<i4").tobytes()).hexdigest() != BASIS_SHA256:
    raise AssertionError("this machine's cosine table differs from the protocol's: its results would diverge")


def inverse_signs(values_NSS: NDArray[np.int32]) -> NDArray[np.int8]:
    """Sign of the inverse DCT of integer coefficients, the same on every machine.

    Args:
        values_NSS: Coefficients, row and column = frequency. Integers, magnitude <= 2^14.

    Returns:
        -1, 0 or 1 per position. Shape (N, 64, 64), int8. A block of zeros gives zeros.
    """
    assert int(np.abs(values_NSS).max(initial=0)) <= VALUE_MAX
    half = np.float64(1 << (BASIS_BITS - 1))
    first = np.matmul(values_NSS.astype(np.float64), BASIS_SS)  # along rows, exact
    first = np.floor((first + half) / (1 << BASIS_BITS))  # one defined rounding; division by 2^14 is exact
    both = np.matmul(BASIS_SS.T, first)
    signs: NDArray[np.int8] = np.sign(both).astype(np.int8)
    return signs


def apply_signs(
    theta_P: NDArray[np.float32], signs_P: NDArray[np.int8], lr: np.float32
) -> NDArray[np.float32]:
    """theta - lr * sign, as two separately rounded operations. A fresh array, shape (P,)."""
    step_P = signs_P.astype(np.float32) * lr  # exact: lr times -1, 0 or 1
    return theta_P - step_P


def learning_rate(rule: DemoSpec, rounds: int, round_id: int) -> np.float32:
    """Learning rate of one round: linear warm-up, then a cosine down to the floor.

    The cosine is Bhaskara's rational approximation in integers (largest error
    0.0022 of the peak), so that no machine's libm enters the protocol.
    """
    if round_id < rule.warmup_rounds:
        nano = rule.lr_nano * (round_id + 1) // rule.warmup_rounds
    else:
        span = max(rounds - rule.warmup_rounds, 1)
        done = min(round_id - rule.warmup_rounds, span)
        # (1 + cos(pi x)) / 2 = 1 - sin^2(pi x / 2); sin(pi t) ~ 16 t (1 - t) / (5 - 4 t (1 - t)), t = x / 2
        t_up, t_down = done, 2 * span - done
        top, bottom = 16 * t_up * t_down, 5 * 4 * span * span - 4 * t_up * t_down
        falling = bottom * bottom - top * top
        floor_nano = rule.lr_nano * rule.lr_floor_ppm // PPM
        nano = floor_nano + (rule.lr_nano - floor_nano) * falling // (bottom * bottom)
    return np.float32(nano / 1e9)


def initial_parameters(
    seed: int, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]
) -> NDArray[np.float32]:
    """The starting point every party computes for itself. Shape (P,), float32.

    Matrices are uniform with standard deviation 0.02, drawn from SHAKE-256 as
    24-bit integers and scaled once; norm weights are 1, biases 0.
    """
    scale = np.float32(0.02 * math.sqrt(3.0) / 2**23)
    parts = []
    for name, shape in zip(names, shapes, strict=True):
        size = math.prod(shape)
        if len(shape) == 1:
            parts.append(np.full(size, 1.0 if name.endswith("weight") else 0.0, np.float32))
            continue
        stream = hashlib.shake_256(b"assay/init/1" + seed.to_bytes(8, "big") + name.encode()).digest(4 * size)
        whole = np.frombuffer(stream, "<u4") >> 8
        centred = whole.astype(np.int64) - (1 << 23)
        parts.append(centred.astype(np.float32) * scale)
    return np.concatenate(parts)


def scatter_values(
    block_count: int, block_index: NDArray[np.int64], index: NDArray[np.int64], value: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Dense blocks from sparse (block, coefficient, value) triples. Shape (N, 64, 64), int32."""
    dense = np.zeros((block_count, BLOCK_SIZE), np.int32)
    dense[block_index, index] = value
    return dense.reshape(block_count, S, S)
