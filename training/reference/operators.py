"""Operators: a forward and backward pass as a list of operators, each a pure function of named arrays.

Room: training (pure). An operator's name is that of its one output. Sources, which no operator computes, are
the parameters by their names in the layouts, trained and frozen, and `tokens`. One group of
`micro_sequences` after another:

    0/inputs, 0/targets     of the group's sequences
    0/forward/...           activations, first layer first
    0/loss                  the sum of -log softmax at the targets; with DPO, of the pairs' losses
    0/slope/...             slopes of the group's share of the mean loss, last layer first: along a parameter
                            by its name, along the input of a part as NAME.x
    0/gradient              along all parameters that are trained, flat; a later group's is added to the one
                            before

Of a Gemma there are also the embeddings times sqrt(width) (forward/embed.scaled), 1 + weight of every norm
(forward/NAME.gain) and the tanh within GELU (forward/layer0.mlp.tanh).

With a bias on a matrix NAME there is also its sum with W x (forward/NAME.biased); with an adapter A x
(forward/NAME.lora_a), B (A x) (forward/NAME.lora_b) and their sum with W x (forward/NAME.adapted), and of the
slopes only those are computed that the gradient needs.

Every token's loss is divided by the number of tokens of the whole batch, so groups need no weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ComputeSpec, Family, ModelSpec, model_faults
from assay.training.data.mask import target_count, visible
from assay.training.data.preferences import reference_nats
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import BIAS, LORA_A, LORA_B, Layout, adapted_names, frozen_layout, layout_of
from assay.training.reference import layers
from assay.training.reference.attention import Attention

Array = NDArray[Any]
Back = Callable[[str], str]  # from the slope along an output to the one along the input, by name
TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Operator:
    """One output as a pure function of the named inputs, in order."""

    name: str
    inputs: tuple[str, ...]
    function: Callable[..., Array]


def operators(model: ModelSpec, sequences: int, compute: ComputeSpec) -> tuple[Operator, ...]:
    """The operators of the gradient on this many sequences, in the order in which they are run.

    Args:
        model: Sizes.
        sequences: Of the batch; at least one.
        compute: Group size; every operator computes in float32 whatever the precision.

    Raises:
        ValueError: there is no such model, or no sequence.
    """
    if faults := model_faults(model):
        raise ValueError("; ".join(faults))
    if sequences < 1:
        raise ValueError(f"a batch of {sequences} sequences, expected at least 1")
    if compute.is_grpo:
        raise ValueError("the reference class has no operators of GRPO: its rollouts are of another class")
    rows = compute.micro_sequences or sequences
    if compute.is_dpo and (sequences % 2 or rows % 2):
        raise ValueError(f"groups of {rows} out of {sequences} sequences, expected whole preference pairs")
    made: list[Operator] = []
    layouts = frozen_layout(model), layout_of(model)
    shapes = {name: shape for one in layouts for name, shape in zip(one.names, one.shapes, strict=True)}
    for group, first in enumerate(range(0, sequences, rows)):
        tokens = min(rows, sequences - first) * model.context
        to = _List(model, group, made, compute.beta_micro, tokens, shapes)
        _group(to, slice(first, first + rows))
    return _needed(made) if model.is_adapted else tuple(made)


def sources(
    layout: Layout, theta_P: NDArray[np.float32], tokens: NDArray[np.int64], frozen: Frozen = ALL_TRAINED
) -> dict[str, Array]:
    """The arrays that the operators start from."""
    return {**frozen.arrays(), **layout.views(theta_P), TOKENS: tokens}


def _needed(made: list[Operator]) -> tuple[Operator, ...]:
    """The operators that lead to the gradient or to a loss, in their order."""
    wanted = {made[-1].name, *(one.name for one in made if one.name.endswith("/loss"))}
    found: list[Operator] = []
    for operator in reversed(made):
        if operator.name in wanted:
            wanted |= set(operator.inputs)
            found.append(operator)
    return tuple(reversed(found))


def run_one(operator: Operator, inputs: Mapping[str, Array]) -> Array:
    """An operator's output, from its inputs alone.

    Raises:
        FloatingPointError: it is not finite; what NaN looks like differs between processors.
    """
    output = np.ascontiguousarray(operator.function(*(inputs[name] for name in operator.inputs)))
    if not np.isfinite(output).all():
        raise FloatingPointError(f"{operator.name}: the result is not finite")
    return output


@dataclass(frozen=True, slots=True)
class _List:
    """The operators made so far, to which those of one group are added. Names come back with the group."""

    model: ModelSpec
    group: int
    made: list[Operator]
    beta_micro: int
    tokens: int  # of the group
    shapes: Mapping[str, tuple[int, ...]]  # of the parameters

    @property
    def is_gpt(self) -> bool:
        return self.model.family is Family.GPT

    @property
    def is_gemma(self) -> bool:
        return self.model.family is Family.GEMMA

    @property
    def adapted(self) -> tuple[str, ...]:
        return adapted_names(self.model)

    @property
    def scale(self) -> np.float32:
        return np.float32(self.model.adapter.alpha / self.model.adapter.rank)

    def add(self, name: str, function: Callable[..., Array], *inputs: str) -> str:
        self.made.append(Operator(f"{self.group}/{name}", inputs, function))
        return self.made[-1].name

    def linear(self, weight: str, x: str, *beside: str) -> str:
        linear = partial(_of_tokens, self.tokens, layers.linear)
        plain = self.add(f"forward/{weight}", linear, x, weight, *beside)
        if weight + BIAS in self.shapes:
            plain = self.add(f"forward/{weight}.biased", layers.biased, plain, weight + BIAS)
        if weight not in self.adapted:
            return plain
        low = self.add(f"forward/{weight}{LORA_A}", linear, x, weight + LORA_A)
        low = self.add(f"forward/{weight}{LORA_B}", linear, low, weight + LORA_B)
        return self.add(f"forward/{weight}.adapted", partial(layers.added, self.scale), plain, low)

    def linear_back(self, weight: str, slope: str, x: str, *beside: str, part: Any = ...) -> str:
        """`part` of the slope is the one along this layer's output."""
        self.weight_back(weight, slope, x, part)
        if weight + BIAS in self.shapes:
            self.add(f"slope/{weight}{BIAS}", partial(_part_back, part, layers.bias_back), slope)
        back = partial(_of_tokens, self.tokens, layers.linear_back)
        plain = self.add(f"slope/{weight}.x", partial(_part_back, part, back), slope, weight, *beside)
        if weight not in self.adapted:
            return plain
        low = f"{self.group}/forward/{weight}{LORA_A}"
        slope = self.add(f"slope/{weight}.scaled", partial(_scaled_part, part, self.scale), slope)
        self.weight_back(weight + LORA_B, slope, low)
        slope = self.add(f"slope/{weight}{LORA_B}.x", back, slope, weight + LORA_B)
        self.weight_back(weight + LORA_A, slope, x)
        return self.add(f"slope/{weight}{LORA_A}.x", back, slope, weight + LORA_A, plain)

    def weight_back(self, weight: str, slope: str, x: str, part: Any = ..., name: str = "") -> str:
        """`name` of the slope, where it is not the weight's."""
        back = partial(_weight_back, part, self.shapes[weight])
        return self.add(f"slope/{name or weight}", back, slope, x)

    def normed(self, name: str, x: str) -> str:
        epsilon, (width,) = self.model.norm_epsilon_nano / 1e9, self.shapes[f"{name}.weight"]
        found = partial(layers.statistics, is_centred=self.is_gpt, epsilon=epsilon, width=width)
        statistics = self.add(f"forward/{name}.statistics", found, x)
        bias = [f"{name}.bias"] if self.is_gpt else []
        if self.is_gemma:
            self.add(f"forward/{name}.gain", layers.gain, f"{name}.weight")
        return self.add(f"forward/{name}", layers.normed, x, statistics, self.gain(name), *bias)

    def gain(self, name: str) -> str:
        """What a norm multiplies by."""
        return f"{self.group}/forward/{name}.gain" if self.is_gemma else f"{name}.weight"

    def normed_back(self, name: str, slope: str, x: str, *beside: str, part: Any = ...) -> str:
        """`part` of the slope is the one along this norm's output."""
        statistics, (width,) = f"{self.group}/forward/{name}.statistics", self.shapes[f"{name}.weight"]
        of_weight = partial(_part_back, part, partial(layers.normed_weight_back, width=width))
        self.add(f"slope/{name}.weight", of_weight, slope, x, statistics)
        if self.is_gpt:
            self.add(f"slope/{name}.bias", layers.bias_back, slope)
        back = partial(_part_back, part, partial(layers.normed_back, is_centred=self.is_gpt))
        return self.add(f"slope/{name}.x", back, slope, x, statistics, self.gain(name), *beside)


