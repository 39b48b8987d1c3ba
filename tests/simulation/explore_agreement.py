"""Every life of the first iterations of agreement among four verifiers, of which one lies.

    python -m tests.simulation.explore_agreement [ITERATIONS [ITERATIONS_AFTER]]

The production state machine (`verifier/consensus/machine.py`) of the three honest verifiers is driven
through every reachable state, states seen before left out. Messages arrive in any order or never, and any
verifier may give up its iteration at any time. Votes need not be delivered one by one: whenever enough honest
votes exist that the liar's own makes them a quorum, the certificate may reach anybody. The liar votes for
everything, and in the iteration that it leads it proposes two blocks on every parent that it can prove. A
proposal of a later iteration is delivered when the verifier gets there, after the certificates it needs.

With iterations after a hand-over, the manifests of round 0 hand one seat to a reserve, but one of the liar's
two hands over none. The liar lies in both configurations, also where the seat is its own: then its holders
before and after are the two liars, one of each configuration. Links that are final somewhere may reach
anybody; whoever holds no seat learns nothing else, since it says nothing and forgets it with the hand-over.

What must hold in every state: one block a round is final; no honest verifier signs two statements that
exclude each other; none finds that its certificates contradict each other.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from assay.protocol.agreement.configurations import before_first, number_of
from assay.protocol.agreement.finality import SETTLED
from assay.protocol.agreement.quorum import quorum
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Diverged, PeerFault
from assay.protocol.messages import (
    Block,
    CertifiedManifest,
    HandOver,
    Proposal,
    QuorumCertificate,
    Vote,
    VoteKind,
)
from assay.protocol.types import NO_DIGEST, Digest, Iteration, PeerId, RoundId, Signature
from assay.verifier.consensus import machine
from assay.verifier.consensus.chain import block_digest
from assay.verifier.consensus.types import (
    BuildProposal,
    Built,
    ConsensusConfig,
    Event,
    Examine,
    Examined,
    Finalised,
    Received,
    SignAndSend,
    SignAndSendProposal,
    State,
    Synced,
    Tick,
)
from tests.simulation.world import GENESIS, RUN_ID, toy_manifest

VERIFIERS = tuple(PeerId(bytes([n + 1]) * 32) for n in range(4))
RESERVE = PeerId(bytes([9]) * 32)
NOBODYS = Signature(bytes(64))
LATE_MS = 1 << 40
WORLDS_MAX = 10**7


class Violation(AssertionError):
    """A promise that did not hold in some reachable state."""


@dataclass(frozen=True, slots=True)
class World:
    """One reachable state; every part is a number or a set of numbers as a bit mask.

    states: of each honest verifier, its place in `Exploration.states`. signed: of each, the votes. pool: the
    proposals that anybody may receive. final: the blocks that are final somewhere.
    """

    states: tuple[int, ...]
    signed: tuple[int, ...]
    pool: int = 0
    final: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """What one event does at one verifier: its next state, and what it adds."""

    state: int
    votes: int
    proposals: int
    final: int


@dataclass(frozen=True, slots=True)
class Explored:
    """What an exploration saw. rounds: the largest number of rounds that became final."""

    worlds: int
    steps: int
    rounds: int


T = TypeVar("T")


class Numbered(Generic[T]):
    """Values in the order in which they were first met, so that a set of them is a bit mask."""

    def __init__(self, name: Callable[[T], Hashable] = lambda value: value) -> None:  # type: ignore[assignment]
        self._name, self._numbers, self._values = name, dict[Hashable, int](), list[T]()

    def bit(self, value: T) -> int:
        """The mask of this value alone."""
        number = self._numbers.setdefault(self._name(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return 1 << number

    def of(self, mask: int) -> Iterator[T]:
        """The values of a mask."""
        while mask:
            lowest = mask & -mask
            yield self._values[lowest.bit_length() - 1]
            mask ^= lowest


class Exploration:
    """All states of a run whose liar has one place in the order of leaders."""

    def __init__(self, liar: int, iterations: int, handed: int | None = None, after: int = 0) -> None:
        """
        Args:
            liar: Its place among the verifiers.
            iterations: Beyond the last of them verifiers only learn certificates.
            handed: The place of the seat that round 0 hands to a reserve.
            after: Like `iterations`, in the configuration after that.
        """
        self._iterations, self._liar = (iterations, after), VERIFIERS[liar]
        reserves = () if handed is None else (RESERVE,)
        self._hand_over: tuple[HandOver, ...] = ()
        if handed is not None:
            self._hand_over = (HandOver(seat=VERIFIERS[handed], holder=RESERVE),)
        self._configs = [
            ConsensusConfig(run_id=RUN_ID, genesis=GENESIS, verifiers=VERIFIERS, me=peer, reserves=reserves)
            for peer in (*VERIFIERS, *(reserves if handed != liar else ()))
            if peer != self._liar
        ]
        self._links: dict[Digest, CertifiedManifest] = {}
        self._states: list[State] = []
        self._state_ids: dict[object, int] = {}
        self._votes = Numbered[Vote]()
        self._proposals = Numbered[Proposal](lambda proposal: block_digest(proposal.block))
        self._blocks = Numbered[tuple[int, Digest]]()
        self._moves: dict[tuple[int, int, object], Moved | None] = {}
        self._lies_of: dict[tuple[frozenset[Vote], int, int], int] = {}

    def run(self) -> Explored:
        """Visit every state.

        Raises:
            Violation: a promise is broken in one of them.
        """
        world = self._begun()
        seen, front, steps, final = {world}, [world], 0, 0
        while front:
            world = front.pop()
            final |= world.final
            for after in self._next(world):
                steps += 1
                if after not in seen:
                    seen.add(after)
                    front.append(after)
            if len(seen) > WORLDS_MAX:
                raise MemoryError(f"more than {WORLDS_MAX} worlds")
        rounds = {number for number, _ in self._blocks.of(final)}
        return Explored(len(seen), steps, len(rounds))

    def walk(self, seed: int, walks: int) -> Explored:
        """Take this many random ways to where nothing more can happen: far, where not all states can be seen.

        On each of them no FINALISE certificate of one iteration is made: a block is final by a later one.

        Raises:
            Violation: a promise is broken in a state on one of them.
        """
        rng, begun, seen, steps, final = random.Random(seed), self._begun(), set[World](), 0, 0
        for _ in range(walks):
            world: World | None = begun
            withheld = rng.randint(1, self._iterations[0])
            while world is not None:
                seen.add(world)
                final |= world.final
                steps += 1
                ways = list(self._next(world, withheld))
                world = rng.choice(ways) if ways else None
        rounds = {number for number, _ in self._blocks.of(final)}
        return Explored(len(seen), steps, len(rounds))

    @property
    def links(self) -> tuple[CertifiedManifest, ...]:
        """One certified manifest for each block that became final in a state that was seen."""
        return tuple(self._links.values())

    def _begun(self) -> World:
        begun = tuple(self._known(_still(machine.restore(config, (), 0))) for config in self._configs)
        world = World(begun, (0,) * len(begun))
        for index in range(len(begun)):  # the leader of iteration 1 is asked at once
            world = self._after(world, index, "begin", Tick(0)) or world
        return world

    def _next(self, world: World, withheld: int = -1) -> Iterator[World]:
        final = VoteKind.FINALISE, withheld
        votes = [vote for vote in self._certifiable(world) if (vote.kind, vote.iteration) != final]
        offered = world.pool | self._lies(frozenset(votes), world.pool, world.final)
        proposals = list(self._proposals.of(offered))
        links = [self._links[name] for _, name in self._blocks.of(world.final)] if self._hand_over else []
        for index, number in enumerate(world.states):
            state = self._states[number]
            for name, event in self._events(state, votes, proposals, links):
                after = self._after(world, index, name, event)
                if after is not None:
                    yield after

    def _events(
        self, state: State, votes: list[Vote], proposals: list[Proposal], links: list[CertifiedManifest]
    ) -> Iterator[tuple[object, Event]]:
        """What may happen next at a verifier in this state, and a name for it."""
        for link in links:
            if link.block.round == state.tip.round + 1:
                yield link, Synced((link,), 0)
        if state.config.seat is None:
            return
        configuration = number_of(state.iteration)
        for vote in votes:
            held = state.certificates.get((vote.iteration, vote.kind))
            is_new = (held is None or held.vote != vote) and vote.block not in state.settled
            if is_new and (vote.iteration == SETTLED or number_of(vote.iteration) == configuration):
                yield vote, Received(_certificate(vote), 0)
        if state.iteration - before_first(configuration) > self._iterations[configuration]:
            return  # it only learns what became of the others
        for proposal in proposals:
            name = block_digest(proposal.block)
            is_due = proposal.block.iteration == state.iteration or _is_wanted(state, name)
            if is_due and name not in state.bodies:
                yield name, Received(proposal, 0)
        if (state.iteration, VoteKind.DUMMY) not in state.own:
            yield None, Tick(LATE_MS)

    def _certifiable(self, world: World) -> list[Vote]:
        """Votes that a quorum signs if the liar does."""
        need = quorum(len(VERIFIERS)) - 1  # a seat's two holders never sign the same vote
        enough = 0
        for some in itertools.combinations(world.signed, need):
            enough |= functools.reduce(operator.and_, some)
        return list(self._votes.of(enough))

    def _lies(self, votes: frozenset[Vote], pool: int, final: int) -> int:
        """Two proposals of the liar in each iteration that it leads, on every parent that it can prove."""
        known = self._lies_of.get((votes, pool, final))
        if known is not None:
            return known
        skipped = {vote.iteration for vote in votes if vote.kind is VoteKind.DUMMY}
        notarised = {vote.block: vote for vote in votes if vote.kind is VoteKind.NOTARISE}
        parents: list[tuple[int, Proposal | None, Vote | None]] = [(0, None, None)]
        for proposal in self._proposals.of(pool):
            vote = notarised.get(block_digest(proposal.block))
            if vote is not None:
                parents.append((proposal.block.iteration, proposal, vote))
        if self._hand_over:
            for _, name in self._blocks.of(final):
                if self._links[name].manifest.hand_over:
                    ended = next(one for one in self._proposals.of(pool) if block_digest(one.block) == name)
                    parents.append((before_first(1), ended, None))
        found = 0
        numbers = [
            before_first(c) + 1 + at for c, count in enumerate(self._iterations) for at in range(count)
        ]
        for number in numbers:
            if self._configs[0].leader(Iteration(number)) != self._liar:
                continue
            for below, parent, vote in parents:
                between = range(below + 1, number)
                is_near = below < number and number_of(Iteration(below)) == number_of(Iteration(number))
                if is_near and skipped.issuperset(between):
                    dummies = tuple(_certificate(_dummy(one)) for one in between)
                    for variant in range(3 if self._hand_over and parent else 2):
                        found |= self._proposals.bit(self._lie(number, parent, vote, dummies, variant))
        self._lies_of[(votes, pool, final)] = found
        return found

    def _lie(
        self,
        number: int,
        parent: Proposal | None,
        vote: Vote | None,
        dummies: tuple[QuorumCertificate, ...],
        variant: int,
    ) -> Proposal:
        request = BuildProposal(
            iteration=Iteration(number),
            round=RoundId(0 if parent is None else int(parent.block.round) + 1),
            parent=NO_DIGEST if parent is None else block_digest(parent.block),
            parent_manifest=GENESIS if parent is None else parent.block.manifest,
            ancestors=(),
            follows=True,
        )
        manifest = toy_manifest(request, len(VERIFIERS) + variant)
        if not request.round and variant != 1:
            manifest = replace(manifest, hand_over=self._hand_over)
        is_closing = variant == 2 and parent is not None
        if is_closing and parent is not None:
            manifest = parent.manifest
        block = Block(
            run_id=RUN_ID,
            iteration=request.iteration,
            round=manifest.round,
            parent=request.parent,
            manifest=digest(manifest),
            is_closing=is_closing,
        )
        return Proposal(
            block=block,
            manifest=manifest,
            parent=() if vote is None else (_certificate(vote),),
            dummies=dummies,
            proposer=self._liar,
            signature=NOBODYS,
        )

    def _after(self, world: World, index: int, name: object, event: Event) -> World | None:
        """The world after one event at one verifier; None if it changes nothing there."""
        place = index, world.states[index], name
        if place not in self._moves:
            self._moves[place] = self._moved(index, self._states[world.states[index]], event)
        moved = self._moves[place]
        if moved is None:
            return None
        states = (*world.states[:index], moved.state, *world.states[index + 1 :])
        votes = world.signed[index] | moved.votes
        if moved.votes and votes != world.signed[index]:
            self._check_votes(self._votes.of(votes))
        signed = (*world.signed[:index], votes, *world.signed[index + 1 :])
        after = World(states, signed, world.pool | moved.proposals, world.final | moved.final)
        if moved.final and after.final != world.final:
            rounds = [number for number, _ in self._blocks.of(after.final)]
            if len(set(rounds)) != len(rounds):
                raise Violation(f"two blocks are final in one round: {rounds}")
        return None if after == world else after

    def _moved(self, index: int, state: State, event: Event) -> Moved | None:
        """One event at one verifier, and all that follows from it within that verifier."""
        me, todo, votes, proposals, final = self._configs[index].me, [event], 0, 0, 0
        if isinstance(event, Received) and isinstance(event.message, Proposal):
            proposals |= self._proposals.bit(event.message)
        while todo:
            try:
                state, effects = machine.step(state, todo.pop(0))
            except PeerFault:
                return None
            except Diverged as fault:
                raise Violation(f"{me.hex()[:4]}: {fault}") from fault
            for effect in effects:
                match effect:
                    case SignAndSend(vote):
                        votes |= self._votes.bit(vote)
                    case SignAndSendProposal(block, manifest, parent, dummies):
                        made = Proposal(
                            block=block, manifest=manifest, parent=parent, dummies=dummies,
                            proposer=me, signature=NOBODYS,
                        )  # fmt: skip
                        proposals |= self._proposals.bit(made)
                        todo.append(Received(made, 0))
                    case BuildProposal():
                        manifest = toy_manifest(effect, index)
                        if not effect.round:
                            manifest = replace(manifest, hand_over=self._hand_over)
                        todo.append(Built(effect.iteration, manifest))
                    case Examine(proposal, _):
                        todo.append(Examined(block_digest(proposal.block), not proposal.block.is_closing))
                    case Finalised(certified):
                        name = block_digest(certified.block)
                        self._links.setdefault(name, certified)
                        final |= self._blocks.bit((int(certified.block.round), name))
        return Moved(self._known(_still(state)), votes, proposals, final)

    def _known(self, state: State) -> int:
        number = self._state_ids.setdefault(_key(state), len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def _check_votes(self, votes: Iterator[Vote]) -> None:
        kinds: dict[Iteration, list[VoteKind]] = {}
        for vote in votes:
            if vote.iteration != SETTLED:
                kinds.setdefault(vote.iteration, []).append(vote.kind)
        for iteration, some in kinds.items():
            if len(set(some)) != len(some) or {VoteKind.DUMMY, VoteKind.FINALISE} <= set(some):
                raise Violation(f"an honest verifier votes twice in iteration {iteration}: {some}")


def _is_wanted(state: State, block: Digest) -> bool:
    """Whether the verifier would ask for this block, which a certificate that it holds names."""
    return any(one.vote.block == block for one in state.certificates.values())


def _still(state: State) -> State:
    """The state with its clock at zero, so that time distinguishes no states and no message is sent again."""
    return replace(state, now_ms=0, entered_ms=0, resend_at_ms=2 * LATE_MS, resend_count=0, ready=None)


def _key(state: State) -> object:
    return (
        state.config.me,
        state.tip,
        state.iteration,
        state.asked is not None,
        state.examining,
        frozenset(state.own.items()),
        frozenset(state.vouched),
        frozenset(state.drafts),
        frozenset((number, block_digest(one.block)) for number, one in state.proposals.items()),
        frozenset(state.bodies),
        frozenset((key, one.vote.block) for key, one in state.certificates.items()),
        frozenset(state.settled),
    )


def _dummy(number: int) -> Vote:
    return Vote(run_id=RUN_ID, iteration=Iteration(number), kind=VoteKind.DUMMY, block=NO_DIGEST)


def _certificate(vote: Vote) -> QuorumCertificate:
    signers = VERIFIERS[: quorum(len(VERIFIERS))]
    return QuorumCertificate(vote=vote, verifiers=signers, signatures=(NOBODYS,) * len(signers))


def main() -> None:
    """Explore every place of the liar, and print what was seen."""
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    after = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    seats = range(len(VERIFIERS)) if after else (None,)
    for liar, handed in itertools.product(range(len(VERIFIERS)), seats):
        began = time.process_time()
        found = Exploration(liar, iterations, handed, after).run()
        spent = time.process_time() - began
        counts = f"{found.worlds:,} worlds, {found.steps:,} steps, {found.rounds} rounds"
        which = f"liar {liar}" if handed is None else f"liar {liar}, seat {handed} handed over"
        print(f"{which}: {counts}, {spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
