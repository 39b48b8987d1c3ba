"""A record is its two keys' word about where a participant is: nobody else can make, move or replay it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.participant.files.armour import from_text, to_line, to_text
from assay.participant.files.record import (
    AHEAD_S_MAX,
    OWN_RECORD,
    PREFIX,
    Role,
    SignedRecord,
    check_newer,
    check_record,
    learn_records,
    newest,
    plain_host,
    read_record,
    renew_own,
    sign_record,
    split_address,
    write_record,
)
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.testing.members import peer
from tests.a_network import NOW, a_record, keys_of


def test_a_record_is_accepted_as_it_was_signed():
    check_record(a_record("nora"), NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"peer": keys_of("mallory").peer.verify_key.encode()},
        {"account": keys_of("mallory").account_address},
        {"hot": keys_of("mallory").hot_address},
        {"role": Role.VERIFIER},
        {"host": "203.0.113.9"},
        {"port": 4002},
        {"made_at_s": NOW + 1},
        {"sequence": NOW + 1},
    ],
)
def test_no_field_of_a_record_can_be_changed(change):
    signed = a_record("nora")

    with pytest.raises(PeerFault, match="signature does not cover"):
        check_record(replace(signed, record=replace(signed.record, **change)), NOW)


def test_a_record_needs_both_keys():
    """Neither a stolen hot key nor a stolen peer key alone can move a participant."""
    nora, mallory = keys_of("nora"), keys_of("mallory")
    by_hot_alone = sign_record(replace(nora, peer=mallory.peer), Role.NODE, "::1", 1, NOW)
    by_peer_alone = sign_record(replace(nora, hot=mallory.hot), Role.NODE, "::1", 1, NOW)
    honest = sign_record(nora, Role.NODE, "::1", 1, NOW)

    with pytest.raises(PeerFault, match="signature does not cover"):
        check_record(replace(honest, by_peer=by_hot_alone.by_peer), NOW)
    with pytest.raises(PeerFault, match="signed by hot key"):
        check_record(replace(honest, by_hot=by_peer_alone.by_hot), NOW)


def test_a_record_from_the_future_is_refused():
    check_record(a_record("nora", now_s=NOW + AHEAD_S_MAX), NOW)
    with pytest.raises(PeerFault, match="it is 2023"):
        check_record(a_record("nora", now_s=NOW + AHEAD_S_MAX + 1), NOW)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("Node-1.Example.ORG.", "node-1.example.org"),
        ("localhost", "localhost"),
    ],
)
def test_a_host_has_one_form(text, plain):
    assert plain_host(text) == plain == plain_host(plain)


@pytest.mark.parametrize(
    "text",
    ["", "0.0.0.0", "::", "224.0.0.1", "fe80::1%eth0", "1.2.3", "300.1.1.1", "a b", "-a.org", "a..b", "a/b",
     "../etc", "x" * 64, "a." * 130 + "a", "node\n.org", "é.org"],
)  # fmt: skip
def test_what_nobody_can_dial_is_no_host(text):
    with pytest.raises(ConfigError):
        plain_host(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [("192.0.2.1:4001", ("192.0.2.1", 4001)), ("[::1]:80", ("::1", 80)), ("a.org:1", ("a.org", 1))],
)
def test_an_address_is_host_and_port(text, found):
    assert split_address(text) == found


@pytest.mark.parametrize("text", ["a.org", "::1:80", "a.org:", "a.org:x", "a.org:123456", ":1", "[::1]"])
def test_what_has_no_port_is_no_address(text):
    with pytest.raises(ConfigError):
        split_address(text)


def test_a_host_in_another_form_is_refused_though_it_is_signed(monkeypatch):
    monkeypatch.setattr("assay.participant.files.record.plain_host", lambda host: host)
    signed = a_record("nora", host="2001:DB8::1")
    monkeypatch.undo()

    with pytest.raises(PeerFault, match="not in plain form"):
        check_record(signed, NOW)


def test_an_older_record_or_another_of_the_same_number_is_refused():
    known = a_record("nora", now_s=NOW)

    check_newer(None, known)
    check_newer(known, known)
    check_newer(known, a_record("nora", now_s=NOW + 1))
    for replayed in (a_record("nora", now_s=NOW - 1), a_record("nora", port=9, now_s=NOW)):
        with pytest.raises(PeerFault, match="is known"):
            check_newer(known, replayed)


def test_a_newer_record_cannot_take_another_account():
    taken = sign_record(
        replace(keys_of("nora"), account=keys_of("mallory").account), Role.NODE, "::1", 1, NOW + 1
    )

    with pytest.raises(PeerFault, match="it is known with"):
        check_newer(a_record("nora"), taken)


def test_the_number_rises_although_the_clock_goes_back_and_although_the_last_record_is_lost():
    first = a_record("nora", now_s=NOW)

    assert a_record("nora", now_s=NOW - 100, before=first).record.sequence == NOW + 1
    assert a_record("nora", now_s=NOW + 100).record.sequence == NOW + 100


def test_records_are_learned_once_and_an_older_one_is_refused_with_the_mend(tmp_path):
    old, new = a_record("nora", now_s=NOW), a_record("nora", now_s=NOW + 1)

    assert learn_records(tmp_path, [old, a_record("nils")], NOW)[peer("nora")] == old
    assert learn_records(tmp_path, [new], NOW)[peer("nora")] == new
    assert learn_records(tmp_path, [], NOW)[peer("nora")] == new
    with pytest.raises(ConfigError, match="ask for its present record"):
        learn_records(tmp_path, [old], NOW)


def test_the_newest_of_several_records_counts_in_any_order():
    old, new = a_record("nora", now_s=NOW), a_record("nora", now_s=NOW + 1)

    assert newest([old, new]) == newest([new, old]) == {peer("nora"): new}


def test_a_record_survives_its_file_and_renews_itself(tmp_path):
    first = renew_own(tmp_path, keys_of("nora"), Role.NODE, "a.org", 1, NOW)
    second = renew_own(tmp_path, keys_of("nora"), Role.NODE, "b.org", 1, NOW)

    assert read_record(tmp_path / OWN_RECORD, NOW) == second
    check_newer(first, second)


def test_a_record_holds_no_secret(tmp_path):
    keys = keys_of("nora")
    write_record(tmp_path / "r.record", a_record("nora"))
    body = (tmp_path / "r.record").read_bytes()

    for secret in (bytes(keys.peer), keys.account, keys.hot):
        assert secret not in body and secret.hex().encode() not in body


@pytest.mark.parametrize(
    "body", ["", "assay-record-1.", "assay-network-1.AAAA", "assay-record-2.AAAA", "x" * 5000]
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path, body):
    (tmp_path / "r.record").write_text(body)

    with pytest.raises(ConfigError, match=r"r\.record"):
        read_record(tmp_path / "r.record", NOW)


# ---- the text


@given(width=st.integers(1, 90), gap=st.sampled_from([" ", "\t", "\r\n", "\n"]))
def test_a_mail_program_may_wrap_the_text_anywhere(width, gap):
    line = to_line(PREFIX, a_record("nora"))
    wrapped = gap.join(line[at : at + width] for at in range(0, len(line), width))

    assert from_text(PREFIX, SignedRecord, wrapped) == a_record("nora")


def test_comments_are_for_people_and_cannot_hide_a_second_record():
    text = to_text(PREFIX, a_record("nora"), ["a note\nassay-record-1.AAAA"])

    assert from_text(PREFIX, SignedRecord, text) == a_record("nora")
    with pytest.raises(MalformedMessage):
        from_text(PREFIX, SignedRecord, text + to_text(PREFIX, a_record("nils"), []))


def test_every_flipped_character_of_a_record_is_noticed():
    line = to_line(PREFIX, a_record("nora"))
    for at in range(len(line)):
        other = line[:at] + ("A" if line[at] != "A" else "B") + line[at + 1 :]
        with pytest.raises((MalformedMessage, PeerFault)):
            check_record(from_text(PREFIX, SignedRecord, other), NOW)
