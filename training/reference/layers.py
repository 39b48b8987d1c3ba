"""Layers: every part of a model's forward and backward pass as a pure function of arrays, float32.

Room: training (pure). Sums are those of product.py and rows.py, or run over sequences or rows in ascending
order; everything else here is element by element, each operation rounded on its own. An output is one array,
C-contiguous and fresh; inputs are not modified.

Shape suffixes: T = tokens (sequences one after another), D = width, X = any, R = rows of a norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.data.mask import visible
from assay.training.reference import rows
from assay.training.reference.elementary import exp64, log64
from assay.training.reference.product import multiply

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Whole = NDArray[np.int64]
_MARGIN_MAX = 700.0  # of DPO, in magnitude: e to the power -700 adds nothing to 1


# ---- products


def linear(x_TD: Floats, weight_XD: Floats, beside_TX: Floats | None = None) -> Floats:
    """Every row times the transposed weight; added to what is beside it, if anything is."""
    return _beside(_product(x_TD, weight_XD.T), beside_TX)


def linear_back(slope_TX: Floats, weight_XD: Floats, beside_TD: Floats | None = None) -> Floats:
    """Slope along the input of `linear`; added to what is beside it, if anything is."""
    return _beside(_product(slope_TX, weight_XD), beside_TD)


def linear_weight_back(slope_TX: Floats, x_TD: Floats, *, shape: tuple[int, ...]) -> Floats:
    """Slope along the weight of `linear`: summed over tokens in order.

    shape: the weight's. Of two short and wide arrays the product would take far more room than they do.
    """
    if (slope_TX.shape[1], x_TD.shape[1]) != shape:
        raise ValueError(f"{slope_TX.shape} and {x_TD.shape} for a weight of shape {shape}")
    return _product(slope_TX.T, x_TD)


def biased(x_TX: Floats, bias_X: Floats) -> Floats:
    """Every row plus the bias."""
    expect_shape(x_TX.shape[1:], bias_X)
    return x_TX + bias_X


def bias_back(slope_TX: Floats) -> Floats:
    """Slope along a bias: summed over tokens in order."""
    out_1X = np.zeros((1, slope_TX.shape[1]), np.float32)
    rows.add_rows(np.ascontiguousarray(slope_TX), np.zeros(len(slope_TX), np.int64), out_1X)
    return out_1X.reshape(-1)


def scaled(scale: np.float32, x_TX: Floats) -> Floats:
    """Every entry times a factor."""
    out_TX: Floats = x_TX * scale
    return out_TX


def added(scale: np.float32, x_TX: Floats, low_TX: Floats) -> Floats:
    """x + scale * low, both operations rounded: what an adapter adds to what its matrix puts out."""
    expect_shape(x_TX.shape, low_TX)
    return x_TX + low_TX * scale


def _product(a_MK: Floats, b_KN: Floats) -> Floats:
    out_MN = np.empty((a_MK.shape[0], b_KN.shape[1]), np.float32)
    multiply(a_MK[None], b_KN[None], out_MN[None])
    return out_MN


def expect_shape(shape: tuple[int, ...], *arrays: NDArray[Any]) -> None:
    """Do nothing if all arrays have this shape: compiled code does not look.

    Raises:
        ValueError: one has another.
    """
    for array in arrays:
        if array.shape != shape:
            raise ValueError(f"an array of shape {array.shape}, expected {shape}")


def _expect_below(bound: int, places: Whole) -> None:
    if len(places) and not 0 <= places.min() <= places.max() < bound:
        raise ValueError(f"tokens {places.min()} to {places.max()}, expected 0 to {bound - 1}")


def _beside(fresh: Floats, beside: Floats | None) -> Floats:
    return fresh if beside is None else np.add(beside, fresh, out=fresh)


# ---- tables that are looked up


def embedded(tokens_T: Whole, table_VD: Floats) -> Floats:
    """The row of each token."""
    expect_shape(tokens_T.shape[:1], tokens_T)
    _expect_below(len(table_VD), tokens_T)
    return table_VD[tokens_T]


def embedded_back(slope_TD: Floats, tokens_T: Whole, start_VD: Floats) -> Floats:
    """Slope along the table: from `start`, every row is added to its token's, in order."""
    expect_shape((len(tokens_T), start_VD.shape[1]), slope_TD)
    _expect_below(len(start_VD), tokens_T)
    out_VD = start_VD.copy()
    rows.add_rows(slope_TD, tokens_T, out_VD)
    return out_VD


def placed(x_TD: Floats, position_CD: Floats) -> Floats:
    """Every sequence plus the rows of its positions."""
    out: Floats = x_TD.reshape(-1, *position_CD.shape) + position_CD
    return out.reshape(x_TD.shape)


def placed_back(slope_TD: Floats, context: int) -> Floats:
    """Slope along the positions: summed over sequences in order."""
    slope_SCD = slope_TD.reshape(-1, context, slope_TD.shape[1])
    out_CD = np.zeros(slope_SCD.shape[1:], np.float32)
    for slope_CD in slope_SCD:
        out_CD += slope_CD
    return out_CD


