"""Exact: inverse DCT, sign step and initial parameters with equal bits on every machine.

Room: training (pure). Nothing here may depend on threads, BLAS, instruction set
or order. Integers below 2^53 are exact in float64 in any order of summation, so
the inverse DCT runs through an ordinary matrix product on integer values; the
parameter update is two separately rounded float32 operations.

Shape suffixes: N = blocks, S = 64, P = parameters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIDE as S
from assay.training import parallel

BASIS_BITS = 14
_GROUP_BLOCKS = 16
_PART = 1 << 16  # numbers that lie in a core's own cache
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


def inverse_values(values_NSS: NDArray[np.int32]) -> tuple[NDArray[np.float64], int]:
    """Inverse DCT of integer coefficients as integers, with the power of two that scales them.

    Args:
        values_NSS: Coefficients, row and column = frequency. Integers, magnitude <= 2^14.

    Returns:
        Whole numbers w and a shift s: the values are w / 2^s. Shape (N, 64, 64), float64, below 2^41.
    """
    whole_NSS = np.empty(values_NSS.shape, np.float64)
    for rows in _groups(len(values_NSS)):
        whole_NSS[rows] = _inverse(values_NSS[rows])
    return whole_NSS, BASIS_BITS


def _groups(count: int) -> list[slice]:
    """Few blocks at a time, so that both stages stay in a core's own cache: four times as fast."""
    return [slice(start, start + _GROUP_BLOCKS) for start in range(0, count, _GROUP_BLOCKS)]


def _inverse(values_NSS: NDArray[np.int32]) -> NDArray[np.float64]:
    """Both stages for a few blocks, block by block: one large product would start BLAS's threads."""
    if not values_NSS.any():
        return np.zeros(values_NSS.shape)
    assert int(values_NSS.max()) <= VALUE_MAX and int(values_NSS.min()) >= -VALUE_MAX
    first = np.matmul(values_NSS.astype(np.float64), BASIS_SS)  # along rows, exact
    first += 1 << (BASIS_BITS - 1)
    first *= 2.0**-BASIS_BITS  # one defined rounding: the product with a power of two is exact
    both: NDArray[np.float64] = np.matmul(BASIS_SS.T, np.floor(first, out=first))
    return both


def apply_signs(
    theta_P: NDArray[np.float32], signs_P: NDArray[np.int8], lr: np.float32
) -> NDArray[np.float32]:
    """theta - lr * sign, as two separately rounded operations. A fresh array, shape (P,)."""
    moved_P = np.empty_like(theta_P)

    def work(part: slice) -> None:
        step_P = signs_P[part].astype(np.float32)
        step_P *= lr  # exact: lr times -1, 0 or 1
        np.subtract(theta_P[part], step_P, out=moved_P[part])

    _each_part(work, len(theta_P))
    return moved_P


def is_finite(values: NDArray[np.float32]) -> bool:
    """Whether all of an array is finite, on all threads."""
    flat, found = values.reshape(-1), [True]
    _each_part(lambda part: found.append(bool(np.isfinite(flat[part]).all())), len(flat))
    return all(found)


def _each_part(work: Callable[[slice], object], count: int) -> None:
    """Do the work for all of `count` numbers, in parts that lie in a core's own cache, on all threads."""

    def several(some: slice) -> None:
        for start in range(some.start, some.stop, _PART):
            work(slice(start, min(start + _PART, some.stop)))

    parallel.each(several, parallel.parts(count, _PART))


def initial_parameters(
    seed: int, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]
) -> NDArray[np.float32]:
    """The starting parameters, which every party computes for itself. Shape (P,), float32.

    Matrices are uniform with standard deviation 0.02, drawn from SHAKE-256 as
    24-bit integers and scaled once; norm weights are 1, biases 0.
    """
    scale = np.float32(0.02 * math.sqrt(3.0) / 2**23)
    theta_P = np.empty(sum(math.prod(shape) for shape in shapes), np.float32)
    at = 0
    for name, shape in zip(names, shapes, strict=True):
        part = theta_P[at : at + math.prod(shape)]
        at += len(part)
        if len(shape) == 1:
            part[:] = 1.0 if name.endswith("weight") else 0.0
            continue
        part[:] = _drawn(seed, name, len(part)) * scale
    return theta_P


def initial_factors(
    seed: int, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]
) -> NDArray[np.float32]:
    """The starting factors of an adapter, which every party computes for itself. Shape (P,), float32.

    A is uniform within 1 / sqrt(columns), drawn as matrices are in `initial_parameters`; B is 0, so that the
    adapter begins by changing nothing. The square root and the quotient are IEEE's.
    """
    theta_P = np.zeros(sum(math.prod(shape) for shape in shapes), np.float32)
    at = 0
    for name, shape in zip(names, shapes, strict=True):
        part = theta_P[at : at + math.prod(shape)]
        at += len(part)
        if name.endswith(".lora_a"):
            part[:] = _drawn(seed, name, len(part)) * np.float32(1 / math.sqrt(shape[1]) / 2**23)
    return theta_P


def _drawn(seed: int, name: str, count: int) -> NDArray[np.float32]:
    """Whole numbers from -2^23 to 2^23 - 1, uniform."""
    head = b"assay/init/1" + seed.to_bytes(8, "big") + name.encode()
    whole = np.frombuffer(hashlib.shake_256(head).digest(4 * count), "<u4") >> 8
    return (whole.astype(np.int32) - (1 << 23)).astype(np.float32)
