"""Track records: trust that was earned in another run counts as far as honest verifiers vouch for it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.auditing.draws import clean_at_floor
from assay.protocol.membership import no_track_record
from assay.protocol.params import PPM
from assay.protocol.run_state import RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.testing.members import NODES, RUN_ID, VERIFIERS, a_digest, peers
from assay.testing.messages import next_commit
from assay.testing.run import a_manifest, a_spec, a_start, grow
from tests.protocol.test_absence import HONEST, absent
from tests.protocol.test_discharge import FALSE, NODE, OTHER, UNSETTLED, changed, left
from tests.protocol.test_membership import NEW, chosen, extended, votes

CLASS, ANOTHER = a_digest("class"), a_digest("another class")  # `a_commit` is of the first
AUDIT = {"probation": 16, "floor_ppm": 50_000}
AT_FLOOR = 320
Vote = tuple[Digest, int]


def a_run(verifiers: tuple[PeerId, ...] = VERIFIERS) -> RunState:
    return start(replace(a_spec(verifiers=verifiers, **AUDIT), seats=len(NODES) + 1), RUN_ID)


def joined(run_state: RunState, said: Mapping[PeerId, Vote]) -> RunState:
    """The state once a newcomer has joined, for which each of these verifiers says this."""
    every = [
        vote
        for verifier, (exec_class, clean) in said.items()
        for vote in votes(run_state, NEW[0], (verifier,), exec_class=exec_class, clean=clean)
    ]
    return extended(run_state, admissions=chosen(run_state, every))


def carried(run_state: RunState) -> Vote:
    record = run_state.nodes[NEW[0].peer]
    return record.exec_class, record.clean


def all_say(exec_class: Digest, clean: int) -> RunState:
    return joined(a_run(), dict.fromkeys(VERIFIERS, (exec_class, clean)))


def test_a_node_with_a_good_track_record_is_audited_at_the_floors_rate_at_once():
    assert clean_at_floor(a_run().spec.audit) == AT_FLOOR
    assert all_say(CLASS, AT_FLOOR).rate_ppm(NEW[0].peer) == AUDIT["floor_ppm"]
    assert all_say(CLASS, AT_FLOOR - 1).rate_ppm(NEW[0].peer) == PPM * 16 // (AT_FLOOR - 1)
    assert all_say(CLASS, 15).rate_ppm(NEW[0].peer) == PPM
    assert all_say(NO_DIGEST, 0).rate_ppm(NEW[0].peer) == PPM


def test_more_than_leads_to_the_floor_counts_nothing():
    assert carried(all_say(CLASS, 1 << 60)) == (CLASS, AT_FLOOR)


@pytest.mark.parametrize("count", [4, 5, 6, 7])
def test_f_lying_verifiers_neither_raise_nor_destroy_it(count: int):
    """Wherever they are among those whose votes the manifest carries, and whatever they say."""
    verifiers = peers("verifier", count)
    f, run_state = faults_tolerated(count), a_run(verifiers)
    lies = ((CLASS, 0), (CLASS, 100), (ANOTHER, 1 << 60), (CLASS, 1 << 60), (NO_DIGEST, 0), (NO_DIGEST, 99))
    voting = verifiers[: quorum(count)]
    for liars in itertools.combinations(voting, f):
        for lie in lies:
            for true in ((CLASS, 40), (NO_DIGEST, 0)):
                said = {**dict.fromkeys(voting, true), **dict.fromkeys(liars, lie)}
                assert carried(joined(run_state, said)) == true


def test_what_no_more_than_f_found_counts_nothing():
    first, *others = VERIFIERS
    said: dict[PeerId, Vote] = {first: (CLASS, 40), **dict.fromkeys(others, (NO_DIGEST, 0))}
    assert carried(joined(a_run(), said)) == (NO_DIGEST, 0)
    assert carried(joined(a_run(), {**said, others[0]: (ANOTHER, 40)})) == (NO_DIGEST, 0)
    assert carried(joined(a_run(), {**said, others[0]: (CLASS, 30)})) == (CLASS, 30)


def test_another_machine_than_earned_it_is_on_probation_before_its_first_step_is_drawn():
    node = NEW[0].peer
    for exec_class, rate_ppm in ((CLASS, AUDIT["floor_ppm"]), (ANOTHER, PPM)):
        run_state = all_say(CLASS, AT_FLOOR)
        commit = next_commit(run_state, node, exec_class=exec_class)
        run_state = advance(run_state, a_manifest(run_state, commits=[commit]))
        assert run_state.rate_ppm(node) == rate_ppm
        assert run_state.nodes[node].exec_class == exec_class


# ---- what verifiers sign


def test_at_the_end_of_a_run_each_node_gets_one_and_what_it_states_has_been_final():
    run_state = grow(a_start(), 12, HONEST)
    while not run_state.is_complete:
        assert no_track_record(run_state, NODE) is not None
        run_state = grow(run_state, 1, HONEST)
    for node in NODES:
        assert no_track_record(run_state, node) is None
        assert run_state.nodes[node].clean == 12


def test_a_node_that_left_gets_one_once_nothing_of_it_can_be_drawn_and_it_stays_the_same():
    run_state = left(grow(a_start(rounds=40), 1, HONEST))
    assert no_track_record(run_state, NODE) == UNSETTLED
    assert no_track_record(run_state, OTHER) == "it has not left"
    while no_track_record(run_state, NODE) is not None:
        run_state = grow(run_state, 1, HONEST)
    first = run_state.nodes[NODE]
    for _ in range(4):
        run_state = grow(run_state, 1, HONEST)
        assert no_track_record(run_state, NODE) is None
        assert (run_state.nodes[NODE].clean, run_state.nodes[NODE].heard_s) == (first.clean, first.heard_s)
    assert no_track_record(run_state, PeerId(b"?" * 32)) == "it never had a seat"


@pytest.mark.parametrize("change", [{"accepted": 0}, {"clean": 0}, {"is_suspect": True}], ids=str)
def test_who_did_nothing_passed_nothing_or_is_suspect_gets_none(change: Mapping[str, object]):
    run_state = grow(a_start(), 12, HONEST)
    while not run_state.is_complete:
        run_state = grow(run_state, 1, HONEST)
    assert "no step of it was accepted" in str(no_track_record(changed(run_state, **change), NODE))


def test_a_proven_fault_and_an_overdue_opening_give_none():
    run_state = grow(a_start(), 4, FALSE)
    while not run_state.nodes[NODE].banned:
        run_state = grow(run_state, 1, FALSE)
    for _ in range(20):
        assert no_track_record(run_state, NODE) is not None
        run_state = grow(run_state, 1, FALSE)
        if run_state.is_complete:
            break
    assert no_track_record(run_state, NODE) == "its fault in round 1 is proven"
    over = replace(absent(), training_rounds=0)
    assert no_track_record(over, NODE) == UNSETTLED
