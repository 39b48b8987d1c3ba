"""Juror: fetches the evidence from the accused itself, within bounds of time and bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from nacl.signing import SigningKey

from assay.chain.commit_statement import evm_address
from assay.chain.state import DefencePhase
from assay.network.blob_store import DiskBlobs
from assay.participant.evidence_server import EvidenceServer, jurors_of
from assay.participant.files.evidence import evidence_files, evidence_path, notice_path
from assay.participant.files.record import Role
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault, Unavailable
from assay.protocol.identity import Domain, sign
from assay.protocol.messages import EvidenceNotice, EvidenceRequest, SignedEvidenceNotice
from assay.protocol.types import Address, Digest, PeerId
from assay.testing.specs import a_spec
from assay.verifier.appeal import fetch
from assay.verifier.appeal import juror as juror_module
from assay.verifier.appeal.fetch import evidence_bytes_max
from assay.verifier.appeal.juror import Juror
from assay.verifier.audit.messages import JudgeOperator
from tests.a_network import NOW, a_record
from tests.network.loopback import a_host, connected, peer_of, run, seed_of, until

pytestmark = pytest.mark.slow

CASE, INDEX, BODY = Digest(b"c" * 32), 7, b"the evidence" * 50_000
ACCUSED, JUROR, STRANGER, VERIFIER = map(peer_of, ("accused", "juror", "stranger", "verifier"))
REQUEST = EvidenceRequest(case_id=CASE, operator=INDEX)
DOMAIN = Domain(Digest(b"d" * 32), Digest(bytes(32)))
WALLET = Address(b"a" * 20)
SPEC = a_spec()
Answer = Callable[[PeerId, bytes], Awaitable[bytes]]


async def recompute(request: JudgeOperator) -> bool:
    """Holds each operator for right, unless the evidence is of another step."""
    if Path(request.evidence).read_bytes() != BODY:
        raise MalformedMessage("evidence about another step")
    return True


def an_accused(folder: Path, *shown: tuple[int, bytes]) -> tuple[EvidenceServer, DiskBlobs]:
    """The accused's side, with these files of evidence."""
    spec: Any = SimpleNamespace(seat_peers=(JUROR, VERIFIER))
    blobs = DiskBlobs(folder / "blobs", bytes_max=1 << 28)
    for index, body in shown:
        path = evidence_path(folder, CASE, index)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    keys = SimpleNamespace(peer=SigningKey(seed_of("accused")))
    config = SimpleNamespace(folder=folder)
    me: Any = SimpleNamespace(spec=spec, config=config, blobs=blobs, domain=DOMAIN, keys=keys)
    return EvidenceServer(me), blobs


def a_notice(*, by: str = "accused", **changes: Any) -> bytes:
    """What the accused shows of its evidence, or somebody in its name."""
    said = {
        "case_id": CASE,
        "operator": INDEX,
        "evidence": Digest(b"x" * 32),
        "evidence_bytes": 9,
        "written_ns": 1,
    }
    notice = EvidenceNotice(**{**said, **changes})
    signature = sign(SigningKey(seed_of(by)), DOMAIN, notice)
    return encode(SignedEvidenceNotice(notice=notice, signature=signature))


def a_juror(folder: Path, *, is_verifier: bool = True) -> Juror:
    """The juror's side, of a run that the accused is in."""
    folder.mkdir(exist_ok=True)
    spec: Any = SimpleNamespace(**{name: getattr(SPEC, name) for name in ("model", "rule", "rounds")})
    spec.seat_peers = (JUROR, VERIFIER) if is_verifier else (VERIFIER,)
    me: Any = SimpleNamespace(
        spec=spec,
        domain=DOMAIN,
        config=SimpleNamespace(folder=folder),
        me=JUROR,
        keys=SimpleNamespace(account_address=a_record("iris").record.account),
        addresses={ACCUSED: None},
    )
    node = SimpleNamespace(member=SimpleNamespace(account=WALLET))
    follower: Any = SimpleNamespace(run_state=SimpleNamespace(nodes={ACCUSED: node}))
    return Juror(me, follower, recompute)


