"""Evidence: what the accused shows jurors of one operator of its step, as a file, and how they check it.

Room: verifier (pure). Everything is bound by the case's id: that is the digest of a commit, and the commit
binds the parameters, the batch, the message, the error before and after and the inner states. Outputs of
operators are bound by the position before the operator, which the appeal court has. Nothing here is believed.

Shape suffixes: P = parameters, N = blocks, C = 4096, S = 1 and the inner optimiser's moments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.protocol.auditing.audits import case_id_of
from assay.protocol.encoding import merkle
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import INT_MAX, Max, decode, encode
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import BLOCK_SIZE, RuleSpec
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import Tokens, batch_positions, batch_tokens
from assay.training.frozen import ALL_TRAINED, Frozen
from assay.training.layout import Layout, layout_of
from assay.training.model.initial import state_digest
from assay.training.optimiser.carry import begins_anew
from assay.training.optimiser.inner import InnerState, roots_of
from assay.training.optimiser.momentum_root import private_leaves
from assay.training.optimiser.outer import rest_bytes
from assay.training.reference.narrowing import OPERATORS_MAX
from assay.training.reference.operators import TOKENS, Array, Operator
from assay.training.reference.operators import sources as gradient_sources
from assay.training.reference.referee import Shown, is_right, show
from assay.training.reference.trace import Trace
from assay.verifier.appeal.program import AFTER, BEFORE, END, START, START_COUNT, THETA, UPDATE

DTYPES = ("<f4", "<f8", "<i8")
INPUTS_MAX = 4096  # of one operator: the slopes of all parameters are inputs of its last but one
NAME_CHARS_MAX = 200
STEPS_MAX = 1 << 48  # that an inner state counts; no run has as many
_NODES_OWN = (BEFORE, AFTER, END, UPDATE, START, START_COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownArray:
    """One output of an earlier operator."""

    TAG: ClassVar[bytes] = b"assay/shown-array/1"
    name: Annotated[str, Max(NAME_CHARS_MAX)]
    dtype: Annotated[str, Max(3)]
    shape: Annotated[tuple[int, ...], Max(4)]
    data: Annotated[bytes, Max(INT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """The evidence about one operator. Sources that it does not need are empty."""

    TAG: ClassVar[bytes] = b"assay/step-evidence/4"
    commit: Commit
    index: int
    outputs: Annotated[bytes, Max(32 * OPERATORS_MAX)]  # digests of all outputs before it
    arrays: Annotated[tuple[ShownArray, ...], Max(INPUTS_MAX)]
    theta: Annotated[bytes, Max(INT_MAX)]
    rest: Annotated[bytes, Max(INT_MAX)]  # of the public state whose digest the commit is bound to
    before: Annotated[bytes, Max(INT_MAX)]
    after: Annotated[bytes, Max(INT_MAX)]
    start: Annotated[bytes, Max(INT_MAX)]  # of kept moments: the inner state that the step before ended in
    start_count: int
    end: Annotated[bytes, Max(INT_MAX)]
    update: Annotated[bytes, Max(INT_MAX)]


@dataclass(frozen=True, slots=True)
class StepSources:
    """All that a step starts from, as its node has it.

    end_SP: the inner states that the finding compares, see `compared_rows`; None without inner steps.
    start: the inner state that the node's step before ended in; None where none is carried into the round.
    rest: `rest_of` the public state that the parameters are of.
    """

    theta_P: NDArray[np.float32]
    tokens: NDArray[np.int64]
    before_NC: NDArray[np.float32]
    after_NC: NDArray[np.float32]
    update: bytes
    end_SP: NDArray[np.float32] | None = None
    start: InnerState | None = None
    rest: bytes = b""

    def arrays(self, spec: RunSpec, frozen: Frozen = ALL_TRAINED) -> dict[str, Array]:
        """By the names that the program's operators use."""
        own = {} if self.end_SP is None else {END: self.end_SP}
        return {
            **public_sources(spec, self.theta_P, self.tokens, frozen),
            **own,
            BEFORE: self.before_NC,
            AFTER: self.after_NC,
            UPDATE: np.frombuffer(self.update, np.uint8),
            **_start_arrays(spec, self.start),
        }


