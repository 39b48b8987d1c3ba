"""Openings come from strangers: nothing they announce may cost us a blob, memory or a verdict."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.network.blob_store import DiskBlobs
from assay.participant.config import may_read
from assay.participant.opening_keeper import OpeningKeeper
from assay.participant.openings import KEPT
from assay.participant.store import Store
from assay.protocol.auditing.audits import REFERENCE, Audit, AuditStatus, CommittedVerdict, may_commit_verdict
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault, Unavailable
from assay.protocol.messages import OpeningNotice, Outcome, SketchOpening
from assay.protocol.openings import Opening
from assay.protocol.run_state import StepId, start
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.testing import members
from assay.testing.members import DOMAIN, RUN_ID, a_peer_key
from assay.testing.messages import a_sketch_opening, a_verdict, sketch_of
from assay.testing.run import a_network, a_start, always, grow
from assay.testing.signed import NODES, a_member, a_spec
from assay.verifier.audit.messages import Examine, Examined, Finding
from assay.verifier.service.audit_runner import AuditRunner, is_due

NODE, VERIFIER = a_member(NODES[0]).peer, members.VERIFIERS[0]


def an_audit_runner(folder: Path, round_id: int = 30) -> Any:
    """A bench at some round, with a real disk; it never gets to use the network here."""
    spec = a_spec()
    me = SimpleNamespace(spec=spec, blobs=DiskBlobs(folder, bytes_max=1 << 20))
    follower = SimpleNamespace(run_state=replace(start(spec, RUN_ID), round=RoundId(round_id)))
    nothing: Any = None
    return AuditRunner(me, nothing, follower, nothing, nothing, nothing, nothing, nothing)  # type: ignore[arg-type]


def an_announcement(round_id: int, data: bytes = b"opening") -> OpeningNotice:
    return OpeningNotice(round=RoundId(round_id), opening=blob_digest(data), opening_bytes=len(data))


def test_an_announced_digest_never_removes_a_blob_that_is_something_else(tmp_path: Path) -> None:
    audit_runner = an_audit_runner(tmp_path)
    aggregate = audit_runner._me.blobs.put(b"an aggregate that everybody needs")
    audit_runner.opened(NODE, OpeningNotice(round=RoundId(25), opening=aggregate, opening_bytes=33))

    audit_runner._forget_closed(audit_runner._follower.run_state)

    assert audit_runner._me.blobs.load(aggregate)
    assert not audit_runner._openings


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


@pytest.mark.parametrize(
    ("outcome", "exec_class", "earlier", "said"),
    [
        (Outcome.MATCH, REFERENCE, False, True),
        (Outcome.MATCH, Digest(b"c" * 32), True, False),  # judged before the other committed
        (Outcome.WITHHELD, NO_DIGEST, True, True),
        (Outcome.WITHHELD, NO_DIGEST, False, False),
    ],
)
def test_a_commitment_names_the_kind_of_class_and_not_the_outcome(
    tmp_path: Path, outcome: Outcome, exec_class: Digest, earlier: bool, said: bool
) -> None:
    runner, audit = an_audit_runner(tmp_path), an_open_audit()
    runner._me.spec = replace(runner._me.spec, audit=replace(runner._me.spec.audit, limits=Digest(b"l" * 32)))
    runner._me.keys, runner._me.domain = SimpleNamespace(peer=a_peer_key("vera")), DOMAIN
    there = CommittedVerdict(audit.order[0], Digest(bytes(32)), earlier, 3)
    audit = replace(audit, commitments=(there,))
    runner._follower.run_state = replace(
        runner._follower.run_state, audits={(audit.round, audit.node): audit}
    )
    verdict = replace(a_verdict(audit, audit.order[1], outcome), exec_class=exec_class)

    signed = runner._commitment(verdict, audit)

    assert signed.commitment.in_reference is said
    assert signed.commitment.verdict == digest(verdict)


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


@pytest.mark.parametrize("patience_s", [0.5, 2.0, 60.0])
@pytest.mark.parametrize("says", ["in time", "nothing", "nothing, and pushes it"])
def test_a_node_is_asked_for_an_opening_that_a_restart_lost_while_its_answer_counts(
    tmp_path: Path, patience_s: float, says: str
) -> None:
    """Also where audits have to be quick; and a node that does not answer delays no verdict."""
    audit, runner = an_open_audit(), an_audit_runner(tmp_path)
    notice = an_announcement(int(audit.round))
    runner._follower.run_state = grow(a_start(), 2)

    async def main() -> tuple[OpeningNotice | None, float]:
        async def request(node: PeerId, method: str, _body: bytes, *, timeout_s: float) -> bytes:
            assert (node, method) == (audit.node, "open") and 0 < timeout_s <= patience_s
            if says == "in time":
                return encode(notice)
            if says == "nothing, and pushes it":
                await trio.sleep(timeout_s / 2)
                runner.opened(audit.node, notice)
            await trio.sleep(timeout_s)
            raise Unavailable("no answer")

        runner._host, runner._me.me = SimpleNamespace(request=request), VERIFIER
        async with trio.open_nursery() as runner._nursery:
            found = await runner._next_opening(audit, set(), trio.current_time() + patience_s)
            return found, trio.current_time()

    found, after_s = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    if says == "nothing":
        assert found is None and after_s == pytest.approx(patience_s)
    else:
        assert found == notice and after_s < patience_s


OWN, TRUE, BOGUS = b"the node's own opening", b"what an honest accuser got of it", Digest(b"\x66" * 32)


def a_find(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[Digest, ...],
    notices: dict[float, OpeningNotice],
    fetch_s: dict[bytes, float],
) -> tuple[Outcome, Digest, float]:
    """What a committee member finds, the opening that it names, and when.

    Args:
        folder: Of its blobs.
        monkeypatch: Of the test.
        named: Openings that the verdicts which opened the dispute name.
        notices: What the node announces, by when.
        fetch_s: How long each opening that somebody serves takes to fetch.
    """
    step, network = (RoundId(0), members.NODES[0]), a_network(audit_rounds=6, dispute_rounds=6)
    network.grow(2)
    for accuser, name in zip(network.run_state.audits[step].order, named, strict=False):
        network.minds[accuser] = always(Outcome.MISMATCH, opening=name, opening_bytes=9)
    while (audit := network.run_state.audits[step]).ruling is not AuditStatus.DISPUTED:
        network.grow()
    adverse = [replace(audit.verdicts[0], opening=name, opening_bytes=9) for name in named]
    audit = replace(audit, verdicts=tuple(adverse))
    runner = an_audit_runner(folder)
    runner._follower.run_state = replace(network.run_state, audits={step: audit})
    me = runner._me
    me.keys, me.domain, me.run_id = SimpleNamespace(peer=a_peer_key("vera")), DOMAIN, RUN_ID
    me.me, me.verifiers = members.VERIFIERS[3], members.VERIFIERS[:3]
    served = {blob_digest(body): body for body in fetch_s}

    async def nothing(*_: object) -> bytes:
        return b""

    async def request(*_: object, timeout_s: float) -> bytes:
        await trio.sleep(timeout_s)
        raise Unavailable("no answer")

    async def fetch(
        name: Digest, *, holders: list[PeerId], deadline_s: float, at_once: int, **_: object
    ) -> bytes:
        if name not in served:
            raise Unavailable("no holder has it")
        is_own = runner._openings.get(step) is not None and runner._openings[step].opening == name
        assert not is_own or name in named or (holders[0], at_once) == (step[1], 1)
        with trio.move_on_after(deadline_s):
            await trio.sleep(fetch_s[served[name]])
            return served[name]
        raise Unavailable("not in time")

    async def put(_commit: object, body: bytes) -> None:
        me.blobs.put(body)

    async def call(*_: object) -> Examined:
        return Examined(finding=Finding(Outcome.MATCH, NO_DIGEST, 0, 0), exec_class=audit.commit.exec_class)

    runner._get_update = nothing
    runner._state_sync = SimpleNamespace(reach=nothing, child=SimpleNamespace(call=call))
    runner._keeper = SimpleNamespace(judged=lambda *_: None, put=put)
    runner._host = SimpleNamespace(request=request, fetch=fetch, connected=lambda: {*me.verifiers, step[1]})
    runner._driver = SimpleNamespace(round=SimpleNamespace(sketch_openings={step: a_sketch_opening(audit)}))
    module = "assay.verifier.service.audit_runner"
    monkeypatch.setattr(f"{module}.decode_contribution", lambda *_: SimpleNamespace(blocks_B=[]))

    async def announce(after_s: float, notice: OpeningNotice) -> None:
        await trio.sleep(after_s)
        runner.opened(step[1], notice)

    async def main() -> tuple[Outcome, Digest, float]:
        async with trio.open_nursery() as runner._nursery:
            for after_s, notice in notices.items():
                runner._nursery.start_soon(announce, after_s, notice)
            began = trio.current_time()
            verdict = (await runner._find(audit)).verdict
            took_s = trio.current_time() - began
            runner._nursery.cancel_scope.cancel()
        assert not runner._fetching
        return verdict.outcome, verdict.opening, took_s

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("named", [(), (BOGUS,), (Digest(b"\x67" * 32), BOGUS)])
@pytest.mark.parametrize(("notice_s", "takes_s"), [(0.1, 2.9), (1.4, 2.9), (1.7, 2.7), (2.9, 1.5)])
def test_openings_that_nobody_serves_take_no_time_from_the_nodes_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[Digest, ...],
    notice_s: float,
    takes_s: float,
) -> None:
    """A lying auditor names one, and a member without the node's notice yet must not wait for it.

    An opening has 3 s here, in a dispute 4.5 s if its notice is late.
    """
    names = named or (NO_DIGEST,)
    found = a_find(tmp_path, monkeypatch, names, {notice_s: an_announcement(0, OWN)}, {OWN: takes_s})

    assert found == (Outcome.MATCH, blob_digest(OWN), pytest.approx(notice_s + takes_s))


def test_what_an_accuser_names_and_is_held_up_has_the_nodes_own_time_once_the_node_announces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, notices = (BOGUS, blob_digest(OWN)), {2.5: an_announcement(0, OWN)}
    found = a_find(tmp_path, monkeypatch, named, notices, {OWN: 1.2})

    assert found == (Outcome.MATCH, blob_digest(OWN), pytest.approx(3.25 + 1.2))


def test_what_an_accuser_names_is_judged_where_the_node_is_silent_though_another_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = a_find(tmp_path, monkeypatch, (BOGUS, blob_digest(TRUE)), {}, {TRUE: 0.6})

    assert found == (Outcome.MATCH, blob_digest(TRUE), pytest.approx(1.5 + 0.75 + 0.6))


def test_a_node_that_announces_what_it_does_not_serve_keeps_no_accusers_opening_from_being_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    false = {1.6 + 0.01 * number: an_announcement(0, b"%d" % number) for number in range(9)}
    found = a_find(tmp_path, monkeypatch, (blob_digest(TRUE),), false, {TRUE: 0.9})

    assert found[:2] == (Outcome.MATCH, blob_digest(TRUE))


def test_an_event_loop_that_comes_to_asking_too_late_ends_nothing(tmp_path: Path) -> None:
    runner = an_audit_runner(tmp_path)

    async def request(*_: object, timeout_s: float) -> bytes:
        with trio.fail_after(timeout_s):  # refuses less than nothing
            return b""

    runner._host, runner._me.me = SimpleNamespace(request=request), VERIFIER
    trio.run(runner._ask, an_open_audit(), -1e9)


RULES = replace(a_spec().audit, audit_rounds=10, takeover_rounds=2)


def due(audit: Audit, at: int, arrived: frozenset[int] = frozenset()) -> list[int]:
    """Places in the order of those who recompute now, of those who may commit."""
    there = {audit.order[place] for place in arrived}
    return [
        place
        for place, verifier in enumerate(audit.order)
        if may_commit_verdict(RULES, audit, verifier, at) and is_due(RULES, audit, verifier, at, there)
    ]


def an_open_audit() -> Audit:
    """Of a step of round 0, with nothing said about it."""
    audit = grow(a_start(), 2).audits[(0, members.NODES[0])]
    assert (audit.wanted, audit.commitments, len(audit.order)) == (1, (), 4)
    return audit


def committed(audit: Audit, *places: int, wanted: int, at: int = 3) -> Audit:
    commitments = tuple(
        CommittedVerdict(audit.order[place], Digest(bytes(32)), False, at) for place in places
    )
    return replace(audit, commitments=commitments, auditors_wanted=wanted)


def test_the_first_auditor_recomputes_at_once_and_the_next_take_over_in_their_time() -> None:
    audit = an_open_audit()

    found = {at: due(audit, at) for at in range(2, 10)}

    assert found == {
        2: [0],
        3: [0],
        4: [0, 1],
        5: [0, 1],
        6: [0, 1, 2],
        7: [0, 1, 2],
        8: [0, 1, 2, 3],
        9: [0, 1, 2, 3],
    }


def test_only_one_more_recomputes_when_a_second_auditor_is_wanted() -> None:
    audit = committed(an_open_audit(), 0, wanted=2)
    may = [place for place in range(4) if may_commit_verdict(RULES, audit, audit.order[place], 5)]

    assert may == [1, 2]  # by the rule, for the first is late by its clock
    assert {at: due(audit, at) for at in (5, 6, 7)} == {5: [1], 6: [1], 7: [1, 2]}


def test_nobody_recomputes_what_has_arrived_but_is_in_no_manifest_until_the_last_chance() -> None:
    audit = an_open_audit()

    assert [due(audit, at, frozenset({0})) for at in (4, 8)] == [[0], [0]]  # its author repeats it
    assert due(audit, 9, frozenset({0})) == [0, 1, 2, 3]


def test_a_missing_commitment_is_everybodys_work_in_the_last_manifests_that_can_carry_it() -> None:
    audit = committed(an_open_audit(), 0, wanted=2, at=5)

    assert due(audit, 7) == [1]
    assert due(audit, 8) == due(audit, 9) == [1, 2, 3]  # of two leaders one is honest


def test_in_a_dispute_nobody_waits_for_anybody() -> None:
    audit = a_disputed_audit()
    places = [place for place in range(4) if may_commit_verdict(a_spec().audit, audit, audit.order[place], 4)]

    assert places and all(is_due(a_spec().audit, audit, audit.order[place], 4, ()) for place in places)


@pytest.mark.parametrize("outcome", [Outcome.INCONCLUSIVE, Outcome.MATCH])
def test_what_was_here_and_was_not_looked_into_is_not_recorded_as_an_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """A node may announce the digest of an aggregate, which whoever cannot judge the step never reads."""
    runner, audit, judged = an_audit_runner(tmp_path), an_open_audit(), list[Digest]()
    aggregate = runner._me.blobs.put(b"an aggregate that everybody needs")
    notice = OpeningNotice(round=audit.round, opening=aggregate, opening_bytes=33)
    runner._openings[(audit.round, audit.node)] = notice
    runner._keeper = SimpleNamespace(judged=lambda _commit, opening: judged.append(opening))
    runner._me.keys, runner._me.domain = SimpleNamespace(peer=a_peer_key("vera")), DOMAIN
    runner._me.me, runner._me.run_id, runner._me.verifiers = VERIFIER, RUN_ID, ()
    runner._follower.run_state = grow(a_start(), 2)

    async def update(*_: object) -> bytes:
        return b""

    async def reach(_round: int) -> None:
        pass

    async def call(request: Examine, *_: object) -> Examined:
        assert (request.commit, request.drawn_by) == (audit.commit, audit.seed)
        assert audit.seed != NO_DIGEST
        return Examined(finding=Finding(outcome, NO_DIGEST, 0, 0), exec_class=NO_DIGEST)

    runner._get_update = update
    runner._state_sync = SimpleNamespace(reach=reach, child=SimpleNamespace(call=call))
    module = "assay.verifier.service.audit_runner"
    monkeypatch.setattr(f"{module}.decode_contribution", lambda *_: SimpleNamespace(blocks_B=[]))

    trio.run(runner._find, audit, clock=trio.testing.MockClock(autojump_threshold=0))

    assert judged == ([] if outcome is Outcome.INCONCLUSIVE else [aggregate])


@pytest.mark.parametrize("error", [None, Unavailable("stopped"), MalformedMessage("does not open it")])
def test_what_shows_data_that_only_a_node_has_is_served_to_verifiers_alone_while_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AssayError | None
) -> None:
    """An earlier auditor's verdict may have told everybody the opening's digest."""
    runner, audit = an_audit_runner(tmp_path / "blobs"), an_open_audit()
    me, commit, readers = runner._me, audit.commit, list[bool]()
    body = encode(
        Opening(
            run_id=commit.run_id, round=commit.round, node=commit.node, blocks=(),
            before=b"", after=b"", paths_before=(), paths_after=(),
        )
    )  # fmt: skip
    name = blob_digest(body)
    monkeypatch.setattr(type(me.spec), "bringing_nodes", (audit.node,))
    monkeypatch.setattr(type(me.spec), "brings_data", lambda _spec, node: node == audit.node)
    me.store, me.me, me.verifiers = Store(tmp_path / "store.db"), VERIFIER, ()
    runner._keeper = OpeningKeeper(me.store, me.blobs, bytes_max=lambda: 1 << 20, opening_bytes_max=1 << 20)
    runner._openings[(audit.round, audit.node)] = an_announcement(int(audit.round), body)
    runner._follower.run_state = grow(a_start(), 2)
    me.keys, me.domain, me.run_id = SimpleNamespace(peer=a_peer_key("vera")), DOMAIN, RUN_ID

    def look() -> None:
        assert may_read(me, me.spec.seat_peers[0], name)
        readers.append(me.blobs.size(name) is not None and may_read(me, members.NODES[1], name))

    async def nothing(*_: object) -> bytes:
        return b""

    async def fetched(*_: object) -> bytes:
        return body

    async def call(*_: object) -> Examined:
        look()
        if error is not None:
            raise error
        return Examined(finding=Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0), exec_class=NO_DIGEST)

    runner._get_update = nothing
    runner._ask = nothing
    runner._state_sync = SimpleNamespace(reach=nothing, child=SimpleNamespace(call=call))
    module = "assay.verifier.service.audit_runner"
    monkeypatch.setattr(f"{module}.decode_contribution", lambda *_: SimpleNamespace(blocks_B=[]))
    monkeypatch.setattr(f"{module}.fetch_blob", fetched)

    async def find() -> None:
        async with trio.open_nursery() as runner._nursery:
            with suppress(Unavailable):
                await runner._find(audit)
            look()

    trio.run(find, clock=trio.testing.MockClock(autojump_threshold=0))

    assert readers == [False, False]
    is_discarded = isinstance(error, MalformedMessage)
    assert (me.blobs.size(name) is None) == is_discarded == (not me.store.values(KEPT))


@pytest.mark.parametrize(
    ("took_s", "tokens_of", "said"),
    [
        (1.5, "most", [1.5]),
        (0.9, "most", []),
        (0.4, "least", [1.6]),
        (0.2, "least", []),
    ],
)
def test_a_verifier_that_cannot_repeat_the_largest_steps_in_time_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, tokens_of: str, said: list[float]
) -> None:
    runner, found = an_audit_runner(tmp_path), list[float]()
    spec = a_spec()
    local = replace(spec.rule.local, sequences_max=4 * spec.rule.local.sequences)
    timing = replace(spec.timing, collect_ms=1000)
    runner._me.spec = spec = replace(spec, rule=replace(spec.rule, local=local), timing=timing)
    tokens = spec.most_tokens_per_step if tokens_of == "most" else spec.tokens_per_step
    commit = replace(an_open_audit().commit, tokens=tokens)
    log = SimpleNamespace(warning=lambda _text, extra: found.append(extra["seconds"]))
    monkeypatch.setattr("assay.verifier.service.audit_runner.log", log)

    for _ in range(2):
        runner._tell_pace(commit, took_s)

    assert found == said


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_audit_that_cannot_be_done_is_a_warning_only_while_it_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_ended: bool
) -> None:
    """Once it has ended its opening may be deleted, under the hands of whoever reads it late."""
    runner, audit, left = an_audit_runner(tmp_path), an_open_audit(), [True, False]

    async def find(_audit: Audit) -> None:
        raise Unavailable("opening: no such file")

    runner._kept, runner._find = lambda _audit: None, find
    runner._is_wanted = lambda _audit, _task: not has_ended and left.pop(0)
    trio.run(runner._bind, audit, "task", clock=trio.testing.MockClock(autojump_threshold=0))

    assert ("audit not done" in caplog.text) is not has_ended
