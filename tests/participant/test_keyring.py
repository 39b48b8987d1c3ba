"""Keys on disk: nobody reads them without the password, nothing overwrites them."""

from __future__ import annotations

import json
import stat

import nacl.pwhash
import pytest

from assay.chain.statements import address_of
from assay.participant import keyring
from assay.participant.keyring import RELEASE, create_keys, load_keys, release_key
from assay.protocol.errors import ConfigError

FILES = ("peer.key", "account.json", "hot.json")


@pytest.fixture(autouse=True)
def cheap_password_stretching(monkeypatch):
    """The least work that the library allows: these tests are about files, not about its cost."""
    monkeypatch.setattr(nacl.pwhash.argon2id, "OPSLIMIT_INTERACTIVE", nacl.pwhash.argon2id.OPSLIMIT_MIN)
    monkeypatch.setattr(nacl.pwhash.argon2id, "MEMLIMIT_INTERACTIVE", nacl.pwhash.argon2id.MEMLIMIT_MIN)
    monkeypatch.setattr(keyring, "_SCRYPT_N", 2)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "keys"


def test_keys_are_read_as_they_were_written(folder):
    created = create_keys(folder, "password")

    loaded = load_keys(folder, "password")

    assert bytes(loaded.peer) == bytes(created.peer)
    assert (loaded.account, loaded.hot) == (created.account, created.hot)
    assert address_of(loaded.account).lower() == "0x" + loaded.account_address.hex()


def test_two_keyrings_share_no_key(tmp_path):
    first, second = (create_keys(tmp_path / name, "password") for name in ("one", "two"))

    keys = {bytes(first.peer), first.account, first.hot, bytes(second.peer), second.account, second.hot}
    assert len(keys) == 6


def test_the_files_are_for_their_owner_only(folder):
    create_keys(folder, "password")

    for name in FILES:
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_no_key_is_on_disk_in_the_clear(folder):
    keys = create_keys(folder, "password")
    written = b"".join((folder / name).read_bytes() for name in FILES)

    for secret in (bytes(keys.peer), keys.account, keys.hot, b"password"):
        assert secret not in written
        assert secret.hex().encode() not in written


def test_a_wrong_password_is_said_and_opens_nothing(folder):
    create_keys(folder, "password")

    with pytest.raises(ConfigError, match="wrong password"):
        load_keys(folder, "Password")


@pytest.mark.parametrize("name", FILES)
def test_keys_are_never_overwritten_not_even_the_rest_of_a_broken_set(folder, name):
    create_keys(folder, "password")
    for other in FILES:
        if other != name:
            (folder / other).unlink()
    before = (folder / name).read_bytes()

    with pytest.raises(ConfigError, match="never overwritten"):
        create_keys(folder, "password")

    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_bytes() == before


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    create_keys(folder, "password")
    (folder / name).unlink()

    with pytest.raises(ConfigError, match=name):
        load_keys(folder, "password")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file_is_named(folder, name):
    create_keys(folder, "password")
    (folder / name).unlink()
    (folder / name).mkdir()

    with pytest.raises(ConfigError, match=name):
        load_keys(folder, "password")


@pytest.mark.parametrize("body", [b"", b"short", b"\xff" * 200, b"[]", b"null", b"{}"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_said_to_be_damaged(folder, name, body):
    create_keys(folder, "password")
    (folder / name).write_bytes(body)

    with pytest.raises(ConfigError, match="damaged"):
        load_keys(folder, "password")


def test_one_flipped_byte_of_the_sealed_peer_key_is_noticed_wherever_it_is(folder):
    create_keys(folder, "password")
    good = (folder / "peer.key").read_bytes()

    for at in range(0, len(good), 7):
        (folder / "peer.key").write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(ConfigError, match="damaged"):
            load_keys(folder, "password")


@pytest.mark.parametrize("changes", [{"version": 9}, {"crypto": 5}, {"crypto": {}}])
def test_a_keystore_of_another_form_is_said_to_be_damaged(folder, changes):
    create_keys(folder, "password")
    body = json.loads((folder / "hot.json").read_text())
    (folder / "hot.json").write_text(json.dumps({**body, **changes}))

    with pytest.raises(ConfigError, match="damaged"):
        load_keys(folder, "password")


def test_a_release_key_is_made_once_and_read_with_its_password_only(folder):
    made = release_key(folder, "password")

    assert release_key(folder, "password").private_numbers() == made.private_numbers()
    assert stat.S_IMODE((folder / RELEASE).stat().st_mode) == 0o600
    assert made.private_numbers().private_value.to_bytes(32, "big") not in (folder / RELEASE).read_bytes()
    with pytest.raises(ConfigError, match="wrong password"):
        release_key(folder, "another")
    (folder / RELEASE).write_bytes(b"short")
    with pytest.raises(ConfigError, match="damaged"):
        release_key(folder, "password")


def test_a_process_that_died_while_it_made_a_release_key_makes_another(folder):
    folder.mkdir()
    (folder / "release.partial").write_bytes(b"half")

    assert release_key(folder, "p").private_numbers() == release_key(folder, "p").private_numbers()
