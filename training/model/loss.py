"""Loss: mean loss and gradient as a pure function of the flat parameter vector.

Room: training (pure). The family selects the decoder (`gpt`, `llama`); everything else that decides bits is
fixed here and named in `execution_class`: precision, attention kernel, accumulation, threads, device.
Parameters and gradients are float32 on the CPU whatever a pass is computed in and on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.protocol.errors import ConfigError
from assay.protocol.params import ComputeSpec, Family, ModelSpec, Precision
from assay.training import parallel
from assay.training.data.mask import target_count
from assay.training.data.preferences import reference_nats
from assay.training.data.rollouts import figures
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout
from assay.training.model.gpt import gpt_logits
from assay.training.model.llama import llama_logits
from assay.training.model.replicas import in_order, places
from assay.training.model.sharded import Sharded, current

DEVICES = ("cpu", "cuda")
FLOAT32_WHOLE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0)
# On CUDA the first that takes these shapes and precision. Under the flag of `use_threads` they repeat to the
# bit, backwards as well; cuDNN's does not.
_REPEATABLE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_IGNORED = -100  # what torch's cross entropy leaves out


def use_threads(count: int) -> None:
    """Set the flags that `execution_class` describes. Call once per process, before any work."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with this
    torch.set_num_threads(count)
    parallel.set_count(count)
    # The flag of `use_deterministic_algorithms(True)`, which also imports the compiler: 2 s for nothing here.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def use_one_thread() -> None:
    """`use_threads(1)`: the default of all participants."""
    use_threads(1)


def check_device(device: str) -> None:
    """Do nothing if this machine can compute on the device.

    Raises:
        ConfigError: no such device, or torch cannot use it.
    """
    if device not in DEVICES:
        raise ConfigError(f'device "{device}": expected one of {", ".join(DEVICES)}')
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            'device "cuda": torch finds none here; install a CUDA build or write device = "cpu"'
        )


def loss_and_gradient(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    compute: ComputeSpec,
    device: str = "cpu",
    frozen: Frozen = ALL_TRAINED,
) -> tuple[float, NDArray[np.float32]]:
    """Mean next-token loss in nats over the targets that are not masked, and its gradient; 0 without any.

    With DPO the loss is the mean over preference pairs (data/preferences.py) of -log sigmoid(beta * (what the
    chosen gained in log-probability since the reference model, less what the rejected did)).

    With GRPO the tokens are rollouts (data/rollouts.py). The gradient is that of their mean of advantage *
    -log p(completion) / `completion`, and the number that is returned as the loss is 1 less their mean
    reward: that of a surrogate says nothing.

    The batch is cut into groups of `compute.micro_sequences`, in order; each group's mean loss is weighted by
    its share of the targets, pairs or rollouts, and its gradient added in float32, first group first.
    Replicas (replicas.py) compute groups side by side: the same bits, and a gradient more in memory for each.

    Args:
        model: Sizes.
        layout: Order and shapes of the parameters.
        theta_P: Parameters. Shape (P,), float32; not modified.
        tokens: Inputs and targets; a masked token t is ~t. Shape (sequences, context + 1), int64.
        compute: Precision, group size and the terms of the loss.
        device: "cpu" or "cuda".
        frozen: What the model leaves as it is; the gradient is along the rest.

    Returns:
        The loss and the gradient, shape (P,), float32. Same bits within an execution class.
    """
    loss, gradient = gradient_on_device(
        model, layout, theta_P, tokens, compute=compute, device=device, frozen=frozen
    )
    return loss, gradient.cpu().numpy()


def gradient_on_device(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    compute: ComputeSpec,
    device: str = "cpu",
    frozen: Frozen = ALL_TRAINED,
) -> tuple[float, Tensor]:
    """`loss_and_gradient`, whose gradient stays where it is computed: on the first device."""
    frozen.check(model)
    if (whole := current()) is not None and not model.is_adapted:
        for other in whole.others:
            other.send((model, layout, tokens, compute))
        total, found = sharded_pass(whole, model, layout, tokens, compute, theta_P)
        assert found is not None, "rank 0 gets the gradient"
        return total, found
    groups, targets = _groups(tokens, compute), _weight(tokens, compute)
    on = places(device, len(groups))
    thetas = {one: torch.from_numpy(theta_P).to(one) for one in on}

    def add(some: Sequence[NDArray[np.int64]], place: str, gradient: Tensor) -> float:
        """The weighted loss of some groups, whose weighted gradients are added."""
        leaves = layout.views(thetas[place])
        for (name, leaf), part in zip(leaves.items(), layout.views(gradient).values(), strict=True):
            leaves[name] = leaf.detach().requires_grad_(True)
            leaves[name].grad = part  # backward adds in place: one gradient in memory, not one per group
        whole, total = {**frozen.on(place), **leaves}, 0.0
        for group in some:
            if not (count := _weight(group, compute)):
                continue  # its mean would be 0 / 0
            share = count / targets
            loss = _loss(model, whole, torch.from_numpy(group).to(place), compute)
            with _repeatable(loss):  # a checkpointed layer is computed again here
                torch.autograd.backward([loss * share if share != 1 else loss])
            total += float(loss.detach()) * share
        first = next(iter(leaves.values())).grad
        assert first is not None and first.data_ptr() == gradient.data_ptr(), "torch gave up adding in place"
        return total

    gradient = torch.zeros_like(thetas[on[0]])
    if len(on) == 1:
        return add(groups, device, gradient), gradient

    def alone(at: int) -> tuple[float, Tensor]:
        place = on[at % len(on)]
        part = torch.zeros_like(thetas[place])
        return add(groups[at : at + 1], place, part), part

    total = 0.0
    with _repeatable(gradient):
        for loss, part in in_order(alone, len(groups), len(on)):
            total += loss
            gradient += part.to(gradient.device)
    return total, gradient


