"""Openings come from strangers: nothing they announce may cost us a blob, memory or a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.network.blob_store import DiskBlobs
from assay.protocol.audits import Audit, AuditStatus
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import PeerFault
from assay.protocol.messages import OpeningNotice, Outcome, SketchOpening
from assay.protocol.state_transition import StepId, start
from assay.protocol.types import Digest, PeerId, RoundId
from assay.testing import members
from assay.testing.members import RUN_ID
from assay.testing.messages import a_sketch_opening, sketch_of
from assay.testing.run import a_start, grow
from assay.testing.signed import NODES, a_member, a_spec
from assay.verifier.service.audit_runner import AuditRunner

NODE = a_member(NODES[0]).peer


def an_audit_runner(folder: Path, round_id: int = 30) -> Any:
    """A bench at some round, with a real disk; it never gets to use the network here."""
    spec = a_spec()
    me = SimpleNamespace(spec=spec, blobs=DiskBlobs(folder, bytes_max=1 << 20))
    follower = SimpleNamespace(run_state=replace(start(spec, RUN_ID), round=RoundId(round_id)))
    nothing: Any = None
    return AuditRunner(me, nothing, follower, nothing, nothing, nothing, nothing)  # type: ignore[arg-type]


def an_announcement(round_id: int, data: bytes = b"opening") -> OpeningNotice:
    return OpeningNotice(round=RoundId(round_id), opening=blob_digest(data), opening_bytes=len(data))


def test_an_announced_digest_never_removes_a_blob_that_is_something_else(tmp_path: Path) -> None:
    audit_runner = an_audit_runner(tmp_path)
    aggregate = audit_runner._me.blobs.put(b"an aggregate that everybody needs")
    audit_runner.opened(NODE, OpeningNotice(round=RoundId(25), opening=aggregate, opening_bytes=33))

    audit_runner._forget_closed(audit_runner._follower.run_state)

    assert audit_runner._me.blobs.load(aggregate)
    assert not audit_runner._openings


def test_what_we_stored_as_an_opening_goes_when_its_audit_is_over(tmp_path: Path) -> None:
    audit_runner = an_audit_runner(tmp_path)
    name = audit_runner._me.blobs.put(b"opening")
    audit_runner._stored[(RoundId(25), NODE)] = name

    audit_runner._forget_closed(audit_runner._follower.run_state)

    assert audit_runner._me.blobs.size(name) is None


def test_only_nodes_of_the_run_announce_openings(tmp_path: Path) -> None:
    with pytest.raises(PeerFault, match="no node of this run"):
        an_audit_runner(tmp_path).opened(PeerId(b"s" * 32), an_announcement(30))


@pytest.mark.parametrize("round_id", [0, 20, 31, 2**40])
def test_steps_that_cannot_be_drawn_now_are_not_remembered(tmp_path: Path, round_id: int) -> None:
    audit_runner = an_audit_runner(tmp_path)
    with pytest.raises(PeerFault, match="opens a step of round"):
        audit_runner.opened(NODE, an_announcement(round_id))
    assert not audit_runner._openings


def test_a_node_that_announces_again_and_again_takes_one_place(tmp_path: Path) -> None:
    audit_runner = an_audit_runner(tmp_path)
    for number in range(1000):
        audit_runner.opened(NODE, an_announcement(30, b"%d" % number))
    assert len(audit_runner._openings) == 1


def a_disputed_audit() -> Audit:
    run_state = grow(a_start(), 2)
    step = (0, members.NODES[0])
    accuser = run_state.audits[step].order[0]
    return grow(run_state, 3, {step: {accuser: Outcome.MISMATCH}}, mute=[step[1]]).audits[step]


def test_a_committee_member_judges_by_the_sketch_that_the_node_shows_it_and_without_one_by_none(
    tmp_path: Path,
) -> None:
    audit, audit_runner = a_disputed_audit(), an_audit_runner(tmp_path)
    shown: dict[StepId, SketchOpening] = {}
    audit_runner._driver = SimpleNamespace(round=SimpleNamespace(sketch_openings=shown))
    assert audit.ruling is AuditStatus.DISPUTED

    async def sketch() -> Digest | None:
        return await audit_runner._sketch(audit, trio.current_time() + 5)

    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(sketch, clock=clock) is None
    shown[(audit.round, audit.node)] = a_sketch_opening(audit)
    assert trio.run(sketch, clock=clock) == sketch_of(audit.round, audit.node)