def _group(to: _List, rows: slice) -> None:
    """Forward and backward pass of these sequences of a batch."""
    model, layout = to.model, layout_of(to.model)
    inputs = to.add("inputs", partial(_inputs, rows), TOKENS)
    targets = to.add("targets", partial(_targets, rows), TOKENS)
    x = to.add("forward/embed", partial(_of_tokens, to.tokens, layers.embedded), inputs, "embed")
    scale = partial(layers.scaled, np.float32(math.sqrt(model.width)))
    if to.is_gpt:
        x = to.add("forward/position", layers.placed, x, "position")
    if to.is_gemma:
        x = to.add("forward/embed.scaled", scale, x)
    backs: list[Back] = []
    for layer in range(model.layers):
        for part in (_attention, _mlp):
            x, back = part(to, f"layer{layer}.", x)
            backs.append(back)
    h = to.normed("norm", x)
    head = "embed" if model.is_tied else "head"
    logits = to.add("forward/head", partial(_of_tokens, to.tokens, layers.linear), h, head)
    partition = to.add("forward/partition", layers.partition, logits)
    backward: Callable[..., Array] = _loss_back
    if to.beta_micro:
        forward = partial(_dpo, to.beta_micro, rows)
        to.add("loss", forward, logits, partition, targets, TOKENS)
        backward = partial(_dpo_back, to.beta_micro, rows)
    else:
        to.add("loss", layers.cross_entropy, logits, partition, targets)
    slope = to.add("slope/loss.x", backward, logits, partition, targets, TOKENS)
    on_head = to.weight_back(head, slope, h, name="head")
    slope = to.add("slope/head.x", partial(_of_tokens, to.tokens, layers.linear_back), slope, head)
    slope = to.normed_back("norm", slope, x)
    for back in reversed(backs):
        slope = back(slope)
    if to.is_gpt:
        to.add("slope/position", partial(layers.placed_back, context=model.context), slope)
    if to.is_gemma:
        slope = to.add("slope/embed.x", scale, slope)
    if model.is_tied:
        to.add("slope/embed", layers.embedded_back, slope, inputs, on_head)
    else:
        fresh = partial(_fresh_embedded_back, to.shapes["embed"])
        to.add("slope/embed", fresh, slope, inputs)
    slopes = [f"{to.group}/slope/{name}" for name in layout.names]
    if to.group:
        to.add("gradient", _added_flat, f"{to.group - 1}/gradient", *slopes)
    else:
        to.add("gradient", _flat, *slopes)