def sharded_pass(
    parts: Sharded,
    model: ModelSpec,
    layout: Layout,
    tokens: NDArray[np.int64],
    compute: ComputeSpec,
    theta_P: NDArray[np.float32] | None = None,
) -> tuple[float, Tensor | None]:
    """One process's share of `gradient_on_device` by several; its result at rank 0.

    Groups are taken in turns, each process one. theta_P: the parameters, at rank 0.
    """
    parts.begin(layout, theta_P)
    groups, targets, total = _groups(tokens, compute), _weight(tokens, compute), 0.0
    taught = [(group, count) for group in groups if (count := _weight(group, compute))]
    is_half = compute.dtype is Precision.BFLOAT16
    for at in range(0, len(taught), parts.count):
        own = at + parts.rank
        is_idle = own >= len(taught)
        group, count = taught[at if is_idle else own]
        with parts.group(is_half=is_half, is_idle=is_idle):
            given = torch.from_numpy(group).to(parts.device)
            with _repeatable(given):
                loss, share = _loss(model, parts, given, compute), count / targets
                torch.autograd.backward([loss * share if share != 1 else loss])
        for loss_there in parts.each(0.0 if is_idle else float(loss.detach()) * share):
            total += loss_there
    return total, parts.end(layout)


def mean_loss(
    model: ModelSpec,
    layout: Layout,
    theta_P: NDArray[np.float32],
    tokens: NDArray[np.int64],
    *,
    rows: int = 8,
    device: str = "cpu",
    frozen: Frozen = ALL_TRAINED,
    beta_micro: int = 0,
) -> float:
    """Mean next-token loss in nats over the targets that are not masked, in float32; 0 without any.

    rows: sequences that are computed at a time, an even number. beta_micro: of DPO, whose loss it then is.
    """
    frozen.check(model)
    compute = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0, beta_micro=beta_micro)
    unit, total, weights = 1 if beta_micro else tokens.shape[1] - 1, 0.0, 0.0
    with torch.no_grad():
        whole = {**frozen.on(device), **layout.views(torch.from_numpy(theta_P).to(device))}
        for at in range(0, len(tokens), rows):
            group = tokens[at : at + rows]
            if weight := _weight(group, compute) / unit:  # in sequences, or pairs
                found = _loss(model, whole, torch.from_numpy(group).to(device), compute)
                total, weights = total + float(found) * weight, weights + weight
    return total / weights if weights else 0.0


def _groups(tokens: NDArray[np.int64], compute: ComputeSpec) -> list[NDArray[np.int64]]:
    rows = compute.micro_sequences or len(tokens)
    return [tokens[at : at + rows] for at in range(0, len(tokens), rows)]


def _weight(tokens: NDArray[np.int64], compute: ComputeSpec) -> int:
    """What the loss is a mean over: pairs with DPO, rollouts with GRPO, else targets."""
    if compute.is_grpo:
        return len(tokens)
    return len(tokens) // 2 if compute.is_dpo else target_count(tokens)


def logits_of(model: ModelSpec, p: Mapping[str, Tensor], inputs: Tensor, precision: Precision) -> Tensor:
    """Logits of the next token at every position, by a training run's kernels.

    Args:
        model: Sizes.
        p: All parameters by name, frozen ones too.
        inputs: Tokens, none masked. Shape (sequences, length), int64.
        precision: Of the pass.

    Returns:
        Shape (sequences, length, vocabulary), float32.
    """
    is_half = precision is Precision.BFLOAT16
    with _repeatable(inputs), torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=is_half):
        found = (gpt_logits if model.family is Family.GPT else llama_logits)(model, p, inputs)
    return found.float()


def _repeatable(on: Tensor) -> AbstractContextManager[None]:
    """On CUDA, kernels that repeat themselves: a flag of the process, so replicas are within an outer one."""
    return sdpa_kernel(_REPEATABLE) if on.is_cuda else nullcontext()


def _loss(model: ModelSpec, p: Mapping[str, Tensor], tokens: Tensor, compute: ComputeSpec) -> Tensor:
    inputs = torch.where(tokens < 0, ~tokens, tokens)[:, :-1]
    targets = tokens[:, 1:].clone().masked_fill_(tokens[:, 1:] < 0, _IGNORED)
    found = logits_of(model, p, inputs, compute.dtype)
    logits, wanted = found.reshape(-1, model.vocabulary), targets.reshape(-1)
    if not compute.is_dpo and not compute.is_grpo:
        return F.cross_entropy(logits, wanted, ignore_index=_IGNORED)
    each = F.cross_entropy(logits, wanted, ignore_index=_IGNORED, reduction="none")
    nats_S = each.view(targets.shape).sum(1, dtype=torch.float64)
    if compute.is_grpo:
        earned, ahead = figures(tokens.cpu().numpy(), compute.grpo.group)
        surrogate = (torch.from_numpy(ahead).to(nats_S.device) * nats_S).mean() / compute.grpo.completion
        return 1 - float(earned.mean()) + (surrogate - surrogate.detach())
    reference_S = torch.from_numpy(reference_nats(tokens.cpu().numpy())).to(nats_S.device)
    gained_S = reference_S - nats_S  # of log-probability, since the reference
    return -F.logsigmoid((gained_S[0::2] - gained_S[1::2]) * (compute.beta_micro / 1e6)).mean()
