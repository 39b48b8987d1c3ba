"""`assay key`: a person makes, shows, moves and saves keys, and every mistake is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.participant.files.record import OWN_RECORD, Role, check_newer, read_record
from tests.a_network import NOW, keys_of
from tests.cli.market import Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow
FOREVER = NOW * 2


@pytest.fixture
def keys(assay: Assay, tmp_path: Path) -> Path:
    code, out, err = assay("key", "new", tmp_path / "keys")
    assert code == 0 and "freshly drawn" in out, err
    return tmp_path / "keys"


def facts(assay: Assay, keys: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(assay("key", "show", keys, "--json")[1])
    return found


def test_keys_are_shown_without_a_secret_and_never_overwritten(assay: Assay, keys: Path) -> None:
    found = facts(assay, keys)
    assert found["modes"] == {
        "keys": "0700", "account.json": "0600", "hot.json": "0600", "peer.key": "0600",
    }  # fmt: skip
    public = {"peer", "account", "hot_key", "modes", "delegation", "expiry"}
    assert set(found) == {"schema", *public}

    code, _, err = assay("key", "new", keys)
    assert code == 2 and "never overwritten" in err
    assert facts(assay, keys) == found


def test_a_key_that_others_may_read_stops_every_command_with_the_mend(assay: Assay, keys: Path) -> None:
    (keys / "hot.json").chmod(0o640)

    code, _, err = assay("key", "show", keys)

    assert code == 2 and f"chmod 600 {keys / 'hot.json'}" in err and len(err.splitlines()) == 1


def test_a_card_is_renewed_with_a_higher_number(assay: Assay, keys: Path, tmp_path: Path) -> None:
    for address in ("node.example.org:4001", "[2001:db8::1]:4002"):
        out = tmp_path / f"{address[-1]}.record"
        assert assay("key", "card", keys, "--role", "node", "--address", address, "--out", out).status == 0
    first, second = (read_record(tmp_path / f"{n}.record", FOREVER) for n in (1, 2))

    check_newer(first, second)
    assert (second.record.host, second.record.port, second.record.role) == ("2001:db8::1", 4002, Role.NODE)
    assert read_record(keys / OWN_RECORD, FOREVER) == second
    for wrong in (("--role", "king", "--address", "a.org:1"), ("--role", "node", "--address", "a.org")):
        code, _, err = assay("key", "card", keys, *wrong)
        assert code == 2 and "expected" in err


def test_a_rotation_says_what_has_to_follow(assay: Assay, keys: Path) -> None:
    before = facts(assay, keys)

    code, out, _ = assay("key", "rotate", keys)

    after = facts(assay, keys)
    assert code == 0 and "assay key delegate" in out and "assay key card" in out
    assert after["hot_key"] != before["hot_key"] and after["peer"] == before["peer"]
    assert "another participant" in assay("key", "rotate", keys, "--peer")[1]
    assert facts(assay, keys)["peer"] != before["peer"]


def test_a_backup_is_restored_elsewhere(assay: Assay, keys: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.touch(mode=0o600)
    apart.write_text("another secret")
    words = ("--backup-password", apart)

    assert assay("key", "backup", keys, tmp_path / "saved", *words).status == 0
    restored = assay("key", "restore", tmp_path / "saved", tmp_path / "new" / "keys", *words)
    assert restored.status == 0
    assert "end whatever else runs with them" in restored.out and "signed.mark" in restored.out

    before, after = facts(assay, keys), facts(assay, tmp_path / "new" / "keys")
    assert (after["peer"], after["account"], after["hot_key"]) == (
        before["peer"],
        before["account"],
        before["hot_key"],
    )


def test_a_delegation_is_renewed_and_its_end_is_told(assay: Assay, market: Market) -> None:
    file = market.config_of("stranger")

    code, out, err = assay("key", "delegate", file)
    assert code == 0 and wallet("stranger") in out and ("(in 89 d 23 h)" in out or "(in 90 d)" in out), err
    assert "(in 200 d)" in assay("key", "delegate", file, "--days", 200).out.replace("199 d 23 h", "200 d")
    assert "verifiers' seats of it go to reserves" in assay("key", "delegate", file, "--days", 0).out
    ended = market.bank.hot_key(market.bank.hot_key_of(wallet("stranger")))
    assert ended is not None and ended.expiry <= market.bank.timestamp()
    code, _, err = assay("key", "delegate", file, "--days", 367)
    assert code == 2 and "1 to 366" in err


def test_no_command_of_keys_prints_a_private_key(assay: Assay, market: Market) -> None:
    folder = market.config_of("buyer").parent / "keys"
    shown = assay("key", "show", folder, "--password-file", market.folder / "password").out.lower()

    keys = keys_of("buyer")
    assert keys.account_address.hex() in shown
    for secret in (bytes(keys.peer), keys.account, keys.hot, b"a password of nobody"):
        assert secret.hex() not in shown and secret.decode("latin-1") not in shown
