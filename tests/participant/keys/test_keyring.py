"""Keys on disk: nobody reads them without the password, nothing overwrites them."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import pytest
from eth_utils.address import to_checksum_address as address_in

from assay.chain.signing.signer import RemoteSigner
from assay.chain.signing.unsigned import FileSigner
from assay.chain.statements import address_of
from assay.participant.keys import keyring
from assay.participant.keys.keyring import QUICK, RELEASE, STRONG, AccountElsewhere, load_keys
from assay.participant.keys.private_files import read_password, write_private
from assay.protocol.encoding.codec import Max, encode
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest

FILES = ("peer.key", "account.json", "hot.json")


def create_keys(folder, password):
    """With the least work that the library allows: these tests are about files, not about its cost."""
    return keyring.create_keys(folder, password, QUICK)


def release_key(folder, password):
    return keyring.release_key(folder, password, QUICK)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "keys"


def test_keys_are_read_as_they_were_written(folder):
    created = create_keys(folder, "password")

    loaded = load_keys(folder, "password")

    assert bytes(loaded.peer) == bytes(created.peer)
    assert (loaded.account, loaded.hot) == (created.account, created.hot)
    assert address_of(loaded.account).lower() == "0x" + loaded.account_address.hex()


ELSEWHERE = AccountElsewhere(url="http://127.0.0.1:8550", account="0x" + "aB" * 20)


def test_a_folder_names_the_signer_that_has_the_accounts_key(folder, tmp_path):
    keyring.create_keys(folder, "password", QUICK, ELSEWHERE)

    loaded = load_keys(folder, "password")

    assert loaded.account == ELSEWHERE and loaded.account_address == b"\xab" * 20
    assert isinstance(loaded.signer, RemoteSigner)
    assert (loaded.signer.address.lower(), loaded.signer.url) == ("0x" + "ab" * 20, ELSEWHERE.url)
    assert not (folder / "account.json").exists()
    with pytest.raises(ConfigError, match="which signs transactions only"):
        _ = loaded.account_key
    keyring.back_up_keys(folder, "password", tmp_path / "backup", "apart", QUICK)
    restored = keyring.restore_keys(tmp_path / "backup", "apart", tmp_path / "there", "fresh", QUICK)
    assert restored == loaded == load_keys(tmp_path / "there", "fresh")


def test_a_folder_names_the_files_by_which_the_account_signs(folder, tmp_path):
    by_files = AccountElsewhere(url=f"file:{tmp_path / 'to sign'}", account=ELSEWHERE.account)
    keyring.create_keys(folder, "password", QUICK, by_files)

    loaded = load_keys(folder, "password")

    assert loaded.signer == FileSigner(account=address_in("0x" + "ab" * 20), folder=tmp_path / "to sign")
    assert loaded.signs_by_files and not replace(loaded, account=ELSEWHERE).signs_by_files
    with pytest.raises(ConfigError, match=r"behind the files in .*to sign"):
        _ = loaded.account_key
    with pytest.raises(ConfigError, match="a verifier sends transactions by itself"):
        loaded.check_unattended("a verifier")
    replace(loaded, account=ELSEWHERE).check_unattended("a verifier")
    replace(loaded, account=b"\1" * 32).check_unattended("a verifier")
    keyring.back_up_keys(folder, "password", tmp_path / "backup", "apart", QUICK)
    assert keyring.restore_keys(tmp_path / "backup", "apart", tmp_path / "there", "fresh", QUICK) == loaded


def test_a_folder_has_the_key_of_its_account_and_the_hot_keys_that_it_ever_had(folder):
    first = keyring.create_keys(folder, "password", QUICK)
    second, _ = keyring.rotate_hot(folder, "password", QUICK)

    for address, key in (
        (first.account_address, first.account),
        (second.hot_address, second.hot),
        (first.hot_address, first.hot),
    ):
        assert keyring.key_of(folder, "password", address) == key
    with pytest.raises(ConfigError, match=r"no key of 0x.*which the run's spec names"):
        keyring.key_of(folder, "password", b"\xab" * 20)


def test_without_the_accounts_key_the_hot_key_signs_for_a_buyer(folder):
    keys = keyring.create_keys(folder, "password", QUICK, ELSEWHERE)

    assert keys.buyer_key == keys.hot == keyring.key_of(folder, "password", keys.hot_address)
    assert replace(keys, account=b"\1" * 32).buyer_key == b"\1" * 32


def test_an_accounts_key_is_in_one_place(folder):
    keyring.create_keys(folder, "password", QUICK, ELSEWHERE)
    (folder / "account.json").write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"has account.json and signer.json"):
        load_keys(folder, "password")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"5", b"[" * 9999, b'{"url": 5, "account": "0x"}', b'{"url": "http://a"}']
)
def test_a_damaged_signer_file_is_named(folder, body: bytes):
    keyring.create_keys(folder, "password", QUICK, ELSEWHERE)
    (folder / "signer.json").write_bytes(body)
    with pytest.raises(ConfigError, match=r"signer.json: damaged|expected the address"):
        load_keys(folder, "password")


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("http://a", "0x12"), ("http://a", "ab" * 20), ("ftp://a", "0x" + "ab" * 20),
        ("http://", "0x" + "ab" * 20), ("http://a b", "0x" + "ab" * 20),
        ("http://" + "a" * 2048, "0x" + "ab" * 20), ("file:folder", "0x" + "ab" * 20),
        ("file:", "0x" + "ab" * 20), ("file:/" + "a" * 2048, "0x" + "ab" * 20),
        ("http://signer/" + "ä" * 500, "0x" + "ab" * 20),
    ],
)  # fmt: skip
def test_what_names_no_signer_is_refused(url: str, account: str):
    with pytest.raises(ConfigError, match="expected the address of"):
        AccountElsewhere(url=url, account=account)


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
    (folder / RELEASE).write_bytes(b"short")  # in place, so it keeps its mode
    with pytest.raises(ConfigError, match="damaged"):
        release_key(folder, "password")


def test_a_process_that_died_while_it_made_a_release_key_makes_another(folder):
    folder.mkdir(mode=0o700)
    (folder / f"{RELEASE}.partial").write_bytes(b"half")

    assert release_key(folder, "p").private_numbers() == release_key(folder, "p").private_numbers()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
@pytest.mark.parametrize("name", FILES)
def test_a_key_that_others_may_read_or_change_is_refused_with_the_mend(folder, name, mode):
    create_keys(folder, "password")
    (folder / name).chmod(mode)

    with pytest.raises(ConfigError, match=f"chmod 600 .*{name}"):
        load_keys(folder, "password")


def test_a_folder_of_keys_that_others_may_open_is_refused_with_the_mend(folder):
    create_keys(folder, "password")
    folder.chmod(0o750)

    for use in (load_keys, create_keys, release_key):
        with pytest.raises(ConfigError, match=f"chmod 700 {folder}"):
            use(folder, "password")


def test_a_password_that_others_may_read_or_that_is_empty_is_refused(tmp_path):
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        read_password(path)
    path.chmod(0o600)
    assert read_password(path) == "secret"
    path.write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        read_password(path)


def test_a_huge_key_file_is_refused_unread(folder):
    create_keys(folder, "password")
    (folder / "hot.json").write_bytes(b" " * (1 << 20))

    with pytest.raises(ConfigError, match="more than 65536 bytes"):
        load_keys(folder, "password")


def test_a_key_file_that_asks_for_a_machines_memory_is_refused(folder):
    create_keys(folder, "password")
    store = json.loads((folder / "hot.json").read_text())
    store["crypto"]["kdfparams"]["n"] = 1 << 40
    (folder / "hot.json").write_text(json.dumps(store))

    with pytest.raises(ConfigError, match="damaged"):
        load_keys(folder, "password")


def test_the_usual_work_makes_a_guess_cost_64_mib(folder):
    assert STRONG.scrypt_n * 8 * 128 == STRONG.memory_bytes == 64 << 20


def test_a_rotated_hot_key_is_new_and_all_else_stays(folder):
    before = create_keys(folder, "password")

    after, kept = keyring.rotate_hot(folder, "password", QUICK)

    assert after.hot != before.hot
    assert (bytes(after.peer), after.account) == (bytes(before.peer), before.account)
    assert load_keys(folder, "password").hot == after.hot
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and before.hot_address.hex() in kept.name


def test_a_rotated_peer_key_is_another_peer_with_the_same_account(folder):
    before = create_keys(folder, "password")

    after, kept = keyring.rotate_peer(folder, "password", QUICK)

    assert bytes(after.peer) != bytes(before.peer)
    assert (after.account, after.hot) == (before.account, before.hot)
    assert bytes(load_keys(folder, "password").peer) == bytes(after.peer)
    assert kept.exists()


def test_a_backup_restores_every_key_under_another_password_and_overwrites_nothing(folder, tmp_path):
    keys, release = create_keys(folder, "password"), release_key(folder, "password")
    out, there = tmp_path / "backup", tmp_path / "there"

    keyring.back_up_keys(folder, "password", out, "apart", QUICK)
    restored = keyring.restore_keys(out, "apart", there, "fresh", QUICK)

    assert (bytes(restored.peer), restored.account, restored.hot) == (
        bytes(keys.peer),
        keys.account,
        keys.hot,
    )
    assert load_keys(there, "fresh").hot == keys.hot
    assert release_key(there, "fresh").private_numbers() == release.private_numbers()
    assert keys.account not in out.read_bytes() and stat.S_IMODE(out.stat().st_mode) == 0o600
    for again in (
        lambda: keyring.back_up_keys(folder, "password", out, "apart", QUICK),
        lambda: keyring.restore_keys(out, "apart", there, "fresh", QUICK),
    ):
        with pytest.raises(ConfigError, match="never overwritten"):
            again()
    with pytest.raises(ConfigError, match="wrong password"):
        keyring.restore_keys(out, "password", tmp_path / "elsewhere", "fresh", QUICK)


def test_a_backup_restores_the_hot_keys_of_earlier_runs(folder, tmp_path):
    olds = [create_keys(folder, "password"), keyring.rotate_hot(folder, "password", QUICK)[0]]
    keyring.rotate_hot(folder, "password", QUICK)
    out, there = tmp_path / "backup", tmp_path / "there"

    keyring.back_up_keys(folder, "password", out, "apart", QUICK)
    keyring.restore_keys(out, "apart", there, "fresh", QUICK)

    for old in olds:
        assert keyring.key_of(there, "fresh", old.hot_address) == old.hot
    assert {stat.S_IMODE(path.stat().st_mode) for path in there.iterdir()} == {0o600}
    assert {path.name for path in there.iterdir()} == {path.name for path in folder.iterdir()}


def test_a_backup_leaves_out_no_key_without_a_word(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(keyring, "RETIRED_MAX", 1)
    create_keys(folder, "password")
    for _ in range(2):
        keyring.rotate_hot(folder, "password", QUICK)

    with pytest.raises(ConfigError, match="2 retired hot keys; a backup holds 1"):
        keyring.back_up_keys(folder, "password", tmp_path / "backup", "apart", QUICK)
    assert not (tmp_path / "backup").exists()


@dataclass(frozen=True, kw_only=True)
class Before:
    """A backup as it was before."""

    TAG: ClassVar[bytes] = b"assay/key-backup/2"
    peer: Digest
    account: Annotated[bytes, Max(64)]
    hot: Digest
    release: Annotated[bytes, Max(64)]


def test_a_backup_from_before_replaced_keys_were_in_it_restores(folder, tmp_path):
    keys = create_keys(folder, "password")
    before = Before(peer=bytes(keys.peer), account=keys.account, hot=keys.hot, release=b"")
    write_private(tmp_path / "backup", keyring._sealed(encode(before), "apart", QUICK))

    assert keyring.restore_keys(tmp_path / "backup", "apart", tmp_path / "there", "fresh", QUICK) == keys
