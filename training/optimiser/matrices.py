"""Matrices: which parameters Muon moves, and how much of an inner state an opening shows.

Room: training (pure). Muon's second moment is Adam's, of the parameters that are no matrices. In matrices it
is zero, so an opening leaves it out. A rule starts in public where nothing of an inner state outlives a round
and a round is one segment: an opening then shows blocks alone.

Shape suffixes: P = parameters, R = rows, C = columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.protocol.openings import INNER_BYTES_MAX
from assay.protocol.update_rule import LocalSpec, Optimiser, RuleSpec
from assay.training.layout import Layout

T = TypeVar("T", bound=np.generic)
Floats = NDArray[np.float32]
_NOT_MATRICES = ("embed", "position", "head")
_FUSED = {"qkv": 3}  # matrices that one tensor stacks, by the end of its name


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix that is made orthogonal by itself: where it begins in the flat vector, and its sides."""

    start: int
    rows: int
    columns: int

    def of(self, flat_P: NDArray[T]) -> NDArray[T]:
        """This matrix of a flat vector, as a view. Shape (R, C)."""
        return flat_P[self.start : self.start + self.rows * self.columns].reshape(self.rows, self.columns)


def matrices(layout: Layout) -> tuple[Matrix, ...]:
    """The matrices that Muon moves, in the order of the parameters."""
    found = []
    for name, (start, shape) in layout.offsets().items():
        if len(shape) != 2 or name in _NOT_MATRICES:
            continue
        parts = _FUSED.get(name.rpartition(".")[2], 1)
        rows, columns = shape[0] // parts, shape[1]
        found += [Matrix(start + part * rows * columns, rows, columns) for part in range(parts)]
    return tuple(found)


def rest_of(layout: Layout) -> NDArray[np.bool_]:
    """The parameters that Adam moves. Shape (P,)."""
    is_rest_P = np.ones(layout.parameters, bool)
    for matrix in matrices(layout):
        matrix.of(is_rest_P)[:] = False
    return is_rest_P


def moment_counts(local: LocalSpec, layout: Layout) -> tuple[int, ...]:
    """How many values of each moment an opening shows."""
    if local.optimiser is not Optimiser.MUON:
        return (layout.parameters,) * local.moments
    in_matrices = sum(matrix.rows * matrix.columns for matrix in matrices(layout))
    return layout.parameters, layout.parameters - in_matrices


def start_counts(rule: RuleSpec, layout: Layout) -> tuple[int, int]:
    """How many values of parameters and of moments the largest start of a segment has to show."""
    shows_theta = rule.segments > 1 or rule.is_local_kept
    shows_moments = rule.segments > 1 or rule.carries_inner
    return shows_theta * layout.parameters, shows_moments * sum(moment_counts(rule.local, layout))


def check_start(rule: RuleSpec, layout: Layout) -> None:
    """Do nothing if an opening can show every start: else its node could only withhold, and be slashed.

    Raises:
        ValueError: what does not fit.
    """
    for what, count, most in zip(
        ("parameters", "moments"), start_counts(rule, layout), (INNER_BYTES_MAX, 2 * INNER_BYTES_MAX),
        strict=True,
    ):  # fmt: skip
        if 4 * count > most:
            raise ValueError(
                f"an opening would show {4 * count:,} bytes of {what}, at most {most:,} expected"
            )


def shown_moments(local: LocalSpec, layout: Layout, moments: tuple[Floats, ...]) -> bytes:
    """Moments as an opening shows them: float32 little-endian, the first, then the second."""
    if local.optimiser is Optimiser.MUON and moments:
        moments = moments[0], moments[1][rest_of(layout)]
    return b"".join(moment_P.astype("<f4").tobytes() for moment_P in moments)


def moments_of(local: LocalSpec, layout: Layout, values: Floats) -> tuple[Floats, ...]:
    """The moments from the values that `shown_moments` wrote, as many as `moment_counts` says."""
    if local.optimiser is not Optimiser.MUON:
        return tuple(values.reshape(local.moments, layout.parameters)) if len(values) else ()
    second_P = np.zeros(layout.parameters, np.float32)
    second_P[rest_of(layout)] = values[layout.parameters :]
    return values[: layout.parameters], second_P