# ---- norms
# A norm is of rows as wide as its weight: whole rows, or each head's part of them, one after another.


def statistics(x_TD: Floats, is_centred: bool, epsilon: float, *, width: int) -> Floats:
    """Mean (0 unless centred) and 1 / sqrt(mean square of x - mean, plus epsilon), by row of this width."""
    x_RX = x_TD.reshape(-1, width)
    out_2R = np.empty((2, len(x_RX)), np.float32)
    rows.statistics(x_RX, is_centred, epsilon, *out_2R)
    return out_2R


def gain(weight_X: Floats) -> Floats:
    """1 + weight: what a Gemma's norm multiplies by."""
    out_X: Floats = np.float32(1) + weight_X
    return out_X


def normed(x_TD: Floats, statistics_2R: Floats, weight_X: Floats, bias_X: Floats | None = None) -> Floats:
    """Layer norm, or RMS norm by statistics that are not centred."""
    x_RX = x_TD.reshape(-1, len(weight_X))
    expect_shape((2, len(x_RX)), statistics_2R)
    out_RX = np.empty_like(x_RX)
    rows.normed(x_RX, statistics_2R[0], statistics_2R[1], weight_X, out_RX)
    if bias_X is not None:
        out_RX += bias_X
    return out_RX.reshape(x_TD.shape)


def normed_back(
    slope_TD: Floats,
    x_TD: Floats,
    statistics_2R: Floats,
    weight_X: Floats,
    beside_TD: Floats | None = None,
    *,
    is_centred: bool,
) -> Floats:
    """Slope along the input of `normed`; added to what is beside it, if anything is."""
    expect_shape(x_TD.shape, slope_TD)
    x_RX, slope_RX = (np.ascontiguousarray(one).reshape(-1, len(weight_X)) for one in (x_TD, slope_TD))
    expect_shape((2, len(x_RX)), statistics_2R)
    out_RX = np.empty_like(x_RX)
    mean_R, scale_R = statistics_2R
    rows.normed_back(x_RX, is_centred, mean_R, scale_R, weight_X, slope_RX, out_RX)
    return _beside(out_RX.reshape(x_TD.shape), beside_TD)


def normed_weight_back(slope_TD: Floats, x_TD: Floats, statistics_2R: Floats, *, width: int) -> Floats:
    """Slope along the weight of `normed`, of this width: summed over rows in order."""
    expect_shape(x_TD.shape, slope_TD)
    x_RX, slope_RX = (np.ascontiguousarray(one).reshape(-1, width) for one in (x_TD, slope_TD))
    expect_shape((2, len(x_RX)), statistics_2R)
    out_X = np.zeros(width, np.float32)
    rows.normed_weight_back(x_RX, statistics_2R[0], statistics_2R[1], slope_RX, out_X)
    return out_X


# ---- activations


def gelu(x_TX: Floats) -> Floats:
    """The exact GELU."""
    out_TX = np.empty_like(x_TX)
    rows.gelu(x_TX.reshape(-1), out_TX.reshape(-1))
    return out_TX


def gelu_back(slope_TX: Floats, x_TX: Floats) -> Floats:
    """Slope along the input of `gelu`."""
    expect_shape(x_TX.shape, slope_TX)
    out_TX = np.empty_like(x_TX)
    rows.gelu_back(x_TX.reshape(-1), slope_TX.reshape(-1), out_TX.reshape(-1))
    return out_TX


def gated(gate_TX: Floats, up_TX: Floats) -> Floats:
    """SwiGLU: SiLU of the gate, times the other factor."""
    expect_shape(gate_TX.shape, up_TX)
    out_TX = np.empty_like(gate_TX)
    rows.gated(gate_TX.reshape(-1), up_TX.reshape(-1), out_TX.reshape(-1))
    return out_TX


def gated_back(slope_TX: Floats, gate_TX: Floats, up_TX: Floats) -> Floats:
    """Slopes along the gate and along the other factor. Shape (2, T, X)."""
    expect_shape(gate_TX.shape, up_TX, slope_TX)
    out_2TX = np.empty((2, *gate_TX.shape), np.float32)
    flat = (one.reshape(-1) for one in (gate_TX, up_TX, slope_TX, *out_2TX))
    rows.gated_back(*flat)
    return out_2TX


def gelu_tanh(x_TX: Floats) -> Floats:
    """The tanh within the approximate GELU, an output of its own, as 1 + tanh cancels below 0."""
    out_TX = np.empty_like(x_TX)
    rows.gelu_tanh(x_TX.reshape(-1), out_TX.reshape(-1))
    return out_TX


def geglu(gate_TX: Floats, up_TX: Floats, tanh_TX: Floats) -> Floats:
    """GeGLU: the approximate GELU of the gate, given its tanh, times the other factor."""
    expect_shape(gate_TX.shape, up_TX, tanh_TX)
    out_TX = np.empty_like(gate_TX)
    rows.geglu(*(one.reshape(-1) for one in (gate_TX, up_TX, tanh_TX, out_TX)))
    return out_TX


