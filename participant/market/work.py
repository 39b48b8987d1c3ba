"""Work: what a run asks of the machine at a seat, what it pays for that, and which classes of seats serve it.

Room: participant (pure). Everything is computed from the sizes in a spec, or in an order's terms, and nothing
from what its buyer says about them. Memory is an estimate from above; time follows from operations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from assay.participant.batch_size import Sizes, planned_ms, step_tokens
from assay.participant.checks import MEMORY_BYTES_MIN
from assay.protocol.market import SeatClass
from assay.protocol.params import Family, MoneySpec
from assay.training.layout import frozen_layout, layout_of
from assay.training.model.flops import flop_per_token
from assay.training.rounded import stored_bytes

HOUR_MS = 3_600_000
ROUND_MS = 1_000  # of a round beside the step: commits, agreement, the aggregate; docs/results/network.md
TRAINED_COPIES = 16  # of the trained parameters at once, 4 bytes each: both states, gradient, blocks, moments
FROZEN_COPIES = 2
LAYER_VALUES = 40  # per token, layer and unit of width, that a backward pass keeps
# Likewise per unit of the MLP's hidden width: GELU's input and output; SwiGLU's gate, its SiLU, up, product.
HIDDEN_VALUES = {Family.GPT: 2, Family.LLAMA: 4, Family.QWEN2: 4, Family.QWEN3: 4, Family.GEMMA: 4}
HIDDEN_GRADIENTS = 3  # of these values, of one layer at a time
LOGIT_COPIES = 4
PRICE_BITS = 63  # of the highest price per 10^6 tokens that is looked for


class Work(Sizes, Protocol):
    """What decides about a seat: a run's spec has it, and an order's terms."""

    @property
    def money(self) -> MoneySpec: ...
    @property
    def tokens_per_step(self) -> int: ...


def step_ms(work: Work, flop_per_s: int) -> int:
    """Milliseconds that the smallest step takes on a machine of this speed, by its operations."""
    return _trained_ms(work, work.tokens_per_step, flop_per_s)


def step_pay_micro(work: Work) -> int:
    """What the smallest accepted step earns whatever becomes of the model, in 10^-6 token unit."""
    return work.money.sure_operator_price * work.tokens_per_step


def chosen_tokens(work: Work, flop_per_s: int) -> int:
    """Tokens of the steps that a node on a machine of this speed will take, by their operations."""
    sequence_us = _trained_ms(work, work.model.context * 1000, flop_per_s)
    return step_tokens(work, max(sequence_us, 1), planned_ms(work.timing) * 1000)


def chosen_ms(work: Work, flop_per_s: int) -> int:
    """Milliseconds that these steps take."""
    return _trained_ms(work, chosen_tokens(work, flop_per_s), flop_per_s)


def hourly_pay(work: Work, flop_per_s: int) -> int:
    """What a seat earns in an hour if every step of it is accepted, in token units."""
    tokens = chosen_tokens(work, flop_per_s)
    return _per_hour(work.money.sure_operator_price * tokens, _trained_ms(work, tokens, flop_per_s))


def price_per_mtoken(work: Work, seat_class: SeatClass, pay: int) -> int | None:
    """The least price of 10^6 tokens at which a seat of this class earns so much an hour; None: at none.

    It is the inverse of `hourly_pay`, so an operator's process that reckons by that finds what was promised.
    """
    tokens = chosen_tokens(work, 1 << seat_class.speed)
    time_ms = _trained_ms(work, tokens, 1 << seat_class.speed)

    def is_enough(price: int) -> bool:
        sure = replace(work.money, price_per_mtoken=price).sure_operator_price
        return _per_hour(sure * tokens, time_ms) >= pay

    if not is_enough(1 << PRICE_BITS):
        return None
    price = 0
    for bit in reversed(range(PRICE_BITS + 1)):  # the highest that is not enough, from the first bit down
        price |= 0 if is_enough(price | 1 << bit) else 1 << bit
    return 0 if is_enough(0) else price + 1


def memory_bytes(work: Work, replicas: int = 1, *, is_checkpointing: bool = False) -> int:
    """Memory that a node's processes take at most, by the sizes of its work.

    Args:
        work: A run's, or an order's.
        replicas: Groups of a batch that are computed side by side in this memory.
        is_checkpointing: Whether of each layer but one only what goes into it is kept.
    """
    model, width = work.model, max(work.model.width, work.model.mixed_width)
    group = work.compute.micro_sequences or work.rule.local.sequences
    tokens = group * model.context
    hidden = HIDDEN_VALUES[model.family] * model.hidden
    kept = 1 if is_checkpointing else model.layers
    layers = tokens * (
        (model.layers - kept) * width
        + kept * (LAYER_VALUES * width + hidden + 2 * model.heads * model.context)
        + HIDDEN_GRADIENTS * model.hidden
    )
    parameters = layout_of(model).parameters
    more = (replicas - 1) * (parameters + layers + LOGIT_COPIES * tokens * model.vocabulary)
    return (
        MEMORY_BYTES_MIN
        + 4 * TRAINED_COPIES * parameters
        + FROZEN_COPIES * stored_bytes(frozen_layout(model), model.adapter.base_bits)
        + 4 * layers
        + 4 * LOGIT_COPIES * tokens * model.vocabulary
        + 4 * more
    )


def serves(seat_class: SeatClass, work: Work, days: int, lot: int) -> bool:
    """Whether a seat of this class can do this work in time, for this number of days and with this lot."""
    return (
        step_ms(work, 1 << seat_class.speed) <= work.timing.collect_ms
        and memory_bytes(work) <= 1 << seat_class.memory
        and days <= 1 << seat_class.days
        and lot <= 1 << seat_class.lot
    )


def _trained_ms(work: Work, tokens: int, flop_per_s: int) -> int:
    """Milliseconds that `tokens` tokens take, in whole steps.

    With GRPO completions are sampled first: for each of their tokens a forward pass, a third of it.
    """
    flop = tokens * flop_per_token(work.model) * (3 + work.compute.grpo.completion) // 3
    return -(-flop * 1000 // max(flop_per_s, 1))


def _per_hour(step_pay_micro: int, time_ms: int) -> int:
    return step_pay_micro * HOUR_MS // (time_ms + ROUND_MS) // 10**6
