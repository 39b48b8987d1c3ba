"""Challenge: a small fixed computation whose bits identify the code that computes a machine's gradients.

Room: training (pure). A node only declares its execution class; the fingerprint is computed. Three steps of
two small models, whose parameters and tokens come from a hash, run through the kernels that training uses:
attention, both norms and activations, matrix products of several shapes, loss and gather, and their backward
passes. Every step starts from the result of the one before, so a difference in one bit spreads.

Equal classes give equal fingerprints, in every process. Unequal fingerprints prove that bits cannot be
compared. The reverse does not hold for everything: kernels may agree on small shapes and not on
large ones, so thread count, device and builds stay in the class beside the fingerprint.

Shape suffixes: P = parameters.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ComputeSpec, ModelSpec
from assay.protocol.types import Digest
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.loss import loss_and_gradient
from assay.training.model.presets import gpt_spec, llama_spec

STEPS, SEQUENCES = 3, 8
SEED = 0xA55A
_LR = np.float32(0.5)
_MODELS: tuple[ModelSpec, ...] = (
    gpt_spec(layers=2, width=128, heads=4, context=96),
    llama_spec(layers=2, width=128, heads=4, kv_heads=2, hidden=320, context=96),
)


def fingerprint(compute: ComputeSpec, device: str = "cpu") -> Digest:
    """Digest of the gradients of the challenge, as this process computes them.

    Args:
        compute: Precision and group size of the run; a group of more than 8 sequences is one of 8.
        device: "cpu" or "cuda".
    """
    whole = hashlib.sha256(b"assay/challenge/1")
    for number, model in enumerate(_MODELS):
        layout = layout_of(model)
        theta_P = initial_parameters(SEED + number, layout.names, layout.shapes)
        for step in range(STEPS):
            tokens = challenge_tokens(model, number * STEPS + step)
            _, slope_P = loss_and_gradient(model, layout, theta_P, tokens, compute=compute, device=device)
            whole.update(np.ascontiguousarray(slope_P, "<f4").tobytes())
            theta_P = theta_P - slope_P * _LR  # by element, two roundings: the same everywhere
    return Digest(whole.digest())


def challenge_tokens(model: ModelSpec, number: int, sequences: int = SEQUENCES) -> NDArray[np.int64]:
    """Synthetic text with a pattern to learn: steps of a few sizes over the vocabulary, from a hash.

    Returns:
        Shape (sequences, context + 1), int64; equal on every machine.
    """
    count = sequences * (model.context + 1)
    head = b"assay/challenge-tokens/1" + number.to_bytes(8, "big")
    drawn = np.frombuffer(hashlib.shake_256(head).digest(count), np.uint8).reshape(sequences, -1)
    stride = np.where(drawn < 224, drawn % 7 + 1, drawn.astype(np.int64))
    return (np.cumsum(stride, axis=1) % model.vocabulary).astype(np.int64)