def _attention(to: _List, at: str, x: str) -> tuple[str, Back]:
    """x + out(attention(norm(x)))."""
    model = to.model
    attention = Attention(model.heads, model.kv_heads, model.head, model.context, model.rope_theta)
    weights = ["qkv"] if to.is_gpt else ["q", "k", "v"]
    h = to.normed(f"{at}norm1", x)
    plain = [to.linear(f"{at}attention.{weight}", h) for weight in weights]
    norms = [f"{at}attention.{weight}_norm" for weight in weights]
    is_normed = [f"{norm}.weight" in to.shapes for norm in norms]
    qkv = [to.normed(norm, x) if one else x for norm, x, one in zip(norms, plain, is_normed, strict=True)]
    mixed = to.add(f"forward/{at}attention", attention.forward, *qkv)

    def back(beside: str) -> str:
        slope = to.linear_back(f"{at}attention.out", beside, mixed)
        slope = to.add(f"slope/{at}attention.x", attention.back, slope, *qkv)
        edges = [0, *attention.edges] if len(weights) == 3 else [0, None]
        along: list[str] = []
        for number, weight in enumerate(weights):
            own = slope
            part: Any = np.s_[:, edges[number] : edges[number + 1]]
            if is_normed[number]:
                own, part = to.normed_back(norms[number], slope, plain[number], part=part), ...
            along = [to.linear_back(f"{at}attention.{weight}", own, h, *along, part=part)]
        return to.normed_back(f"{at}norm1", along[0], x, beside)

    return to.linear(f"{at}attention.out", mixed, x), back