def public_sources(
    spec: RunSpec, theta_P: NDArray[np.float32], tokens: NDArray[np.int64], frozen: Frozen
) -> dict[str, Array]:
    """Those sources of a step that everybody has: all but the finding's."""
    return {**gradient_sources(layout_of(spec.model), theta_P, tokens, frozen), THETA: theta_P}


def inner_rows(state: InnerState) -> NDArray[np.float32]:
    """An inner state as a program reads it: the parameters, then each moment. Shape (S, P)."""
    return np.stack((state.theta_P, *state.moments))


def compared_rows(rule: RuleSpec, ends: Sequence[InnerState]) -> NDArray[np.float32] | None:
    """The inner states that a finding compares with its own: the last, or with kept moments each segment's.

    Args:
        rule: Of the run.
        ends: After each segment; none without inner steps.
    """
    compared = ends if rule.carries_inner else ends[-1:]
    return np.concatenate([inner_rows(end) for end in compared]) if compared else None


def _start_arrays(spec: RunSpec, start: InnerState | None) -> dict[str, Array]:
    parameters = layout_of(spec.model).parameters
    return {
        START: np.zeros((0, parameters), np.float32) if start is None else inner_rows(start),
        START_COUNT: np.array([0 if start is None else start.count], np.int64),
    }


def batch_of(spec: RunSpec, commit: Commit, tokens: Tokens) -> NDArray[np.int64]:
    """What a step must have trained on."""
    positions = batch_positions(spec, commit.node, int(commit.round), commit.tokens, seat=commit.seat)
    return batch_tokens(tokens, positions, spec.model.context)


def evidence_of(
    commit: Commit,
    program: Sequence[Operator],
    sources: StepSources,
    outputs: Sequence[Array],
    trace: Trace,
    index: int,
) -> bytes:
    """The file that shows jurors the operator at `index`."""
    shown, wanted = show(program, outputs, trace, index), set(program[index].inputs)
    names = {operator.name for operator in program} | {*_NODES_OWN, TOKENS}
    needs_theta = bool(wanted - names)
    return encode(
        StepEvidence(
            commit=commit,
            index=index,
            outputs=b"".join(shown.outputs),
            arrays=tuple(_packed(name, array) for name, array in sorted(shown.arrays.items())),
            theta=_bytes(sources.theta_P) if needs_theta else b"",
            rest=sources.rest if needs_theta else b"",
            before=_bytes(sources.before_NC) if BEFORE in wanted else b"",
            after=_bytes(sources.after_NC) if AFTER in wanted else b"",
            start=_bytes(inner_rows(sources.start)) if START in wanted and sources.start else b"",
            start_count=sources.start.count if START in wanted and sources.start else 0,
            end=_bytes(sources.end_SP) if END in wanted and sources.end_SP is not None else b"",
            update=sources.update if UPDATE in wanted else b"",
        )
    )


def parse_evidence(body: bytes, case_id: bytes | None) -> StepEvidence:
    """Evidence that is about this case; or, with none, about any.

    Raises:
        MalformedMessage: it is not such a file, or about another step.
    """
    found = decode(StepEvidence, body, INT_MAX)
    if case_id is not None and case_id_of(found.commit) != case_id:
        raise MalformedMessage(
            f"evidence about case {case_id_of(found.commit).hex()[:8]}, expected {case_id.hex()[:8]}"
        )
    return found


