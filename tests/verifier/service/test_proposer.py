"""When a leader proposes, and what another verifier finds out about a proposal before it votes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test

from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Unavailable
from assay.protocol.messages import CertifiedManifest, Manifest, Proposal, VoteKind
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, Iteration
from assay.testing.members import RUN_ID, a_digest
from assay.testing.signed import NODES, VERIFIERS, a_certified, a_chain, a_history, a_manifest, a_reveal
from assay.verifier.consensus.types import BuildProposal, Built, Event, Examined, Passed, Ready
from assay.verifier.round.leader import missing
from assay.verifier.round.machine import Round
from assay.verifier.service.proposer import RETRY_S, GetUpdate, Proposer, _place
from tests.verifier.service.a_driver import (
    TIMING,
    a_participant,
    a_proposal,
    a_quorum,
    a_real_commit,
    a_real_manifest,
    a_round,
    an_aggregate,
    an_update,
    held_by,
    settled,
)

START = a_history()
EMPTY = a_manifest(START)
AFTER = advance(START, EMPTY)
ALL = [a_real_commit(name, START) for name in NODES]


@pytest.fixture
def clock():
    return MockClock()


@dataclass
class Verifier:
    """A proposer, the round that it sees, and what it reports to consensus."""

    me: Participant
    follower: Follower
    present: Round
    reports: list[Event] = field(default_factory=list)
    opened: trio.Event = field(default_factory=trio.Event)
    proposer: Proposer = field(init=False)

    async def round_opened(self) -> None:
        await self.opened.wait()

    def open(self, present: Round) -> None:
        """The next round opens here."""
        self.present = present
        self.opened.set()
        self.opened = trio.Event()

    def of(self, kind: type[Event]) -> list[Event]:
        return [report for report in self.reports if isinstance(report, kind)]

    async def examine(self, manifest: Manifest, ancestors: tuple[Manifest, ...] = ()) -> list[bool]:
        """The results that this proposal gets."""
        await self.proposer.examine(self.proposal(manifest), ancestors)
        return [report.ok for report in self.of(Examined)]

    def proposal(self, manifest: Manifest) -> Proposal:
        return a_proposal(manifest, int(manifest.round) + 1)


@asynccontextmanager
async def a_proposer(
    folder: Path,
    present: Round | None = None,
    get_update: GetUpdate | None = None,
    links: Iterable[CertifiedManifest] = (),
) -> AsyncIterator[Verifier]:
    """A proposer of a verifier that holds all updates of the round, after these final manifests."""
    folder.mkdir(exist_ok=True)
    me = a_participant(folder)
    follower = Follower(me.spec, RUN_ID, me.store)
    for link in links:
        assert follower.take(link)
    verifier = Verifier(me, follower, present or a_round(follower.run_state))
    for name in NODES:
        me.blobs.put(an_update(name, verifier.present.run_state))
    async with trio.open_nursery() as nursery:
        verifier.proposer = Proposer(
            me, follower, get_update or held_by(me), lambda: verifier.present, verifier.round_opened,
            verifier.reports.append, nursery,
        )  # fmt: skip
        yield verifier
        nursery.cancel_scope.cancel()
    me.store.close()


def asked(ancestors: tuple[Manifest, ...] = (), *, follows: bool = True) -> BuildProposal:
    """Consensus asks for the manifest after these that are notarised."""
    run_state = START
    for manifest in ancestors:
        run_state = advance(run_state, manifest)
    return BuildProposal(
        iteration=Iteration(len(ancestors) + 1), round=run_state.round, parent=NO_DIGEST,
        parent_manifest=run_state.parent, ancestors=ancestors, follows=follows,
    )  # fmt: skip


# ---- the leader


@trio_test
async def test_a_leader_proposes_at_once_when_everything_is_in(tmp_path, clock):
    async with a_proposer(tmp_path, a_round(commits=ALL)) as verifier:
        verifier.proposer.ask(asked())
        await settled()

        assert verifier.of(Built) == [Built(Iteration(1), a_real_manifest(NODES))]
        assert verifier.me.blobs.load(verifier.of(Built)[0].manifest.aggregate) == an_aggregate(NODES, START)


@trio_test
async def test_a_leader_that_lacks_a_commit_waits_for_the_deadline_to_the_millisecond(tmp_path, clock):
    async with a_proposer(tmp_path, a_round(commits=ALL[:2])) as verifier:
        verifier.proposer.ask(asked())
        for wait_ms in (0, TIMING.collect_ms - 1):
            clock.jump(wait_ms / 1000)
            verifier.proposer.consider()
            await settled()
            assert verifier.reports == []

        clock.jump(0.001)
        verifier.proposer.consider()
        await settled()

        assert verifier.of(Built) == [Built(Iteration(1), a_real_manifest(NODES[:2]))]


@trio_test
async def test_a_leader_without_any_commit_does_not_propose_however_late_it_is(tmp_path, clock):
    async with a_proposer(tmp_path) as verifier:
        verifier.proposer.ask(asked())
        clock.jump(100 * TIMING.collect_ms / 1000)
        verifier.proposer.consider()
        await settled()

        assert verifier.reports == []


@trio_test
async def test_consensus_hears_that_the_round_is_complete_and_not_before(tmp_path, clock):
    async with a_proposer(tmp_path, a_round(commits=ALL[:2])) as verifier:
        verifier.proposer.consider()
        assert verifier.reports == []

        clock.jump(1)
        verifier.present = a_round(commits=ALL)
        verifier.proposer.consider()

        assert verifier.reports == [Ready(START.round, 1000)]


@trio_test
async def test_a_round_whose_successor_is_final_is_no_longer_reported_or_proposed(tmp_path, clock):
    async with a_proposer(tmp_path, a_round(commits=ALL)) as verifier:
        verifier.follower.take(a_certified(a_manifest(START)))
        verifier.proposer.ask(asked())
        await settled()

        assert verifier.reports == []


@trio_test
async def test_only_after_a_skipped_iteration_does_a_leader_do_without_a_beacon_share(tmp_path, clock):
    """And consensus hears that waiting longer is useless."""
    commits = [a_real_commit(name, AFTER) for name in NODES]
    shares = {one.verifier: (one,) for one in (a_reveal(name, AFTER) for name in VERIFIERS[:3])}
    present = replace(a_round(AFTER, commits), beacon_shares=shares)
    async with a_proposer(tmp_path, present, links=[a_certified(EMPTY)]) as verifier:
        verifier.proposer.ask(replace(asked((EMPTY,)), ancestors=()))
        clock.jump((TIMING.ready_ms - 1) / 1000)
        await settled()
        assert verifier.reports == []

        clock.jump(0.001)
        verifier.proposer.consider()
        await settled()
        assert verifier.reports == [Ready(AFTER.round, TIMING.ready_ms)]

        verifier.proposer.ask(replace(asked((EMPTY,), follows=False), ancestors=()))
        await settled()
        assert [built.manifest for built in verifier.of(Built)] == [
            replace(
                a_real_manifest(NODES, AFTER),
                beacon_shares=tuple(one for (one,) in shares.values()),
                is_partial=True,
            )
        ]


@trio_test
async def test_a_complete_run_gets_no_reports(tmp_path, clock):
    links = a_chain(START, START.spec.ordered.last_round + 1, ())
    async with a_proposer(tmp_path, links=links) as verifier:
        complete = verifier.follower.run_state
        assert complete.is_complete
        shares = {one.verifier: (one,) for one in (a_reveal(name, complete) for name in VERIFIERS)}
        verifier.present = replace(a_round(complete), beacon_shares=shares)
        verifier.proposer.consider()

        assert missing(verifier.present) == () and verifier.reports == []


@trio_test
async def test_a_request_is_answered_once(tmp_path, clock):
    async with a_proposer(tmp_path, a_round(commits=ALL)) as verifier:
        verifier.proposer.ask(asked())
        for _ in range(3):
            verifier.proposer.consider()
        await settled()
        verifier.proposer.consider()
        await settled()

        assert len(verifier.of(Built)) == 1


@trio_test
async def test_a_request_ends_the_answer_to_the_one_before_and_is_answered(tmp_path, clock):
    asked_for = []

    async def stuck_at_first(round_id, name, holders):
        asked_for.append(name)
        if len(asked_for) == 1:
            await trio.sleep_forever()
        return verifier.me.blobs.load(name)

    async with a_proposer(tmp_path, a_round(commits=ALL), stuck_at_first) as verifier:
        verifier.proposer.ask(asked())
        await settled()
        verifier.proposer.ask(replace(asked(), iteration=Iteration(5), follows=False))
        await settled()
        verifier.proposer.consider()
        await settled()

        assert [built.iteration for built in verifier.of(Built)] == [5]


@trio_test
async def test_a_leader_whose_update_is_damaged_tries_again(tmp_path, clock):
    faults = [Unavailable("blob is damaged")]

    async def damaged(round_id, name, holders):
        if faults:
            raise faults.pop()
        return verifier.me.blobs.load(name)

    async with a_proposer(tmp_path, a_round(commits=ALL), damaged) as verifier:
        verifier.proposer.ask(asked())
        await settled()
        verifier.proposer.consider()
        await settled()
        assert verifier.of(Built) == []

        clock.jump(RETRY_S)
        await settled()
        verifier.proposer.consider()
        await settled()
        assert [built.manifest for built in verifier.of(Built)] == [a_real_manifest(NODES)]


@trio_test
async def test_on_a_parent_that_is_not_final_a_leader_waits_ready_ms_and_then_proposes_no_commits(
    tmp_path, clock
):
    parent = a_real_manifest(NODES)
    on_top = advance(START, parent)
    shares = {one.verifier: (one,) for one in (a_reveal(name, on_top) for name in VERIFIERS)}
    async with a_proposer(tmp_path, replace(a_round(commits=ALL), beacon_shares=shares)) as verifier:
        clock.jump(3)
        verifier.proposer.ask(asked((parent,)))
        await settled()
        clock.jump((TIMING.ready_ms - 1) / 1000)
        verifier.proposer.consider()
        await settled()
        assert verifier.of(Built) == []

        clock.jump(0.001)
        verifier.proposer.consider()
        await settled()

        (built,) = verifier.of(Built)
        assert (built.manifest.parent, built.manifest.commits) == (digest(parent), ())
        assert built.manifest.aggregate == NO_DIGEST


@trio_test
async def test_a_leader_does_not_propose_on_a_parent_that_it_does_not_have(tmp_path, clock):
    async with a_proposer(tmp_path, a_round(commits=ALL)) as verifier:
        verifier.proposer.ask(replace(asked(), parent_manifest=a_digest("another chain")))
        await settled()

        assert verifier.of(Built) == []


def the_end() -> tuple[list[CertifiedManifest], Manifest, Proposal]:
    """The links before the run's last manifest, that manifest, and the block that closes the run with it."""
    *links, last = a_chain(START, START.spec.ordered.last_round + 1, ())
    first = a_proposal(last.manifest, int(last.block.iteration))
    closing = a_proposal(last.manifest, int(last.block.iteration) + 1, first)
    block = replace(closing.block, round=last.block.round, is_closing=True)
    return links, last.manifest, replace(closing, block=block)


