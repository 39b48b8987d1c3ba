"""Consensus machine: the verifiers agree on one manifest per training round (Simplex).

Room: verifier (pure). Authenticated messages and the time come in as values; effects go out, in the order in
which they must be performed. Types: `types`; stateless checks: `check`; what is due next: `follow`.
Rationale: docs/decisions/0002-simplex.md.
Callers pass only messages that `authenticate` accepted, our own among them (a fault on one of our own
messages only means that it came too late).

    iteration h:   WAIT --proposal, body examined--> voted NOTARISE
                     |                                     |
                     +-------------- deadline -------------+--> voted DUMMY too

    Leave h for h+1 on a quorum of NOTARISE for one block, or of DUMMY.
    On the former, without a DUMMY vote in h: vote FINALISE for the block.
    A quorum of FINALISE makes a block and all its ancestors final.

Safety, with at most f of n = 3f+1 Byzantine: two quorums share an honest verifier. It votes NOTARISE once per
iteration, so at most one block is notarised in h; it never votes both DUMMY and FINALISE in h, so a finalised
h has no dummy certificate, and no later proposal can prove that it may skip h's block.

Every manifest needs a FINALISE certificate of its own, also an ancestor that became final through a
descendant. Its verifiers may have voted DUMMY in its iteration, so they cannot vote FINALISE there. They vote
FINALISE in iteration `SETTLED` instead: "a block after this one is final". An honest verifier does so only
when it holds that block's certificate and the path between, which cannot change; f+1 of a quorum's signers
are honest, so the certificate is true. SETTLED votes belong to no iteration, so they contradict no vote, and
DUMMY with FINALISE in one iteration stays evidence.

A manifest that hands a seat over is the last of its configuration: whoever holds its body votes for no block
on it but a closing one, which has no manifest of its own and only makes it final. Everybody goes on in the
next configuration's iterations from that final block, with nothing else of the ones before (0051).

Bounds: per iteration one proposal, one pass, three votes per verifier, three certificates; votes and passes
only AHEAD and BEHIND of our iteration. What outlives that window (certificates, certified bodies) takes
a quorum to make: one certificate per timed-out iteration, until the next block is final and all is pruned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from assay.protocol.agreement.configurations import number_of
from assay.protocol.agreement.finality import SETTLED
from assay.protocol.agreement.quorum import assemble, quorum
from assay.protocol.errors import Diverged, OutOfPhase, PeerFault
from assay.protocol.messages import (
    Block,
    CertifiedManifest,
    Proposal,
    QuorumCertificate,
    SignedBlock,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.types import Digest, Iteration, PeerId
from assay.verifier.consensus.chain import (
    block_digest,
    flaw,
    is_certified,
    path,
)
from assay.verifier.consensus.follow import (
    BEHIND,
    follow,
    notarise,
    on_tick,
    pass_turn,
    progress,
    propose,
    pruned,
    tip_of,
)
from assay.verifier.consensus.types import (
    Accuse,
    BuildProposal,
    Built,
    ConsensusConfig,
    Effect,
    Event,
    Examined,
    Overtaken,
    Passed,
    Persist,
    Ready,
    Received,
    Record,
    State,
    Synced,
    Tick,
    Tip,
)

AHEAD = 16  # iterations after ours whose votes are kept; certificates cover later ones


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Next state and the effects to perform.

    Raises:
        OutOfPhase: the message is of no use now; state is unchanged.
        PeerFault: a signed statement breaks a rule; state is unchanged.
        MalformedMessage: the certified manifests form no chain; state is unchanged.
        Diverged: somebody else signs with our key, or more than f verifiers are Byzantine: stop.
    """
    out: list[Effect] = []
    if isinstance(event, Received | Tick | Ready | Synced):
        state = replace(state, now_ms=max(state.now_ms, event.now_ms))
    match event:
        case Tick(is_idle=True):
            state = replace(state, entered_ms=state.now_ms)
        case Received(message=SignedVote() as signed) if signed.vote.iteration == SETTLED:
            state = _on_settled_vote(state, signed, out)
        case Received(message=SignedVote() as signed):
            state = _on_vote(state, signed, out)
        case Received(message=QuorumCertificate() as certificate):
            state = _learn(state, certificate, out)
        case Received(message=Proposal() as proposal):
            state = _on_proposal(state, proposal, out)
        case Received(message=SignedBlock() as passed):
            state = _on_pass(state, passed, out)
        case Examined(block, True) if block == state.examining:
            state = notarise(state, state.proposals[state.iteration], out)
        case Built(iteration, _) if state.asked is not None and iteration == state.asked.iteration:
            state = _propose(state, state.asked, event, out)
        case Passed(iteration) if state.asked is not None and iteration == state.asked.iteration:
            state = pass_turn(state, out)
        case Ready(round_id, now_ms) if state.ready is None or state.ready[0] < round_id:
            state = replace(state, ready=(round_id, now_ms))
        case Overtaken():
            state = replace(state, is_overtaken=True)
        case Synced(certified, _):
            for one in certified:
                state = follow(state, one, out)
    state = progress(state, out)
    if isinstance(event, Tick):
        state = on_tick(state, event, out)
    return state, tuple(out)


