"""DeMo step, CPU time against a straightforward per-tensor implementation of the paper.

    python -m benchmarks.demo_step [--layers 12] [--width 256] [--repeats 9]

From a ready gradient to the sparse message and the new momentum (encoding and gradient not
included), one thread. Both take turns, so that what else runs on the machine meets both: each
figure is the median of the repeats, with the least and the most. Both change their momentum
where it lies; Assay's transformed gradient takes the room of the last one, as node/trainer.py
has it. The comparison is written here after the paper (Peng, Quesnelle & Kingma,
arXiv:2411.19870): for each tensor, momentum in the parameter domain, chunks of the largest
divisor up to 64, DCT, top-k, inverse DCT of what is sent, subtraction. It knows no equalising
of gradients (training/transform/equalise.py), so neither does Assay's step here; what equalising adds is
the difference of two such steps in turns, and is counted where a step's share of training is.
Then both also apply one message. There the two differ in kind: Assay's is exact in integers and
the same on every machine, the comparison is float32.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.protocol.encoding import merkle
from assay.protocol.params import BLOCK_SIZE, PPM
from assay.protocol.types import Digest, PeerId
from assay.training.codec.wire import encode_update
from assay.training.exact import apply_signs, initial_parameters
from assay.training.layout import Layout, from_blocks, layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import FLOAT32_WHOLE, loss_and_gradient, use_one_thread
from assay.training.model.presets import gpt_spec
from assay.training.optimiser.aggregate import step_signs
from assay.training.optimiser.carry import carried_shares, mean_block
from assay.training.optimiser.momentum_root import momentum_leaves
from assay.training.transform.blocked_dct import row_lengths
from assay.training.transform.compress import gradient_blocks, transition, work_sketch
from assay.verifier.aggregation.mean import mean_over_senders
from benchmarks.machine import machine
from benchmarks.timing import cpu_ms, spread

K, BETA, LR, SIDE = 32, 0.95, 1e-3, 64
SEQUENCES = (4, 8, 16)  # of a training step; the quickstart has 4


def main() -> None:
    """Time both on the same gradients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    use_one_thread()
    model = gpt_spec(layers=args.layers, width=args.width, heads=4, context=128)
    layout = layout_of(model)
    print(f"machine: {machine()}")
    print(f"{layout.parameters:,} parameters in {len(layout.names)} tensors, k = {K}, one thread")
    rng = np.random.default_rng(0)
    gradients = [rng.standard_normal(layout.parameters).astype(np.float32) for _ in range(3)]
    ours, reference = _Assay(layout), _PerTensor(layout)
    for name, mine, theirs in (
        ("step (gradient to message)", ours.step, reference.step),
        ("apply (message to parameters)", ours.apply, reference.apply),
    ):
        for gradient in gradients[:2]:  # two real momenta before anything is timed
            ours.step(gradient)
            reference.step(gradient)
        pairs = [
            (cpu_ms(partial(mine, gradients[2])), cpu_ms(partial(theirs, gradients[2])))
            for _ in range(args.repeats)
        ]
        print(
            f"{name}: Assay {spread([a for a, _ in pairs])} ms, "
            f"per tensor {spread([b for _, b in pairs])} ms CPU, "
            f"ratio {spread([a / b for a, b in pairs], 2)}"
            + (" (to reach: 0.4)" if name.startswith("step") else "")
        )

    transforms = (ours.transform, ours.transform_equalised)
    turns = [[cpu_ms(partial(one, gradients[2])) for one in transforms] for _ in range(args.repeats)]
    print(f"clipping and DCT: {spread([plain for plain, _ in turns])} ms")
    print(f"equalising adds {spread([equalised - plain for plain, equalised in turns])} ms")
    stages_ms = {
        name: [cpu_ms(partial(stage, gradients[2])) for _ in range(args.repeats)]
        for name, stage in (
            ("clipping, equalising and DCT", ours.transform_equalised),
            ("momentum and choice", ours.choose),
            ("encoding", ours.encode),
            ("sketch for the commitment", ours.sketch),
            ("commitment to the momentum", ours.commit),
        )
    }
    for name, found_ms in stages_ms.items():
        print(f"{name}: {spread(found_ms)} ms")
    rule_ms = sum(sorted(found_ms)[args.repeats // 2] for found_ms in stages_ms.values())
    start = initial_parameters(0, layout.names, layout.shapes)
    for sequences in SEQUENCES:
        tokens = rng.integers(0, 256, (sequences, model.context + 1))
        work = partial(loss_and_gradient, model, layout, start, tokens, compute=FLOAT32_WHOLE)
        train_ms = [cpu_ms(work) for _ in range(3)]
        print(
            f"a training step on {tokens[:, 1:].size:,} tokens: gradient {spread(train_ms)} ms, all five "
            f"{rule_ms:.0f} ms, {rule_ms / (sorted(train_ms)[1] + rule_ms):.0%} of both (to reach: 15 %)"
        )


class _Assay:
    """The production functions with one node's state."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        choices = Choices(k=K, feedback_micro=int(BETA * PPM), clip_micro=PPM, equalises=False)
        self.rule = method_rule("demo", choices)
        self.equalising = method_rule("demo", replace(choices, equalises=True))
        self.momentum = np.zeros((layout.blocks, BLOCK_SIZE), np.float32)
        self.x = np.zeros_like(self.momentum)
        self.theta = np.zeros(layout.parameters, np.float32)

    def step(self, gradient: NDArray[np.float32]) -> None:
        self.transform(gradient)
        self.choose(gradient)

    def transform(self, gradient: NDArray[np.float32]) -> None:
        self.x = gradient_blocks(self.rule, self.layout, gradient, np.float32(LR), self.x)

    def transform_equalised(self, gradient: NDArray[np.float32]) -> None:
        self.x = gradient_blocks(self.equalising, self.layout, gradient, np.float32(LR), self.x)

    def choose(self, _: NDArray[np.float32]) -> None:
        lengths, every = row_lengths(self.x), np.arange(self.layout.blocks)
        mean = mean_block(self.rule, lengths)
        shares = carried_shares(self.rule, 1_000, 100, 100, every, self.momentum, lengths, mean)
        less = np.flatnonzero(shares != 1)
        self.momentum[less] *= shares[less, None]
        self.sent = transition(self.rule.compress, self.momentum, self.x, self.momentum).sent

    def encode(self, _: NDArray[np.float32]) -> None:
        encode_update(self.sent, self.layout.blocks, K, self.rule.compress.values)

    def sketch(self, _: NDArray[np.float32]) -> None:
        work_sketch(Digest(bytes(32)), self.x)

    def commit(self, _: NDArray[np.float32]) -> None:
        merkle.root(momentum_leaves(Digest(bytes(32)), self.momentum))

    def apply(self, _: NDArray[np.float32]) -> None:
        found = mean_over_senders({PeerId(bytes(32)): self.sent}, self.layout.blocks)
        signs = step_signs(self.rule, found, self.layout.blocks)
        self.theta = apply_signs(self.theta, from_blocks(self.layout, signs), np.float32(LR))


class _PerTensor:
    """The paper's algorithm, one tensor after another, in torch float32."""

    def __init__(self, layout: Layout) -> None:
        self.shapes = layout.shapes
        self.momentum = [torch.zeros(shape) for shape in layout.shapes]
        self.theta = [torch.zeros(shape) for shape in layout.shapes]
        self.basis = {side: _basis(side) for shape in layout.shapes for side in map(_side, shape)}
        self.sent: list[tuple[Tensor, Tensor]] = []

    def step(self, gradient: NDArray[np.float32]) -> None:
        parts = torch.split(torch.from_numpy(gradient), [math.prod(shape) for shape in self.shapes])
        norm = torch.from_numpy(gradient).norm().clamp_min(1e-12)
        self.sent = []
        for shape, part, momentum in zip(self.shapes, parts, self.momentum, strict=True):
            momentum.mul_(BETA).add_(part.view(shape) * (1.0 / norm).clamp_max(1.0), alpha=LR)
            spectrum = self._forward(momentum)
            flat = spectrum.reshape(*spectrum.shape[: len(shape)], -1)
            index = flat.abs().topk(min(K, flat.shape[-1]), dim=-1, sorted=False).indices
            value = flat.gather(-1, index)
            momentum.sub_(self._decode(shape, index, value))
            self.sent.append((index, value))

    def apply(self, _: NDArray[np.float32]) -> None:
        for shape, theta, (index, value) in zip(self.shapes, self.theta, self.sent, strict=True):
            theta.sub_(self._decode(shape, index, value, mean=True).sign_(), alpha=LR)

    def _forward(self, tensor: Tensor) -> Tensor:
        """Chunks of a tensor in the DCT domain: (rows, columns, side, side), or (rows, side)."""
        sides = [_side(size) for size in tensor.shape]
        if tensor.dim() == 1:
            return tensor.view(-1, sides[0]) @ self.basis[sides[0]].T
        high, wide = tensor.shape[0] // sides[0], tensor.shape[1] // sides[1]
        chunks = tensor.view(high, sides[0], wide, sides[1]).transpose(1, 2)
        return self.basis[sides[0]] @ chunks @ self.basis[sides[1]].T

    def _decode(self, shape: tuple[int, ...], index: Tensor, value: Tensor, *, mean: bool = False) -> Tensor:
        """The tensor that a message stands for."""
        sides = [_side(size) for size in shape]
        flat = torch.zeros(*index.shape[:-1], math.prod(sides))
        if mean:
            flat.scatter_reduce_(-1, index, value, "mean", include_self=False)
        else:
            flat.scatter_(-1, index, value)
        if len(shape) == 1:
            return (flat @ self.basis[sides[0]]).view(shape)
        chunks = flat.view(*index.shape[:-1], *sides)
        tiles = self.basis[sides[0]].T @ chunks @ self.basis[sides[1]]
        return tiles.transpose(1, 2).reshape(shape)


def _side(size: int) -> int:
    return next(side for side in range(min(size, SIDE), 0, -1) if size % side == 0)


def _basis(side: int) -> Tensor:
    frequency, position = torch.arange(side)[:, None], torch.arange(side)[None]
    table = math.sqrt(2 / side) * torch.cos(math.pi * (2 * position + 1) * frequency / (2 * side))
    table[0] = math.sqrt(1 / side)
    return table


if __name__ == "__main__":
    main()
