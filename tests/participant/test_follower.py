"""The finalised chain as one participant holds it: replayed, grown, served."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
import trio
import trio.testing

from assay.ledger.settlement.payouts import settle
from assay.network.connection import RemoteError
from assay.participant import follower as followers
from assay.participant.follower import Follower
from assay.participant.links import extend
from assay.participant.store import Store
from assay.protocol.agreement.configurations import FIRST
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import HandOver, ManifestRange, SignedFundingReport, StepRequest
from assay.protocol.types import NO_DIGEST, NO_PEER, PeerId
from assay.testing import messages
from assay.testing.members import DOMAIN, RUN_ID, a_peer_key, peer
from assay.testing.signed import VERIFIERS, a_certified, a_chain, a_funding_report, a_history, a_manifest


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store.db")


def a_follower(store, run_state=None):
    return Follower((run_state or a_history()).spec, RUN_ID, store)


def asking_from(number):
    return encode(StepRequest(number=number, node=PeerId(NO_DIGEST)))


async def answer_of(one, number):
    return decode(ManifestRange, await one.answer_links(peer("nora"), asking_from(number))).links


def test_what_was_replayed_from_the_store_equals_what_was_followed_live(store):
    live = a_follower(store)
    links = a_chain(a_history(), live.run_state.spec.ordered.last_round + 1)

    assert all(live.take(link) for link in links)
    replayed = a_follower(store)

    assert replayed.run_state == live.run_state and live.run_state.is_complete
    assert replayed.settlements == live.settlements
    assert set(live.settlements) == {0, 1}


def test_a_settlement_appears_with_the_manifest_that_makes_its_epoch_ripe_and_not_before(store):
    one, run_state = a_follower(store), a_history()
    seen = {}
    for link in a_chain(run_state, run_state.spec.ordered.last_round + 1):
        run_state = extend(run_state, link)
        one.take(link)
        for epoch in one.settlements.keys() - seen.keys():
            seen[epoch] = (int(link.manifest.round), settle(run_state, epoch))

    spec = run_state.spec
    assert {epoch: ripe for epoch, (ripe, _) in seen.items()} == {
        e: spec.ordered.settled_at(e) for e in (0, 1)
    }
    assert one.settlements == {epoch: table for epoch, (_, table) in seen.items()}


def test_a_link_that_is_not_the_next_one_changes_nothing(store):
    one = a_follower(store)
    first, second = a_chain(a_history(), 2)

    assert not one.take(second)
    assert one.take(first)
    assert not one.take(first)
    assert one.run_state.round == 1
    assert list(store.links()) == [first]


def test_a_link_that_does_not_hold_is_neither_kept_nor_folded_in(store):
    one = a_follower(store)
    forged = a_certified(a_manifest(a_history(), ["nora"]), signers=VERIFIERS[:2])

    with pytest.raises(MalformedMessage, match="signatures"):
        one.take(forged)

    assert one.run_state == a_history()
    assert list(store.links()) == []


@pytest.mark.parametrize(
    "statement", ["UPDATE link SET body = x'80' WHERE round = 1", "DELETE FROM link WHERE round = 1"]
)
def test_a_damaged_store_is_refused_in_words(tmp_path, store, statement):
    one = a_follower(store)
    for link in a_chain(a_history(), 3):
        one.take(link)
    store.close()
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute(statement)

    with pytest.raises(MalformedMessage, match=r"round|CertifiedManifest"):
        a_follower(Store(tmp_path / "store.db"))


def test_a_store_with_a_forged_signature_is_refused(tmp_path, store):
    first, second = a_chain(a_history(), 2)
    signatures = (second.certificate.signatures[1], *second.certificate.signatures[1:])
    store.add_link(first)
    store.add_link(replace(second, certificate=replace(second.certificate, signatures=signatures)))

    with pytest.raises(AssayError, match="signature"):
        a_follower(store)


def test_whoever_waits_for_growth_hears_of_it(store):
    one, heard = a_follower(store), []

    async def listen(beyond):
        heard.append((await one.grown(beyond)).round)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, 0)
            nursery.start_soon(listen, 1)
            for link in a_chain(a_history(), 2):
                await trio.testing.wait_all_tasks_blocked()
                one.take(link)

    trio.run(main)

    assert sorted(heard) == [1, 2]


class Asked:
    """A host with one peer, which has no link; it counts the questions."""

    def __init__(self):
        self.count = 0

    def connected(self):
        return [peer("walt")]

    async def request(self, *_question, timeout_s):
        self.count += 1
        return encode(ManifestRange(links=()))


def test_a_manifest_that_nobody_else_has_makes_nobody_ask_without_pause(store):
    one, host = a_follower(store), Asked()
    made_up = replace(a_chain(a_history(), 2)[1], certificate=a_chain(a_history(), 1)[0].certificate)

    async def lie():
        while True:
            assert not one.take(made_up)
            await trio.sleep(0.01)

    async def main():
        with trio.move_on_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lie)
                await one.poll(host, [peer("walt")])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    assert 10 <= host.count <= 21


class Chain:
    """A host whose peers have the whole chain, and answer late; some send one link at a time, some none.

    Some `refuse` for three seconds, as verifiers do until they know a guest, or are `away` as long.
    """

    def __init__(self, links, late_s, drips=(), behind=(), refuse=(), away=()):
        self.links, self.late_s, self.drips, self.behind = links, late_s, drips, behind
        self.refuse, self.away = refuse, away
        self.asked = []

    def connected(self):
        is_early = trio.current_time() < 3
        return [one for one in self.late_s if not (is_early and one in self.away)]

    async def request(self, peer, _method, body, *, timeout_s):
        assert self.late_s[peer] < timeout_s
        if peer not in self.connected():
            raise Unavailable("not connected")
        if trio.current_time() < 3 and peer in self.refuse:
            raise RemoteError(peer, "only members may ask that")
        self.asked.append(peer)
        await trio.sleep(self.late_s[peer])
        first = decode(StepRequest, body).number
        most = 0 if peer in self.behind else 1 if peer in self.drips else 2
        return encode(ManifestRange(links=tuple(self.links[first : first + most])))


def seconds_to_catch_up(one, host):
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(one.catch_up, host, list(host.late_s), clock=clock)
    return clock.current_time()


@pytest.mark.parametrize("late_s", [19.0, 0.9])
def test_a_peer_that_sends_one_manifest_at_a_time_and_late_holds_nobody_behind(store, monkeypatch, late_s):
    one, links = a_follower(store), a_chain(a_history(), 8)
    walt, *others = map(peer, ("walt", *VERIFIERS[:3]))
    monkeypatch.setattr("random.shuffle", lambda peers: peers.sort(key=lambda one: one != walt))

    host = Chain(links, {walt: late_s} | dict.fromkeys(others, 0.1), drips=[walt])

    assert seconds_to_catch_up(one, host) <= 3
    assert one.run_state.round == 8


def test_over_a_slow_line_manifests_come_as_well(store):
    one, links = a_follower(store), a_chain(a_history(), 8)

    seconds_to_catch_up(one, Chain(links, dict.fromkeys(map(peer, VERIFIERS), 15.0)))

    assert one.run_state.round == 8


@pytest.mark.parametrize("others_behind", [0, 1])
def test_peers_without_news_do_not_end_the_wait_for_an_answer_on_its_way(store, monkeypatch, others_behind):
    """A liar answers at once that there is nothing; an honest peer may be as far behind as we are."""
    one, links = a_follower(store), a_chain(a_history(), 8)
    honest, walt, *others = map(peer, (VERIFIERS[0], "walt", *VERIFIERS[1:3]))
    monkeypatch.setattr("random.shuffle", lambda peers: None)
    behind = {walt, *others[:others_behind]}
    late_s = {honest: 7.0, walt: 0.05} | {one: 0.05 if one in behind else 7.0 for one in others}

    assert seconds_to_catch_up(one, Chain(links, late_s, behind=behind)) <= 40
    assert one.run_state.round == 8


@pytest.mark.parametrize("others", ["refuse", "away"])
def test_a_liar_that_alone_answers_at_first_does_not_stay_the_only_one_that_is_asked(store, others):
    one, links, liar = a_follower(store), a_chain(a_history(), 8), peer("walt")
    honest = [peer(name) for name in VERIFIERS[:3]]
    host = Chain(links, {liar: 19.0} | dict.fromkeys(honest, 0.1), drips=[liar], **{others: honest})

    assert seconds_to_catch_up(one, host) <= 30
    assert one.run_state.round == 8


def test_whoever_is_level_and_misses_nothing_asks_one_peer(store):
    one, host = a_follower(store), Chain([], dict.fromkeys(map(peer, VERIFIERS), 0.1))

    seconds_to_catch_up(one, host)
    before = len(host.asked)
    seconds_to_catch_up(one, host)

    assert len(host.asked) == before + 1


def test_nobody_is_level_by_the_word_of_liars_alone(store):
    one, liar, told = a_follower(store), peer("walt"), list[tuple[int, float]]()
    late_s = {liar: 0.05} | dict.fromkeys(map(peer, VERIFIERS[:3]), 0.1)
    host = Chain(a_chain(a_history(), 8), late_s, behind=[liar], refuse=set(late_s) - {liar})

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.poll, host, list(late_s))
            await one.level()
            told.append((int(one.run_state.round), trio.current_time()))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    ((round_id, at_s),) = told
    assert round_id == 8 and 3 <= at_s < 10


def test_a_newcomer_asks_at_once_when_it_is_connected_and_when_it_may_be_answered(store):
    one, host = a_follower(store), Asked()
    counts = []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.poll, host, [peer("walt")])
            await trio.sleep(0.2)
            counts.append(host.count)
            await trio.sleep(0.5)
            one.look()
            await trio.sleep(0.1)
            counts.append(host.count)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    assert counts == [1, 2]


def test_what_comes_before_a_forgery_in_an_answer_is_taken(store):
    one, (first, second, third) = a_follower(store), a_chain(a_history(), 3)
    forged = replace(third, certificate=second.certificate)
    host = Chain([first, second, forged], {peer("vera"): 0.1})
    host.links = Links([first, second, forged])

    with pytest.raises(MalformedMessage):
        trio.run(one.ask, host, peer("vera"))

    assert one.run_state.round == 2
    assert list(store.links()) == [first, second]


def test_others_have_their_turn_while_a_long_answer_is_taken(store, monkeypatch):
    monkeypatch.setattr(followers, "TAKEN_AT_ONCE", 2)
    one, seen = a_follower(store), set()
    host = Chain(Links(a_chain(a_history(), 8)), {peer("vera"): 0.0})

    async def other():
        while True:
            seen.add(int(one.run_state.round))
            await trio.lowlevel.checkpoint()

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await one.ask(host, peer("vera"))
            nursery.cancel_scope.cancel()

    trio.run(main)

    assert seen & {2, 4, 6}


class Links(list):
    """Of which a peer sends all at once."""

    def __getitem__(self, key):
        return super().__getitem__(slice(key.start, None) if isinstance(key, slice) else key)


def asked_for_newer(one, host):
    clock, members = trio.testing.MockClock(autojump_threshold=0), [*map(peer, VERIFIERS), peer("walt")]
    return trio.run(one.is_newest, host, members, clock=clock)


@pytest.mark.parametrize(
    ("late_s", "behind", "is_newest"),
    [
        ({}, [], False),  # nobody is connected
        ({"walt": 0.1, "vera": 0.1}, ["walt", "vera"], True),
        ({"walt": 0.1, "vera": 15.0}, ["walt"], False),
        ({"walt": 0.1}, ["walt"], False),  # one liar alone is connected
    ],
)
def test_nobody_has_newer_manifests_if_most_answer_and_none_shows_one(store, late_s, behind, is_newest):
    one, links = a_follower(store), a_chain(a_history(), 2)
    host = Chain(links, {peer(who): s for who, s in late_s.items()}, behind=set(map(peer, behind)))

    assert asked_for_newer(one, host) == is_newest
    assert one.run_state.round == 0


def test_a_newer_manifest_that_is_made_up_is_no_news(store):
    one, (first, second) = a_follower(store), a_chain(a_history(), 2)
    made_up = replace(first, certificate=second.certificate)
    host = Chain([made_up], dict.fromkeys(map(peer, VERIFIERS), 0.1), behind=set(map(peer, VERIFIERS[1:])))

    assert asked_for_newer(one, host)


def test_links_are_served_from_a_round_on(store):
    one = a_follower(store)
    links = a_chain(a_history(), 3)
    for link in links:
        one.take(link)

    assert trio.run(answer_of, one, 0) == tuple(links)
    assert trio.run(answer_of, one, 2) == tuple(links[2:])


@pytest.mark.parametrize("number", [3, 4, 2**63, 2**64 - 1])
def test_asking_beyond_the_end_brings_nothing_however_far_beyond(store, number):
    one = a_follower(store)
    for link in a_chain(a_history(), 3):
        one.take(link)

    assert trio.run(answer_of, one, number) == ()


def test_an_answer_of_links_is_bounded_and_never_empty_where_there_is_one(store, monkeypatch):
    one = a_follower(store)
    links = a_chain(a_history(), 3)
    for link in links:
        one.take(link)

    monkeypatch.setattr(followers, "LINKS_BYTES_MAX", 1)
    assert trio.run(answer_of, one, 0) == (links[0],)
    monkeypatch.setattr(followers, "LINKS_BYTES_MAX", len(encode(links[0])) + len(encode(links[1])))
    assert trio.run(answer_of, one, 0) == tuple(links[:2])


def test_an_answer_costs_no_decoding_however_often_somebody_asks(store, monkeypatch):
    """Whoever asks for links again and again must not stop the process from doing anything else."""
    one, links = a_follower(store), a_chain(a_history(), 8)
    for link in links:
        one.take(link)
    request = encode(StepRequest(number=0, node=PeerId(bytes(32))))

    with monkeypatch.context() as patched:
        patched.setattr("assay.participant.store.decode", None)
        answer = trio.run(one.answer_links, PeerId(bytes(32)), request)

    assert decode(ManifestRange, answer).links == tuple(links)


# ---- money


def test_a_round_is_funded_by_reports_that_its_manifest_is_still_to_carry(store):
    one = a_follower(store)
    for name in VERIFIERS[:2]:
        one.hear(peer(name), a_funding_report(name, epochs=1))
    assert not one.is_funded

    one.hear(peer(VERIFIERS[2]), a_funding_report(VERIFIERS[2], epochs=1))
    assert one.is_funded

    one.hear(peer(VERIFIERS[2]), a_funding_report(VERIFIERS[2], epochs=0, block=2))
    assert not one.is_funded


def test_an_older_report_does_not_replace_a_newer_one(store):
    one = a_follower(store)
    for name in VERIFIERS[:3]:
        one.hear(peer(name), a_funding_report(name, epochs=1, block=9))
        one.hear(peer(name), a_funding_report(name, epochs=0, block=8))
    assert one.is_funded


def test_whoever_waits_for_money_is_woken_by_the_report_that_completes_a_quorum(store):
    one = a_follower(store)

    async def wait():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.funded)
            for name in VERIFIERS[:3]:
                await trio.testing.wait_all_tasks_blocked()
                assert nursery.child_tasks
                one.hear(peer(name), a_funding_report(name))

    trio.run(wait)
    assert one.is_funded


def test_a_report_of_somebody_else_or_of_no_verifier_is_refused(store):
    one = a_follower(store)
    first, second = VERIFIERS[:2]
    with pytest.raises(PeerFault, match="FundingReport of"):
        one.hear(peer(first), a_funding_report(second))
    with pytest.raises(PeerFault, match="FundingReport of"):
        one.hear(peer("nora"), a_funding_report("nora"))
    good = a_funding_report(first)
    forged = replace(good, funding_report=replace(good.funding_report, epochs=7))
    with pytest.raises(PeerFault, match="signature"):
        one.hear(peer(first), forged)


def test_who_holds_no_seat_speaks_for_none(store):
    one, report = a_follower(store), messages.a_funding_report(NO_PEER)
    signed = SignedFundingReport(funding_report=report, signature=sign(a_peer_key("nora"), DOMAIN, report))
    with pytest.raises(PeerFault, match="sends a FundingReport of 00000000"):
        one.hear(peer("nora"), signed)


def test_the_report_of_who_gave_a_seat_up_since_funds_nothing(store):
    one = a_follower(store)
    for name in VERIFIERS[:3]:
        one.hear(peer(name), a_funding_report(name, epochs=1))
    assert one.is_funded

    given = HandOver(seat=peer(VERIFIERS[0]), holder=peer("rita"))
    rotation = replace(one.run_state.rotation, configuration=FIRST.after((given,)), handed=(1,))
    one.run_state = replace(one.run_state, rotation=rotation)
    assert not one.is_funded
    with pytest.raises(OutOfPhase, match="without a seat"):  # we know already, and it does not yet
        one.hear(peer(VERIFIERS[0]), a_funding_report(VERIFIERS[0], epochs=1, block=9))