def holds(
    spec: RunSpec,
    program: Sequence[Operator],
    evidence: StepEvidence,
    positions: tuple[Digest, Digest],
    tokens: Tokens,
    frozen: Frozen = ALL_TRAINED,
) -> bool:
    """Whether the shown operator leads from the position before it to the one after it.

    Args:
        spec: The run.
        program: `program_of` this step.
        evidence: From `parse_evidence`.
        positions: What the appeal court has: agreed on, and rejected.
        tokens: The run's data, checked.
        frozen: The run's frozen parameters, checked.

    Raises:
        MalformedMessage: a source is not the one that the commit binds, so that nothing is shown. Sizes, the
            message and digests are checked before anything is computed.
    """
    if not 0 <= evidence.index < len(program):
        return False
    inputs, names = set(program[evidence.index].inputs), {operator.name for operator in program}
    needed = inputs - names
    _check_sizes(spec, evidence, needed, frozen)
    if sorted(one.name for one in evidence.arrays) != sorted(inputs & names):
        raise MalformedMessage(
            f"evidence: {len(evidence.arrays)} outputs, expected the operator's {len(inputs & names)}"
        )
    if UPDATE in needed and not _is_message(spec, evidence):
        return False
    outputs = tuple(Digest(evidence.outputs[at : at + 32]) for at in range(0, len(evidence.outputs), 32))
    arrays = {one.name: _unpacked(one) for one in evidence.arrays}
    sources = _sources(spec, evidence, needed, tokens, frozen)
    return is_right(program, sources, evidence.index, positions, Shown(outputs, arrays))


def _check_sizes(spec: RunSpec, evidence: StepEvidence, needed: set[str], frozen: Frozen) -> None:
    """Whatever the operator needs is as large as it has to be: known before anything is hashed or computed.

    Raises:
        MalformedMessage: it is not.
    """
    layout, rule, base = layout_of(spec.model), spec.rule, evidence.commit.base
    state = 4 * (1 + rule.local.moments) * layout.parameters
    error = 4 * layout.blocks * BLOCK_SIZE
    expected = {"outputs": 32 * evidence.index}
    if _needs_theta(needed, frozen):
        rest = rest_bytes(spec, int(evidence.commit.round))
        expected |= {"theta": 4 * layout.parameters, "rest": rest}
    if BEFORE in needed:
        expected |= {"before": error, "after": error}
    if END in needed:
        expected["end"] = state * (rule.segments if rule.carries_inner else 1)
    if START in needed:
        expected["start"] = state if base else 0
        steps_max = STEPS_MAX if base else 0
        if not 0 <= evidence.start_count <= steps_max:
            raise MalformedMessage(
                f"evidence: a start state after {evidence.start_count} steps, expected 0 to {steps_max}"
            )
    for name, size in expected.items():
        found = len(getattr(evidence, name))
        if found != size:
            raise MalformedMessage(f"evidence: {found} bytes of {name}, expected {size}")


def _needs_theta(needed: set[str], frozen: Frozen) -> bool:
    return bool(needed - {TOKENS, *_NODES_OWN} - set(frozen.layout.names))


def _is_message(spec: RunSpec, evidence: StepEvidence) -> bool:
    """Whether the commit's message is one of this rule. If not, no computation shows that the step holds.

    Raises:
        MalformedMessage: what is shown is not the commit's.
    """
    if blob_digest(evidence.update) != evidence.commit.update:
        raise MalformedMessage("evidence: a message that is not the commit's")
    try:
        decode_contribution(spec, layout_of(spec.model), int(evidence.commit.round), evidence.update)
    except MalformedMessage:
        return False
    return True


