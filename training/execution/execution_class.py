"""Execution class: a digest of what decides a machine's gradient bits; equal classes compare bit for bit.

Room: training (pure). A class consists of the operator's configuration and build, and the fingerprint of what
this process really computes (`challenge`): kernels that no flag names, such as oneDNN's and MKL's own choice
by processor, differ in it.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import replace

import numpy as np
import torch

from assay.protocol.grpo import NO_GRPO
from assay.protocol.params import ComputeSpec
from assay.protocol.types import Digest
from assay.training.execution.challenge import fingerprint


def execution_class(compute: ComputeSpec, device: str = "cpu") -> Digest:
    """Digest of what decides the bits of a gradient on this machine; equal classes compare bit for bit.

    Losses are computed by the same kernels, and completions sampled by them in passes of the same shape, so a
    class is of precision and groups alone.
    The first call for a configuration runs the challenge, which takes about a quarter of a second.
    """
    return _class_of(
        replace(compute, beta_micro=0, grpo=NO_GRPO),
        device,
        torch.get_num_threads(),
        torch.backends.mkldnn.enabled,
    )


@functools.lru_cache(maxsize=16)
def _class_of(compute: ComputeSpec, device: str, threads: int, has_mkldnn: bool) -> Digest:
    parts = [
        "assay/class/4",
        torch.__version__,
        np.__version__,
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        f"mkldnn={has_mkldnn and torch.backends.mkldnn.is_available()}",  # type: ignore[no-untyped-call]
        f"threads={threads}",
        compute.dtype.name.lower(),
        f"micro={compute.micro_sequences}",
        device,
        fingerprint(compute, device).hex(),
    ]
    if device == "cuda":
        parts += [
            torch.cuda.get_device_name(),
            f"cuda={torch.version.cuda}",
            f"cudnn={torch.backends.cudnn.version()}",  # type: ignore[no-untyped-call]
            "sdpa=flash",
        ]
    return Digest(hashlib.sha256("|".join(parts).encode()).digest())
