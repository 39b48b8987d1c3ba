"""What a participant reads at the start; every mistake of an operator is one clear line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.ledger.settlement.results import run_id_of
from assay.participant.config import Config, open_participant, read_spec, records_of
from assay.participant.files.invitation import write_invitation
from assay.participant.files.record import Role, newest, sign_record, write_record
from assay.participant.files.run_file import write_run_file
from assay.participant.keys.keyring import QUICK, create_keys
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError
from assay.protocol.identity import peer_of
from assay.protocol.types import Digest
from assay.testing.members import a_deployment, a_digest, a_peer_key, peer
from assay.testing.signed import NODES, VERIFIERS, a_spec
from tests.a_network import NOW, a_record, a_run_file, an_invitation, bought, keys_of


@pytest.fixture
def config(tmp_path):
    create_keys(tmp_path / "keys", "password", QUICK)
    write_invitation(tmp_path / "network.txt", an_invitation())
    write_run_file(tmp_path / "run.assay", a_run_file(extra=[a_record("leo", Role.WATCHTOWER)]))
    return Config(
        keys=tmp_path / "keys",
        password="password",
        network=tmp_path / "network.txt",
        run=tmp_path / "run.assay",
        records=tmp_path / "records",
        folder=tmp_path / "me",
        port=4000,
        rpc_url="http://127.0.0.1:1",
        data=tmp_path / "data",
    )


def refused(config, words):
    with pytest.raises(ConfigError, match=words):
        open_participant(config)


def test_a_participant_opens_what_it_was_given(config):
    me = open_participant(config)

    assert me.spec == bought()
    assert me.deployment == a_deployment()
    assert (me.domain.deployment_id, me.domain.run_id) == (me.spec.deployment_id, run_id_of(bought()))
    assert me.me == peer_of(me.keys.peer)
    assert set(me.addresses) == {peer(name) for name in (*NODES, *VERIFIERS, "leo")}
    assert me.addresses[peer(NODES[0])].port == 4001
    assert me.verifiers == me.spec.verifier_peers  # we are none of them
    assert me.store.records() == []
    assert me.blobs.load(me.blobs.put(b"a blob")) == b"a blob"


def test_an_archive_keeps_all_blobs_and_others_what_they_have_room_for(config):
    assert open_participant(replace(config, blob_bytes=10)).blobs.bytes_max == 10
    archive = open_participant(
        replace(config, folder=config.folder / "archive", blob_bytes=10), is_archive=True
    )
    assert archive.blobs.load(archive.blobs.put(b"more than ten bytes")) == b"more than ten bytes"


def test_the_verifiers_of_a_verifier_are_the_others(config):
    me = open_participant(config)
    others = replace(me, keys=replace(me.keys, peer=a_peer_key(VERIFIERS[1])))

    assert others.me == peer(VERIFIERS[1])
    assert others.verifiers == tuple(peer(name) for name in VERIFIERS if name != VERIFIERS[1])


@pytest.mark.parametrize("name", ["network", "run"])
def test_a_missing_file_is_named(config, name):
    getattr(config, name).unlink()

    refused(config, str(getattr(config, name)))


@pytest.mark.parametrize("name", ["network", "run"])
def test_a_folder_in_place_of_a_file_is_named(config, name):
    getattr(config, name).unlink()
    getattr(config, name).mkdir()

    refused(config, str(getattr(config, name)))


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xff\xfe\xff", b"null", b"assay-run-1.", b"# a note"])
@pytest.mark.parametrize("name", ["network", "run"])
def test_a_damaged_file_is_a_configuration_error(config, name, body):
    getattr(config, name).write_bytes(body)

    refused(config, str(getattr(config, name)))


def test_a_run_of_another_deployment_is_refused(config):
    write_run_file(config.run, a_run_file(a_spec(deployment_id=a_digest("another"))))

    refused(config, "another deployment")


def test_a_wrong_password_is_a_configuration_error(config):
    refused(replace(config, password="another"), "wrong password")


def test_a_member_that_moved_is_dialled_where_its_newer_record_says(config):
    moved = a_record(NODES[0], host="node.example.org", port=7000, now_s=NOW + 5)
    write_record(config.records / "from-a-mail.record", moved)

    me = open_participant(config)

    assert (me.addresses[moved.record.peer].host, me.addresses[moved.record.peer].port) == (
        "node.example.org",
        7000,
    )


def test_a_watchtower_whose_record_the_operator_keeps_may_follow_the_run(config):
    named = open_participant(config).watchtowers
    stranger, watchtower = a_record("a stranger"), a_record("a watchtower", Role.WATCHTOWER, port=7000)
    for signed in (stranger, watchtower):
        write_record(config.records / f"{signed.record.peer.hex()}.record", signed)

    me = open_participant(config)

    assert me.watchtowers == (*named, watchtower.record.peer)
    assert me.addresses[watchtower.record.peer].port == 7000 and stranger.record.peer not in me.addresses


def test_an_older_record_of_another_role_or_of_another_account_moves_nobody():
    run = a_run_file()
    present = records_of(run, {})
    stranger = replace(keys_of(NODES[0]), account=keys_of("stranger").account)
    for replayed in (
        a_record(NODES[0], port=7000, now_s=NOW - 5),
        a_record(NODES[0], port=7000, now_s=NOW),
        a_record(NODES[0], Role.BUYER, port=7000, now_s=NOW + 5),
        sign_record(stranger, Role.NODE, "127.0.0.1", 7000, NOW + 5),
        a_record("a stranger", port=7000, now_s=NOW + 5),
    ):
        assert records_of(run, newest([replayed])) == present


def test_one_flipped_byte_of_a_spec_is_refused_or_another_run(tmp_path):
    """Whatever decodes has another digest, so another run id."""
    good = encode(a_spec())
    for at in range(0, len(good), 11):
        (tmp_path / "spec").write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            found: Digest | None = run_id_of(read_spec(tmp_path / "spec"))
        except ConfigError:
            found = None
        assert found != run_id_of(a_spec())
