"""Referee: finds the first operator on which two traces differ, recomputes it alone and says who was wrong.

Room: training (pure). Both claim a root over the outputs of the same operators on the same sources. A referee
descends from the root to the first leaf that differs, in at most log2(n) + 1 questions to each; on every leaf
before it both agree, so these digests bind the operator's inputs. Whoever gives an answer that is not under
its root, an input that is not the one agreed on, or an output that is not the operator's, is at fault. An
honest claimant never is.

Reference:
    Arun et al., "Verde: Verification via Refereed Delegation for Machine Learning Programs",
    arXiv:2502.19405; Canetti, Riva & Rothblum, "Practical delegation of computation using multiple servers",
    CCS 2011 (refereed delegation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from assay.protocol.encoding import merkle
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import Digest
from assay.training.reference.operators import Array, Operator, run_one
from assay.training.reference.trace import Answer, leaf, output_digest


class Claimant(Protocol):
    """A party that claims to have run all operators."""

    @property
    def root(self) -> Digest:
        """Of its trace."""

    def answer(self, index: int) -> Answer:
        """Its digest of one operator's output."""

    def output(self, index: int) -> Array:
        """That output itself."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a referee found: at which operator, and which of the two claimants are at fault."""

    index: int | None
    at_fault: tuple[bool, bool]


class AtFault(Exception):
    """A claimant (0 or 1) gave something that is not under its root."""

    def __init__(self, claimant: int, reason: str) -> None:
        super().__init__(f"claimant {claimant}: {reason}")
        self.claimant = claimant


def settle(
    program: Sequence[Operator], sources: Mapping[str, Array], claimants: tuple[Claimant, Claimant]
) -> Finding:
    """Which of two claimants are at fault, by one operator's computation.

    Args:
        program: The operators that both claim to have run.
        sources: What these start from; checked by the caller against what the step committed to.
        claimants: Their roots must not change while they are asked.
    """
    index = None
    try:
        index = first_difference(*claimants, len(program))
        if index is None:
            return Finding(None, (False, False))
        operator, before = program[index], {one.name: i for i, one in enumerate(program[:index])}
        inputs = {
            name: _agreed(claimants, before[name], len(program)) if name in before else sources[name]
            for name in operator.inputs
        }
        claimed = [_answer(claimants, side, index, len(program)).output for side in (0, 1)]
    except AtFault as fault:
        return Finding(index, (fault.claimant == 0, fault.claimant == 1))
    try:
        first, second = (not judge(operator, inputs, one) for one in claimed)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return Finding(index, (True, True))  # they agreed on inputs that no honest run has
    return Finding(index, (first, second))


def first_difference(one: Claimant, other: Claimant, count: int) -> int | None:
    """The first of `count` operators on which two claimants differ; nothing if they agree on all.

    Raises:
        AtFault: an answer is not under its claimant's root.
    """
    claimants = one, other
    if one.root == other.root:
        return None
    first, width = 0, count  # they differ among these, and on none before
    while width > 1:
        answers = [_answer(claimants, side, first, count) for side in (0, 1)]
        half = 1 << (width - 1).bit_length() - 1
        while width > 1 and _left(answers[0], first, half) != _left(answers[1], first, half):
            width, half = half, half // 2
        if width > 1:
            first, width = first + half, width - half
    return first


def judge(operator: Operator, inputs: Mapping[str, Array], claimed: Digest) -> bool:
    """Whether an operator's output on these inputs has the claimed digest."""
    return output_digest(run_one(operator, inputs)) == claimed


def _left(answer: Answer, first: int, half: int) -> Digest:
    """Root of the `half` leaves, a power of two, that begin with the answer's."""
    path = answer.path[: half.bit_length() - 1]
    return merkle.root_of_path(leaf(first, answer.output), 0, half, path)


def _answer(claimants: Sequence[Claimant], side: int, index: int, count: int) -> Answer:
    answer = claimants[side].answer(index)
    try:
        merkle.check(leaf(index, answer.output), index, count, answer.path, claimants[side].root)
    except MalformedMessage as cause:
        raise AtFault(side, str(cause)) from None
    return answer


def _agreed(claimants: Sequence[Claimant], index: int, count: int) -> Array:
    """An output on which both agree."""
    agreed = _answer(claimants, 0, index, count).output
    output = claimants[0].output(index)
    if output_digest(output) != agreed:
        raise AtFault(0, f"output {index} is not the one in its trace")
    return output
