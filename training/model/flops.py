"""FLOP: floating-point operations of training on a number of tokens, by one integer formula.

Room: training (pure). Only what a forward and backward pass multiplies is counted: no optimiser, transform,
aggregation or evaluation. Integers throughout, so every party gets the same figure.

    per token = 6 N + 4 M + 12 L C D    N trained weights of matrices that every token meets
                                        M such weights that stay as they are: a base's, below an adapter
                                        L layers, C tokens of context, D width of all heads together
Two of six are the forward pass, two the slopes along the input and two those along the weights, which a
frozen weight does without. Attention is counted for the whole
context, though half of it is masked.

Reference:
    Kaplan et al., "Scaling Laws for Neural Language Models", arXiv:2001.08361, section 2.1 (6 N);
    Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B (12 L H Q T, the attention term).
"""

from __future__ import annotations

import math

from assay.protocol.params import ModelSpec
from assay.training.layout import Layout, layout_of

FORMULA = "tokens * (6 * N + 4 * M + 12 * layers * context * width)"
WORDS = (
    "N counts the trained weights of every matrix that each token is multiplied with, M the frozen ones, "
    "the output head included, lookup tables, norms and biases not; attention is counted for the whole "
    "context; optimiser, compression, aggregation and evaluation are not counted"
)
NO_SAMPLING = ", nor is the sampling of completions"
REFERENCES = ("arXiv:2001.08361, section 2.1", "arXiv:2204.02311, appendix B")
_TABLES = ("embed", "position")  # looked up, not multiplied


def weights_per_token(model: ModelSpec) -> int:
    """N + M: weights that one token is multiplied with in one forward pass."""
    return _trained(model) + _frozen(model)


def flop_per_token(model: ModelSpec) -> int:
    """Forward and backward pass, for one token of a full context."""
    return 6 * _trained(model) + 4 * _frozen(model) + 12 * model.layers * model.context * model.mixed_width


def _trained(model: ModelSpec) -> int:
    is_head_embedding = model.is_tied and not model.is_adapted
    return _matrices(layout_of(model)) + (model.vocabulary * model.width if is_head_embedding else 0)


def _frozen(model: ModelSpec) -> int:
    return _trained(model.whole) if model.is_adapted else 0


def _matrices(layout: Layout) -> int:
    return sum(
        math.prod(shape)
        for name, shape in zip(layout.names, layout.shapes, strict=True)
        if len(shape) == 2 and name not in _TABLES
    )