def restore(
    config: ConsensusConfig,
    records: Iterable[Record],
    now_ms: int,
    last: CertifiedManifest | None = None,
    lost: tuple[int, int] = (0, 0),
) -> State:
    """The state after a start or a restart: `records` in the order they were persisted.

    What a crash cut off (a vote, a request to the driver, a `Finalised`)
    is emitted again on the first `Tick`.

    Args:
        config: As before the restart; its configuration is that of the round after `last`.
        records: The journal; empty at the first start. Records of iterations
            up to `last`'s may be missing.
        now_ms: The driver's clock.
        last: The last `Finalised` manifest that the driver made durable.
        lost: The last iteration in which statements may have been signed that `records` lacks, and the last
            in which votes to finalise may. Up to the first nothing is signed that could contradict them: a
            leader is given up only after the second.
    """
    tip = Tip(manifest=config.genesis)
    number = config.configuration.number
    silent_through, finalised_through = lost
    own: dict[tuple[Iteration, VoteKind], Vote] = {}
    vouched: dict[Digest, Vote] = {}
    drafts: dict[Iteration, Block] = {}
    proposals: dict[Iteration, Proposal] = {}
    bodies: dict[Digest, Proposal] = {}
    certificates: dict[tuple[Iteration, VoteKind], QuorumCertificate] = {}
    settled: dict[Digest, QuorumCertificate] = {}
    if last is not None:
        tip = tip_of(last)
        if last.certificate.vote.iteration != SETTLED and not last.manifest.hand_over:
            certificates[(tip.iteration, VoteKind.FINALISE)] = last.certificate
    for record in records:
        signed_in = iteration_of(record)
        if number_of(signed_in) > number:  # the chain was lost, and what was signed after it: unused
            silent_through = max(silent_through, signed_in)
            finalised_through = max(finalised_through, signed_in)
            continue
        match record:
            case Vote() if record.iteration == SETTLED:
                vouched[record.block] = record
            case Vote() if record.iteration > tip.iteration:
                own[(record.iteration, record.kind)] = record
            case QuorumCertificate(vote=vote) if vote.iteration == SETTLED:
                settled[vote.block] = record
            case QuorumCertificate(vote=vote) if vote.iteration >= tip.iteration:
                certificates[(vote.iteration, vote.kind)] = record
            case Proposal(block=block) if block.iteration > tip.iteration:
                bodies[block_digest(block)] = proposals[block.iteration] = record
            case Block() if record.iteration > tip.iteration:
                drafts[record.iteration] = record
    state = State(
        config=config,
        tip=tip,
        now_ms=now_ms,
        iteration=Iteration(max([tip.iteration, *(number for number, _ in certificates)]) + 1),
        entered_ms=now_ms,
        resend_at_ms=now_ms,
        silent_through=Iteration(silent_through),
        finalised_through=Iteration(finalised_through),
        own=own,
        vouched=vouched,
        drafts=drafts,
        proposals=proposals,
        bodies=bodies,
        certificates=certificates,
        settled=settled,
    )
    return pruned(state)


def iteration_of(record: Record) -> Iteration:
    """The iteration that a record of the journal belongs to; `SETTLED` for those that settle a block."""
    match record:
        case Block() | Vote():
            return record.iteration
        case Proposal():
            return record.block.iteration
        case QuorumCertificate():
            return record.vote.iteration


