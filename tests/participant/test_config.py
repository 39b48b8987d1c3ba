"""What a participant reads at the start; every mistake of an operator is one clear line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from assay.ledger.settlement.results import run_id_of
from assay.participant.config import Config, open_participant, read_addresses, read_spec
from assay.participant.keyring import create_keys
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError
from assay.protocol.identity import peer_of
from assay.protocol.types import Digest
from tests.builders import NODES, VERIFIERS, a_deployment, a_digest, a_spec, peer


@pytest.fixture(scope="module")
def keys_folder(tmp_path_factory):
    """One set of keys for all tests here: making them is slow on purpose."""
    folder = tmp_path_factory.mktemp("keys")
    create_keys(folder / "keys", "password")
    return folder


@pytest.fixture
def config(tmp_path, keys_folder):
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "keys").symlink_to(keys_folder / "keys")
    spec = a_spec()
    (tmp_path / "spec.cbor").write_bytes(encode(spec))
    (tmp_path / "deployment.json").write_text(a_deployment().to_json())
    (tmp_path / "peers.json").write_text(peers_of({"nora": ["127.0.0.1", 4001]}))
    return Config(
        name="me",
        folder=tmp_path / "me",
        password="password",
        port=4000,
        rpc_url="http://127.0.0.1:1",
        deployment=tmp_path / "deployment.json",
        spec=tmp_path / "spec.cbor",
        run_id=run_id_of(spec),
        data=tmp_path / "data.bin",
        peers=tmp_path / "peers.json",
    )


def peers_of(addresses):
    return json.dumps({peer(name).hex(): address for name, address in addresses.items()})


def refused(config, words):
    with pytest.raises(ConfigError, match=words):
        open_participant(config)


def test_a_participant_opens_what_it_was_given(config):
    me = open_participant(config)

    assert me.spec == a_spec()
    assert me.deployment == a_deployment()
    assert (me.domain.deployment_id, me.domain.run_id) == (me.spec.deployment_id, config.run_id)
    assert me.me == peer_of(me.keys.peer)
    assert [address.port for address in me.addresses.values()] == [4001]
    assert me.verifiers == me.spec.verifier_peers  # we are none of them
    assert me.store.records() == []
    assert me.blobs.load(me.blobs.put(b"a blob")) == b"a blob"


def test_the_verifiers_of_a_verifier_are_the_others(config):
    me = open_participant(config)
    others = replace(me, keys=replace(me.keys, peer=_key_of(VERIFIERS[1])))

    assert others.me == peer(VERIFIERS[1])
    assert others.verifiers == tuple(peer(name) for name in VERIFIERS if name != VERIFIERS[1])


def _key_of(name):
    from tests.builders import a_peer_key

    return a_peer_key(name)


@pytest.mark.parametrize("name", ["spec", "deployment", "peers"])
def test_a_missing_file_is_named(config, name):
    getattr(config, name).unlink()

    refused(config, str(getattr(config, name)))


@pytest.mark.parametrize("name", ["spec", "deployment", "peers"])
def test_a_folder_in_place_of_a_file_is_named(config, name):
    getattr(config, name).unlink()
    getattr(config, name).mkdir()

    refused(config, str(getattr(config, name)))


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xff\xfe\xff", b"null", b"[1]", b"5"])
@pytest.mark.parametrize("name", ["spec", "deployment", "peers"])
def test_a_damaged_file_is_a_configuration_error(config, name, body):
    getattr(config, name).write_bytes(body)

    refused(config, "spec|deployment|peers")


def test_a_spec_whose_parts_do_not_fit_is_refused(config):
    spec = a_spec()
    config.spec.write_bytes(encode(replace(spec, model=replace(spec.model, width=65, heads=2))))

    refused(config, "width 65 must be a multiple of heads")


def test_a_spec_of_another_deployment_is_refused(config):
    config.spec.write_bytes(encode(replace(a_spec(), deployment_id=a_digest("another"))))

    refused(config, "another deployment")


def test_a_spec_that_is_not_the_one_the_buyer_funded_is_refused(config):
    config.spec.write_bytes(encode(a_spec(seed=8)))

    refused(config, "not the spec of run")


def test_a_wrong_password_is_a_configuration_error(config):
    refused(replace(config, password="another"), "wrong password")


@pytest.mark.parametrize(
    "body",
    [
        '{"zz": ["127.0.0.1", 1]}',
        '{"00": ["127.0.0.1", 1]}',
        peers_of({"nora": ["127.0.0.1"]}),
        peers_of({"nora": ["127.0.0.1", "port"]}),
        peers_of({"nora": ["127.0.0.1", 0]}),
        peers_of({"nora": ["127.0.0.1", 65536]}),
        peers_of({"nora": 5}),
        "[]",
        "{",
    ],
)
def test_peers_that_are_no_addresses_are_refused(tmp_path, body):
    (tmp_path / "peers.json").write_text(body)

    with pytest.raises(ConfigError, match="expected hex peer id"):
        read_addresses(tmp_path / "peers.json")


def test_peers_are_read_whole(tmp_path):
    (tmp_path / "peers.json").write_text(peers_of({name: ["10.0.0.1", 65535] for name in NODES}))

    found = read_addresses(tmp_path / "peers.json")

    assert set(found) == {peer(name) for name in NODES}
    assert {(one.ip, one.port) for one in found.values()} == {("10.0.0.1", 65535)}


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