def _mlp(to: _List, at: str, x: str) -> tuple[str, Back]:
    """x + down(activation(up(norm(x))))."""
    h = to.normed(f"{at}norm2", x)
    weights = ["mlp.up"] if to.is_gpt else ["mlp.gate", "mlp.up"]
    wide = [to.linear(f"{at}{weight}", h) for weight in weights]
    forward: Callable[..., Array] = layers.gelu if to.is_gpt else layers.gated
    backward: Callable[..., Array] = layers.gelu_back if to.is_gpt else layers.gated_back
    if to.is_gemma:
        forward, backward = layers.geglu, layers.geglu_back
        wide.append(to.add(f"forward/{at}mlp.tanh", layers.gelu_tanh, wide[0]))
    active = to.add(f"forward/{at}mlp", forward, *wide)

    def back(beside: str) -> str:
        slope = to.linear_back(f"{at}mlp.down", beside, active)
        slope = to.add(f"slope/{at}mlp.x", backward, slope, *wide)
        along: list[str] = []
        for number, weight in enumerate(weights):
            part = ... if to.is_gpt else number
            along = [to.linear_back(f"{at}{weight}", slope, h, *along, part=part)]
        return to.normed_back(f"{at}norm2", along[0], x, beside)

    return to.linear(f"{at}mlp.down", active, x), back


def _inputs(rows: slice, tokens: Array) -> Array:
    return visible(tokens[rows, :-1]).reshape(-1)


def _targets(rows: slice, tokens: Array) -> Array:
    return tokens[rows, 1:].reshape(-1)


def _loss_back(logits: Array, partition: Array, targets: Array, tokens: Array) -> Array:
    return layers.cross_entropy_back(logits, partition, targets, count=target_count(tokens))


def _dpo(
    beta_micro: int, rows: slice, logits: Array, partition: Array, targets: Array, tokens: Array
) -> Array:
    reference = reference_nats(tokens[rows])
    return layers.dpo(logits, partition, targets, reference, beta=beta_micro / 1e6)


def _dpo_back(
    beta_micro: int, rows: slice, logits: Array, partition: Array, targets: Array, tokens: Array
) -> Array:
    reference, pairs = reference_nats(tokens[rows]), len(tokens) // 2
    return layers.dpo_back(logits, partition, targets, reference, beta=beta_micro / 1e6, pairs=pairs)


def _weight_back(part: Any, shape: tuple[int, ...], slope: Array, x: Array) -> Array:
    return layers.linear_weight_back(slope[part], x, shape=shape)


def _scaled_part(part: Any, scale: np.float32, slope: Array) -> Array:
    return layers.scaled(scale, slope[part])


def _part_back(part: Any, back: Callable[..., Array], slope: Array, *others: Array) -> Array:
    return back(slope[part], *others)


def _of_tokens(tokens: int, function: Callable[..., Array], x_TX: Array, *others: Array) -> Array:
    """A function of an array with a row for each token; one with more rows would take far more room."""
    if len(x_TX) != tokens:
        raise ValueError(f"{len(x_TX)} rows for {tokens} tokens")
    return function(x_TX, *others)


def _fresh_embedded_back(shape: tuple[int, ...], slope: Array, inputs: Array) -> Array:
    return layers.embedded_back(slope, inputs, np.zeros(shape, np.float32))


def _flat(*slopes: Array) -> Array:
    return np.concatenate([slope.reshape(-1) for slope in slopes])


def _added_flat(before: Array, *slopes: Array) -> Array:
    found = _flat(*slopes)
    layers.expect_shape(found.shape, before)
    return before + found