def body(state: State, block: Digest) -> Proposal | None:
    """The proposal with this block digest, to answer another verifier's `NeedBlock`."""
    return state.bodies.get(block)


# ---- incoming messages ----


def _on_vote(state: State, signed: SignedVote, out: list[Effect]) -> State:
    vote, peer = signed.vote, signed.verifier
    _check_near(state, vote.iteration, peer, "vote")
    is_ours = peer == state.config.seat and vote.iteration > state.silent_through
    if is_ours and state.own.get((vote.iteration, vote.kind)) != vote:
        raise Diverged(f"a vote for iteration {vote.iteration} carries our signature, but not from us")
    box = state.votes.get(vote.iteration, {})
    known = box.get((peer, vote.kind))
    if known is not None and known.vote == vote:
        return state
    clash = _clashing(box, signed)
    if clash is not None:
        # The first vote stands and is the only one counted, so an equivocator still has one vote.
        return _accuse(state, clash, signed, out)
    box = {**box, (peer, vote.kind): signed}
    state = replace(state, votes={**state.votes, vote.iteration: box})
    agreed = [one for one in box.values() if one.vote == vote]
    if len(agreed) < quorum(len(state.config.verifiers)):
        return state
    return _learn(state, assemble(agreed), out)


def _check_near(state: State, iteration: Iteration, peer: PeerId, what: str) -> None:
    """Do nothing if this iteration is near ours, and not settled."""
    lowest = max(state.tip.iteration + 1, state.iteration - BEHIND)
    if not lowest <= iteration <= state.iteration + AHEAD:
        raise OutOfPhase(peer, f"{what} for iteration {iteration} during {state.iteration}")


def _clashing(box: Mapping[tuple[PeerId, VoteKind], SignedVote], signed: SignedVote) -> SignedVote | None:
    """A vote of the same verifier among those of the iteration that an honest one does not sign beside it."""
    opposite = {VoteKind.DUMMY: VoteKind.FINALISE, VoteKind.FINALISE: VoteKind.DUMMY}
    same = box.get((signed.verifier, signed.vote.kind))
    if same is not None and same.vote != signed.vote:
        return same
    other = opposite.get(signed.vote.kind)
    return None if other is None else box.get((signed.verifier, other))


def _on_settled_vote(state: State, signed: SignedVote, out: list[Effect]) -> State:
    block = signed.vote.block
    if block not in state.bodies or block in state.settled:
        raise OutOfPhase(signed.verifier, "vote to settle a block that is not waiting for it")
    box = {**state.settling.get(block, {}), signed.verifier: signed}
    state = replace(state, settling={**state.settling, block: box})
    if len(box) < quorum(len(state.config.verifiers)):
        return state
    return _learn(state, assemble(tuple(box.values())), out)


def _on_proposal(state: State, proposal: Proposal, out: list[Effect]) -> State:
    block, leader = proposal.block, proposal.proposer
    if block.iteration <= state.tip.iteration:
        raise OutOfPhase(leader, f"proposal for iteration {block.iteration}, final since")
    is_ours = leader == state.config.seat and block.iteration > state.silent_through
    if is_ours and state.drafts.get(block.iteration) != block:
        raise Diverged(f"a proposal for iteration {block.iteration} carries our signature, but not from us")
    first = state.passes.get(block.iteration) or state.proposals.get(block.iteration)
    if first is not None and first.block != block:
        state = _accuse(state, first, proposal, out)
        if not is_certified(state, block):
            return state
    elif block.iteration < state.iteration and not is_certified(state, block):
        raise OutOfPhase(leader, f"proposal for iteration {block.iteration} during {state.iteration}")
    _check_link(state, proposal)
    for certificate in (*proposal.parent, *proposal.dummies):
        state = _learn(state, certificate, out)
    if first is None:
        state = replace(state, proposals={**state.proposals, block.iteration: proposal})
    return replace(state, bodies={**state.bodies, block_digest(block): proposal})


