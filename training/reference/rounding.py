"""Rounding: a gradient whose every operator read its inputs one rounding off.

Room: training (pure). An honest gradient of another class differs from the reference class's by rounding.
Relative to the gradient this is small, unless terms cancel (data that the model knows by heart, sequences
that contradict each other) or the model multiplies what was rounded (parameters that were badly chosen, or
have diverged). How far a rounding leads is measured: the *jittered* gradient is that of the same operators,
each input of each moved by one unit of rounding, up or down as a seed says. Inside two operators more is
rounded: terms cancel there, a probability and the 1 at the target, and a score's slope and its row's mean;
and kernels that keep no probabilities take them again from the float32 log of a row's sum.

Measured with four models, both precisions, losses from 5.6 to 1e-4 and parameters up to thirty times as
large: native classes of two processors are at most 3 times as far from the reference class, and mostly half
as far, as the jittered gradient (docs/results/tolerance.md).

Shape suffixes: P = parameters. T = rows of logits. V = vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ComputeSpec, ModelSpec, Precision
from assay.training.data.mask import visible
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.reference.elementary import exp64, log64
from assay.training.reference.gradient import run
from assay.training.reference.operators import Array, Operator, operators, sources

JITTERED = "jittered/"  # and the name of the operator whose output this one's stands beside
UNIT = {Precision.FLOAT32: 2.0**-24, Precision.BFLOAT16: 2.0**-9}  # of rounding, relative
_ATTENTION_BACK = "attention.x"
_LOSS_BACK = "/slope/loss.x"
_EXP_LEAST = -700.0  # below which exp is 0 for all that matters here
_EXACT = ("/partition", "/loss", "/gradient")  # these read what others have moved
_GOLDEN = 0x9E3779B97F4A7C15


def jittered_gradient(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    compute: ComputeSpec,
    seed: bytes,
    frozen: Frozen = ALL_TRAINED,
) -> NDArray[np.float32]:
    """The gradient with a rounding in every operator. Shape (P,), float32. Same bits on every machine.

    Args:
        model, layout, theta_P, tokens, compute, frozen: As of `reference_loss_and_gradient`, which must have
            accepted them; the size of a rounding is that of `compute.dtype`.
        seed: Of what goes up and what goes down; one that nobody knew who chose parameters or data.

    Raises:
        FloatingPointError: a result is not finite.
    """
    program = jittered_operators(operators(model, len(tokens), compute), compute.dtype, seed)
    arrays = sources(layout, np.ascontiguousarray(theta_P), np.ascontiguousarray(tokens), frozen)
    return run(program, arrays, lambda _operator, _output: None)


def jittered_operators(
    program: Sequence[Operator], dtype: Precision, seed: bytes, head: str = JITTERED
) -> tuple[Operator, ...]:
    """The operators of the jittered gradient, one for each of the gradient's, by its name behind `head`.

    Args:
        program: The gradient's.
        dtype: The precision whose rounding is meant.
        seed: See `jittered_gradient`.
        head: Tells these operators from others.
    """
    made = {one.name for one in program}
    return tuple(
        Operator(
            head + one.name,
            tuple(head + name if name in made else name for name in one.inputs),
            partial(_jittered, one, UNIT[dtype], seed),
        )
        for one in program
    )


def _jittered(operator: Operator, unit: float, seed: bytes, *inputs: Array) -> Array:
    if operator.name.endswith(_EXACT):
        return operator.function(*inputs)

    def signs(name: str, array: Array) -> NDArray[np.float32]:
        head = hashlib.sha256(b"assay/jitter/1" + seed + f"{operator.name}/{name}".encode()).digest()
        return _signs(int.from_bytes(head[:8], "big"), array.size).reshape(array.shape)

    def moved(name: str, array: Array, by: float = unit) -> Array:
        if array.dtype.kind != "f":
            return array
        found: Array = (array + array * (np.float32(by) * signs(name, array))).astype(array.dtype)
        return found

    if operator.name.endswith(_LOSS_BACK):
        output = operator.function(*inputs)
        size_TV, row_TV = (size * UNIT[Precision.FLOAT32] for size in _slope_sizes(output, *inputs[:3]))
        noise_TV = size_TV * signs("slopes", output) + row_TV * signs("sums", output[:, :1])
        return np.array(output + noise_TV, np.float32)
    shaken = [moved(str(at), one) for at, one in enumerate(inputs)]
    if operator.name.endswith(_ATTENTION_BACK):
        scores = partial(moved, "scores", by=UNIT[Precision.FLOAT32])  # no kernel keeps them in less
        return operator.function(*shaken, jitters=(scores, partial(moved, "slopes")))
    return operator.function(*shaken)


def _slope_sizes(
    slope_TV: Array, logits_TV: Array, partition_2T: Array, targets_T: Array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sizes of what rounds where the 1 at the target is taken off its probability.

    Returns:
        The slope's and its p's, of which each rounds; and p's as far as it follows from the log of the row's
        sum, which rounds once a row: p = exp(logit - log sum). Both of shape (T, V).
    """
    exponent_TV = np.maximum(logits_TV - partition_2T[0][:, None], _EXP_LEAST)
    p_TV = exp64(exponent_TV) / partition_2T[1][:, None]
    rows, others_TV = np.arange(len(p_TV)), p_TV.copy()
    others_TV[rows, visible(targets_T)] = 0
    top_T = others_TV.argmax(axis=1)  # a slope that is its p times the row's share of the loss
    share_T = np.abs(slope_TV[rows, top_T].astype(np.float64)) / np.maximum(others_TV[rows, top_T], 1e-300)
    p_TV *= share_T[:, None]
    log_T = partition_2T[0].astype(np.float64) + log64(partition_2T[1].astype(np.float64))
    return np.abs(slope_TV.astype(np.float64)) + p_TV, p_TV * np.abs(log_T)[:, None]


def _signs(seed: int, count: int) -> NDArray[np.float32]:
    """1 and -1, as good as independent of one another: the bits of SplitMix64. Shape (count,)."""
    words = np.arange(-(-count // 64), dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(seed)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=count)
    signs: NDArray[np.float32] = np.float32(1) - np.float32(2) * bits
    return signs
