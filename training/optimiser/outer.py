"""Outer: the optimiser step by which a round's aggregate moves the shared parameters.

Room: training (pure). Everything here is exact: integers up to the aggregate's values,
then elementwise float32 operations, each rounded on its own as IEEE 754 says, square
roots and divisions included. All honest machines hold the same bits after it.

Shape suffixes: N = blocks, P = parameters, S = 64.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest
from assay.protocol.update_rule import BLOCK_SIDE, PPM, Outer, OuterSpec, Transform
from assay.training.codec.wire import Aggregate
from assay.training.exact import apply_signs, inverse_values
from assay.training.fragments import fragment_positions
from assay.training.layout import Layout, from_blocks, layout_of
from assay.training.model.initial import state_digest
from assay.training.optimiser.aggregate import decode_round, decode_step
from assay.training.optimiser.schedule import rate

Floats = NDArray[np.float32]
BUFFERS = {Outer.SIGN: 0, Outer.SGD: 0, Outer.NESTEROV: 1, Outer.ADAM: 2, Outer.YOGI: 2}


@dataclass(frozen=True, slots=True)
class OuterState:
    """The public state after a round, equal at all participants.

    theta_P: the parameters. buffers: the outer optimiser's, none, one or two, as theta_P.
    pending: aggregates that are not applied yet, oldest first; `apply_lag` of them.
    """

    theta_P: Floats
    buffers: tuple[Floats, ...] = ()
    pending: tuple[bytes, ...] = ()


def start_public(spec: RunSpec, theta_P: Floats, buffers: tuple[Floats, ...] = ()) -> OuterState:
    """The public state before the first round; buffers that are not given are zero.

    Raises:
        ConfigError: the run's outer optimiser has another number of buffers.
    """
    zeros = tuple(np.zeros_like(theta_P) for _ in range(BUFFERS[spec.rule.outer.kind]))
    if buffers and len(buffers) != len(zeros):
        raise ConfigError(
            f"{len(buffers)} buffers to go on with, this run's outer optimiser has {len(zeros)}"
        )
    return OuterState(theta_P, buffers or zeros)


def public_digest(public: OuterState) -> Digest:
    """BLAKE3 of the parameters and the rest of the public state."""
    return state_digest(public.theta_P, *_rest(public))


def rest_of(public: OuterState) -> bytes:
    """What the digest of a public state covers behind the parameters: buffers, and digests of what waits."""
    return b"".join(_rest(public))


def rest_bytes(spec: RunSpec, round_id: int) -> int:
    """The size of `rest_of` the public state before a round."""
    rule = spec.rule
    buffers = 4 * BUFFERS[rule.outer.kind] * layout_of(spec.model).parameters
    return buffers + 32 * min(round_id, rule.apply_lag)


def _rest(public: OuterState) -> Iterator[bytes | memoryview]:
    for buffer_P in public.buffers:
        yield np.ascontiguousarray(buffer_P, "<f4").view(np.uint8).data
    for body in public.pending:
        yield blake3(body).digest()


def apply(spec: RunSpec, layout: Layout, public: OuterState, round_id: int, aggregate: bytes) -> OuterState:
    """The public state after a round. Empty bytes (a round without commits) move nothing.

    Args:
        spec: The run.
        layout: Order and shapes of the parameters.
        public: The state before; not modified.
        round_id: The round that ends.
        aggregate: The bytes that its manifest names; applied `apply_lag` rounds later.

    Raises:
        MalformedMessage: these are not the bytes of an aggregate.
    """
    rule = spec.rule
    waiting = deque((*public.pending, aggregate))
    due = waiting.popleft() if len(waiting) > rule.apply_lag else b""
    public = replace(public, pending=tuple(waiting))
    due_round = round_id - rule.apply_lag
    if not due:
        return public
    lr = rate(rule.outer.schedule, *spec.in_line(due_round))
    if rule.outer.kind is Outer.SIGN:
        sign_P = from_blocks(layout, decode_step(rule, due, layout.blocks))
        return replace(public, theta_P=apply_signs(_decayed(rule.outer, lr, public.theta_P), sign_P, lr))
    step_P = _distance(spec, layout, decode_round(rule, due, layout.blocks))
    moved = _outer_step(rule.outer, lr, public, step_P)
    if rule.fragments == 1:
        return moved
    is_in = fragment_positions(layout, rule.fragments, due_round % rule.fragments)
    theta_P = np.where(is_in, moved.theta_P, public.theta_P)
    buffers = tuple(np.where(is_in, new, old) for new, old in zip(moved.buffers, public.buffers, strict=True))
    return replace(public, theta_P=theta_P, buffers=buffers)


def applied_fragments(spec: RunSpec, rounds: Iterable[int]) -> list[int]:
    """The fragments that moved at the end of these rounds."""
    rule = spec.rule
    return [(r - rule.apply_lag) % rule.fragments for r in rounds if r >= rule.apply_lag]


def _outer_step(outer: OuterSpec, lr: np.float32, public: OuterState, step_P: Floats) -> OuterState:
    """One step of the outer optimiser; the mean displacement, which is used up, takes the gradient's place.

    Reference:
        Douillard et al., arXiv:2311.08105 (DiLoCo: Nesterov, as in torch.optim.SGD);
        Reddi et al., "Adaptive Federated Optimization", arXiv:2003.00295 (ADAM, YOGI).
    """
    theta_P = _decayed(outer, lr, public.theta_P)
    if outer.kind is Outer.SGD:
        return replace(public, theta_P=_less(theta_P, step_P, lr))
    momentum = np.float32(outer.momentum_micro / PPM)
    if outer.kind is Outer.NESTEROV:
        velocity_P = public.buffers[0] * momentum
        velocity_P += step_P
        ahead_P = velocity_P * momentum
        ahead_P += step_P
        return replace(public, theta_P=_less(theta_P, ahead_P, lr), buffers=(velocity_P,))
    beta2 = np.float32(outer.beta2_micro / PPM)
    one = np.float32(1)
    mean_P = public.buffers[0] * momentum + step_P * (one - momentum)
    square_P, old_P = step_P * step_P, public.buffers[1]
    if outer.kind is Outer.ADAM:
        spread_P = old_P * beta2 + square_P * (one - beta2)
    else:
        spread_P = old_P - square_P * ((one - beta2) * np.sign(old_P - square_P))
    under_P = np.sqrt(spread_P) + np.float32(outer.epsilon_nano / 1e9)
    adapted_P: Floats = np.divide(mean_P, under_P)
    return replace(public, theta_P=_less(theta_P, adapted_P, lr), buffers=(mean_P, spread_P))


def _less(theta_P: Floats, step_P: Floats, lr: np.float32) -> Floats:
    """theta - step * lr, each rounded, in the step's memory."""
    step_P *= lr
    return np.subtract(theta_P, step_P, out=step_P)


def _decayed(outer: OuterSpec, lr: np.float32, theta_P: Floats) -> Floats:
    if not outer.decay_micro:
        return theta_P
    return theta_P * (np.float32(1) - lr * np.float32(outer.decay_micro / PPM))


def _distance(spec: RunSpec, layout: Layout, sparse: Aggregate) -> Floats:
    """The aggregate as a step in parameters. Shape (P,), float32."""
    assert sparse.exponent_N is not None
    blocks_NSS = np.empty((layout.blocks, BLOCK_SIDE, BLOCK_SIDE), np.float32)
    for some, value_NC in sparse.dense():
        value_NSS, shift = value_NC.reshape(-1, BLOCK_SIDE, BLOCK_SIDE), 0
        if spec.rule.compress.transform is Transform.DCT:
            whole_NSS, shift = inverse_values(value_NSS)
        else:
            whole_NSS = value_NSS.astype(np.float64)
        # Integers below 2^53 times a power of two: exact until the one rounding to float32.
        blocks_NSS[some] = np.ldexp(whole_NSS, sparse.exponent_N[some, None, None] - shift)
    return from_blocks(layout, blocks_NSS)