@trio_test
async def test_a_leader_closes_a_run_whose_last_manifest_is_notarised_and_not_final(tmp_path, clock):
    links, last, _ = the_end()
    async with a_proposer(tmp_path, links=links) as verifier:
        run_state = verifier.follower.run_state
        verifier.proposer.ask(replace(asked(), ancestors=(last,), parent_manifest=digest(last)))
        clock.jump((TIMING.ready_ms - 1) / 1000)
        verifier.proposer.consider()
        assert not run_state.is_complete and verifier.of(Built) == []

        clock.jump(0.001)
        verifier.proposer.consider()
        assert [built.manifest for built in verifier.of(Built)] == [last]


# ---- another verifier


@trio_test
async def test_a_closing_block_passes_on_the_runs_last_manifest_and_on_no_other(tmp_path, clock):
    links, last, closing = the_end()
    async with a_proposer(tmp_path, links=links) as verifier:
        await verifier.proposer.examine(closing, (last,))
        assert [report.ok for report in verifier.of(Examined)] == [True]

    *links, before = links
    async with a_proposer(tmp_path / "earlier", links=links) as verifier:
        await verifier.proposer.examine(closing, (before.manifest,))
        assert [report.ok for report in verifier.of(Examined)] == [False]


@trio_test
async def test_a_proposal_with_the_aggregate_of_its_commits_is_accepted(tmp_path, clock):
    async with a_proposer(tmp_path) as verifier:
        right = a_real_manifest(NODES)

        assert await verifier.examine(right) == [True]
        assert verifier.reports == [Examined(digest(verifier.proposal(right).block), True)]
        assert verifier.me.blobs.load(right.aggregate) == an_aggregate(NODES, START)


