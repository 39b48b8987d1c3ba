"""Held out: the loss of a run's model on tokens that nobody trained on, and its accuracy, before and after.

Room: bundle (edge: reads a folder of data). Whoever has the data measures them: the buyer's process at the
delivery, and anybody later, `assay run verify --data`. Machines agree on the loss within `TOLERANCE`, and on
the accuracy, which is the reference class's, exactly.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.bundle.finished import Accuracy, HeldOut
from assay.bundle.inputs import RunInputs
from assay.participant.files.index import IntegrityError
from assay.protocol.messages import LOSS_MICRO_MAX, Score
from assay.protocol.params import RunSpec
from assay.training.data.batches import read_tokens, validation_tokens
from assay.training.layout import layout_of
from assay.training.model.adapter import merged
from assay.training.model.flops import flop_per_token

SEQUENCES_MAX = 128
FLOP_MAX = 10**12  # for one of the two losses: a minute or two on one core
ACCURACY_FLOP_MAX = 10**13  # of one of the two accuracies, in the reference class: some minutes
TOLERANCE = 1e-3  # of the loss; other code paths change its fifth digit
MICRO = 10**6
_FIGURES = {"loss_micro": "millionths of a nat", "acc_count": "items", "acc_norm_count": "items"}


def held_out_tokens(spec: RunSpec) -> int:
    """On how many tokens the loss is measured: the spec alone says it, so that nobody chooses the best."""
    whole, drawn = spec.model.whole, spec.compute.drawn_sequences
    flop = flop_per_token(whole) * whole.context // 3  # of one sequence, forward alone
    windows = max(1, min(SEQUENCES_MAX, FLOP_MAX // flop) // drawn)
    return min(windows, spec.split.held) * drawn * whole.context


def held_out_loss(spec: RunSpec, inputs: RunInputs, theta: NDArray[np.float32], data: Path) -> HeldOut | None:
    """The loss and the accuracy of the starting and of the delivered parameters.

    Args:
        spec: The run.
        inputs: Checked against it.
        theta: The delivered parameters.
        data: A folder with all shards of the data.

    Returns:
        None if a loss is not finite, or higher than a commit may state.

    Raises:
        ConfigError: a shard is missing or altered, or these are other data.
    """
    from assay.training.model.loss import mean_loss, use_one_thread

    use_one_thread()
    whole, frozen, count = spec.model.whole, inputs.frozen(spec), held_out_tokens(spec)
    tokens = validation_tokens(read_tokens(data, spec.data), spec, count // whole.context)
    first, last = (
        mean_loss(
            whole,
            layout_of(whole),
            merged(spec.model, frozen, one),
            tokens,
            beta_micro=spec.compute.beta_micro,
        )
        for one in (inputs.start(spec), theta)
    )
    if not all(0 <= one * MICRO <= LOSS_MICRO_MAX for one in (first, last)):  # nor is NaN
        return None
    return HeldOut(
        first_micro=round(first * MICRO),
        last_micro=round(last * MICRO),
        tokens=count,
        accuracy=_accuracy(spec, inputs, theta),
    )


def _accuracy(spec: RunSpec, inputs: RunInputs, theta: NDArray[np.float32]) -> Accuracy | None:
    """None if the run has no choices, or if they take more than `ACCURACY_FLOP_MAX`."""
    from assay.training.reference.evaluation import right_answers

    choices, frozen = inputs.choices, inputs.frozen(spec)
    if choices is None or choices.tokens * flop_per_token(spec.model.whole) // 3 > ACCURACY_FLOP_MAX:
        return None
    (acc_first, acc_norm_first), (acc_last, acc_norm_last) = (
        right_answers(spec.model, one, choices, frozen=frozen) for one in (inputs.start(spec), theta)
    )
    return Accuracy(
        items=len(choices.items),
        acc_first=acc_first,
        acc_last=acc_last,
        acc_norm_first=acc_norm_first,
        acc_norm_last=acc_norm_last,
    )


def check_milestone(
    spec: RunSpec, inputs: RunInputs, theta: NDArray[np.float32], data: Path, epoch: int, agreed: Score
) -> None:
    """Do nothing if the model after an epoch has the score that verifiers agreed on, to the last digit.

    Args:
        spec, inputs, data: As of `held_out_loss`.
        theta: The parameters after the epoch.
        epoch: One with a milestone.
        agreed: Loss and right answers.

    Raises:
        IntegrityError: it has another.
        ConfigError: see `held_out_loss`.
    """
    from assay.training.model.loss import use_one_thread
    from assay.training.reference.evaluation import reference_score

    use_one_thread()
    tokens = validation_tokens(read_tokens(data, spec.data), spec, spec.money.accept.sequences)
    frozen = inputs.frozen(spec)
    found = reference_score(spec.model, theta, tokens, inputs.choices, compute=spec.compute, frozen=frozen)
    for name, unit in _FIGURES.items():
        if (ours := getattr(found, name)) != (theirs := getattr(agreed, name)):
            raise IntegrityError(
                f"{name} after epoch {epoch}: verifiers agreed on {theirs} {unit}, measured here {ours}"
            )


def check_held_out(claimed: HeldOut, measured: HeldOut | None) -> None:
    """Do nothing if a measurement confirms what a bundle claims.

    Raises:
        IntegrityError: it does not.
    """
    if measured is None:
        raise IntegrityError("bundle/report.json: held-out loss: none that a commit could state")
    if claimed.accuracy != measured.accuracy:
        raise IntegrityError(
            f"bundle/report.json: accuracy {claimed.accuracy}, measured here {measured.accuracy}"
        )
    for name in ("first_micro", "last_micro"):
        given, found = getattr(claimed, name), getattr(measured, name)
        if abs(given - found) > TOLERANCE * found:
            raise IntegrityError(f"bundle/report.json: held-out loss: {name} {given}, measured here {found}")
