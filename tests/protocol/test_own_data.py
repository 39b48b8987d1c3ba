"""Data that only one node has: it binds itself to them once, before its first step, and to enough of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.participant.links import check_place
from assay.protocol.encoding.merkle import LEAVES_MAX
from assay.protocol.errors import MalformedMessage
from assay.protocol.membership import may_announce, may_attend, may_join
from assay.protocol.messages import NO_OWN_DATA, AttendanceKind, OwnData, SignedAttendance
from assay.protocol.params import DataSpec, RunSpec, Stratum, check_spec
from assay.protocol.run_state import RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST
from assay.testing import specs
from assay.testing.members import NODES, RUN_ID, a_digest, a_member, peer
from assay.testing.run import a_manifest, an_attendance
from assay.testing.specs import TEXT, a_rule, data_of

NODE, OTHER = NODES[:2]
OWN = OwnData(root=a_digest("root"), windows=300)
KIND = AttendanceKind.DATA
ALL = Stratum(tokens=len(TEXT), seats=2)


def strata(own: int, *public: int) -> DataSpec:
    """So many seats with data of their own, and public text for as many as these."""
    each = len(TEXT) // len(public)
    tokens = [each] * (len(public) - 1) + [len(TEXT) - each * (len(public) - 1)]
    shared = (Stratum(tokens=count, seats=seats) for count, seats in zip(tokens, public, strict=True))
    return data_of(TEXT, strata=(*(Stratum(tokens=0, seats=1),) * own, *shared))


def a_spec(own: int = 1, *public: int, **changes: Any) -> RunSpec:
    seats = changes.get("seats", len(NODES))
    return specs.a_spec(data=strata(own, *(public or (seats - own,))), rounds=20, **changes)


def began(own: int = 1, **changes: Any) -> RunState:
    return start(a_spec(own, **changes), RUN_ID)


def after(run_state: RunState, *said: SignedAttendance) -> RunState:
    """The state after a manifest without commits that carries these statements, as any verifier checks it."""
    manifest = a_manifest(run_state, nodes=[], attendance=said)
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def says(run_state: RunState, own: OwnData = OWN, node: Any = NODE) -> SignedAttendance:
    return an_attendance(run_state, node, KIND, own=own)


def test_a_node_may_train_from_the_round_after_it_is_bound_to_its_data():
    run_state = began()
    assert NODE not in run_state.active and OTHER in run_state.active
    assert run_state.unannounced == {NODE}

    bound = after(run_state, says(run_state))

    assert bound.nodes[NODE].own == OWN and NODE in bound.active and not bound.unannounced
    assert bound.nodes[OTHER].own == NO_OWN_DATA
    with pytest.raises(MalformedMessage, match="may not train"):
        check_place(run_state, a_manifest(run_state, nodes=[NODE]))


def test_a_run_whose_nodes_are_all_unbound_has_nobody_to_train():
    run_state = began(len(NODES))
    assert run_state.is_deserted
    said = [says(run_state, node=node) for node in NODES[:2]]
    assert set(after(run_state, *said).active) == set(NODES[:2])


def test_nobody_binds_itself_a_second_time():
    """Else it would choose its data after it has seen what is drawn."""
    run_state = began()
    bound = after(run_state, says(run_state))
    for own in (OWN, replace(OWN, root=a_digest("other root")), replace(OWN, windows=301)):
        assert not may_attend(bound, says(bound, own).attendance, 0)
        with pytest.raises(MalformedMessage, match="carries a DATA attendance"):
            after(bound, says(bound, own))


@pytest.mark.parametrize(
    ("own", "is_taken"),
    [
        (OWN, True),
        (replace(OWN, windows=1), False),
        (replace(OWN, windows=2), True),  # as many as one step takes
        (replace(OWN, windows=0), False),
        (replace(OWN, windows=LEAVES_MAX), True),
        (replace(OWN, windows=LEAVES_MAX + 1), False),
        (replace(OWN, root=NO_DIGEST), False),
        (NO_OWN_DATA, False),
    ],
)
def test_a_root_and_a_count_that_make_a_step_are_taken_and_no_others(own, is_taken):
    run_state = began()
    assert run_state.spec.most_windows_per_round == 2
    assert may_attend(run_state, says(run_state, own).attendance, 0) == is_taken


def test_a_large_step_needs_twice_as_many_windows_as_it_takes():
    run_state = began()
    large = replace(run_state, spec=replace(run_state.spec, rule=a_rule(sequences=1 << 13)))
    taken = [
        may_attend(large, says(large, replace(OWN, windows=count)).attendance, 0)
        for count in ((1 << 14) - 1, 1 << 14)
    ]
    assert taken == [False, True]


def test_a_node_that_brings_none_and_one_that_has_no_seat_bind_themselves_to_nothing():
    run_state = began()
    assert not may_attend(run_state, says(run_state, node=OTHER).attendance, 0)
    gone = replace(run_state.nodes[NODE], has_left=True)
    left = replace(run_state, nodes={**run_state.nodes, NODE: gone})
    assert not may_attend(left, says(left).attendance, 0)
    leaves = an_attendance(run_state, NODE, AttendanceKind.LEAVE, own=OWN)
    assert not may_attend(run_state, leaves.attendance, 0)  # what nothing binds is empty


def test_a_node_with_data_of_its_own_has_no_known_answer_tasks():
    run_state = began()
    asked = replace(run_state.spec, audit=replace(run_state.spec.audit, known_answer_count=1))
    asking = replace(run_state, spec=asked)
    assert [may_announce(asking, asking.nodes[node]) for node in (NODE, OTHER)] == [False, True]


# ---- who brings data


def test_the_first_named_nodes_bring_data_and_each_is_a_stratum_of_its_own():
    spec = a_spec(2)
    assert spec.bringing_nodes == NODES[:2]
    assert [spec.stratum_of(node) for node in NODES] == [0, 1, *[2] * (len(NODES) - 2)]


def test_who_joins_later_trains_on_public_data_and_finds_no_seat_where_there_are_none():
    spec = a_spec(2, len(NODES) - 2, 1, seats=len(NODES) + 1)
    strangers = [peer(f"stranger {number}") for number in range(200)]
    found = [spec.stratum_of(one) for one in strangers]
    assert set(found) == {2, 3} and 0 < found.count(3) / 200 < 0.6

    newcomer = a_member(strangers[0])
    full = began(len(NODES))
    banned = replace(full.nodes[NODES[-1]], fault_round=0)
    freed = replace(full, nodes={**full.nodes, NODES[-1]: banned})
    assert freed.free_seats == 1 and not may_join(freed, newcomer)
    mixed = began(1)
    freed = replace(mixed, nodes={**mixed.nodes, NODES[-1]: replace(mixed.nodes[NODES[-1]], fault_round=0)})
    assert may_join(freed, newcomer)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (data_of(TEXT, strata=(ALL, Stratum(tokens=0, seats=1))), "first"),
        (data_of(TEXT, strata=(Stratum(tokens=0, seats=2), replace(ALL, seats=1))), "one seat"),
        (strata(1, 3), "strata of 4 seats"),
    ],
)  # fmt: skip
def test_strata_that_say_something_else_are_refused(data, reason):
    spec = specs.a_spec()
    assert spec.seats == 3
    with pytest.raises(ValueError, match=reason):
        check_spec(replace(spec, data=data))


def test_who_brings_data_is_named_and_has_an_opening_that_shows_them():
    spec = a_spec(3, seats=3)
    with pytest.raises(ValueError, match="3 seats with data of their own, and 2 nodes named"):
        check_spec(replace(spec, nodes=spec.nodes[:2], least_nodes=2))
    shares = (*spec.data.strata[:3], Stratum(tokens=1 << 25, seats=0))
    much = replace(spec.data, tokens=1 << 25, strata=shares)
    with pytest.raises(ValueError, match="takes 131072 windows, at most 65536"):
        check_spec(replace(spec, rule=a_rule(sequences=1 << 17), data=much))
    wide = replace(spec, compute=replace(spec.compute, beta_micro=10**5))
    with pytest.raises(ValueError, match="DPO and GRPO"):
        check_spec(wide)
