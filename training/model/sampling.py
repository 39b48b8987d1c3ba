"""Sampling: what a node trains on in a round, and with GRPO how it is sampled, to the bit.

Room: training (pure). `step_batch` is the only way to a step's sequences, for nodes, auditors and whoever
replays: they follow from the spec, the data, the node, the round and the parameters that the round's work
starts from. A token is the one with the highest sum of logit and Gumbel noise (Gumbel-max: so it is a sample
of the softmax at temperature 1). The noise is the same on every machine: bits of SHAKE-256, and logarithms
in the reference class. Logits are of the node's own execution class; each forward pass has the shape of a
training pass, so that the class which covers the gradient covers them.

Shape suffixes: P = parameters, S = sequences, V = vocabulary.

Reference:
    Maddison, Tarlow & Minka, "A* Sampling", NeurIPS 2014, arXiv:1411.0030 (Gumbel-max).
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

from assay.protocol.params import RunSpec
from assay.protocol.types import PeerId
from assay.training.data.batches import Tokens, batch_positions, batch_tokens
from assay.training.data.rollouts import Task, laid_out_rollouts, task_of
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.model.loss import logits_of
from assay.training.reference.elementary import log64

Draws = NDArray[np.uint32]


def step_batch(
    spec: RunSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: Tokens,
    node: PeerId,
    round_id: int,
    *,
    device: str = "cpu",
    frozen: Frozen = ALL_TRAINED,
) -> NDArray[np.int64]:
    """The sequences that a node trains on in a round: of the data or, with GRPO, rollouts of its prompts.

    Args:
        spec: The run.
        layout: Order and shapes of the parameters.
        theta_P: Where the round's gradient is taken. Shape (P,), float32; not modified.
        tokens: The run's data.
        node: Whose step it is.
        round_id: The round.
        device: "cpu" or "cuda"; of rollouts, whose bits are of an execution class.
        frozen: What the model leaves as it is.

    Returns:
        Inputs and targets together; a masked token t is ~t. Shape (sequences, context + 1), int64.
    """
    windows = batch_tokens(tokens, batch_positions(spec, node, round_id), spec.model.context)
    if not spec.compute.is_grpo:
        return windows
    grpo, length = spec.compute.grpo, spec.model.context + 1
    tasks = [task_of(window, grpo) for window in windows]
    each = [task for task in tasks for _ in range(grpo.group)]
    head = b"assay/gumbel/1" + spec.seed.to_bytes(8, "big") + round_id.to_bytes(8, "big") + node
    with torch.no_grad():
        p = {**frozen.on(device), **layout.views(torch.from_numpy(theta_P).to(device))}
        rows = spec.compute.micro_sequences or len(each)
        made = [
            completion
            for first in range(0, len(each), rows)
            for completion in _completions(spec, p, each[first : first + rows], head, first, device)
        ]
    groups = [made[at : at + grpo.group] for at in range(0, len(made), grpo.group)]
    return np.concatenate(
        [
            laid_out_rollouts(task, of_it, grpo.reward, length)
            for task, of_it in zip(tasks, groups, strict=True)
        ]
    )


def _completions(
    spec: RunSpec, p: dict[str, torch.Tensor], tasks: list[Task], head: bytes, first: int, device: str
) -> list[NDArray[np.int64]]:
    """One completion of each task, all sampled side by side; the first of them is number `first` of the step.

    A forward pass per token, over whole sequences: what is behind a position, causal attention hides.
    """
    rows = np.zeros((len(tasks), spec.model.context), np.int64)
    for row, task in zip(rows, tasks, strict=True):
        row[: len(task.prompt)] = task.prompt
    made: list[list[int]] = [[] for _ in tasks]
    while open_rows := [
        at for at, (task, has) in enumerate(zip(tasks, made, strict=True))
        if len(has) < task.room and spec.compute.grpo.end not in has[-1:]
    ]:  # fmt: skip
        logits = logits_of(spec.model, p, torch.from_numpy(rows).to(device), spec.compute.dtype)
        last = [len(tasks[at].prompt) + len(made[at]) - 1 for at in open_rows]
        logits_SV = logits[open_rows, last].cpu().numpy()
        draws_SV = np.stack(
            [_draws(head, first + at, len(made[at]), spec.model.vocabulary) for at in open_rows]
        )
        for at, token in zip(open_rows, chosen(logits_SV, draws_SV), strict=True):
            rows[at, len(tasks[at].prompt) + len(made[at])] = token  # figures follow, so there is room
            made[at].append(int(token))
    return [np.array(one, np.int64) for one in made]


def chosen(logits_SV: NDArray[np.float32], draws_SV: Draws) -> NDArray[np.int64]:
    """The sampled token of each sequence: the first with the highest sum of logit and noise.

    Args:
        logits_SV: Shape (S, V), float32. One that is not a number counts as the highest.
        draws_SV: Uniform bits, likewise.
    """
    found: NDArray[np.int64] = np.argmax(logits_SV + gumbel(draws_SV), axis=1)
    return found


def gumbel(draws: Draws) -> NDArray[np.float64]:
    """Gumbel noise -log(-log u), u = (n + 1/2) / 2^32: from -3.2 to 22.9, the same bits on every machine."""
    return -log64(-log64((draws.astype(np.float64) + 0.5) / 2.0**32))


def _draws(head: bytes, sequence: int, token: int, vocabulary: int) -> Draws:
    """The bits behind one token of one completion. Shape (V,), uint32."""
    place = sequence.to_bytes(8, "big") + token.to_bytes(8, "big")
    return np.frombuffer(hashlib.shake_256(head + place).digest(4 * vocabulary), "<u4")