@pytest.mark.parametrize(
    "aggregate",
    [NO_DIGEST, a_digest("an aggregate"), blob_digest(an_aggregate(NODES[:2], START))],
    ids=["none", "made up", "of other commits"],
)
def test_a_proposal_with_another_aggregate_is_refused(tmp_path, clock, aggregate):
    async def main():
        async with a_proposer(tmp_path) as verifier:
            assert await verifier.examine(a_real_manifest(NODES, aggregate=aggregate)) == [False]

    trio.run(main, clock=clock)


@trio_test
async def test_a_proposal_that_breaks_a_rule_is_refused(tmp_path, clock):
    async with a_proposer(tmp_path) as verifier:
        manifest = a_real_manifest(NODES)
        forged = (
            replace(manifest.commits[0], signature=manifest.commits[1].signature),
            *manifest.commits[1:],
        )

        assert await verifier.examine(replace(manifest, commits=forged)) == [False]


@trio_test
async def test_a_proposal_with_a_quorum_of_beacon_shares_passes_only_after_a_skipped_iteration(
    tmp_path, clock
):
    full = a_real_manifest(NODES, AFTER)
    partial = replace(full, beacon_shares=full.beacon_shares[:3], is_partial=True)
    async with a_proposer(tmp_path, links=[a_certified(EMPTY)]) as verifier:
        direct = verifier.proposal(partial)
        skipping = replace(direct, dummies=(a_quorum(VoteKind.NOTARISE, direct),))
        for proposal in (direct, skipping):
            await verifier.proposer.examine(proposal, ())

        assert [report.ok for report in verifier.of(Examined)] == [False, True]


