"""A node with data of its own: it binds itself before it trains, and to what it has from then on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.node.seat import announce_data
from assay.node.service import check_bound, own_data_of
from assay.protocol.errors import ConfigError
from assay.protocol.identity import verify
from assay.protocol.messages import NO_OWN_DATA, AttendanceKind, OwnData, SignedAttendance
from assay.protocol.params import Stratum
from assay.protocol.run_state import start
from assay.testing.members import DOMAIN, NODES, RUN_ID, a_digest, a_peer_key, name_of
from assay.testing.specs import TEXT, a_data_folder, a_spec, data_of

SPEC = a_spec(
    data=data_of(TEXT, strata=(Stratum(tokens=0, seats=1), Stratum(tokens=len(TEXT), seats=2))), rounds=20
)
NODE, OTHER = NODES[:2]
OWN = OwnData(root=a_digest("root"), windows=300)


def a_participant(node: Any, own_data: Any = None) -> Any:
    return SimpleNamespace(
        me=node, run_id=RUN_ID, spec=SPEC, domain=DOMAIN, config=SimpleNamespace(own_data=own_data),
        keys=SimpleNamespace(peer=a_peer_key(name_of(node))),
    )  # fmt: skip


def test_a_node_says_what_binds_it_until_the_chain_has_it():
    run_state, said = start(SPEC, RUN_ID), list[SignedAttendance]()
    follower: Any = SimpleNamespace(run_state=run_state)

    async def say(message: SignedAttendance) -> None:
        said.append(message)
        if len(said) == 2:  # the first was lost
            record = replace(run_state.nodes[NODE], own=OWN)
            follower.run_state = replace(run_state, nodes={**run_state.nodes, NODE: record})

    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(announce_data, a_participant(NODE), follower, OWN, say, clock=clock)

    assert [(one.attendance.kind, one.attendance.own) for one in said] == [(AttendanceKind.DATA, OWN)] * 2
    verify(NODE, DOMAIN, said[0].attendance, said[0].signature)
    trio.run(announce_data, a_participant(OTHER), follower, OWN, say)  # brings none
    assert len(said) == 2


def test_a_node_that_is_bound_to_other_data_than_it_has_stops():
    """Whatever it would train on is a lie, and would cost it its lot."""
    run_state = start(SPEC, RUN_ID)
    check_bound(run_state, NODE, OWN)  # not bound yet
    record = replace(run_state.nodes[NODE], own=OWN)
    bound = replace(run_state, nodes={**run_state.nodes, NODE: record})
    check_bound(bound, NODE, OWN)
    for now in (replace(OWN, windows=301), replace(OWN, root=a_digest("other")), NO_OWN_DATA):
        with pytest.raises(ConfigError, match="bound itself to 300 under"):
            check_bound(bound, NODE, now)


def test_a_node_reads_its_own_data_only_where_the_run_asks_for_them(tmp_path):
    with pytest.raises(ConfigError, match="own_data: our seat in this run"):
        own_data_of(a_participant(NODE))
    assert own_data_of(a_participant(OTHER)) is None

    folder = a_data_folder(tmp_path)
    first, again = (own_data_of(a_participant(NODE, folder)) for _ in range(2))
    assert first is not None and again is not None
    assert first.bound == again.bound and first.bound.windows == len(TEXT) // 17
