"""Generation: text that a model makes up, and the noise of its sampling, with the same bits on every machine.

Room: training (pure). A token is the one with the highest sum of logit and Gumbel noise (Gumbel-max: so it is
a sample of the softmax at temperature 1). The noise is bits of SHAKE-256 and logarithms of the reference
class. With GRPO, nodes add it to logits of their own execution class (training/model/sampling.py).

Shape suffixes: P = parameters, S = sequences, T = positions, V = vocabulary.

Reference:
    Maddison, Tarlow & Minka, "A* Sampling", NeurIPS 2014, arXiv:1411.0030 (Gumbel-max).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import ModelSpec
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.reference.choices import shortened
from assay.training.reference.elementary import log64
from assay.training.reference.gradient import reference_logits

Draws = NDArray[np.uint32]


def generated(
    model: ModelSpec,
    theta_P: NDArray[np.float32],
    separator: int,
    *,
    sequences: int,
    length: int,
    head: bytes,
    frozen: Frozen = ALL_TRAINED,
) -> list[list[int]]:
    """Documents that a model makes up: what follows a separator, up to the next one or to a length.

    Args:
        model, theta_P, frozen: As of `reference_loss`.
        separator: The token between documents.
        sequences: How many.
        length: Most tokens of each; at most the context.
        head: Whatever the noise is to follow from.

    Returns:
        Tokens of each, without a separator. Same on every machine.

    Raises:
        ValueError, FloatingPointError, Unavailable: see `reference_loss`.
    """
    made_ST = np.full((sequences, 1), separator, np.int64)
    for place in range(length):
        logits_SV = reference_logits(*shortened(model, theta_P, place + 1), made_ST, frozen=frozen)[:, -1]
        draws_SV = np.stack([uniform_bits(head, one, place, model.vocabulary) for one in range(sequences)])
        made_ST = np.column_stack((made_ST, chosen(logits_SV, draws_SV)))
        if (made_ST[:, 1:] == separator).any(axis=1).all():
            break
    rows = (row[1:].tolist() for row in made_ST)
    return [row[: row.index(separator)] if separator in row else row for row in rows]


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


def uniform_bits(head: bytes, sequence: int, token: int, vocabulary: int) -> Draws:
    """The bits behind one token of one sequence. Shape (V,), uint32."""
    place = sequence.to_bytes(8, "big") + token.to_bytes(8, "big")
    return np.frombuffer(hashlib.shake_256(head + place).digest(4 * vocabulary), "<u4")
