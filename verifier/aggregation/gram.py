"""Gram: robust aggregation rules that compute each node's weight from inner products alone.

Room: verifier (pure). A rule whose result is a weighted sum of the messages needs only their Gram matrix to
find the weights. Integers throughout: weights in units of 2^-14, distances as integer roots, divisions that
round down; equal bits on every machine, because nothing here is a float sum.

Magnitudes: callers ensure that the squared norm of a row is below 2^31 (a sum of c messages, each below 2^31
/ c^2); a squared distance times 2^28 then stays below 2^61.

Shape suffixes: B = blocks (1 if all are one), N = rows (nodes, or mixtures of them),
M = nodes behind mixtures.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from assay.training.compiled import FILL_INT64_2, INT, Kind, compiled
from assay.training.exact import VALUE_MAX

ONE = VALUE_MAX  # weight 1
MIX_MAX = 1 << 10  # largest sum of a row of a mixing matrix
GRAM_BITS = 31  # of a squared norm
STEPS = 3  # iterations of centered clipping and of the geometric median
POWER_STEPS = 8  # of CAF's power method
_KEPT = 1 << 20  # weight 1 while CAF takes weight off: what is left of a far row moves much
_PRODUCT_BITS, _SQUARED_BITS = 30, 20  # of CAF's inner products; of those that are squared
SMOOTHING = 10  # the geometric median treats smaller distances as 1 / 10 (byzfl's nu)

Ints = NDArray[np.int64]


def clip_weights(gram_BNN: Ints, *, steps: int = STEPS) -> Ints:
    """Centered clipping from zero: no row weighs more than steps / N in any block.

    Each step moves the centre by the mean of the offsets, each cut to the lower median
    distance. That median lies between two honest distances while honest rows are the majority.

    Args:
        gram_BNN: Inner products. Shape (B, N, N), int64.
        steps: Fixed-point iterations; 3 suffice from zero.

    Returns:
        Weights in units of 2^-14, not negative, of sum at most 2^14. Shape (B, N).

    Reference:
        Karimireddy, He & Jaggi, ICML 2021, arXiv:2012.10333. The median distance in place
        of a tuned radius is ours; with it their convergence proof does not apply as it is.
    """
    weight_BN = np.zeros(gram_BNN.shape[:2], np.int64)
    _clip(np.ascontiguousarray(gram_BNN), steps, weight_BN)
    return weight_BN


@compiled(None, Kind("int64", 3), INT, FILL_INT64_2)
def _clip(gram_BNN: Ints, steps: int, weight_BN: Ints) -> None:
    """As many steps from these weights; offsets and roots as in `_squared_offsets` and `whole_root`."""
    count = gram_BNN.shape[1]
    inner_N, root_N = np.empty(count, np.int64), np.empty(count, np.int64)
    for block in range(len(gram_BNN)):
        for _ in range(steps):
            center, kept, radius = 0, count * ONE, 0
            for n in range(count):
                inner = 0
                for m in range(count):
                    inner += gram_BNN[block, n, m] * weight_BN[block, m]
                inner_N[n] = inner
                center += inner * weight_BN[block, n]
            for n in range(count):
                square = max(gram_BNN[block, n, n] * (ONE * ONE) - 2 * ONE * inner_N[n] + center, 0)
                root = np.int64(np.sqrt(np.float64(square)))
                root_N[n] = root - (root * root > square)
            for n in range(count):  # the lower median is the one that half of the others are not above
                below, same = 0, 0
                for m in range(count):
                    below += root_N[m] < root_N[n]
                    same += root_N[m] == root_N[n]
                if below <= (count - 1) // 2 < below + same:
                    radius = root_N[n]
            for n in range(count):
                # Quotients of whole numbers below 2^53 in floats: those that count are further below the next
                # whole number, by 2^-31 and 2^-21 at least, than rounding moves them.
                factor = min(ONE, int(np.float64(radius * ONE) / np.float64(max(root_N[n], 1))))
                kept -= factor
                root_N[n] = ONE * factor
            for n in range(count):
                whole = weight_BN[block, n] * kept + root_N[n]
                weight_BN[block, n] = np.int64(np.float64(whole) / np.float64(count * ONE))


def median_weights(gram_BNN: Ints, *, unit: int, steps: int = STEPS) -> Ints:
    """Geometric median by smoothed Weiszfeld iterations from the mean.

    Args:
        gram_BNN: Inner products. Shape (B, N, N), int64.
        steps: Iterations; byzfl uses 3.
        unit: How many messages a row is the sum of; the smoothing is per message.

    Returns:
        Weights in units of 2^-14, of sum at most 2^14. Shape (B, N).

    Reference:
        Pillutla, Kakade & Harchaoui, "Robust Aggregation for Federated Learning", arXiv:1912.13445.
    """
    count = gram_BNN.shape[1]
    weight_BN = np.full(gram_BNN.shape[:2], ONE // count, np.int64)
    for _ in range(steps):
        root_BN = whole_root(_squared_offsets(gram_BNN, weight_BN))
        near_BN = (1 << 44) // np.maximum(root_BN, unit * ONE // SMOOTHING)
        weight_BN = near_BN * ONE // near_BN.sum(axis=1, keepdims=True)
    return weight_BN


def krum_weights(gram_BNN: Ints, *, f: int, kept: int) -> Ints:
    """Equal weight on the `kept` rows that are closest to their N - f - 2 nearest neighbours.

    Ties go to the lower peer id. Shape (B, N), units of 2^-14.

    Raises:
        ValueError: N < 2f + 3, where the guarantee ends, or there are not `kept` rows.

    Reference:
        Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017, arXiv:1703.02757.
    """
    count = gram_BNN.shape[1]
    if count < 2 * f + 3:
        raise ValueError(f"Krum against f = {f} needs {2 * f + 3} rows, {count} arrived")
    if not 1 <= kept <= count:
        raise ValueError(f"Krum keeps {kept} of {count} rows")
    # each row is at distance 0 from itself
    nearest_BNN = np.sort(squared_distances(gram_BNN), axis=2)[:, :, : count - f - 1]
    order_BN = np.argsort(nearest_BNN.sum(axis=2), axis=1, kind="stable")
    weight_BN = np.zeros(gram_BNN.shape[:2], np.int64)
    np.put_along_axis(weight_BN, order_BN[:, :kept], ONE // kept, axis=1)
    return weight_BN


def monna_weights(gram_BNN: Ints, *, f: int) -> Ints:
    """Equal weight on the N - f rows that are nearest to one of them, the row of the tightest neighbourhood.

    MoNNA has a node average what is near its own vector, which it trusts. All verifiers take the same
    aggregate, so the reference is the row whose own N - f nearest, itself among them, have the least sum of
    squared distances: no honest row has more company. Ties go to the lower peer id. Shape (B, N), units of
    2^-14.

    Raises:
        ValueError: N <= 2f.

    Reference:
        Farhadkhani, Guerraoui, Gupta, Hoang, Pinot & Stephan, "Robust Collaborative Learning with Linear
        Gradient Overhead", ICML 2023, arXiv:2209.10931. Their guarantee needs an honest reference.
    """
    count = gram_BNN.shape[1]
    near_BNN = nearest_neighbours(gram_BNN, f=f)
    score_BN = (near_BNN * squared_distances(gram_BNN)).sum(axis=2)
    of_B11 = score_BN.argmin(axis=1)[:, None, None]
    weight_BN: Ints = np.take_along_axis(near_BNN, of_B11, axis=1)[:, 0] * (ONE // (count - f))
    return weight_BN


def caf_weights(gram_BNN: Ints, *, f: int) -> Ints:
    """The weighted mean of least variance on the way of a filter that needs no bound on honest variance.

    Every row begins with weight 1. Each step takes the direction in which the weighted rows vary most, and
    takes weight off each row by its share of the largest squared offset there, until N - 2f or less is left.
    Of all weighted means on the way that with the least largest variance is the result. The direction comes
    from `POWER_STEPS` of the power method, which begin at the row farthest from the mean, in whole numbers;
    "largest" is among rows that still weigh anything, so that each step removes one. Shape (B, N), units of
    2^-14.

    Raises:
        ValueError: N <= 2f.

    Reference:
        Allouah, Guerraoui & Stephan, "Towards Trustworthy Federated Learning with Untrusted Participants",
        ICML 2025, arXiv:2505.01874 (CAF).
    """
    need_majority(gram_BNN.shape[1], f)
    return np.stack([_filtered(gram_NN, f) for gram_NN in gram_BNN])


def _filtered(gram_NN: Ints, f: int) -> Ints:
    """`caf_weights` of one block."""
    count = len(gram_NN)
    kept_N = np.full(count, _KEPT)
    best_N: Ints = kept_N * ONE // kept_N.sum()
    least: Fraction | None = None
    while kept_N.sum() > (count - 2 * f) * _KEPT:
        mean_N: Ints = kept_N * ONE // kept_N.sum()
        inner_N = gram_NN @ mean_N
        around_NN = gram_NN * ONE * ONE - ONE * (inner_N[:, None] + inner_N) + inner_N @ mean_N  # below 2^61
        drop = _surplus(around_NN, _PRODUCT_BITS)
        around_NN >>= drop
        way_N = np.zeros(count, np.int64)  # coefficients of a direction, of at most 14 bits
        way_N[np.where(kept_N > 0, np.diagonal(around_NN), -1).argmax()] = ONE - 1
        for _ in range(POWER_STEPS):
            offset_N = around_NN @ way_N  # of rows, along that direction; below 2^51
            way_N = kept_N * (offset_N >> _surplus(offset_N, _PRODUCT_BITS))
            way_N >>= _surplus(way_N, ONE.bit_length() - 1)
        offset_N = around_NN @ way_N
        length = sum(int(a) * int(b) for a, b in zip(way_N, offset_N, strict=True))
        if length <= 0:  # the rows that weigh anything are one
            return mean_N
        spread = sum(int(c) * int(b) ** 2 for c, b in zip(kept_N, offset_N, strict=True))
        variance = Fraction(spread << drop, length * int(kept_N.sum()))
        if least is None or variance < least:
            best_N, least = mean_N, variance
        square_N = (offset_N >> _surplus(offset_N, _SQUARED_BITS)) ** 2
        most = max(int(square_N[kept_N > 0].max()), 1)
        kept_N = kept_N * (most - np.minimum(square_N, most)) // most
    return best_N


def _surplus(number: Ints, bits: int) -> int:
    """How many low bits leave the largest of these numbers with `bits`."""
    return max(int(np.abs(number).max()).bit_length() - bits, 0)


def nearest_neighbours(gram_BMM: Ints, *, f: int) -> Ints:
    """Mixing matrix that replaces each row by the sum of its M - f nearest, itself among them.

    Ties go to the lower peer id. Shape (B, M, M), zeros and ones.

    Raises:
        ValueError: M <= 2f: a neighbourhood would have no honest majority.

    Reference:
        Allouah et al., "Fixing by Mixing", AISTATS 2023, arXiv:2302.01772 (NNM).
    """
    count = gram_BMM.shape[1]
    need_majority(count, f)
    order_BMM = np.argsort(squared_distances(gram_BMM), axis=2, kind="stable")
    mix_BMM = np.zeros_like(gram_BMM)
    np.put_along_axis(mix_BMM, order_BMM[:, :, : count - f], 1, axis=2)
    return mix_BMM


def buckets(gram_BMM: Ints, *, size: int, seed: bytes) -> Ints:
    """Mixing matrix of random groups of `size` rows; all rows of a group have the same sum.

    Membership of a bucket follows from the seed alone, so the seed must be drawn after the
    messages are committed. Shape (1, ceil(M / size), M).

    Raises:
        ValueError: no such size.

    Reference:
        Karimireddy, He & Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via
        Bucketing", ICLR 2022, arXiv:2006.09365.
    """
    count = gram_BMM.shape[1]
    if not 1 <= size <= count:
        raise ValueError(f"buckets of {size} for {count} rows")
    keys = [hashlib.sha256(b"assay/bucket/1" + seed + i.to_bytes(4, "big")).digest() for i in range(count)]
    order = sorted(range(count), key=keys.__getitem__)
    groups = [order[at : at + size] for at in range(0, count, size)]
    whole = math.lcm(*(len(group) for group in groups))
    mix = np.zeros((1, len(groups), count), np.int64)
    for row, group in enumerate(groups):
        mix[0, row, group] = whole // len(group)
    return mix


def need_majority(count: int, f: int) -> None:
    """Do nothing if `count` rows have an honest majority despite f Byzantine ones.

    Raises:
        ValueError: count <= 2f, or f is negative. No rule falls back to the mean instead.
    """
    if f < 0:
        raise ValueError(f"f is {f}, expected at least 0")
    if count <= 2 * f:
        raise ValueError(f"f = {f} of {count} rows leaves no honest majority; at least {2 * f + 1} expected")


def squared_distances(gram_BNN: Ints) -> Ints:
    """Squared distances of all pairs, exact. Shape (B, N, N)."""
    norm_BN = np.diagonal(gram_BNN, axis1=1, axis2=2)
    distance: Ints = norm_BN[:, :, None] + norm_BN[:, None, :] - 2 * gram_BNN
    return distance


def whole_root(square: Ints) -> Ints:
    """Integer square roots, rounded down. For 0 to 2^62.

    IEEE 754 rounds square roots correctly. Above 2^53 the square itself is rounded first, by
    too little to push a root below a whole number but enough to push it up to one.
    """
    root: Ints = np.sqrt(square.astype(np.float64)).astype(np.int64)
    return root - (root * root > square)


def _squared_offsets(gram_BNN: Ints, weight_BN: Ints) -> Ints:
    """Squared distance of every row to the weighted sum of all, times 2^28. Shape (B, N)."""
    inner_BN = np.matmul(gram_BNN, weight_BN[:, :, None])[:, :, 0]
    center_B1 = (inner_BN * weight_BN).sum(axis=1, keepdims=True)
    norm_BN = np.diagonal(gram_BNN, axis1=1, axis2=2)
    offsets: Ints = norm_BN * (ONE * ONE) - 2 * ONE * inner_BN + center_B1
    return np.maximum(offsets, 0)  # where low bits were left out, rounding may give a negative value
