"""Commits: which commit the next manifest may carry, and which two prove equivocation of their node.

Room: verifier (pure). Every verifier applies these rules alike, when a commit arrives and again inside a
proposal. The driver holds the updates' bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from assay.chain.addresses import Deployment
from assay.chain.commit_statement import check_commit_statement
from assay.protocol.auditing.audits import REFERENCE
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import OutOfPhase, PeerFault
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import (
    LOSS_MICRO_MAX,
    Contradiction,
    OwnData,
    SignedCommit,
    SignedInclusionList,
)
from assay.protocol.params import RunSpec
from assay.protocol.permitted import may_contradict
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.training.codec.contribution import contribution_bytes_max
from assay.training.data.batches import batch_positions, batch_root

ROOTS_KEPT = 1024  # of assigned batches, 32 bytes each: of every node's step, and of some other sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What never changes during a run: the inputs of `check_commit`."""

    deployment: Deployment
    domain: Domain
    zero_momentum: Digest  # root of the momentum a node starts with
    block_count: int


def check_commit(rules: Rules, run_state: RunState, state: Digest, signed: SignedCommit) -> None:
    """Do nothing if the next manifest may carry this commit, apart from its signatures.

    Raises:
        OutOfPhase: it is for another round or parent.
        PeerFault: which field breaks which rule.
    """
    _check_fields(rules, run_state, state, signed)
    _check_batch(run_state, signed)


def _fault(signed: SignedCommit, broken: str) -> PeerFault:
    return PeerFault(signed.commit.node, f"Commit of round {signed.commit.round}: {broken}")


def _check_fields(rules: Rules, run_state: RunState, state: Digest, signed: SignedCommit) -> None:
    """The rules of `check_commit` that cost next to nothing."""
    commit, spec = signed.commit, run_state.spec

    def need(holds: bool, broken: str) -> None:
        if not holds:
            raise _fault(signed, broken)

    need(commit.run_id == run_state.run_id, "is of another run")
    if commit.round != run_state.round or commit.parent != run_state.parent:
        raise OutOfPhase(commit.node, f"Commit of round {commit.round} during round {run_state.round}")
    need(commit.node in run_state.active, "this node may not train")
    need(commit.exec_class != REFERENCE, "of the reference class, in which nobody trains")
    expected = state if int(commit.round) % spec.state_every == 0 else NO_DIGEST
    need(
        commit.state == expected,
        f"diverged: used parameters {commit.state.hex()[:8]}, expected {expected.hex()[:8]}",
    )
    need(
        commit.update_bytes <= contribution_bytes_max(spec.rule, rules.block_count),
        f"an update of {commit.update_bytes} bytes",
    )
    record = run_state.nodes[commit.node]
    begins = record.momentum if commit.base else rules.zero_momentum
    need(commit.base in (0, record.base), f"continues base {commit.base}, not its last accepted step")
    need(commit.momentum_before == begins, "momentum does not continue its last accepted step")
    need(
        len(commit.inner) == spec.rule.segments,
        f"{len(commit.inner)} inner states, expected {spec.rule.segments}",
    )
    seat = run_state.drawing_seat(commit.node)
    need(commit.seat == seat, f"of seat {commit.seat}, expected {seat}")
    need(commit.loss_micro <= LOSS_MICRO_MAX, f"a loss of {commit.loss_micro} millionths")


def _check_batch(run_state: RunState, signed: SignedCommit) -> None:
    """The rule of `check_commit` that takes some hash for each window of the step."""
    commit = signed.commit
    own = run_state.nodes[commit.node].own
    try:
        assigned = _assigned(run_state.spec, commit.node, int(commit.round), commit.tokens, own, commit.seat)
    except ValueError as fault:
        raise _fault(signed, str(fault)) from None
    if commit.batch_root != assigned:
        raise _fault(signed, "trained on another batch than the assigned one")


@lru_cache(maxsize=ROOTS_KEPT)  # a commit is checked more than once, and a node may send many
def _assigned(spec: RunSpec, node: PeerId, round_id: int, tokens: int, own: OwnData, seat: int) -> Digest:
    return batch_root(spec, batch_positions(spec, node, round_id, tokens, own, seat), own)


def admit(rules: Rules, run_state: RunState, state: Digest, signed: SignedCommit) -> None:
    """Do nothing if the next manifest may carry this commit and its node signed it with both of its keys.

    Called once for each commit, where it arrives; an admitted commit need not be authenticated again. Nobody
    but the node has its batch drawn here: the signatures come first.

    Raises:
        OutOfPhase, PeerFault: as `check_commit`, or a signature is not the node's.
    """
    _check_fields(rules, run_state, state, signed)
    _authenticate(rules, run_state, signed)
    _check_batch(run_state, signed)


def is_sign_of_life(rules: Rules, run_state: RunState, signed: SignedCommit) -> bool:
    """Whether a node signed this commit for the present round or the one before, whatever rule it breaks."""
    commit = signed.commit
    is_recent = commit.run_id == run_state.run_id and 0 <= run_state.round - commit.round <= 1
    if not is_recent or commit.node not in run_state.nodes:
        return False
    try:
        verify(commit.node, rules.domain, commit, signed.signature)
    except PeerFault:
        return False
    return True


def _authenticate(rules: Rules, run_state: RunState, signed: SignedCommit) -> None:
    member = run_state.nodes[signed.commit.node].member
    verify(member.peer, rules.domain, signed.commit, signed.signature)
    check_commit_statement(run_state.spec, rules.deployment, signed, member.hot)


def contradiction(one: SignedCommit, other: SignedCommit) -> Contradiction:
    """The pair of commits as evidence, in its one canonical order."""
    first, second = sorted((one, other), key=lambda signed: digest(signed.commit))
    return Contradiction(first=first, second=second)


def check_contradiction(rules: Rules, run_state: RunState, pair: Contradiction) -> None:
    """Do nothing if one node signed two different commits, with both of its keys, and it still matters.

    Raises:
        OutOfPhase: it is no pair, or too old, or of a node that is banned already.
        PeerFault, MalformedMessage: a signature is not the node's.
    """
    node = pair.first.commit.node
    if not may_contradict(run_state, pair):
        raise OutOfPhase(node, f"Contradiction of round {pair.first.commit.round} at {run_state.round}")
    for signed in (pair.first, pair.second):
        _authenticate(rules, run_state, signed)


def check_list(rules: Rules, run_state: RunState, signed: SignedInclusionList) -> None:
    """Do nothing if a verifier of this run signed this inclusion list. Its bitmap is not checked.

    Raises:
        PeerFault, MalformedMessage: it is of another run, of a stranger, or not signed by its verifier.
    """
    one = signed.inclusion_list
    if one.run_id != run_state.run_id or one.verifier not in run_state.spec.verifier_peers:
        raise PeerFault(one.verifier, "InclusionList of another run or by a stranger")
    verify(run_state.key(one.verifier), rules.domain, one, signed.signature)
