"""Checkpointing: a backward pass computes each layer's activations again, in place of keeping all of them.

Room: training (edge: one setting of the process). The kernels see what they would see without it, so the bits
are the same, and an auditor need not know. It costs a forward pass more.

Reference:
    Chen, Xu, Zhang & Guestrin, arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_is_used = [False]


def use_checkpointing(is_used: bool) -> None:
    """Set whether this process keeps of a layer only what goes into it."""
    _is_used[0] = is_used


def layer(work: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`work(x)`, of which a backward pass keeps x alone where that was set."""
    if not _is_used[0] or not torch.is_grad_enabled():
        return work(x)
    from torch.utils.checkpoint import checkpoint

    found: Tensor = checkpoint(work, x, use_reentrant=False, preserve_rng_state=False)
    return found
