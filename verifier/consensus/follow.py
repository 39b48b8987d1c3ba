"""Consensus follow: the votes and requests that follow from what one verifier holds.

Room: verifier (pure). `machine.step` first applies an event, then calls `progress`. Each function here
inspects the whole state and does what is due, so neither the order of messages nor a restart matters. Every
vote is persisted before it is signed, and votes are cast nowhere else.
"""

from __future__ import annotations

from dataclasses import replace

from assay.protocol.agreement.configurations import before_first, number_of
from assay.protocol.agreement.finality import SETTLED
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Diverged, MalformedMessage
from assay.protocol.messages import (
    Block,
    CertifiedManifest,
    Manifest,
    Proposal,
    QuorumCertificate,
    Vote,
    VoteKind,
)
from assay.protocol.types import NO_DIGEST, Digest, Iteration, RoundId
from assay.verifier.consensus.chain import (
    begins_configuration,
    best_parent,
    block_digest,
    certified_block,
    deadline_ms,
    dummies_between,
    flaw,
    hands_over,
    is_certified,
    is_pass,
    link,
    manifests,
    parent_iteration,
    path,
    skipped,
    wanted_bodies,
)
from assay.verifier.consensus.check import DUMMIES_MAX
from assay.verifier.consensus.types import (
    Effect,
    Examine,
    Finalised,
    NeedBlock,
    NeedSync,
    Persist,
    Send,
    SignAndPass,
    SignAndSend,
    SignAndSendProposal,
    State,
    Tick,
    Tip,
)

BEHIND = 16  # iterations before ours whose votes are kept; certificates cover older ones
GAP_RESENT = 8  # dummy certificates repeated per resend, in rotation


def progress(state: State, out: list[Effect]) -> State:
    """Everything due now, except what waits for a deadline."""
    state = _finalise(state, out)
    state = _enter(state)
    state = _confirm(state, out)
    state = _consider(state, out)
    return _request_manifest(state, out)


def notarise(state: State, proposal: Proposal, out: list[Effect]) -> State:
    """Vote NOTARISE for this block of the present iteration, unless we already voted for some block."""
    if not may_notarise(state):
        return state
    out.append(Persist(proposal))  # whoever votes for a block keeps its body
    state = _vote(state, state.iteration, VoteKind.NOTARISE, block_digest(proposal.block), out)
    # We hold all that is needed to check this manifest: from now on its certificate is late.
    if state.ready is None or state.ready[0] < proposal.block.round:
        state = replace(state, ready=(proposal.block.round, state.now_ms))
    return state


def may_notarise(state: State) -> bool:
    """One NOTARISE per iteration."""
    return _may_sign(state) and (state.iteration, VoteKind.NOTARISE) not in state.own


def may_give_up(state: State) -> bool:
    """One DUMMY per iteration, and none after FINALISE; one that we forgot is the same DUMMY."""
    own_votes = ((state.iteration, kind) in state.own for kind in (VoteKind.DUMMY, VoteKind.FINALISE))
    is_free = state.iteration > state.finalised_through
    return state.config.seat is not None and is_free and not any(own_votes)


def _may_sign(state: State) -> bool:
    """Whether we hold a seat, and have forgotten nothing that we may have signed in this iteration."""
    return state.config.seat is not None and state.iteration > state.silent_through


def may_finalise(state: State, iteration: Iteration) -> bool:
    """One FINALISE per iteration, none after DUMMY, and none before we left the iteration."""
    own_votes = ((iteration, kind) in state.own for kind in (VoteKind.DUMMY, VoteKind.FINALISE))
    begin = max(state.tip.iteration, state.silent_through)
    is_past = begin < iteration < state.iteration
    return state.config.seat is not None and is_past and not any(own_votes)