def _sources(
    spec: RunSpec, evidence: StepEvidence, needed: set[str], tokens: Tokens, frozen: Frozen
) -> Mapping[str, Array]:
    """The sources that an operator needs, each bound by the commit."""
    commit, layout, found = evidence.commit, layout_of(spec.model), dict[str, Array](frozen.arrays())
    if TOKENS in needed:
        found[TOKENS] = batch_of(spec, commit, tokens)
    if _needs_theta(needed, frozen):
        theta_P = _floats(evidence.theta)
        if state_digest(theta_P, evidence.rest) != commit.state:
            raise MalformedMessage("evidence: parameters that are not the commit's")
        found.update(public_sources(spec, theta_P, np.zeros((0, 0), np.int64), ALL_TRAINED) | found)
    carried = _carried(spec, layout, evidence) if START in needed else (None, None)
    if START in needed:
        found.update(_start_arrays(spec, carried[0]))
    if END in needed:
        found[END] = _ends(spec, layout, evidence, carried[0])
    states = (
        (BEFORE, evidence.before, commit.momentum_before, carried[1]),
        (AFTER, evidence.after, commit.momentum_after, commit.inner[-1] if spec.rule.carries_inner else None),
    )
    for name, data, root, inner in states:
        if name in needed:
            blocks_NC = _floats(data).reshape(layout.blocks, BLOCK_SIZE)
            if merkle.tree(private_leaves(commit.run_id, blocks_NC, inner)).root != root:
                raise MalformedMessage(f"evidence: a private state ({name}) that is not the commit's")
            found[name] = blocks_NC
    if UPDATE in needed:
        found[UPDATE] = np.frombuffer(evidence.update, np.uint8)
    return found


def _carried(spec: RunSpec, layout: Layout, evidence: StepEvidence) -> tuple[InnerState | None, Digest]:
    """The inner state that a round with kept moments continues, and its digest before the step."""
    if not evidence.commit.base:
        return None, NO_DIGEST
    start = _state(_inner_floats(spec, layout, evidence.start, 1), evidence.start_count)
    return start, roots_of(evidence.commit.run_id, layout, start).digest


def _ends(
    spec: RunSpec, layout: Layout, evidence: StepEvidence, start: InnerState | None
) -> NDArray[np.float32]:
    """The inner states to compare, each with the digest of its entry in the commit."""
    commit, rule, local = evidence.commit, spec.rule, spec.rule.local
    counts = [
        min(last, local.steps) for last in range(local.segment, local.steps + local.segment, local.segment)
    ]
    begun = 0 if start is None or begins_anew(rule, commit.base, int(commit.round)) else start.count
    compared = counts if rule.carries_inner else counts[-1:]
    rows_RP = _inner_floats(spec, layout, evidence.end, len(compared))
    states = zip(np.split(rows_RP, len(compared)), compared, strict=True)
    digests = tuple(
        roots_of(commit.run_id, layout, _state(state_SP, begun + count)).digest for state_SP, count in states
    )
    expected = commit.inner if rule.carries_inner else commit.inner[-1:]
    if digests != expected:
        raise MalformedMessage("evidence: an inner state after a segment that is not the commit's")
    return rows_RP


def _inner_floats(spec: RunSpec, layout: Layout, data: bytes, states: int) -> NDArray[np.float32]:
    rows = states * (1 + spec.rule.local.moments)
    return _floats(data).reshape(rows, layout.parameters)


def _state(state_SP: NDArray[np.float32], count: int) -> InnerState:
    return InnerState(state_SP[0], tuple(state_SP[1:]), count)


def _floats(data: bytes) -> NDArray[np.float32]:
    values = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise MalformedMessage("evidence: a value that is not finite")
    return values


def _bytes(array: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(array, "<f4").tobytes()


def _packed(name: str, array: Array) -> ShownArray:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return ShownArray(name=name, dtype=little.dtype.str, shape=array.shape, data=little.tobytes())


def _unpacked(shown: ShownArray) -> Array:
    if shown.dtype not in DTYPES or 8 * math.prod(shown.shape) < len(shown.data):
        raise MalformedMessage(
            f"evidence: {len(shown.data)} bytes of {shown.dtype:.3} in shape {shown.shape}"
        )
    try:
        return np.frombuffer(shown.data, shown.dtype).astype(shown.dtype[1:]).reshape(shown.shape)
    except ValueError as error:
        raise MalformedMessage(f"evidence: {shown.name:.40}: {error}") from None
