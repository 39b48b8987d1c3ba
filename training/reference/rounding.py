"""Rounding: how large the gradient's own rounding may be, where its terms nearly cancel.

Room: training (pure). An honest gradient of another class differs from the reference class's by rounding.
Relative to the gradient this is small, unless the model knows its batch by heart (a slope p - 1 with p near
1) or the batch's terms cancel: then the gradient is small, and its rounding is not. The *probe* has the size
of what is rounded: it is the gradient of slopes as large as p and as the true ones, with signs that do not
cancel. Measured, two models, losses from 5.6 to 3e-4: native classes differ by 2 to 17 times 2^-24 of it.

Shape suffixes: P = parameters. T = rows of logits. V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ComputeSpec, ModelSpec
from assay.training.data.mask import visible
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.reference.elementary import exp64
from assay.training.reference.gradient import run
from assay.training.reference.operators import Array, Operator, operators, sources

PROBE = "probe/"  # and the name of the operator whose output this one's stands beside
_SLOPE = "/slope/loss.x"
_EXP_LEAST = -700.0  # below which exp is 0 for all that matters here


def rounding_probe(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    compute: ComputeSpec,
    frozen: Frozen = ALL_TRAINED,
) -> NDArray[np.float32]:
    """The gradient of the probe. Shape (P,), float32. Same bits on every machine.

    Args:
        As of `reference_loss_and_gradient`, which must have accepted them.

    Raises:
        FloatingPointError: a result is not finite.
    """
    program = operators(model, len(tokens), compute)
    beside = {one.name.removeprefix(PROBE): one for one in probe_operators(program)}
    arrays = sources(layout, np.ascontiguousarray(theta_P), np.ascontiguousarray(tokens), frozen)
    return run(tuple(beside.get(one.name, one) for one in program), arrays, lambda _operator, _output: None)


def probe_operators(program: Sequence[Operator]) -> tuple[Operator, ...]:
    """The operators of the probe: those of the gradient's backward pass, from other slopes of the logits.

    Args:
        program: The gradient's. Those of the probe read its forward pass, which is the same.

    Returns:
        One for each operator of the backward pass, in order, by its name behind `PROBE`.
    """
    made: dict[str, Operator] = {}
    for one in program:
        function = partial(_probe, one.function) if one.name.endswith(_SLOPE) else one.function
        if function is one.function and made.keys().isdisjoint(one.inputs):
            continue  # of the forward pass
        inputs = tuple(PROBE + name if name in made else name for name in one.inputs)
        made[one.name] = Operator(PROBE + one.name, inputs, function)
    return tuple(made.values())


def _probe(
    back: Callable[..., Array], logits_TV: Array, partition_2T: Array, targets_T: Array, *rest: Array
) -> Array:
    """Slopes of the size of the true ones, and of p before the target's 1 is taken off."""
    slope_TV = back(logits_TV, partition_2T, targets_T, *rest)
    exponent_TV = np.maximum(logits_TV - partition_2T[0][:, None], _EXP_LEAST)
    p_TV = exp64(exponent_TV) / partition_2T[1][:, None]
    rows, others_TV = np.arange(len(p_TV)), p_TV.copy()
    others_TV[rows, visible(targets_T)] = 0
    top_T = others_TV.argmax(axis=1)  # a slope that is its p times the row's share of the loss
    share_T = np.abs(slope_TV[rows, top_T].astype(np.float64)) / np.maximum(others_TV[rows, top_T], 1e-300)
    signs_TV = _signs(*p_TV.shape)
    size_TV = np.abs(slope_TV.astype(np.float64)) + p_TV * share_T[:, None]
    probe_TV: Array = (signs_TV * size_TV).astype(np.float32)
    return probe_TV


def _signs(rows: int, columns: int) -> NDArray[np.float64]:
    """1 and -1, as good as independent of one another (SplitMix64's mixing). Shape (rows, columns)."""
    mixed = np.arange(rows * columns, dtype=np.uint64).reshape(rows, columns) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where(mixed >> np.uint64(63), -1.0, 1.0)
