"""A peer that moved is dialled where its account announced it, under the rules of a record passed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.participant.config import Config, addresses_of, records_of
from assay.participant.files.invitation import write_invitation
from assay.participant.files.record import Role, read_records, sign_record, write_record
from assay.participant.files.run_file import write_run_file
from assay.participant.refresh import moved
from assay.protocol.encoding.codec import encode
from assay.testing.members import peer
from assay.testing.signed import NODES, VERIFIERS
from tests.a_network import NOW, a_record, a_run_file, an_invitation, keys_of
from tests.participant.directory.a_directory import ADirectory

ME, OTHER = peer(VERIFIERS[0]), NODES[0]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    write_invitation(tmp_path / "network.txt", an_invitation())
    write_run_file(tmp_path / "run.assay", a_run_file())
    return Config(
        keys=tmp_path / "keys",
        password="password",
        network=tmp_path / "network.txt",
        run=tmp_path / "run.assay",
        records=tmp_path / "records",
        folder=tmp_path,
        port=4000,
        rpc_url="http://127.0.0.1:1",
        data=tmp_path / "data",
    )


def hosts(config: Config, there: ADirectory, seen: dict | None = None) -> list[str]:
    return [one.record.host for one in moved(config, there, ME, {} if seen is None else seen)]


def test_a_peer_that_announced_a_newer_record_moves_and_stays_moved(config: Config):
    there, newer = ADirectory(), a_record(OTHER, host="203.0.113.9", now_s=NOW + 5)
    there.announce(newer, 7)

    assert hosts(config, there) == ["203.0.113.9"]
    known = read_records(config.records, NOW + 5)
    assert known == {peer(OTHER): newer}
    assert addresses_of(records_of(a_run_file(), known))[peer(OTHER)].host == "203.0.113.9"
    assert hosts(config, there) == []


def test_what_was_read_is_not_asked_for_again_until_something_new_is_announced(config: Config):
    there, seen = ADirectory(), dict[bytes, int]()
    there.announce(a_record(OTHER), 7)
    hosts(config, there, seen)
    assert there.asked == 1

    hosts(config, there, seen)
    assert there.asked == 1
    there.announce(a_record(OTHER, host="203.0.113.9", now_s=NOW + 5), 8)
    assert hosts(config, there, seen) == ["203.0.113.9"]


def test_a_record_that_is_older_of_another_role_or_malformed_moves_nobody(config: Config):
    last = a_record(OTHER, host="203.0.113.9", now_s=NOW + 5)
    write_record(config.records / "by-mail.record", last)
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
        assert hosts(config, there) == []
    assert read_records(config.records, NOW + 9) == {peer(OTHER): last}


def test_one_peers_bad_announcement_hides_no_other(config: Config):
    there = ADirectory()
    there.announce(a_record(NODES[0]), 7, b"\xff")
    there.announce(a_record(NODES[1]), 7)
    there.records.clear()  # and the endpoint has pruned one
    there.announce(a_record(NODES[0]), 7, b"\xff")
    there.announce(a_record(NODES[2], host="203.0.113.9", now_s=NOW + 5), 8)

    assert hosts(config, there) == ["203.0.113.9"]


def test_our_own_record_and_strangers_are_not_looked_for(config: Config):
    there = ADirectory()
    there.announce(a_record(VERIFIERS[0], Role.VERIFIER, host="203.0.113.9", now_s=NOW + 5), 7)
    there.announce(a_record("stranger", host="203.0.113.9", now_s=NOW + 5), 7)

    assert hosts(config, there) == []
    assert there.asked == 0