@asynccontextmanager
async def court(juror: Juror, answer: Answer, blobs: DiskBlobs) -> Any:
    """Both on real sockets, connected."""
    async with (
        a_host("accused", handlers={"evidence": answer}, blobs=blobs) as accused,
        a_host("juror") as host,
        connected(accused, host),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(juror.run, host)
        yield
        nursery.cancel_scope.cancel()


def an_appeal() -> Any:
    """The appeal of the case, with a jury for one operator."""
    state = SimpleNamespace(first=INDEX, start=bytes(32), end=bytes(32), phase=DefencePhase.JURY)
    appeal = SimpleNamespace(accused=evm_address(WALLET), operators=9)
    return SimpleNamespace(case_id=CASE, state=appeal, defences=(SimpleNamespace(state=state),))


async def opinion(juror: Juror) -> bool | None:
    view = an_appeal()
    return await juror.is_right(view, view.defences[0])


def fetched(juror: Juror) -> list[Path]:
    return evidence_files(juror._me.config.folder)


def test_a_juror_gets_the_evidence_from_the_accused_and_then_has_an_opinion(tmp_path: Path) -> None:
    server, blobs = an_accused(tmp_path / "accused", (INDEX, BODY))
    juror = a_juror(tmp_path / "juror")

    async def whole() -> None:
        async with court(juror, server.answer, blobs):
            assert await opinion(juror) is None  # asked for meanwhile; nobody waits
            await until(lambda: bool(fetched(juror)))
            assert fetched(juror)[0].read_bytes() == BODY
            assert await opinion(juror) is True
            fetched(juror)[0].write_bytes(b"of another step")  # not looked at again
            assert await opinion(juror) is True

    run(whole)


def test_what_shows_nothing_is_dropped_and_better_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(juror_module, "ASK_AGAIN_S", 0.1)
    server, blobs = an_accused(tmp_path / "accused", (INDEX, b"of another step"))
    juror = a_juror(tmp_path / "juror")

    async def whole() -> None:
        async with court(juror, server.answer, blobs):
            await opinion(juror)
            await until(lambda: bool(fetched(juror)))
            assert await opinion(juror) is None
            assert not fetched(juror)
            an_accused(tmp_path / "accused", (INDEX, BODY))
            with trio.fail_after(30):
                while await opinion(juror) is None:
                    await trio.sleep(0.05)

    run(whole)


def test_an_accused_that_sends_nothing_of_use_is_fetched_from_only_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(juror_module, "ASK_AGAIN_S", 0.01)
    server, blobs = an_accused(tmp_path / "accused", (INDEX, b"of another step"))
    juror, seen = a_juror(tmp_path / "juror"), 0

    async def whole() -> None:
        nonlocal seen
        async with court(juror, server.answer, blobs):
            with trio.move_on_after(4):
                while seen < fetch.FETCHES_MAX + 1:
                    seen += bool(fetched(juror))
                    assert await opinion(juror) is None
                    await trio.sleep(0.02)

    run(whole)
    assert seen == fetch.FETCHES_MAX


@pytest.mark.parametrize("shown", ["nothing", "too large", "never served"])
def test_an_accused_that_shows_nothing_fit_costs_the_juror_neither_time_nor_bytes(
    tmp_path: Path, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(juror_module, "FETCH_S", 0.5)
    monkeypatch.setattr(juror_module, "ASK_AGAIN_S", 0.1)
    juror, asked = a_juror(tmp_path / "juror"), [0]
    size = evidence_bytes_max(juror._me.spec) + (shown == "too large")
    _, blobs = an_accused(tmp_path / "accused")

    async def answer(_peer: PeerId, _body: bytes) -> bytes:
        asked[0] += 1
        if shown == "nothing":
            return b""
        return a_notice(evidence_bytes=size)

    async def whole() -> None:
        async with court(juror, answer, blobs):
            await until_asked(juror, asked)

    async def until_asked(juror: Juror, asked: list[int]) -> None:
        with trio.fail_after(30):
            while asked[0] < 3:
                started = trio.current_time()
                assert await opinion(juror) is None
                assert trio.current_time() - started < 0.2
                await trio.sleep(0.05)

    run(whole)
    assert not list((tmp_path / "juror").rglob("*evidence*"))


def test_a_juror_that_cannot_reach_the_accused_gets_what_a_verifier_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(juror_module, "ASK_AGAIN_S", 0.1)
    server, blobs = an_accused(tmp_path / "accused", (INDEX, BODY))
    verifier, juror = a_juror(tmp_path / "verifier"), a_juror(tmp_path / "juror", is_verifier=False)
    monkeypatch.setattr(juror, "_check_announced", lambda: None)
    passing, its_blobs = an_accused(tmp_path / "verifier")
    passing._me.keys = SimpleNamespace(peer=SigningKey(seed_of("verifier")))
    passing._jurors = {STRANGER: {CASE}}

    async def whole() -> None:
        async with court(verifier, server.answer, blobs):
            verifier.heed([an_appeal()])
            await until(lambda: bool(fetched(verifier)))
        async with (
            a_host("verifier", handlers={"evidence": passing.answer}, blobs=its_blobs) as host,
            a_host("stranger") as jurors,
            connected(host, jurors),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(juror.run, jurors)
            assert await opinion(juror) is None
            await until(lambda: bool(fetched(juror)))
            assert await opinion(juror) is True
            nursery.cancel_scope.cancel()

    run(whole)
    by_hand = evidence_path(tmp_path / "verifier", CASE, INDEX + 1)
    by_hand.write_bytes(BODY)
    for one in (a_juror(tmp_path / "verifier"), juror):  # the verifier started again since
        one.heed([])  # the appeal has ended
    assert list((tmp_path / "verifier" / "appeals").iterdir()) == [by_hand]
    assert fetched(juror), "nobody asks a juror without a seat"


def test_a_verifier_asks_again_for_what_the_accused_wrote_later_and_leaves_what_its_owner_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(juror_module, "ASK_AGAIN_S", 0.05)
    server, blobs = an_accused(tmp_path / "accused", (INDEX, b"of another step"))
    verifier, by_hand = a_juror(tmp_path / "verifier"), b"by hand"

    async def whole() -> None:
        async with court(verifier, server.answer, blobs):
            verifier.heed([an_appeal()])
            await until(lambda: bool(fetched(verifier)))
            an_accused(tmp_path / "accused", (INDEX, BODY))
            (path,) = fetched(verifier)
            while not path.exists() or path.read_bytes() != BODY:  # away while it is asked for again
                verifier.heed([an_appeal()])
                await trio.sleep(0.02)
            assert verifier._fetched[path] == 2
            notice_path(path).unlink()
            path.write_bytes(by_hand)
            for _ in range(20):
                verifier.heed([an_appeal()])
                await trio.sleep(0.02)
            assert path.read_bytes() == by_hand and verifier._fetched[path] == 2

    run(whole)


def test_a_disk_that_fails_leaves_no_evidence_beside_another_s_notice_and_stops_no_settler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(juror_module, "ASK_AGAIN_S", 0.05)
    server, blobs = an_accused(tmp_path / "accused", (INDEX, BODY))
    verifier = a_juror(tmp_path / "verifier")
    path = evidence_path(tmp_path / "verifier", CASE, INDEX)
    path.with_suffix(".part").mkdir(parents=True)  # writing there fails
    path.write_bytes(b"older")
    notice_path(path).write_bytes(a_notice())

    async def whole() -> None:
        async with court(verifier, server.answer, blobs):
            verifier.heed([an_appeal()])
            await until(lambda: not path.exists())
            path.with_suffix(".part").rmdir()
            while not path.exists():
                verifier.heed([an_appeal()])
                await trio.sleep(0.02)
            assert path.read_bytes() == BODY

    run(whole)
    notice_path(path).unlink()
    notice_path(path).mkdir()
    verifier.heed([])


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (a_notice(by="verifier"), "no node of the accused signed"),
        (a_notice(case_id=Digest(b"o" * 32)), "asked for operator 7 of case 63636363"),
        (a_notice(operator=8), "evidence about operator 8"),
        (a_notice()[:-1] + b"!", "no node of the accused signed"),
        (b"", "has none"),
    ],
)
def test_nobody_passes_on_what_the_accused_did_not_sign_about_this_operator(
    shown: bytes, reason: str
) -> None:
    async def answer(_peer: PeerId, _body: bytes) -> bytes:
        return shown

    async def whole() -> None:
        async with (
            a_host("verifier", handlers={"evidence": answer}) as verifier,
            a_host("juror") as host,
            connected(verifier, host),
        ):
            with pytest.raises(Unavailable, match=reason):
                await fetch.latest(host, [VERIFIER, ACCUSED], [ACCUSED], REQUEST, DOMAIN, SPEC)

    run(whole)


def test_of_two_notices_the_later_one_counts_and_who_showed_it_holds_the_evidence() -> None:
    async def early(_peer: PeerId, _body: bytes) -> bytes:
        return a_notice()

    async def late(_peer: PeerId, _body: bytes) -> bytes:
        return a_notice(evidence=Digest(b"y" * 32), written_ns=2)

    async def whole() -> None:
        async with (
            a_host("verifier", handlers={"evidence": late}) as verifier,
            a_host("stranger", handlers={"evidence": early}) as other,
            a_host("juror") as host,
            connected(verifier, other, host),
        ):
            found, holders = await fetch.latest(host, [VERIFIER, STRANGER], [ACCUSED], REQUEST, DOMAIN, SPEC)
        assert found.notice.evidence == b"y" * 32 and holders == [VERIFIER]

    run(whole)


@pytest.mark.parametrize("announced", ["nothing", "another process", "this process"])
def test_a_juror_outside_the_run_holds_no_silence_against_an_accused_that_cannot_know_it(
    tmp_path: Path, announced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jury = ACourt(*([] if announced == "nothing" else ["iris"]))
    monkeypatch.setattr(juror_module, "open_chain", lambda _me: jury)
    juror = a_juror(tmp_path / "juror", is_verifier=False)
    if announced == "this process":
        juror._me.me = a_record("iris").record.peer  # type: ignore[misc]
        assert trio.run(opinion, juror) is None and juror._asking
        return
    with pytest.raises(Unavailable, match="assay network announce"):
        trio.run(opinion, juror)
    given = evidence_path(tmp_path / "juror", CASE, INDEX)  # by its owner: nobody need be asked
    given.parent.mkdir()
    given.write_bytes(BODY)
    assert trio.run(opinion, juror) is True


def test_what_cannot_be_recomputed_is_tried_again_after_a_while_and_no_opinion(tmp_path: Path) -> None:
    juror, tries = a_juror(tmp_path / "juror"), []
    given = evidence_path(tmp_path / "juror", CASE, INDEX)
    given.parent.mkdir()
    given.write_bytes(BODY)

    async def without_data(request: JudgeOperator) -> bool:
        tries.append(request)
        raise ConfigError("data: nothing there")

    async def whole() -> None:
        juror._recompute = without_data
        for _ in range(3):
            with pytest.raises(ConfigError):
                await opinion(juror)
        assert len(tries) == 1
        juror._recompute = recompute
        await trio.sleep(juror_module.ASK_AGAIN_S)
        assert await opinion(juror) is True

    trio.run(whole, clock=trio.testing.MockClock(autojump_threshold=0))


def test_no_stranger_is_shown_evidence_and_a_file_is_stored_once(tmp_path: Path) -> None:
    server, _ = an_accused(tmp_path, (INDEX, BODY))
    body = encode(EvidenceRequest(case_id=CASE, operator=INDEX))

    async def whole() -> None:
        first = await server.answer(JUROR, body)
        assert first and await server.answer(JUROR, body) == first
        assert await server.answer(JUROR, encode(EvidenceRequest(case_id=CASE, operator=INDEX + 1))) == b""
        with pytest.raises(PeerFault, match="only verifiers of the run and jurors judge"):
            await server.answer(STRANGER, body)

    trio.run(whole)


class ACourt:
    """What the chain says of two cases: of one, a jury sits; the other's defence is not there yet."""

    def __init__(self, *jurors: str, at: DefencePhase = DefencePhase.JURY) -> None:
        self.jurors, self.at = jurors, at
        self.records = {wallet_of(name): a_record(name, Role.VERIFIER) for name in jurors}

    def defences(self, case_id: bytes) -> Any:
        seats = tuple(self.records) * 2 if case_id == CASE else ()
        yield "0x1", SimpleNamespace(phase=self.at), SimpleNamespace(seats=seats)

    def staker_block(self, account: str) -> int:
        return int(account in self.records)

    def announced_record(self, account: str, _peer: None, _number: int) -> bytes:
        return encode(self.records[account])


def wallet_of(name: str) -> str:
    return evm_address(a_record(name).record.account)


def test_jurors_are_known_by_the_records_that_they_announced_last() -> None:
    other = Digest(b"o" * 32)
    peers = {name: a_record(name).record.peer for name in ("iris", "ivan")}

    assert jurors_of(ACourt("iris", "ivan"), (CASE, other), NOW) == {  # type: ignore[arg-type]
        peers["iris"]: {CASE},
        peers["ivan"]: {CASE},
    }
    assert jurors_of(ACourt("iris", at=DefencePhase.CUT), (CASE,), NOW) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("lie", ["of another account", "none", "no record"])
def test_an_account_with_no_record_of_its_own_is_no_juror_and_keeps_no_other_out(lie: str) -> None:
    court = ACourt("iris", "ivan")
    if lie == "of another account":
        court.records[wallet_of("iris")] = a_record("mallory", Role.VERIFIER)
    elif lie == "no record":
        court.records[wallet_of("iris")] = EvidenceRequest(case_id=CASE, operator=1)  # type: ignore[assignment]
    else:
        court.staker_block = lambda account: int(account == wallet_of("ivan"))  # type: ignore[method-assign]

    assert set(jurors_of(court, (CASE,), NOW)) == {a_record("ivan").record.peer}  # type: ignore[arg-type]


@pytest.mark.parametrize("seat", ["this case", "another case", "none"])
def test_a_juror_outside_the_run_fetches_the_evidence_of_its_own_case_alone(
    tmp_path: Path, seat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "LOOK_S", 0.1)
    server, blobs = an_accused(tmp_path / "accused", (INDEX, BODY))
    server._jurors = {"this case": {STRANGER: {CASE}}, "another case": {STRANGER: {b"o" * 32}}, "none": {}}[
        seat
    ]
    path = tmp_path / "fetched"

    async def whole() -> None:
        async with a_host(
            "accused",
            handlers={"evidence": server.answer},
            blobs=blobs,
            is_member=server.knows,
            network_id=bytes(8).hex(),
        ) as accused:
            await fetch.fetch_as_juror(
                seed=seed_of("stranger"),
                domain=DOMAIN,
                spec=SPEC,
                nodes=[ACCUSED],
                places=[accused.address],
                request=EvidenceRequest(case_id=CASE, operator=INDEX),
                path=path,
                patience_s=20 if seat == "this case" else 3,
            )

    if seat == "this case":
        run(whole)
        assert path.read_bytes() == BODY
    else:
        reason = "nobody is connected" if seat == "none" else "jurors judge"
        with pytest.raises(Unavailable, match=reason):
            run(whole)
        assert not path.exists()


def test_a_juror_outside_the_run_fetches_four_files_that_nobody_has_and_no_fifth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "LOOK_S", 0.05)
    monkeypatch.setattr(fetch, "FETCH_S", 0.1)
    asked = []

    async def answer(peer: PeerId, _body: bytes) -> bytes:
        asked.append(peer)
        return a_notice(evidence_bytes=len(BODY))

    async def whole() -> None:
        async with a_host("accused", handlers={"evidence": answer}, network_id=bytes(8).hex()) as accused:
            await fetch.fetch_as_juror(
                seed=seed_of("stranger"), domain=DOMAIN, spec=SPEC, nodes=[ACCUSED], places=[accused.address],
                request=EvidenceRequest(case_id=CASE, operator=INDEX), path=tmp_path / "file", patience_s=20,
            )  # fmt: skip

    with pytest.raises(Unavailable, match="evidence about operator"):
        run(whole)
    assert len(asked) == 4


def test_a_node_stays_up_until_its_evidence_is_removed(tmp_path: Path) -> None:
    server, _ = an_accused(tmp_path, (INDEX, BODY))
    clock = trio.testing.MockClock(autojump_threshold=0)

    async def whole() -> None:
        with trio.move_on_after(1000) as scope:
            await server.until_judged()
        assert scope.cancelled_caught
        for path in evidence_files(tmp_path):
            path.unlink()
        with trio.fail_after(1):
            await server.until_judged()

    trio.run(whole, clock=clock)


def test_the_bound_grows_with_the_model() -> None:
    larger = replace(SPEC, model=replace(SPEC.model, layers=SPEC.model.layers + 1))
    assert evidence_bytes_max(larger) > evidence_bytes_max(SPEC)