def on_tick(state: State, tick: Tick, out: list[Effect]) -> State:
    """What waits for a deadline: resending what may be lost, and voting DUMMY against a late leader.

    One that is away, that passes, or that cannot propose, is late at once, unless its proposal has come.
    """
    if state.now_ms >= state.resend_at_ms:
        _resend(state, out)
        resend_at_ms = state.now_ms + state.config.resend_ms
        state = replace(
            state, resend_at_ms=resend_at_ms, resend_count=state.resend_count + 1, is_overtaken=False
        )
    is_away = state.config.leader(state.iteration) in tick.away
    # On a parent that is not final the leader makes another round's manifest, of which the tick says nothing;
    # nor does it where we lack what the leader may build on.
    is_held_up = tick.is_held_up and not skipped(state) and best_parent(state) == ()
    has_passed = state.iteration in state.passes
    is_late = (is_away or is_held_up or has_passed) and state.iteration not in state.proposals
    if (is_late or state.now_ms >= deadline_ms(state)) and may_give_up(state):
        state = _vote(state, state.iteration, VoteKind.DUMMY, NO_DIGEST, out)
    return state


def follow(state: State, certified: CertifiedManifest, out: list[Effect]) -> State:
    """Adopt a certified manifest of the finalised chain that others reached without us."""
    manifest, block = certified.manifest, certified.block
    if block.round <= state.tip.round:
        return state
    if block.round != state.tip.round + 1:
        raise MalformedMessage(f"link of round {block.round}, expected {state.tip.round + 1}")
    if block.iteration <= state.tip.iteration:  # keys that gave their seats away can still sign there
        raise MalformedMessage(
            f"link in iteration {block.iteration}, expected one after {state.tip.iteration}"
        )
    if block.parent != state.tip.block or manifest.parent != state.tip.manifest:
        raise Diverged(f"certified manifest of round {block.round} does not extend our chain")
    return _advance(state, certified, out)


def tip_of(certified: CertifiedManifest) -> Tip:
    """The tip that this certified manifest leads to."""
    block, iteration = certified.block, certified.block.iteration
    if certified.manifest.hand_over:
        iteration = before_first(number_of(iteration) + 1)
    return Tip(block=block_digest(block), manifest=block.manifest, round=block.round, iteration=iteration)


def pruned(state: State) -> State:
    """The state without what can no longer matter; for the bounds see `consensus.machine`."""
    after, now = state.tip.iteration, state.iteration
    endorsed = {vote.block for (_, kind), vote in state.own.items() if kind is VoteKind.NOTARISE}

    def is_kept(proposal: Proposal) -> bool:
        block = proposal.block
        if block.iteration <= after:
            return False
        return block.iteration >= now or block_digest(block) in endorsed or is_certified(state, block)

    bodies = {name: proposal for name, proposal in state.bodies.items() if is_kept(proposal)}
    return replace(
        state,
        own={key: vote for key, vote in state.own.items() if key[0] > after},
        drafts={key: block for key, block in state.drafts.items() if key > after},
        votes={key: box for key, box in state.votes.items() if key > after and key >= now - BEHIND},
        proposals={key: one for key, one in state.proposals.items() if is_kept(one)},
        passes={key: one for key, one in state.passes.items() if key > after and key >= now - BEHIND},
        bodies=bodies,
        certificates={key: one for key, one in state.certificates.items() if key[0] >= after},
        vouched={key: vote for key, vote in state.vouched.items() if key in bodies},
        settling={key: box for key, box in state.settling.items() if key in bodies},
        settled={key: one for key, one in state.settled.items() if key in bodies},
        accused=frozenset(one for one in state.accused if one[0] > after),
    )


def _vote(state: State, iteration: Iteration, kind: VoteKind, block: Digest, out: list[Effect]) -> State:
    vote = Vote(run_id=state.config.run_id, iteration=iteration, kind=kind, block=block)
    out += (Persist(vote), SignAndSend(vote))
    if iteration == SETTLED:
        return replace(state, vouched={**state.vouched, block: vote})
    return replace(state, own={**state.own, (iteration, kind): vote})


def _final_certificate(state: State, proposal: Proposal) -> QuorumCertificate | None:
    block = proposal.block
    timely = state.certificates.get((block.iteration, VoteKind.FINALISE))
    return timely or state.settled.get(block_digest(block))