@trio_test
async def test_a_proposal_whose_update_nobody_has_is_refused(tmp_path, clock):
    asked_for = []

    async def unavailable(round_id, name, holders):
        asked_for.append((round_id, name, holders))
        raise Unavailable("nobody has it")

    async with a_proposer(tmp_path, get_update=unavailable) as verifier:
        manifest = a_real_manifest(NODES)

        assert await verifier.examine(manifest) == [False]
        (first,) = asked_for  # of its proposer before anybody else
        proposer = verifier.proposal(manifest).proposer
        assert first == (0, manifest.commits[0].commit.update, (proposer, *verifier.me.verifiers))


@trio_test
async def test_an_update_that_does_not_decode_is_refused(tmp_path, clock):
    async def nonsense(round_id, name, holders):
        return b"nonsense"

    async with a_proposer(tmp_path, get_update=nonsense) as verifier:
        assert await verifier.examine(a_real_manifest(NODES)) == [False]


@trio_test
async def test_a_proposal_waits_for_our_round_to_open(tmp_path, clock):
    parent = a_manifest(START)
    run_state = advance(START, parent)
    manifest = a_real_manifest(NODES, run_state)
    async with a_proposer(tmp_path, a_round(START), links=[a_certified(parent)]) as verifier:
        for name in NODES:
            verifier.me.blobs.put(an_update(name, run_state))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(verifier.proposer.examine, verifier.proposal(manifest), ())
            await settled()
            assert verifier.reports == []

            verifier.open(a_round(run_state))
        assert [report.ok for report in verifier.of(Examined)] == [True]


