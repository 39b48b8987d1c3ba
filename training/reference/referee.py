"""Referee: recomputes the one operator to which a claim about a whole program was narrowed, and judges it.

Room: training (pure). The position before the operator is agreed on, so it binds the operator's inputs; the
one after it is what the claimant says and its doubter rejects (narrowing.py).

Reference:
    Arun et al., "Verde: Verification via Refereed Delegation for Machine Learning Programs",
    arXiv:2502.19405; Canetti, Riva & Rothblum, "Practical delegation of computation using multiple servers",
    CCS 2011 (refereed delegation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.protocol.errors import MalformedMessage
from assay.protocol.types import Digest
from assay.training.reference.operators import Array, Operator, run_one
from assay.training.reference.trace import Trace, after, output_digest, trace_of


@dataclass(frozen=True, slots=True)
class Shown:
    """What the claimant shows a judge of one operator.

    outputs: digests of the outputs of all operators before it. arrays: those outputs that are its inputs.
    """

    outputs: tuple[Digest, ...]
    arrays: Mapping[str, Array]


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
        shown: By whoever says that it is the claimant's.

    Raises:
        MalformedMessage: it is not what the first position binds, so that nothing is shown, right or wrong.
    """
    if not 0 <= index < len(program):
        return False
    if len(shown.outputs) != index:
        raise MalformedMessage(
            f"evidence: {len(shown.outputs)} outputs before the operator, expected {index}"
        )
    start, end = positions
    if trace_of(shown.outputs).positions[-1] != start:
        raise MalformedMessage("evidence: outputs that do not lead to the position before the operator")
    operator, before = program[index], {one.name: i for i, one in enumerate(program[:index])}
    inputs: dict[str, Array] = {}
    for name in operator.inputs:
        if name not in before:
            inputs[name] = sources[name]
        elif name not in shown.arrays or output_digest(shown.arrays[name]) != shown.outputs[before[name]]:
            raise MalformedMessage(f"evidence: no {name:.100} with the digest among the outputs shown")
        else:
            inputs[name] = shown.arrays[name]
    try:
        output = run_one(operator, inputs)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return False  # no honest run has such inputs, or the operator has no output
    return after(start, output_digest(output)) == end