def _finalise(state: State, out: list[Effect]) -> State:
    """Make the ancestors of the latest final block final, and emit those with a certificate of their own."""
    final = [one.vote.block for (_, kind), one in state.certificates.items() if kind is VoteKind.FINALISE]
    chain = max((path(state, block) or () for block in (*final, *state.settled)), key=len, default=())
    chain = tuple(proposal for proposal in chain if not proposal.block.is_closing)
    for proposal in chain if state.config.seat is not None else ():
        block = block_digest(proposal.block)
        if _final_certificate(state, proposal) is None and block not in state.vouched:
            state = _vote(state, SETTLED, VoteKind.FINALISE, block, out)
    for proposal in chain:
        certificate = _final_certificate(state, proposal)
        if certificate is None:
            break
        certified = CertifiedManifest(
            manifest=proposal.manifest, block=proposal.block, certificate=certificate
        )
        state = _advance(state, certified, out)
    return state


def _advance(state: State, certified: CertifiedManifest, out: list[Effect]) -> State:
    out.append(Finalised(certified))
    certificates = state.certificates
    if certified.certificate.vote.iteration != SETTLED:
        key = (certified.block.iteration, VoteKind.FINALISE)
        certificates = {**certificates, key: certified.certificate}
    configuration = state.config.configuration.after(certified.manifest.hand_over)
    config = replace(state.config, configuration=configuration)
    return pruned(replace(state, config=config, tip=tip_of(certified), certificates=certificates))


def _enter(state: State) -> State:
    """Move to the iteration after the latest one that is known to have ended."""
    ended = max([state.tip.iteration, *(number for number, _ in state.certificates)])
    if ended < state.iteration:
        return state
    state = replace(
        state, iteration=Iteration(ended + 1), entered_ms=state.now_ms, asked=None, examining=None
    )
    return pruned(state)


def _confirm(state: State, out: list[Effect]) -> State:
    """Vote FINALISE for every notarised block of an iteration in which we did not vote DUMMY."""
    for (iteration, kind), certificate in sorted(state.certificates.items()):
        if kind is not VoteKind.NOTARISE or not may_finalise(state, iteration):
            continue
        if (iteration, VoteKind.FINALISE) in state.certificates:
            continue
        if (iteration, VoteKind.DUMMY) in state.certificates:
            continue  # too late: a quorum voted DUMMY in this iteration, so it can have no final block
        state = _vote(state, iteration, VoteKind.FINALISE, certificate.vote.block, out)
    return state


def _consider(state: State, out: list[Effect]) -> State:
    """Request the check of the leader's block once it provably extends blocks whose bodies we hold."""
    proposal = state.proposals.get(state.iteration)
    if proposal is None or not may_notarise(state):
        return state
    block, ancestors = proposal.block, path(state, proposal.block.parent)
    if block_digest(block) == state.examining or ancestors is None:
        return state
    if flaw(state, proposal, ancestors) is not None:
        return state  # it came before its parent; a Byzantine leader only loses its iteration
    if dummies_between(state, parent_iteration(state, ancestors), state.iteration) is None:
        return state
    if proposal.proposer == state.config.seat or hands_over(ancestors):  # its manifest is a notarised one
        return notarise(state, proposal, out)
    out.append(Examine(proposal, manifests(ancestors)))
    return replace(state, examining=block_digest(block))


def _request_manifest(state: State, out: list[Effect]) -> State:
    """Ask the driver for a manifest if we lead and can prove what we extend."""
    if state.config.leader(state.iteration) != state.config.seat or state.iteration <= state.silent_through:
        return state
    if state.iteration in state.drafts or state.asked is not None:
        return state
    ancestors = best_parent(state)
    if ancestors is None:
        return state
    if hands_over(ancestors):
        return propose(state, ancestors, ancestors[-1].manifest, out)
    request = link(state, ancestors)
    out.append(request)
    return replace(state, asked=request)


def propose(state: State, ancestors: tuple[Proposal, ...], manifest: Manifest, out: list[Effect]) -> State:
    """Sign this iteration's block, on top of `ancestors`; the caller has signed none for it.

    It is a closing block if the manifest is that of its parent: after a hand-over, and at the end of a run.
    """
    request = link(state, ancestors)
    is_closing = bool(ancestors) and manifest == ancestors[-1].manifest
    covered = parent_iteration(state, ancestors)
    dummies = dummies_between(state, covered, state.iteration)
    certificate = certified_block(state, covered)
    assert dummies is not None and (certificate is not None or begins_configuration(state, covered))
    block = Block(
        run_id=state.config.run_id,
        iteration=state.iteration,
        round=manifest.round if is_closing else request.round,
        parent=request.parent,
        manifest=digest(manifest),
        is_closing=is_closing,
    )
    out.append(Persist(block))
    parent = () if certificate is None else (certificate,)
    out.append(SignAndSendProposal(block, manifest, parent, dummies[-DUMMIES_MAX:]))
    return replace(state, drafts={**state.drafts, state.iteration: block})


