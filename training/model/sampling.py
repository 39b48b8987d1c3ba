"""Sampling: what a node trains on in a round, and with GRPO how it is sampled, to the bit.

Room: training (pure). `step_batch` is the only way to a step's sequences, for nodes, auditors and whoever
replays: they follow from the spec, the data, the node, the round and the parameters that the round's work
starts from. The noise of sampling is the same on every machine (training/reference/generation.py). Logits
are of the node's own execution class; each forward pass has the shape of a training pass, so that the class
which covers the gradient covers them.

Shape suffixes: P = parameters, S = sequences, V = vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from assay.protocol.messages import NO_OWN_DATA, OwnData
from assay.protocol.params import RunSpec
from assay.protocol.types import PeerId
from assay.training.data.batches import Tokens, batch_positions, batch_tokens
from assay.training.data.environments import Task
from assay.training.data.rollouts import laid_out_rollouts, task_of
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.model.loss import logits_of
from assay.training.reference.generation import chosen, uniform_bits


def step_batch(
    spec: RunSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: Tokens,
    node: PeerId,
    round_id: int,
    step_tokens: int,
    *,
    device: str = "cpu",
    frozen: Frozen = ALL_TRAINED,
    own: OwnData = NO_OWN_DATA,
    seat: int = 0,
) -> NDArray[np.int64]:
    """The sequences that a node trains on in a round: of the data or, with GRPO, rollouts of its prompts.

    Args:
        spec: The run.
        layout: Order and shapes of the parameters.
        theta_P: Where the round's gradient is taken. Shape (P,), float32; not modified.
        tokens: The run's data, or the node's own.
        node: Whose step it is.
        round_id: The round.
        step_tokens: That the step counts for.
        device: "cpu" or "cuda"; of rollouts, whose bits are of an execution class.
        frozen: What the model leaves as it is.
        own: What binds the node to data of its own, if it brings some.
        seat: The number of the node's, as its commit says it.

    Returns:
        Inputs and targets together; a masked token t is ~t. Shape (sequences, context + 1), int64.
    """
    positions = batch_positions(spec, node, round_id, step_tokens, own, seat)
    windows = batch_tokens(tokens, positions, spec.model.context)
    if not spec.compute.is_grpo:
        return windows
    grpo, length = spec.compute.grpo, spec.model.context + 1
    tasks = [task_of(window, grpo) for window in windows]
    each = [task for task in tasks for _ in range(grpo.group)]
    _, in_line = spec.in_line(round_id)
    head = b"assay/gumbel/1" + spec.seed.to_bytes(8, "big") + in_line.to_bytes(8, "big") + node
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
            [uniform_bits(head, first + at, len(made[at]), spec.model.vocabulary) for at in open_rows]
        )
        for at, token in zip(open_rows, chosen(logits_SV, draws_SV), strict=True):
            rows[at, len(tasks[at].prompt) + len(made[at])] = token  # figures follow, so there is room
            made[at].append(int(token))
    return [np.array(one, np.int64) for one in made]