def _on_pass(state: State, passed: SignedBlock, out: list[Effect]) -> State:
    """Note that a leader proposes nothing; one that proposed something, or two things, is accused."""
    iteration, leader = passed.block.iteration, passed.verifier
    _check_near(state, iteration, leader, "pass")
    is_ours = leader == state.config.seat and iteration > state.silent_through
    if is_ours and state.drafts.get(iteration) != passed.block:
        raise Diverged(f"a pass in iteration {iteration} carries our signature, but not from us")
    first = state.passes.get(iteration) or state.proposals.get(iteration)
    if first is not None and first.block != passed.block:
        state = _accuse(state, first, passed, out)
    return replace(state, passes={iteration: passed, **state.passes})


def _check_link(state: State, proposal: Proposal) -> None:
    """Check that the leader's block follows its parent, if the parent is known."""
    ancestors = path(state, proposal.block.parent)
    reason = None if ancestors is None else flaw(state, proposal, ancestors)
    if reason is not None:
        raise PeerFault(proposal.proposer, reason)


def _learn(state: State, certificate: QuorumCertificate, out: list[Effect]) -> State:
    """Keep a certificate, once and durably: the votes that follow from it must survive with it."""
    vote = certificate.vote
    if vote.iteration == SETTLED:
        if vote.block not in state.bodies or vote.block in state.settled:
            return state
        out.append(Persist(certificate))
        return replace(state, settled={**state.settled, vote.block: certificate})
    known = state.certificates.get((vote.iteration, vote.kind))
    if vote.iteration < state.tip.iteration or (known is not None and known.vote == vote):
        return state
    _check_agreement(state, vote)
    box = state.votes.get(vote.iteration, {})
    for verifier, signature in zip(certificate.verifiers, certificate.signatures, strict=True):
        # Who sent us another vote than the quorum that it signs with, and thought nobody would compare.
        signed = SignedVote(vote=vote, verifier=verifier, signature=signature)
        clash = _clashing(box, signed)
        if clash is not None:
            state = _accuse(state, clash, signed, out)
    out.append(Persist(certificate))
    return replace(state, certificates={**state.certificates, (vote.iteration, vote.kind): certificate})


def _check_agreement(state: State, vote: Vote) -> None:
    """Raise if two certificates conflict: more than f are Byzantine, so our signatures are worthless."""
    block_by_kind = {vote.kind: vote.block}
    for kind in VoteKind:
        known = state.certificates.get((vote.iteration, kind))
        if known is not None:
            block_by_kind.setdefault(kind, known.vote.block)
            if known.vote.block != block_by_kind[kind]:
                raise Diverged(f"two {kind.name} certificates in iteration {vote.iteration}")
    blocks = {block for kind, block in block_by_kind.items() if kind is not VoteKind.DUMMY}
    if vote.iteration == state.tip.iteration:
        blocks.add(state.tip.block)
    # DUMMY beside NOTARISE is no conflict, even if a descendant made that block final.
    if len(blocks) > 1 or {VoteKind.DUMMY, VoteKind.FINALISE} <= set(block_by_kind):
        raise Diverged(f"certificates of iteration {vote.iteration} exclude each other")


def _accuse(
    state: State,
    first: SignedVote | SignedBlock | Proposal,
    second: SignedVote | SignedBlock | Proposal,
    out: list[Effect],
) -> State:
    """Emit the evidence, once per verifier and iteration."""
    if isinstance(first, Proposal):
        culprit = (first.block.iteration, first.proposer)
    elif isinstance(first, SignedBlock):
        culprit = (first.block.iteration, first.verifier)
    else:
        culprit = (first.vote.iteration, first.verifier)
    if culprit in state.accused:
        return state
    out.append(Accuse(first, second))
    return replace(state, accused=state.accused | {culprit})


def _propose(state: State, request: BuildProposal, built: Built, out: list[Effect]) -> State:
    """Sign one block per iteration that we lead, and never another."""
    manifest = built.manifest
    if manifest not in request.ancestors[-1:]:  # else the run ends with it: a closing block
        assert manifest.run_id == state.config.run_id and manifest.round == request.round
        assert manifest.parent == request.parent_manifest
    ancestors = path(state, request.parent)
    if request.iteration != state.iteration or request.iteration in state.drafts or ancestors is None:
        return state
    return propose(state, ancestors, manifest, out)
