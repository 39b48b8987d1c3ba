"""Answers: what a recompute worker answers about an appealed step.

Room: verifier (edge: a file of evidence). Loaded when it is asked for: the reference class is compiled code.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import MalformedMessage, Unavailable
from assay.protocol.messages import Commit
from assay.protocol.params import RunSpec
from assay.training.data.batches import Tokens
from assay.training.frozen import Frozen
from assay.training.reference.narrowing import START
from assay.training.reference.trace import traced
from assay.verifier.appeal.evidence import batch_of, holds, parse_evidence, public_sources
from assay.verifier.appeal.program import operator_count, program_of, why_not
from assay.verifier.audit.limits import Limits
from assay.verifier.audit.messages import JudgeOperator


def positions_of(
    spec: RunSpec,
    limits: Limits,
    commit: Commit,
    theta_P: NDArray[np.float32],
    tokens: Tokens,
    frozen: Frozen,
) -> bytes:
    """The positions before a step's finding, from public sources.

    Where no program decides it, that before the first operator alone: every claim about it is wrong. Who held
    such a step for beyond doubt, and did not defend its conviction, would let any cheat win its appeal.
    """
    if why_not(spec, limits, commit):
        return bytes(START)
    program = program_of(spec, limits, commit)[:-1]
    if not program:  # all of it follows from what only the node has
        return bytes(START)
    arrays = public_sources(spec, theta_P, batch_of(spec, commit, tokens), frozen)
    try:
        return b"".join(traced(program, arrays)[0].positions)
    except FloatingPointError:  # no claim about such a step is right, wherever it is doubted
        return bytes(START)


def is_right(spec: RunSpec, limits: Limits, request: JudgeOperator, tokens: Tokens, frozen: Frozen) -> bool:
    """Whether a shown operator is right.

    Raises:
        MalformedMessage: it is no evidence about this case, so nothing is shown.
        Unavailable: the file cannot be read.
    """
    try:
        body = Path(request.evidence).read_bytes()
    except OSError as error:
        raise Unavailable(f"evidence {request.evidence}: {error.strerror}") from None
    evidence = parse_evidence(body, request.case_id)
    if evidence.index != request.index:
        raise MalformedMessage(f"evidence about operator {evidence.index}, expected {request.index}")
    if why_not(spec, limits, evidence.commit) or operator_count(spec, evidence.commit) != request.operators:
        return False  # the claim itself, whoever shows the evidence
    program = program_of(spec, limits, evidence.commit)
    return holds(spec, program, evidence, (request.start, request.end), tokens, frozen)
