"""Referee: narrows a claim about a whole program to one operator, which is then recomputed alone.

Room: training (pure). One party, the claimant, claims the positions of its trace at the ends of up to 64
parts. Whoever doubts the claim names the first part whose end is wrong by its own trace; the claimant cuts
that part again, until one operator is left. The doubter accepts the position before it and rejects the one
after it, so that a judge decides by that operator alone:

    claimant --`claimed`--> ends of parts --`first_wrong`--> one part --> ... --> one operator --`is_right`

A claimant that ran the program wins whatever part is named; a false claim loses to whoever ran it. Neither
depends on what the other says later: no two claims of one claimant are compared. `AppealCourt` holds both to
their times, docs/protocol.md, section 7b.

Reference:
    Arun et al., "Verde: Verification via Refereed Delegation for Machine Learning Programs",
    arXiv:2502.19405; Canetti, Riva & Rothblum, "Practical delegation of computation using multiple servers",
    CCS 2011 (refereed delegation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.protocol.types import Digest
from assay.training.reference.operators import Array, Operator, run_one
from assay.training.reference.trace import Trace, after, output_digest, trace_of

PARTS = 64  # of one cut: AppealCourt.PARTS
OPERATORS_MAX = PARTS**3  # AppealCourt.OPERATORS_MAX


@dataclass(frozen=True, slots=True)
class Shown:
    """What the claimant shows a judge of one operator.

    outputs: digests of the outputs of all operators before it. arrays: those outputs that are its inputs.
    """

    outputs: tuple[Digest, ...]
    arrays: Mapping[str, Array]


def ends_of(first: int, last: int) -> tuple[int, ...]:
    """Where the parts of operators `first` to `last`, exclusive, end: as many parts as there may be."""
    parts = min(last - first, PARTS)
    return tuple(first + (last - first) * (part + 1) // parts for part in range(parts))


def claimed(trace: Trace, first: int, last: int) -> tuple[Digest, ...]:
    """The positions that a claimant with this trace states for a cut."""
    return tuple(trace.positions[end] for end in ends_of(first, last))


def first_wrong(known: Sequence[Digest], first: int, last: int, told: Sequence[Digest]) -> int:
    """The first part whose end is not a known position; the last part if all are.

    Args:
        known: The positions of the doubter's own trace, from `START` on. What lies beyond them is wrong.
        first, last: The operators that were cut.
        told: The claimed positions at the ends of the parts.

    Raises:
        ValueError: there are not as many claims as parts.
    """
    ends = ends_of(first, last)
    if len(told) != len(ends):
        raise ValueError(f"{len(told)} positions for {len(ends)} parts")
    for part, (end, position) in enumerate(zip(ends, told, strict=True)):
        if end >= len(known) or known[end] != position:
            return part
    return len(ends) - 1


def show(program: Sequence[Operator], outputs: Sequence[Array], trace: Trace, index: int) -> Shown:
    """What a claimant with these outputs shows of the operator at `index`."""
    before = {operator.name: output for operator, output in zip(program[:index], outputs, strict=False)}
    wanted = {name: before[name] for name in program[index].inputs if name in before}
    return Shown(trace.outputs[:index], wanted)


def is_right(
    program: Sequence[Operator],
    sources: Mapping[str, Array],
    index: int,
    positions: tuple[Digest, Digest],
    shown: Shown,
) -> bool:
    """Whether one operator leads from the position before it to the one after it.

    Args:
        program: The operators that were claimed to have run.
        sources: What these start from, as far as this operator needs it; checked by the caller against what
            the step committed to.
        index: Of the operator.
        positions: The claimed ones before and after it.
        shown: By the claimant, whose fault it is if this is not what the first position binds.
    """
    if not 0 <= index < len(program) or len(shown.outputs) != index:
        return False
    start, end = positions
    if trace_of(shown.outputs).positions[-1] != start:
        return False
    operator, before = program[index], {one.name: i for i, one in enumerate(program[:index])}
    inputs: dict[str, Array] = {}
    for name in operator.inputs:
        if name not in before:
            inputs[name] = sources[name]
        elif name not in shown.arrays or output_digest(shown.arrays[name]) != shown.outputs[before[name]]:
            return False
        else:
            inputs[name] = shown.arrays[name]
    try:
        output = run_one(operator, inputs)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return False  # no honest run has such inputs, or the operator has no output
    return after(start, output_digest(output)) == end
