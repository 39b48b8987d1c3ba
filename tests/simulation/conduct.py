"""Conduct: what a process does by itself and no manifest shows, held against docs/protocol.md.

When a verifier gives a leader up (3.9), what it remembers of agreement, and what is pushed to whom (3.8).
Whoever leaves this undone is slow, or runs full, in a run that is right otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import trio

from assay.protocol.encoding.codec import decode
from assay.protocol.messages import BlobPiece, Commit, SignedVote, VoteKind
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import Digest, PeerId
from assay.verifier.consensus.chain import is_certified, is_pass
from assay.verifier.consensus.types import State
from tests.simulation.streams import REDIAL_S, Frame
from tests.simulation.workers import SEQUENCE_S

NEAR = 16  # iterations before and after a verifier's own whose votes it keeps
HEAD_BYTES = 64  # of a message, in which its tag stands
SOON_S = 0.75  # three ticks, in which a leader that is away or passes its turn is given up
SEEN_S = 0.5  # after which a frame has shown that a verifier entered an iteration


class Conduct:
    """What honest processes have done so far."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._awaited: dict[
            PeerId, Collection[PeerId]
        ] = {}  # seats that are worth waiting for, by who says so
        self._entered: dict[PeerId, tuple[tuple[int, int], float]] = {}  # life and iteration, since when
        self._passed_s: dict[tuple[PeerId, tuple[int, int]], float] = {}  # since when its leader passes
        self._folded_s: dict[PeerId, float] = {}
        self._linked_s = 0.0  # since when nobody is cut off
        self._pushed: dict[tuple[PeerId, PeerId, Digest], int] = {}  # the bytes that followed each other

    def folded(self, by: PeerId, after: RunState) -> None:
        """A process has one more manifest."""
        self._awaited[by], self._folded_s[by] = self._leaders(after), trio.current_time()

    def seen(self, by: PeerId, life: int, state: State) -> None:
        """A verifier is in this state, in the how-manieth process of its disk."""
        place = life, int(state.iteration)
        if by not in self._entered or self._entered[by][0] != place:
            self._entered[by] = place, trio.current_time()
        if state.iteration in state.passes:
            self._passed_s.setdefault((by, place), trio.current_time())

    def healed(self) -> None:
        """Who was cut off is reached again, and says what it did meanwhile."""
        self._linked_s = trio.current_time() + REDIAL_S[1]

    def pushed(self, frame: Frame) -> str:
        """What is wrong with a piece of a blob; empty if nothing is, or the frame is none."""
        if frame.method or BlobPiece.TAG not in frame.body[:HEAD_BYTES]:
            return ""
        piece = decode(BlobPiece, frame.body)
        place = frame.source, frame.target, piece.blob
        if piece.offset not in (0, self._pushed.get(place)):
            return f"{frame.source.hex()[:8]} pushes from byte {piece.offset} on, which nobody can use"
        self._pushed[place] = piece.offset + len(piece.piece)
        return ""

    def has_served(self, source: PeerId, target: PeerId, blob: Digest) -> bool:
        """Whether a blob was pushed."""
        return (source, target, blob) in self._pushed

    def sized(self, commit: Commit) -> str:
        """What is wrong with how large a step is that takes as long as `workers` says."""
        spec, sequences = self._spec, commit.tokens // self._spec.model.context
        is_late = sequences * SEQUENCE_S * 1000 > spec.timing.collect_ms / 2
        if sequences > spec.rule.local.sequences and is_late:
            return f"{commit.node.hex()[:8]} takes {sequences} sequences, for which there is no time"
        return ""

    def _leaders(self, after: RunState) -> Collection[PeerId]:
        """Seats that are neither away nor at fault, while these are more than f (3.9)."""
        seats = self._spec.verifier_peers
        faulty = {one for one in seats if after.verifiers[after.key(one)].fault_round >= 0}
        left = set(after.beacon) - faulty
        return left if 3 * len(left) > len(seats) - 1 else after.beacon

    def voted(self, by: PeerId, signed: SignedVote, state: State) -> str:
        """What is wrong with how a verifier votes in this state; empty if nothing is."""
        if left := next(_left_over(state), ""):
            return f"{by.hex()[:8]} remembers {left}"
        (life, number), entered_s = self._entered[by]
        is_first = signed.vote.kind is VoteKind.DUMMY and signed.vote.iteration == state.iteration
        draft = state.drafts.get(state.iteration)
        has_passed = draft is not None and is_pass(draft)
        if not is_first or has_passed or life:  # who was killed may have signed it, and not sent it
            return ""
        passed_s = self._passed_s.get((by, (life, number)))
        leader = self._spec.verifier_peers[state.iteration % len(self._spec.verifiers)]
        if passed_s is not None:
            waited_s = trio.current_time() - max(entered_s, passed_s)
            is_wrong = waited_s > SOON_S and state.iteration not in state.proposals
        elif leader in self._awaited.get(by, (leader,)):
            waited_s, least_s = trio.current_time() - entered_s, self._spec.timing.ready_ms / 1000 - SEEN_S
            is_wrong = waited_s < least_s
        else:
            waited_s = trio.current_time() - max(entered_s, self._folded_s[by], self._linked_s)
            is_wrong = waited_s > SOON_S and state.iteration not in state.proposals
        where = f"iteration {state.iteration} of {leader.hex()[:8]}"
        return f"{by.hex()[:8]} gives up {where} after {waited_s:.2f} s" if is_wrong else ""


def _left_over(state: State) -> Iterator[str]:
    """What a verifier's memory of agreement holds of iterations that can matter no more."""
    tip, now = state.tip.iteration, state.iteration
    if any(at <= tip or not now - NEAR <= at <= now + NEAR for at in state.votes):
        yield f"votes of iterations {sorted(state.votes)} in {now}, after {tip}"
    for what, found in (
        ("its own votes", {at for at, _ in state.own}),
        ("its drafts", {*state.drafts}),
        ("certificates", {at + 1 for at, _ in state.certificates}),  # that of the tip is needed
        ("evidence", {at for at, _ in state.accused}),
        ("proposals", {*state.proposals}),
        ("passes", {*state.passes}),
        ("bodies", {one.block.iteration for one in state.bodies.values()}),
    ):
        if any(at <= tip for at in found):
            yield f"{what} of iterations {sorted(found)}, after {tip}"
    noted = {vote.block for vote in state.own.values()}
    for block, one in state.bodies.items():
        if one.block.iteration < now and block not in noted and not is_certified(state, one.block):
            yield f"the body of a block of iteration {one.block.iteration} that nobody voted for, in {now}"
    if not {*state.vouched, *state.settling, *state.settled} <= state.bodies.keys():
        yield "votes to settle blocks that are final"