def pass_turn(state: State, out: list[Effect]) -> State:
    """Say that we propose nothing in the iteration that we lead, and give it up.

    Not after f others were given up since the last block: if nobody has what a manifest takes, as after a
    restart of all, its leader has to make do with the time that it has.
    """
    asked, count = state.asked, faults_tolerated(len(state.config.verifiers))
    if asked is None or asked.iteration in state.drafts or skipped(state) >= count:
        return state
    block = Block(
        run_id=state.config.run_id,
        iteration=asked.iteration,
        round=asked.round,
        parent=asked.parent,
        manifest=NO_DIGEST,
    )
    out += (Persist(block), SignAndPass(block))
    state = replace(state, drafts={**state.drafts, asked.iteration: block})
    return _vote(state, asked.iteration, VoteKind.DUMMY, NO_DIGEST, out) if may_give_up(state) else state


def _resend(state: State, out: list[Effect]) -> None:
    """Resend our own votes, and the certificates that bring a lagging verifier to this iteration."""
    config, now = state.config, state.iteration
    for (iteration, kind), vote in sorted(state.own.items()):
        is_open = kind is VoteKind.FINALISE and (iteration, kind) not in state.certificates
        if iteration == now or (is_open and iteration >= now - BEHIND):
            out.append(SignAndSend(vote))
    out += (SignAndSend(vote) for block, vote in sorted(state.vouched.items()) if block not in state.settled)
    out += (Send(one) for _, one in sorted(state.settled.items()))
    proposal = state.proposals.get(now)
    if proposal is not None and proposal.proposer == config.seat:
        out.append(Send(proposal))
    draft = state.drafts.get(now)
    if draft is not None and is_pass(draft):
        out.append(SignAndPass(draft))
    out += (Send(one) for one in _guiding_certificates(state))
    out += (NeedBlock(block) for block in (*wanted_bodies(state), *_rumoured_blocks(state)))
    final = [
        key for key in state.certificates if key[1] is VoteKind.FINALISE and key[0] > state.tip.iteration
    ]
    # The others of a configuration that ended are silent in it, and answer with its last manifest. Perhaps
    # only the outgoing holder knows of its end, and says nothing in the next one either.
    may_have_ended = any(proposal.manifest.hand_over for proposal in state.bodies.values())
    if final or state.settled or state.is_overtaken or may_have_ended:
        out.append(NeedSync(RoundId(state.tip.round + 1)))


def _guiding_certificates(state: State) -> tuple[QuorumCertificate, ...]:
    """Certificates of our iteration, its possible parents and the tip; of a long gap a few in rotation."""
    now = state.iteration
    latest = dict.fromkeys(VoteKind, 0)
    for iteration, kind in state.certificates:
        latest[kind] = max(latest[kind], iteration)
    keys = {(Iteration(number), kind) for kind, number in latest.items()}
    since = max(latest[VoteKind.NOTARISE], state.tip.iteration) + 1
    gap = now - since
    for turn in range(min(GAP_RESENT, gap)):
        number = since + (state.resend_count * GAP_RESENT + turn) % gap
        keys.add((Iteration(number), VoteKind.DUMMY))
    return tuple(state.certificates[key] for key in sorted(keys) if key in state.certificates)


def _rumoured_blocks(state: State) -> tuple[Digest, ...]:
    """Blocks of this iteration that at least one honest verifier voted for and that never reached us."""
    counts: dict[Digest, int] = {}
    for (_, kind), signed in state.votes.get(state.iteration, {}).items():
        if kind is VoteKind.NOTARISE:
            counts[signed.vote.block] = counts.get(signed.vote.block, 0) + 1
    enough = faults_tolerated(len(state.config.verifiers)) + 1
    return tuple(
        sorted(block for block, count in counts.items() if count >= enough and block not in state.bodies)
    )
