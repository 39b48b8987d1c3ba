"""Consensus chain: queries over the certified blocks above the last final one.

Room: verifier (pure). No function here changes a state. A *path* is the blocks after the tip up to and
including one block, oldest first; it exists when this verifier holds every body on it.
"""

from __future__ import annotations

import functools

from assay.protocol.agreement.configurations import before_first
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Block, Manifest, Proposal, QuorumCertificate, VoteKind
from assay.protocol.types import NO_DIGEST, Digest, Iteration, RoundId
from assay.verifier.consensus.types import BuildProposal, State

BACKOFF_MAX = 4  # timeouts grow to at most 2**4 times their configured length


@functools.lru_cache(maxsize=4096)
def block_digest(block: Block) -> Digest:
    """`codec.digest` of a block, cached because every event needs it."""
    return digest(block)


def is_pass(block: Block) -> bool:
    """Whether a leader says by this block that it proposes none."""
    return block.manifest == NO_DIGEST


def certified_block(state: State, iteration: Iteration) -> QuorumCertificate | None:
    """The NOTARISE certificate of an iteration; a quorum voted for its one block."""
    notarised = state.certificates.get((iteration, VoteKind.NOTARISE))
    return notarised or state.certificates.get((iteration, VoteKind.FINALISE))


def is_certified(state: State, block: Block) -> bool:
    """Whether a NOTARISE certificate exists for exactly this block."""
    certificate = certified_block(state, block.iteration)
    named = block_digest(block)
    return named in state.settled or (certificate is not None and certificate.vote.block == named)


def path(state: State, block: Digest) -> tuple[Proposal, ...] | None:
    """The blocks after the tip up to `block`, oldest first; None if a body or the tip is missing."""
    found: list[Proposal] = []
    while block != state.tip.block:
        body = state.bodies.get(block)
        if body is None or body.block.iteration <= state.tip.iteration:
            return None
        found.append(body)
        block = body.block.parent
    return tuple(reversed(found))


def best_parent(state: State) -> tuple[Proposal, ...] | None:
    """The path to the latest block that a proposal of this iteration can prove it may extend.

    None if this verifier lacks a certificate of some iteration since the tip's.
    """
    for number in range(state.iteration - 1, state.tip.iteration, -1):
        certificate = certified_block(state, Iteration(number))
        found = path(state, certificate.vote.block) if certificate else None
        if found:
            return found
        if (number, VoteKind.DUMMY) not in state.certificates:
            return None
    if begins_configuration(state, state.tip.iteration) or certified_block(state, state.tip.iteration):
        return ()
    return None


def begins_configuration(state: State, after: Iteration) -> bool:
    """Whether this configuration's first block is due: it extends the tip, which ended the one before."""
    return after == state.tip.iteration == before_first(state.config.configuration.number)


def hands_over(ancestors: tuple[Proposal, ...]) -> bool:
    """Whether this configuration has stopped at the end of a path: nothing but closing blocks may follow."""
    return bool(ancestors) and bool(ancestors[-1].manifest.hand_over)


def flaw(state: State, proposal: Proposal, ancestors: tuple[Proposal, ...]) -> str | None:
    """Why no honest verifier votes for this proposal on `ancestors`, which its block names; or None."""
    block, expected = proposal.block, link(state, ancestors)
    if block.is_closing:  # whether the run ends with its parent, whoever examines it knows
        if (block.round + 1, block.manifest) != (expected.round, expected.parent_manifest):
            return f"closing block of round {block.round}, expected its parent's round and manifest"
    elif hands_over(ancestors):
        return f"block of round {block.round} on one that hands a seat over, expected a closing block"
    elif block.round != expected.round:
        return f"block of round {block.round}, expected {expected.round}"
    elif proposal.manifest.parent != expected.parent_manifest:
        return f"manifest of round {block.round} names another parent"
    if not proposal.parent and not begins_configuration(state, parent_iteration(state, ancestors)):
        return f"block of round {block.round} without its parent's certificate"
    return None


def link(state: State, ancestors: tuple[Proposal, ...]) -> BuildProposal:
    """The round, parent and ancestors that this iteration's block on top of `ancestors` must have."""
    parent, manifest, above = state.tip.block, state.tip.manifest, state.tip.round
    if ancestors:
        block = ancestors[-1].block
        parent, manifest, above = block_digest(block), block.manifest, block.round
    return BuildProposal(
        iteration=state.iteration,
        round=RoundId(above + 1),
        parent=parent,
        parent_manifest=manifest,
        ancestors=manifests(ancestors),
        follows=state.iteration == parent_iteration(state, ancestors) + 1,
    )


def manifests(ancestors: tuple[Proposal, ...]) -> tuple[Manifest, ...]:
    """The manifests of these blocks, without their proposals."""
    return tuple(proposal.manifest for proposal in ancestors)


def parent_iteration(state: State, ancestors: tuple[Proposal, ...]) -> Iteration:
    """The iteration of the last block of a path; the tip's if the path is empty."""
    return ancestors[-1].block.iteration if ancestors else state.tip.iteration


def dummies_between(
    state: State, after: Iteration, before: Iteration
) -> tuple[QuorumCertificate, ...] | None:
    """Dummy certificates of all iterations strictly between the two; None if one is missing."""
    found = []
    for number in range(after + 1, before):
        certificate = state.certificates.get((Iteration(number), VoteKind.DUMMY))
        if certificate is None:
            return None
        found.append(certificate)
    return tuple(found)


def wanted_bodies(state: State) -> tuple[Digest, ...]:
    """Blocks that a quorum certified and whose body this verifier lacks, ascending by iteration."""
    named = {
        certificate.vote.iteration: certificate.vote.block
        for (iteration, kind), certificate in state.certificates.items()
        if kind is not VoteKind.DUMMY and iteration > state.tip.iteration
    }
    return tuple(block for _, block in sorted(named.items()) if block not in state.bodies)


def skipped(state: State) -> int:
    """Iterations since the last notarised block that were given up."""
    blocks = [number for number, kind in state.certificates if kind is not VoteKind.DUMMY]
    return state.iteration - 1 - max([state.tip.iteration, *blocks])


def deadline_ms(state: State) -> int:
    """When this verifier votes DUMMY, in its own milliseconds.

    The leader usually gets the long timeout, because nodes are still training. It gets the short one once
    this verifier holds all that the next manifest needs, or while the parent is not final (nobody trains on
    it, so there is nothing to wait for). Both double with each rotation of leaders without a block, up to
    2**BACKOFF_MAX times, to exceed the network's real delay.
    """
    config, ancestors = state.config, best_parent(state) or ()
    scale = 1 << min(BACKOFF_MAX, skipped(state) // len(config.verifiers))
    deadline = state.entered_ms + config.iteration_timeout_ms * scale
    # The leader first waits as long itself, in case its parent becomes final (`Proposer.consider`).
    since = state.entered_ms + config.ready_timeout_ms if ancestors else None
    if state.ready is not None and state.ready[0] >= link(state, ancestors).round:
        since = max(state.entered_ms, state.ready[1])
    return deadline if since is None else min(deadline, since + config.ready_timeout_ms * scale)
