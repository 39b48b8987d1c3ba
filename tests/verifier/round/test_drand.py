"""Outside: a leader chooses no drand round, and a run outlives the network it asks."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio

from assay.participant.keys.keyring import Keys
from assay.participant.links import check_place
from assay.protocol.auditing.draws import audit_seed, beacon_input
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.randomness.drand import has_begun, may_be_named, named_at
from assay.protocol.state_transition import advance, beacon_of
from assay.protocol.types import NO_DIGEST, RoundId
from assay.testing.members import RUN_ID, a_hot_key, a_peer_key
from assay.testing.signed import NODES, VERIFIERS, a_reveal, a_spec
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.verifier.round.drand import KEPT
from assay.verifier.round.examination import examine
from assay.verifier.round.leader import is_held_up, manifest_of, may_propose, missing
from assay.verifier.round.machine import DrandRound
from assay.verifier.service import process as service
from assay.verifier.service.drand_client import DrandClient, read_answer
from tests.a_drand import a_network, a_signature, serving
from tests.verifier.round.test_machine import AGGREGATE, a_round, after, everything

NETWORK = a_network(genesis_s=1000, period_s=3)
NOW_S = 1300  # round 101 is out
NAMED = 104  # at 1309
AUDIT = replace(a_spec().audit, drand=NETWORK)


def a_start(**changes):
    return the_start(audit=AUDIT, **changes)


def named(number=NAMED):
    """A history whose last manifest named this round."""
    run_state = a_start()
    return advance(run_state, the_next(run_state, NODES, drand_next=number))


def ready(run_state, *more):
    """Everything is there for the next manifest, and these events."""
    return after(run_state, *everything(run_state), *more)


def test_a_leader_names_a_round_to_come_and_the_next_one_carries_it():
    first = manifest_of(ready(a_start()), (), AGGREGATE, wall_s=NOW_S)
    assert (first.drand, first.drand_next) == (b"", NAMED)
    examine(a_round(a_start()), (), first, follows=True, wall_s=NOW_S)
    run_state = advance(a_start(), first)

    waiting = ready(run_state)
    assert missing(waiting) == ("drand",)
    assert not may_propose(waiting, (), 1 << 40, follows=True)
    held = ready(run_state, DrandRound(NAMED, a_signature(NAMED)))
    assert missing(held) == () and may_propose(held, (), 0, follows=True)
    second = manifest_of(held, (), AGGREGATE, wall_s=NOW_S + 10)

    assert second.drand == a_signature(NAMED)
    examine(a_round(run_state), (), second, follows=True, wall_s=NOW_S + 10)


def test_draws_follow_from_the_round_too():
    run_state = named()
    manifest = the_next(run_state, NODES, drand=a_signature(NAMED))
    alpha = beacon_input(run_state.spec.deployment_id, RUN_ID, RoundId(0), run_state.parent)
    shares = [(one.verifier, one.proof) for one in manifest.beacon_shares]

    assert beacon_of(run_state, manifest) != audit_seed(alpha, shares)
    assert beacon_of(run_state, replace(manifest, drand=b"")) == audit_seed(alpha, shares)


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [a_signature(NAMED + 1), a_signature(NAMED, secret=9), bytes(48), b"x"],
    ids=["another round", "another key", "no point", "short"],
)
def test_a_wrong_signature_is_refused_whoever_leads(wrong, follows):
    run_state = named()
    manifest = the_next(run_state, NODES, drand=wrong, drand_next=200)

    with pytest.raises(MalformedMessage, match=f"drand round {NAMED}"):
        examine(a_round(run_state), (), manifest, follows=follows, wall_s=1590)


def test_leaving_it_out_is_for_who_leads_after_an_iteration_that_was_given_up():
    run_state = named()
    without = the_next(run_state, NODES, drand_next=200)
    examine(a_round(run_state), (), without, follows=False, wall_s=1590)
    with pytest.raises(MalformedMessage, match="which its parent named"):
        examine(a_round(run_state), (), without, follows=True, wall_s=1590)
    unnamed = the_next(run_state, NODES, drand=a_signature(NAMED))
    examine(a_round(run_state), (), unnamed, follows=False, wall_s=1590)
    with pytest.raises(MalformedMessage, match="names no drand round"):
        examine(a_round(run_state), (), unnamed, follows=True, wall_s=1590)


@pytest.mark.parametrize("number", [1, 101, 101 + 120])
@pytest.mark.parametrize("follows", [True, False])
def test_a_round_that_is_out_or_far_away_may_not_be_named(number, follows):
    manifest = the_next(a_start(), NODES, drand_next=number)

    with pytest.raises(MalformedMessage, match=f"names drand round {number}"):
        examine(a_round(a_start()), (), manifest, follows=follows, wall_s=NOW_S)


def test_a_run_without_a_network_takes_neither():
    run_state = the_start()
    with pytest.raises(MalformedMessage, match="in a run without them"):
        check_place(run_state, the_next(run_state, NODES, drand_next=NAMED))
    with pytest.raises(MalformedMessage, match="did not name"):
        check_place(run_state, the_next(run_state, NODES, drand=a_signature(NAMED)))
    check_place(run_state, the_next(run_state, NODES))


def test_a_signature_for_a_round_that_nobody_named_is_refused():
    run_state = a_start()
    with pytest.raises(MalformedMessage, match="did not name"):
        check_place(run_state, the_next(run_state, NODES, drand=a_signature(NAMED), drand_next=NAMED))


def test_a_leader_waits_for_a_round_to_come_and_gives_up_on_one_that_does_not():
    run_state = named()
    state = ready(run_state)
    out_s = 1309

    assert not is_held_up(state, 1 << 40, wall_s=out_s - 1)
    assert not is_held_up(state, 1 << 40, wall_s=out_s + 2)
    assert is_held_up(state, 1 << 40, wall_s=out_s + 60)
    assert may_propose(state, (), 1 << 40, follows=False)
    examine(
        a_round(run_state), (), manifest_of(state, (), AGGREGATE, wall_s=2000), follows=False, wall_s=2000
    )


def test_the_last_manifest_names_nothing():
    run_state = a_start()
    while run_state.round < run_state.spec.ordered.last_round:
        run_state = advance(run_state, the_next(run_state, NODES, drand_next=NAMED))
    state = after(run_state, *(a_reveal(name, run_state) for name in VERIFIERS))

    last = manifest_of(state, (), NO_DIGEST, wall_s=NOW_S)

    assert last.drand_next == 0 and run_state.round == run_state.spec.ordered.last_round
    examine(a_round(run_state), (), last, follows=False, wall_s=NOW_S)


def test_only_the_newest_rounds_are_kept():
    state = after(a_start(), *(DrandRound(number, b"%d" % number) for number in range(3 * KEPT)))

    assert sorted(state.drand) == list(range(2 * KEPT, 3 * KEPT))


def test_a_manifest_on_one_that_is_only_notarised_carries_what_that_one_named():
    run_state = a_start()
    parent = the_next(run_state, NODES, drand_next=NAMED)
    on_top = advance(run_state, parent)
    shares = [a_reveal(name, on_top) for name in VERIFIERS]
    state = after(run_state, DrandRound(NAMED, a_signature(NAMED)), *shares)

    manifest = manifest_of(state, (parent,), NO_DIGEST, wall_s=NOW_S)

    assert manifest.drand == a_signature(NAMED) and manifest.parent == digest(parent)
    examine(state, (parent,), manifest, follows=True, wall_s=NOW_S)


@pytest.mark.parametrize(("ahead_s", "words"), [(100, "all else is checked"), (200, "begins at")])
def test_a_verifier_does_not_begin_a_run_whose_network_has_no_round_to_name(monkeypatch, ahead_s, words):
    network = a_network(genesis_s=int(time.time()) + ahead_s)
    spec = a_spec(audit=replace(AUDIT, drand=network))
    keys = Keys(peer=a_peer_key("vera"), account=a_hot_key("account"), hot=a_hot_key("vera"))
    config = SimpleNamespace(limits=None, drand=("http://127.0.0.1:9/chain",))
    me = SimpleNamespace(spec=spec, keys=keys, config=config)

    def check_contracts(_me):
        raise ConfigError("all else is checked")

    monkeypatch.setattr(service, "open_participant", lambda _config: me)
    monkeypatch.setattr(service, "_check_contracts", check_contracts)

    with pytest.raises(ConfigError, match=words):
        trio.run(service.run_verifier, None)


@pytest.mark.parametrize("period_s", [1, 3, 30])
def test_an_honest_leaders_round_may_be_named_once_a_network_has_begun_and_not_before(period_s):
    for genesis_s in range(NOW_S - 90, NOW_S + 200):
        network = a_network(genesis_s, period_s)
        may = may_be_named(network, named_at(network, NOW_S), NOW_S)
        assert may == has_begun(network, NOW_S)


# ---- the client


def fetched(spec, urls, numbers, wait_s=20.0):
    """What a client gives for these numbers."""
    found = {}

    async def ask():
        client = DrandClient(spec, urls, lambda number, signature: found.update({number: signature}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            for number in numbers:
                client.want(number)
                client.want(number)
            with trio.move_on_after(wait_s):
                while set(found) != set(numbers):
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()

    trio.run(ask)
    return found


@pytest.mark.slow
def test_a_client_takes_the_round_from_whoever_has_it_and_lets_nobody_lie():
    with serving(NETWORK, lies=True) as liar, serving(NETWORK) as honest:
        found = fetched(NETWORK, ["http://127.0.0.1:1", liar, honest], [5, 6])

        assert found == {number: a_signature(number) for number in (5, 6)}
        assert fetched(NETWORK, [liar], [7], wait_s=1.0) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b'{"round": 5}', b'{"round": 5, "signature": 7}', b"[" * 100_000,
        b'{"round": 5, "signature": "zz"}', b'{"round": 5, "signature": "00"}', b"\xff",
        b'{"round": true, "signature": "%s"}' % (b"00" * 48),
        b'{"round": 6, "signature": "%s"}' % (b"00" * 48),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_refused(body):
    with pytest.raises(MalformedMessage):
        read_answer(body, 5)
