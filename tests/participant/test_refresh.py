"""A peer that moved is dialled where its account announced it, or where others say that its keys did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from assay.participant import refresh
from assay.participant.config import addresses_of, records_of
from assay.participant.files.record import (
    AHEAD_S_MAX,
    OWN_RECORD,
    Role,
    SignedRecord,
    read_records,
    sign_record,
    write_record,
)
from assay.participant.refresh import ASK, NewerRecords, Records, own_record, refresh_records
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import Unavailable
from assay.testing.members import peer
from assay.testing.signed import NODES, VERIFIERS
from tests.a_network import NOW, a_record, a_run_file, keys_of
from tests.network.loopback import a_host, run, until
from tests.participant.directory.a_directory import ADirectory

ME, OTHER = peer(VERIFIERS[0]), NODES[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


def known_to(folder: Path, name: str = VERIFIERS[0], own: SignedRecord | None = None) -> Records:
    return Records(a_run_file().content.records, folder, own, peer(name))


def hosts(folder: Path, there: ADirectory, records: Records | None = None) -> list[str]:
    return [one.record.host for one in (records or known_to(folder)).announced(there)]


def answer_of(*records: SignedRecord) -> bytes:
    return encode(NewerRecords(records=records))


def test_a_peer_that_announced_a_newer_record_moves_and_stays_moved(folder: Path):
    there, newer = ADirectory(), a_record(OTHER, host="203.0.113.9", now_s=NOW + 5)
    there.announce(newer, 7)

    assert hosts(folder, there) == ["203.0.113.9"]
    known = read_records(folder, NOW + 5)
    assert known == {peer(OTHER): newer}
    assert addresses_of(records_of(a_run_file(), known))[peer(OTHER)].host == "203.0.113.9"
    assert hosts(folder, there) == []


def test_what_was_read_is_not_asked_for_again_until_something_new_is_announced(folder: Path):
    there, records = ADirectory(), known_to(folder)
    there.announce(a_record(OTHER), 7)
    hosts(folder, there, records)
    assert there.asked == 1

    hosts(folder, there, records)
    assert there.asked == 1
    there.announce(a_record(OTHER, host="203.0.113.9", now_s=NOW + 5), 8)
    assert hosts(folder, there, records) == ["203.0.113.9"]


def test_a_record_that_is_older_of_another_role_or_malformed_moves_nobody(folder: Path):
    last = a_record(OTHER, host="203.0.113.9", now_s=NOW + 5)
    write_record(folder / "by-mail.record", last)
    away = {"host": "198.51.100.1", "now_s": NOW + 9}
    lent = sign_record(replace(keys_of(OTHER), account=keys_of("x").account), Role.NODE, "::1", 1, NOW + 9)
    for body in (
        encode(a_record(OTHER, host="198.51.100.1", now_s=NOW + 5)),  # the same number
        encode(a_record(OTHER)),
        encode(a_record(OTHER, Role.BUYER, **away)),
        encode(a_record(NODES[1], **away)),
        encode(lent),
        encode(a_record(OTHER, **away))[:-1],
        b"",
    ):
        there = ADirectory()
        there.announce(last, 7, body)
        assert hosts(folder, there) == []
    assert read_records(folder, NOW + 9) == {peer(OTHER): last}


def test_one_peers_bad_announcement_hides_no_other(folder: Path):
    there = ADirectory()
    there.announce(a_record(NODES[0]), 7, b"\xff")
    there.announce(a_record(NODES[1]), 7)
    there.records.clear()  # and the endpoint has pruned one
    there.announce(a_record(NODES[0]), 7, b"\xff")
    there.announce(a_record(NODES[2], host="203.0.113.9", now_s=NOW + 5), 8)

    assert hosts(folder, there) == ["203.0.113.9"]


def test_our_own_record_and_strangers_are_not_looked_for(folder: Path):
    there = ADirectory()
    there.announce(a_record(VERIFIERS[0], Role.VERIFIER, host="203.0.113.9", now_s=NOW + 5), 7)
    there.announce(a_record("stranger", host="203.0.113.9", now_s=NOW + 5), 7)

    assert hosts(folder, there) == []
    assert there.asked == 0


def test_who_asks_is_told_our_own_record_and_what_members_told_us_if_newer_than_the_run_file(folder: Path):
    told = a_record(OTHER, host="203.0.113.9", now_s=NOW + 5)
    ours = a_record(VERIFIERS[0], Role.VERIFIER, host="203.0.113.8", now_s=NOW + 5)
    write_record(folder / "by-mail.record", a_record(NODES[1], now_s=NOW + 5))  # perhaps of another run

    records = known_to(folder, own=ours)
    assert records.told(answer_of(told, a_record("stranger", now_s=NOW + 5))) == [told]
    told_on = decode(NewerRecords, trio.run(records.answer, peer(NODES[2]), b""))

    assert set(told_on.records) == {told, ours}
    elsewhere = a_record(VERIFIERS[0], Role.VERIFIER, port=9, now_s=NOW + 7)  # our keys in another run
    assert records.told(answer_of(elsewhere)) == []
    assert decode(NewerRecords, trio.run(records.answer, peer(NODES[2]), b"")) == told_on
    before = known_to(folder, own=a_record(VERIFIERS[0], Role.VERIFIER, port=5001))
    assert trio.run(before.answer, peer(NODES[2]), b"") == answer_of()


def test_what_another_member_tells_is_known_until_the_process_ends_and_told_on(folder: Path):
    newer, records = a_record(OTHER, host="203.0.113.9", now_s=NOW + 5), known_to(folder)

    assert records.told(answer_of(newer)) == [newer]
    assert records.told(answer_of(newer)) == []
    assert read_records(folder, NOW + 5) == {}
    assert trio.run(records.answer, peer(NODES[2]), b"") == answer_of(newer)


def test_our_own_record_is_of_this_process_if_it_names_its_port(tmp_path: Path):
    ours = a_record(VERIFIERS[0], Role.VERIFIER, port=5001)
    write_record(tmp_path / OWN_RECORD, ours)

    def of_port(port: int) -> SignedRecord | None:
        return own_record(SimpleNamespace(config=SimpleNamespace(keys=tmp_path, port=port)))

    assert (of_port(5001), of_port(5002)) == (ours, None)


def test_another_member_can_tell_no_record_that_its_peers_keys_did_not_sign(folder: Path):
    away = {"host": "198.51.100.1", "now_s": NOW + 9}
    forged = replace(a_record(OTHER, **away), by_peer=a_record(NODES[1], **away).by_peer)
    other_hot = sign_record(
        replace(keys_of(OTHER), hot=keys_of("x").hot), Role.NODE, "198.51.100.1", 4001, NOW + 9
    )
    records = known_to(folder)

    for told in (forged, other_hot, a_record(OTHER, Role.BUYER, **away), a_record("stranger", **away)):
        assert records.told(answer_of(told)) == []
    assert trio.run(records.answer, peer(NODES[2]), b"") == answer_of()


def test_a_record_whose_number_no_later_one_could_pass_is_not_taken_from_members(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.participant.refresh.time.time", lambda: float(NOW))
    before = replace(a_record(OTHER), record=replace(a_record(OTHER).record, sequence=NOW + AHEAD_S_MAX))
    last = sign_record(keys_of(OTHER), Role.NODE, "203.0.113.9", 4001, NOW, before)

    assert last.record.sequence == NOW + AHEAD_S_MAX + 1
    assert known_to(folder).told(answer_of(last)) == []


@pytest.mark.slow
def test_who_is_connected_is_asked_and_who_moved_is_dialled_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without a chain, by real sockets: a teller knows where a node went, and we find it."""

    def no_chain(_me: object) -> None:
        raise Unavailable("no chain")

    def seed(name: str) -> bytes:
        return bytes(keys_of(name).peer)

    async def main() -> None:
        ours, theirs = known_to(folder), known_to(folder.parent / "theirs", VERIFIERS[1])
        async with (
            a_host("", seed=seed(VERIFIERS[0])) as me,
            a_host("", seed=seed(VERIFIERS[1]), handlers={ASK: theirs.answer}) as teller,
            a_host("", seed=seed(OTHER)) as node,
            trio.open_nursery() as nursery,
        ):
            given = addresses_of(one.record for one in a_run_file().content.records)
            nursery.start_soon(me.keep_connected, [teller.address, given[node.peer]])
            nursery.start_soon(refresh_records, None, me, ours)
            await until(lambda: teller.peer in me.connected())
            await trio.sleep(0.2)
            assert node.peer not in me.connected()
            theirs.told(answer_of(a_record(OTHER, port=node.address.port, now_s=NOW + 5)))
            await until(lambda: node.peer in me.connected())
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(refresh, "open_chain", no_chain)
    monkeypatch.setattr(refresh, "LOOK_S", 0.1)
    monkeypatch.setattr(refresh, "REFRESH_S", 0.3)
    run(main)