@trio_test
async def test_commits_wait_for_a_parent_that_is_about_to_be_final(tmp_path, clock):
    parent = a_manifest(START)
    run_state = advance(START, parent)
    async with a_proposer(tmp_path) as verifier:
        for name in NODES:
            verifier.me.blobs.put(an_update(name, run_state))
        manifest = a_real_manifest(NODES, run_state)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(verifier.proposer.examine, verifier.proposal(manifest), (parent,))
            await settled()
            assert verifier.reports == []

            verifier.follower.take(a_certified(parent))
            verifier.open(a_round(run_state))
        assert [report.ok for report in verifier.of(Examined)] == [True]


@trio_test
async def test_a_proposal_for_which_our_round_does_not_open_in_its_iteration_gets_no_result(tmp_path, clock):
    parent = a_manifest(START)
    async with a_proposer(tmp_path, a_round(START), links=[a_certified(parent)]) as verifier:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                verifier.proposer.examine, verifier.proposal(a_manifest(advance(START, parent))), ()
            )
            await settled()
            clock.jump(TIMING.iteration_ms / 1000)
        assert verifier.reports == []


# ---- reputation


@trio_test
async def test_a_verifier_that_restarted_rebuilds_the_reputation_from_final_rounds_once(tmp_path, clock):
    run_states, manifests, links = [START], [], []
    for _ in range(3):
        manifests.append(a_real_manifest(NODES, run_states[-1]))
        links.append(a_certified(manifests[-1], digest(links[-1].block) if links else NO_DIGEST))
        run_states.append(advance(run_states[-1], manifests[-1]))
    updates = [[signed.commit.update for signed in manifest.commits] for manifest in manifests]
    fetched: list[Digest] = []

    async def counted(round_id, name, holders):
        fetched.append(name)
        return verifier.me.blobs.load(name)

    async def fetched_for(number):
        """What the aggregate of this round's proposal needs."""
        fetched.clear()
        for name in NODES:
            verifier.me.blobs.put(an_update(name, run_states[number]))
        verifier.present = a_round(run_states[number])
        await verifier.proposer.examine(verifier.proposal(manifests[number]), ())
        return list(fetched)

    async with a_proposer(tmp_path, get_update=counted) as verifier:
        assert await fetched_for(0) == updates[0]
        verifier.follower.take(links[0])
    async with a_proposer(tmp_path, get_update=counted) as verifier:
        assert await fetched_for(1) == updates[1] + updates[0]
        verifier.follower.take(links[1])
        assert await fetched_for(2) == updates[2]


@trio_test
async def test_a_reputation_that_takes_longer_than_a_round_is_rebuilt_once_and_brought_forward(
    tmp_path, clock
):
    run_states, manifests, links = [START], [], []
    for number in range(4):
        manifests.append(a_real_manifest(NODES[:1] if number == 2 else NODES, run_states[-1]))
        links.append(a_certified(manifests[-1], digest(links[-1].block) if links else NO_DIGEST))
        run_states.append(advance(run_states[-1], manifests[-1]))
    fetched: list[Digest] = []
    rebuilt, waiting = trio.Event(), 0

    async def slow(round_id, name, holders):
        nonlocal waiting
        fetched.append(name)
        if round_id == 0:
            waiting += 1
            await rebuilt.wait()
        return verifier.me.blobs.load(name)

    async with a_proposer(tmp_path, get_update=slow, links=links[:2]) as verifier:
        for run_state in run_states:
            for name in NODES:
                verifier.me.blobs.put(an_update(name, run_state))
        async with trio.open_nursery() as nursery:
            other = a_real_manifest(NODES, run_states[2])
            for manifest in (other, other, manifests[3]):  # the round ends with one that we never examined
                if manifest is manifests[3]:
                    verifier.follower.take(links[2])
                verifier.present = a_round(verifier.follower.run_state)
                nursery.start_soon(verifier.proposer.examine, verifier.proposal(manifest), ())
                await settled()
            assert waiting == 1
            rebuilt.set()

    once = [signed.commit.update for number in (0, 1) for signed in manifests[number].commits]
    assert [name for name in fetched if name in once] == once
    assert [report.ok for report in verifier.of(Examined)] == [True, False, True]  # one was for nothing


