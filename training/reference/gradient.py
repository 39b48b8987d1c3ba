"""Gradient: mean loss and gradient of a batch with the same bits on every machine.

Room: training (pure). Stands in for `training.model.loss` where machines of different execution classes must
agree on bits, in about twice the time. The order of every sum: docs/protocol.md, "Reference class".

Shape suffixes: P = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import Unavailable
from assay.protocol.params import ComputeSpec, ModelSpec, Precision
from assay.training.data.mask import target_count
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout, layout_of
from assay.training.reference.operators import Array, Operator, operators, run_one, sources

Observer = Callable[[Operator, Array], None]


def reference_loss_and_gradient(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    compute: ComputeSpec,
    frozen: Frozen = ALL_TRAINED,
    observe: Observer | None = None,
) -> tuple[float, NDArray[np.float32]]:
    """Mean next-token loss in nats over the targets that are not masked, and its gradient; 0 without any.

    Args:
        model: Sizes.
        layout: The model's.
        theta_P: Parameters. Shape (P,), float32; not modified.
        tokens: Inputs and targets; a masked token t is ~t. Shape (sequences, context + 1), int64.
        compute: Group size and, with DPO, beta; the precision is float32 whatever it says.
        frozen: What the model leaves as it is.
        observe: Told of every operator and its output, in order.

    Returns:
        The loss and the gradient, shape (P,), float32. Same bits on every machine.

    Raises:
        ValueError: sizes, or a token, do not fit the model.
        FloatingPointError: a result is not finite.
        Unavailable: this thread computes otherwise than IEEE 754 says, which is no fault of the numbers.
    """
    check_batch(model, layout, theta_P, tokens, frozen)
    program = operators(model, len(tokens), compute)
    losses: list[float] = []

    def seen(operator: Operator, output: Array) -> None:
        if operator.name.endswith("/loss"):
            losses.append(float(output[0]))
        if observe is not None:
            observe(operator, output)

    theta_P = np.ascontiguousarray(theta_P)
    gradient_P = run(program, sources(layout, theta_P, np.ascontiguousarray(tokens), frozen), seen)
    total = 0.0
    for loss in losses:
        total += loss
    count = len(tokens) // 2 if compute.is_dpo else target_count(tokens)
    return total / max(count, 1), gradient_P


def check_batch(
    model: ModelSpec, layout: Layout, theta_P: NDArray[np.float32], tokens: NDArray[np.int64], frozen: Frozen
) -> None:
    """Do nothing if parameters and tokens fit the model, and this thread computes as IEEE 754 says.

    Raises:
        ValueError, Unavailable: see `reference_loss_and_gradient`.
    """
    if layout != layout_of(model) or theta_P.shape != (layout.parameters,) or theta_P.dtype != np.float32:
        expected = layout_of(model).parameters
        raise ValueError(f"{theta_P.dtype} parameters of shape {theta_P.shape}, expected {expected} float32")
    frozen.check(model)
    if tokens.ndim != 2 or tokens.shape[1] != model.context + 1 or tokens.dtype != np.int64:
        expected = model.context + 1
        raise ValueError(
            f"{tokens.dtype} tokens of shape {tokens.shape}, expected int64 (sequences, {expected})"
        )
    if np.float32(1e-39) / np.float32(2) == 0:  # a library built with fast-math may do this when it is loaded
        raise Unavailable("this thread takes subnormal numbers for zero")


def run(program: tuple[Operator, ...], arrays: Mapping[str, Array], observe: Observer) -> Array:
    """Run all operators in order; returns the last one's output. An array is let go after its last use."""
    held = dict(arrays)
    last_use = {name: operator.name for operator in program for name in operator.inputs}
    for operator in program:
        output = held[operator.name] = run_one(operator, held)
        observe(operator, output)
        for name in {operator.name, *operator.inputs}:
            if last_use.get(name) == operator.name or name not in last_use:
                del held[name]
    return output


def reference_loss(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    beta_micro: int = 0,
    frozen: Frozen = ALL_TRAINED,
) -> float:
    """Sum of -log p over the targets that are not masked, in nats, by the forward pass alone.

    Args:
        model: Sizes.
        theta_P: Parameters. Shape (P,), float32; not modified.
        tokens: A masked token t is ~t. Shape (sequences, context + 1), int64.
        beta_micro: With DPO, its beta: the sum is that of the pairs' losses.
        frozen: What the model leaves as it is.

    Raises:
        ValueError: sizes, or a token, do not fit the model.
        FloatingPointError: a result is not finite.
        Unavailable: see `reference_loss_and_gradient`.
    """
    return float(_forward(model, theta_P, tokens, beta_micro, frozen, "/loss")[0])


def reference_logits(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    inputs: NDArray[np.int64],
    *,
    frozen: Frozen = ALL_TRAINED,
) -> NDArray[np.float32]:
    """The logits of the token behind each position.

    Args:
        model, theta_P, frozen: As of `reference_loss`.
        inputs: Shape (sequences, context), int64.

    Returns:
        Shape (sequences, context, vocabulary), float32. Same bits on every machine.

    Raises:
        ValueError, FloatingPointError, Unavailable: see `reference_loss`.
    """
    tokens = np.pad(inputs, ((0, 0), (0, 1)))  # the last target, which logits do not depend on
    found = _forward(model, theta_P, tokens, 0, frozen, "/forward/head")
    return found.reshape(*inputs.shape, model.vocabulary)


def _forward(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    beta_micro: int,
    frozen: Frozen,
    last: str,
) -> Array:
    """The output of the operator whose name ends so, and which only those before it lead to."""
    layout = layout_of(model)
    check_batch(model, layout, theta_P, tokens, frozen)
    compute = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0, beta_micro=beta_micro)
    program = operators(model, len(tokens), compute)
    end = next(at for at, operator in enumerate(program) if operator.name.endswith(last))
    arrays = sources(layout, np.ascontiguousarray(theta_P), np.ascontiguousarray(tokens), frozen)
    return run(program[: end + 1], arrays, lambda *_: None)
