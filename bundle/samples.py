"""Samples: a few documents that a delivered model makes up, for people to read.

Room: bundle (pure). They follow from the run's id and its parameters, to the bit: every holder of the bundle
has the same ones.
"""

from __future__ import annotations

import math

from assay.bundle.finished import Finished
from assay.training.data.tokenizer import decoded
from assay.training.model.flops import flop_per_token

SAMPLES = 3
TOKENS_MAX = 64  # of each
CHARACTERS_MAX = 4096  # of each: a tokenizer may have tokens of any length
FLOP_MAX = 10**12  # of all of them, in the reference class: a minute or two on one core
HEAD = b"assay/sample/1"


def samples_of(run: Finished) -> tuple[str, ...]:
    """The documents; of a large model, fewer tokens of each, as `FLOP_MAX` allows.

    None where the data's documents have no separator to begin with, the tokenizer is none or takes too much
    memory or time, or the model diverged.

    Raises:
        Unavailable: this thread computes otherwise than IEEE 754 says.
    """
    from assay.training.reference.generation import generated

    model, separator = run.spec.model, run.inputs.manifest.separator
    if separator is None:
        return ()
    forward = SAMPLES * flop_per_token(model.whole) // 3
    # A pass over the whole prefix for each token: length^2 / 2 positions.
    length = min(TOKENS_MAX, model.context, math.isqrt(2 * FLOP_MAX // forward))
    try:
        made = generated(
            model,
            run.theta,
            separator,
            sequences=SAMPLES,
            length=length,
            head=HEAD + run.run_id,
            frozen=run.inputs.frozen(run.spec),
        )
        return decoded(run.inputs.tokenizer, made, CHARACTERS_MAX)
    except (FloatingPointError, ValueError):
        return ()