def a_chain_with_commits(count: int) -> tuple[list[RunState], list[CertifiedManifest]]:
    """Final manifests with everybody's commits, and the states before each of them and after the last."""
    run_states, links = [START], list[CertifiedManifest]()
    for _ in range(count):
        made = a_real_manifest(NODES, run_states[-1])
        links.append(a_certified(made, digest(links[-1].block) if links else NO_DIGEST))
        run_states.append(advance(run_states[-1], made))
    return run_states, links


def to_build(run_state: RunState) -> BuildProposal:
    """Consensus asks for the manifest of this round, whose parent is final."""
    return replace(asked(), round=run_state.round, parent_manifest=run_state.parent)


@trio_test
@pytest.mark.parametrize(("examined_count", "passes"), [(0, [Passed(Iteration(1))]), (1, [])])
async def test_a_leader_passes_its_turn_if_it_took_part_in_neither_of_the_last_two_rounds(
    tmp_path, clock, examined_count, passes
):
    run_states, links = a_chain_with_commits(2)
    async with a_proposer(tmp_path, a_round()) as verifier:
        for run_state in run_states:
            for name in NODES:
                verifier.me.blobs.put(an_update(name, run_state))
        for link in links[:examined_count]:
            assert await verifier.examine(link.manifest) == [True]
        for link in links:
            verifier.follower.take(link)
        verifier.reports.clear()

        commits = [a_real_commit(name, run_states[2]) for name in NODES]
        shares = {one.verifier: (one,) for one in (a_reveal(name, run_states[2]) for name in VERIFIERS)}
        verifier.present = replace(a_round(run_states[2], commits), beacon_shares=shares)
        clock.jump(TIMING.collect_ms / 1000)  # verdicts are missing
        verifier.proposer.ask(to_build(run_states[2]))
        await settled()

        said = [one for one in verifier.reports if not isinstance(one, Ready)]
        assert said[: len(passes)] == passes
        assert [type(one) for one in said[len(passes) :]] == [Built]


@trio_test
@pytest.mark.parametrize(("ahead", "passes"), [(1, []), (2, [Passed(Iteration(1))])])
async def test_a_leader_passes_its_turn_if_its_parameters_are_two_rounds_behind(
    tmp_path, clock, ahead, passes
):
    run_states, links = a_chain_with_commits(2)
    async with a_proposer(tmp_path, a_round(), links=links[:ahead]) as verifier:
        verifier.proposer.consider()
        assert verifier.reports == []  # it does not lead

        verifier.proposer.ask(to_build(run_states[ahead]))
        await settled()
        assert verifier.reports == passes


def test_the_same_update_of_another_node_is_another_place():
    mine = a_real_manifest(NODES[:1], START)
    theirs = replace(mine.commits[0], commit=replace(mine.commits[0].commit, node=NODES[1]))
    assert _place(replace(mine, commits=(theirs,))) != _place(mine)


@trio_test
async def test_updates_of_rounds_that_were_agreed_without_us_are_fetched_side_by_side(tmp_path, clock):
    first = a_real_manifest(NODES, START)
    after = advance(START, first)
    bodies = {blob_digest(body): body for body in (an_update(name, START) for name in NODES)}
    under_way, all_asked = set(), trio.Event()

    async def slow(round_id, name, holders):
        if name not in bodies:
            return verifier.me.blobs.load(name)
        under_way.add(name)
        if len(under_way) == len(NODES):
            all_asked.set()
        await all_asked.wait()
        return bodies[name]

    async with a_proposer(tmp_path, a_round(after), slow, links=[a_certified(first)]) as verifier:
        for name in NODES:
            verifier.me.blobs.put(an_update(name, after))
        assert await verifier.examine(a_real_manifest(NODES, after)) == [True]
    assert under_way == set(bodies)
