"""Messages between a verifier's two processes: requests to the recompute worker, and what it found.

Room: verifier (pure). Nothing here needs compiled code, which the process that sends requests never loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from assay.chain.state import DefenceState
from assay.participant.compute import PATH_CHARS_MAX, Workplace
from assay.protocol.encoding.codec import INT_MAX, Later, Max
from assay.protocol.messages import NO_OWN_DATA, Commit, Outcome, OwnData
from assay.protocol.openings import OPENED_BLOCKS_MAX, PROOF_HASHES_MAX
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest, RoundId
from assay.protocol.update_rule import RuleSpec
from assay.training.layout import Layout, layout_of
from assay.training.optimiser.matrices import start_counts
from assay.training.reference.narrowing import START

OPENING_BYTES_PER_S = 10_000_000  # over the line of 100 Mbit/s that a node is taken to have
BLOCK_OPENING_BYTES_MAX = 36 << 10  # one block of two roots, with its paths
HEAD_BYTES_MAX = 4 << 10  # of an opening, beside its blocks and its whole states
WINDOW_PROOF_BYTES_MAX = 128 + 34 * PROOF_HASHES_MAX  # beside the tokens of a window of a node's own data


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeStart:
    """The start of a recompute worker."""

    TAG: ClassVar[bytes] = b"assay/worker/recompute-start/1"
    spec: RunSpec
    workplace: Workplace
    limits: Annotated[str, Max(PATH_CHARS_MAX)]  # calibration that the spec names; empty: none at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """Asks to recompute the drawn part of a step; the fields are those of `RecomputeWorker.examine`."""

    TAG: ClassVar[bytes] = b"assay/worker/examine/2"
    commit: Commit
    update: Annotated[bytes, Max(INT_MAX)]
    opening: Annotated[str, Max(PATH_CHARS_MAX)]  # the file that holds it
    blocks: Annotated[tuple[int, ...], Max(OPENED_BLOCKS_MAX)]
    segment: int
    committed: Digest
    pattern: Digest
    drawn_by: Digest
    in_reference: bool  # although the step may be of this machine's own class
    own: Annotated[OwnData, Later()] = NO_OWN_DATA


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a recompute. `distance_ppb` is relative to the gradient's own block norm.

    recomputed, witness: digests of the sketch of the work, in the node's pattern and in the dispute's.
    is_biased: over several audits here, the node deviates in one direction; see `assay.verifier.audit.drift`.
    """

    TAG: ClassVar[bytes] = b"assay/worker/finding/1"
    outcome: Outcome
    recomputed: Digest
    distance_ppb: int
    block: int
    witness: Digest = NO_DIGEST
    is_biased: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A finding, and the execution class of the machine that recomputed."""

    TAG: ClassVar[bytes] = b"assay/worker/examined/1"
    finding: Finding
    exec_class: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RemakeStep:
    """Asks to make a step of a node again, after those that lead to it; answered by `Remade`."""

    TAG: ClassVar[bytes] = b"assay/worker/remake-step/4"
    commit: Commit
    is_task: bool  # on the node's list of known-answer tasks
    is_first: bool  # of these: from a state of zeros
    is_compared: bool  # with its commit; of the others nothing is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Remade:
    """How the step differs from its commit; empty if it does not, bit for bit.

    is_behind: in the root before it, so that an earlier step is false.
    """

    TAG: ClassVar[bytes] = b"assay/worker/remade/2"
    differs: Annotated[str, Max(256)]
    is_behind: bool
    exec_class: Digest  # of the machine that made it


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """Asks for the trace of a step's gradient, whose parameters must still be here; answered by `Traced`."""

    TAG: ClassVar[bytes] = b"assay/worker/trace-step/1"
    commit: Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The positions of a trace, 32 bytes each; empty where no program decides the step."""

    TAG: ClassVar[bytes] = b"assay/worker/traced/1"
    positions: Annotated[bytes, Max(INT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOperator:
    """Asks whether the operator in a file of evidence leads from `start` to `end`; answered by `Judged`."""

    TAG: ClassVar[bytes] = b"assay/worker/judge-operator/1"
    case_id: Digest
    operators: int  # that the accused says there are
    index: int
    start: Digest
    end: Digest
    evidence: Annotated[str, Max(PATH_CHARS_MAX)]


def question(case_id: bytes, operators: int, state: DefenceState, evidence: Path) -> JudgeOperator:
    """What the jury of a defence is asked; the contract has no position before the first operator."""
    return JudgeOperator(
        case_id=Digest(case_id),
        operators=operators,
        index=state.first,
        start=Digest(state.start) if state.first else START,
        end=Digest(state.end),
        evidence=str(evidence),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Whether it does."""

    TAG: ClassVar[bytes] = b"assay/worker/judged/1"
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Asks for the loss of one held-out unit under the parameters that this round begins with.

    One sequence or preference pair at a time, so that an audit which is due does not wait for all of them.
    Answered by `Evaluated`.
    """

    TAG: ClassVar[bytes] = b"assay/worker/evaluate/1"
    round: RoundId
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The unit's summed loss, and the number of its targets, or 1 of a pair."""

    TAG: ClassVar[bytes] = b"assay/worker/evaluated/1"
    loss: Annotated[bytes, Max(8)]  # float64, big-endian
    targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerItem:
    """Asks for the model's answer to one item of the run's choices, under the parameters of this round.

    Answered by `ItemAnswered`.
    """

    TAG: ClassVar[bytes] = b"assay/worker/answer-item/1"
    round: RoundId
    item: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemAnswered:
    """Whether the answer is right, by log-likelihood and by log-likelihood per character."""

    TAG: ClassVar[bytes] = b"assay/worker/item-answered/1"
    acc: bool
    acc_norm: bool


def opening_bytes_max(rule: RuleSpec, layout: Layout, block_count: int) -> int:
    """Upper bound in bytes of any opening of this many blocks of a step of this rule."""
    blocks = min(block_count, layout.blocks) * BLOCK_OPENING_BYTES_MAX + HEAD_BYTES_MAX
    if rule.is_gradient:
        return blocks
    # Blocks of two roots of the private state, and of an inner state: its parameters, moments, the last ones.
    return 4 * sum(start_counts(rule, layout)) + 3 * blocks


def shown_bytes_max(spec: RunSpec) -> int:
    """Upper bound in bytes of what an opening shows of a node's own data; 0 where no node has any."""
    if not spec.bringing_nodes:
        return 0
    local, windows = spec.rule.local, spec.most_windows_per_round
    drawn = windows if spec.rule.is_gradient else windows // local.steps * local.segment
    return drawn * (spec.window_bytes + WINDOW_PROOF_BYTES_MAX)


def longest_opening(spec: RunSpec) -> int:
    """Upper bound in bytes of any opening of a run."""
    blocks = max(spec.audit.blocks, spec.audit.wide_blocks)
    return opening_bytes_max(spec.rule, layout_of(spec.model), blocks) + shown_bytes_max(spec)