def geglu_back(slope_TX: Floats, gate_TX: Floats, up_TX: Floats, tanh_TX: Floats) -> Floats:
    """Slopes along the gate and along the other factor. Shape (2, T, X)."""
    expect_shape(gate_TX.shape, up_TX, tanh_TX, slope_TX)
    out_2TX = np.empty((2, *gate_TX.shape), np.float32)
    rows.geglu_back(*(one.reshape(-1) for one in (gate_TX, up_TX, tanh_TX, slope_TX, *out_2TX)))
    return out_2TX


# ---- loss


def partition(logits_TV: Floats) -> Doubles:
    """The largest logit, and the sum of exp(logit - largest), by row. Shape (2, T), float64."""
    top_T, total_T = logits_TV.max(axis=1), np.empty(len(logits_TV))
    rows.partition(logits_TV, top_T, total_T)
    return np.stack((top_T.astype(np.float64), total_T))


def cross_entropy(logits_TV: Floats, partition_2T: Doubles, targets_T: Whole) -> Doubles:
    """Sum of -log softmax at the targets in nats, rows in order, masked ones as 0. Shape (1,), float64."""
    return np.add.accumulate(_token_losses(logits_TV, partition_2T, targets_T))[-1:]


def _token_losses(logits_TV: Floats, partition_2T: Doubles, targets_T: Whole) -> Doubles:
    expect_shape((2, len(logits_TV)), partition_2T)
    expect_shape(logits_TV.shape[:1], targets_T)
    reached_T = logits_TV[np.arange(len(logits_TV)), visible(targets_T)].astype(np.float64)
    loss_T = log64(partition_2T[1]) + (partition_2T[0] - reached_T)
    masked_T: Doubles = np.where(targets_T < 0, 0.0, loss_T)
    return masked_T


def cross_entropy_back(logits_TV: Floats, partition_2T: Doubles, targets_T: Whole, *, count: int) -> Floats:
    """Slope of that sum divided by `count`: 0 in rows whose target is masked."""
    expect_shape((2, len(logits_TV)), partition_2T)
    expect_shape(logits_TV.shape[:1], targets_T)
    _expect_below(logits_TV.shape[1], visible(targets_T))
    out_TV, top_T = np.empty_like(logits_TV), partition_2T[0].astype(np.float32)
    share = np.float32(1.0 / max(count, 1))
    rows.loss_back(logits_TV, top_T, partition_2T[1], targets_T, share, out_TV)
    return out_TV


def dpo(
    logits_TV: Floats, partition_2T: Doubles, targets_T: Whole, reference_S: Doubles, *, beta: float
) -> Doubles:
    """Sum of -log sigmoid(margin) over the pairs, in order. Shape (1,), float64.

    reference_S: what `cross_entropy` was for each sequence under the reference model, in nats.
    """
    margin_P = _margins(logits_TV, partition_2T, targets_T, reference_S, beta)
    shrunk_P = exp64(-np.minimum(np.abs(margin_P), _MARGIN_MAX))
    return np.add.accumulate(np.maximum(-margin_P, 0.0) + log64(1.0 + shrunk_P))[-1:]


def dpo_back(
    logits_TV: Floats,
    partition_2T: Doubles,
    targets_T: Whole,
    reference_S: Doubles,
    *,
    beta: float,
    pairs: int,
) -> Floats:
    """Slope of that sum divided by `pairs`: 0 in rows whose target is masked.

    That of `cross_entropy`, times beta * sigmoid(-margin) / pairs, with the other sign where rejected.
    """
    margin_P = _margins(logits_TV, partition_2T, targets_T, reference_S, beta)
    shrunk_P = exp64(-np.minimum(np.abs(margin_P), _MARGIN_MAX))
    wrong_P = np.where(margin_P < 0, 1.0, shrunk_P) / (1.0 + shrunk_P)
    expect_shape(logits_TV.shape[:1], targets_T)
    _expect_below(logits_TV.shape[1], visible(targets_T))
    out_TV, top_T = np.empty_like(logits_TV), partition_2T[0].astype(np.float32)
    length = len(targets_T) // len(reference_S)
    for sequence in range(len(reference_S)):
        sign, at = 1 - 2 * (sequence % 2), slice(sequence * length, (sequence + 1) * length)
        share = np.float32(sign * wrong_P[sequence // 2] * beta / pairs)
        rows.loss_back(logits_TV[at], top_T[at], partition_2T[1, at], targets_T[at], share, out_TV[at])
    return out_TV


def _margins(
    logits_TV: Floats, partition_2T: Doubles, targets_T: Whole, reference_S: Doubles, beta: float
) -> Doubles:
    """Of each pair: beta times what the chosen gained in log-probability more than the rejected."""
    loss_ST = _token_losses(logits_TV, partition_2T, targets_T).reshape(len(reference_S), -1)
    gained_S = reference_S - np.add.accumulate(loss_ST, axis=1)[:, -1]
    margin_P: Doubles = (gained_S[0::2] - gained_S[1::2]) * beta
    return margin_P
