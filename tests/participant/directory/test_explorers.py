"""Where a run may be fetched is its members' word: bounded, public, and the newest that they signed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.participant.directory.explorers import HOLDERS_MAX, addresses_of, holders, newest_records
from assay.participant.directory.find import RECORD_BYTES_MAX
from assay.participant.files.record import (
    EXPLORER_MAX,
    HOST_MAX,
    Record,
    Role,
    SignedRecord,
    check_record,
    plain_explorer,
    read_record,
    renew_own,
    sign_record,
)
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import ConfigError, PeerFault
from assay.testing.signed import NODES, VERIFIERS
from tests.a_network import NOW, a_record, a_run_file, keys_of
from tests.participant.directory.a_directory import ADirectory

RUN = a_run_file()
URL = "https://runs.example.org:8443/assay"


# ---- the record


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "http://127.0.0.1:8600",
        "https://[2001:db8::1]/x",
        "https://a.example.org/~me/a.b_c-d",
        "https://" + "a." * 60 + "org" + "/p" * 34,
    ],
)
def test_a_record_names_an_explorer_and_is_read_again(url: str) -> None:
    signed = a_record("nora", explorer=url)

    check_record(signed, NOW)
    assert decode(type(signed), encode(signed)) == signed and signed.record.explorer == url
    assert plain_explorer(url + "/") == url


def test_a_record_without_one_has_the_bytes_that_it_had_before() -> None:
    record = a_record("nora").record

    assert encode(record) != encode(replace(record, explorer=URL))
    assert len(encode(replace(record, explorer=""))) == len(encode(replace(record, explorer="x"))) - 2
    longest = a_record("nora", host=".".join(["a" * 63] * 3 + ["b" * 61]), port=65535, now_s=2**33)
    longest = replace(longest, record=replace(longest.record, explorer="e" * EXPLORER_MAX))
    assert len(longest.record.host) == HOST_MAX and len(encode(longest)) < RECORD_BYTES_MAX


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org",
        "file:///etc/passwd",
        "https://user:secret@example.org",
        "https://user@example.org",
        "https://example.org/?q=1",
        "https://example.org/#x",
        "https://example.org/a/../b",
        "https://example.org/.",
        "https://example.org/a//b",
        "https://example.org/a b",
        "https://example.org/%2e%2e",
        "https://example.org\\@evil.org",
        "https://exa mple.org",
        "https://",
        "https://0.0.0.0",
        "https://[::ffff:1.2.3.4%25eth0]",
        "https://example.org:70000",
        "https://example.org:x",
        "https://[::1",
        "https://bücher.example",
        "https://example.org/" + "a" * EXPLORER_MAX,
        "example.org",
    ],
)
def test_what_is_no_plain_address_is_neither_signed_nor_believed(url: str) -> None:
    with pytest.raises(ConfigError, match="no explorer's address"):
        a_record("nora", explorer=url)

    if len(url) <= EXPLORER_MAX:
        with pytest.raises(PeerFault, match="no explorer's address"):
            check_record(signed_unchecked(url), NOW)


def signed_unchecked(url: str) -> SignedRecord:
    """A record whose maker does not check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.participant.files.record.plain_explorer", lambda text: text)
        return a_record("nora", explorer=url)


@pytest.mark.parametrize("url", ["HTTPS://example.org", "https://Example.org/", "https://example.org/"])
def test_a_record_has_the_one_form_of_an_address(url: str) -> None:
    assert a_record("nora", explorer=url).record.explorer == "https://example.org"
    with pytest.raises(PeerFault, match="plain form"):
        check_record(signed_unchecked(url), NOW)


def test_the_next_record_says_it_again_or_no_more(tmp_path: Path) -> None:
    first = renew_own(tmp_path, keys_of("nora"), Role.NODE, "a.org", 1, NOW, explorer=URL)
    assert (
        f"# explorer {URL}" in (tmp_path / "own.record").read_text()
        or URL in (tmp_path / "own.record").read_text()
    )
    second = renew_own(tmp_path, keys_of("nora"), Role.NODE, "a.org", 1, NOW)

    assert (first.record.explorer, second.record.explorer) == (URL, "")
    assert read_record(tmp_path / "own.record", NOW) == second


# ---- whom to ask


def named(name: str, role: Role, explorer: str, now_s: int = NOW + 9) -> Record:
    return sign_record(keys_of(name), role, "127.0.0.1", 1, now_s, explorer=explorer).record


def test_the_newest_record_of_a_member_counts_and_what_does_not_verify_is_not_read() -> None:
    there = ADirectory()
    there.announce(a_record(VERIFIERS[0], Role.VERIFIER, now_s=NOW + 9, explorer=URL), 5)
    there.announce(a_record(VERIFIERS[1], Role.VERIFIER, now_s=NOW - 9, explorer=URL), 5)  # older
    there.announce(a_record(VERIFIERS[2], Role.NODE, now_s=NOW + 9, explorer=URL), 5)  # of another role
    good = encode(a_record(NODES[0], now_s=NOW + 9, explorer=URL))
    there.announce(a_record(NODES[0], now_s=NOW + 9), 5, good[:-1] + bytes([good[-1] ^ 1]))

    found = newest_records(there, RUN, NOW + 9)  # type: ignore[arg-type]

    assert [one.peer for one in found if one.explorer] == [keys_peer(VERIFIERS[0])]
    assert {one.peer for one in found} == {one.record.peer for one in RUN.content.records}


def keys_peer(name: str) -> bytes:
    return a_record(name).record.peer


def test_the_buyer_is_asked_first_and_nobody_twice_and_not_too_many() -> None:
    records = [named(f"n{at}", Role.NODE, f"https://n{at}.org") for at in range(HOLDERS_MAX + 5)]
    records += [
        named("v", Role.VERIFIER, "https://v.org"), named("b", Role.BUYER, "https://b.org"),
        named("w", Role.VERIFIER, "https://b.org"), named("x", Role.NODE, ""),
    ]  # fmt: skip

    found = holders(records, is_local=False, resolve=lambda _: ["93.184.216.34"])

    assert found[:3] == ["https://b.org", "https://v.org", "https://n0.org"] and len(found) == HOLDERS_MAX


@pytest.mark.parametrize(
    ("url", "at", "is_asked"),
    [
        ("https://a.org", ["93.184.216.34"], True),
        ("https://a.org", ["93.184.216.34", "10.0.0.1"], False),
        ("https://a.org", [], False),
        ("https://a.org", ["169.254.169.254"], False),
        ("https://a.org", ["::1"], False),
        ("https://a.org", ["::ffff:127.0.0.1"], False),
        ("https://a.org", ["64:ff9b::7f00:1"], False),
    ],
)
def test_an_address_in_the_readers_own_network_is_asked_only_if_the_network_is_there_too(
    url: str, at: list[str], is_asked: bool
) -> None:
    records = [named("b", Role.BUYER, url)]

    assert bool(holders(records, is_local=False, resolve=lambda _: at)) is is_asked
    assert holders(records, is_local=True, resolve=lambda _: at) == [url]


def test_a_literal_address_is_its_own() -> None:
    for url in ("http://127.0.0.1:1", "http://10.1.2.3", "http://[::1]", "http://[fd00::1]"):
        assert not holders([named("b", Role.BUYER, url)], is_local=False), url
    assert addresses_of("127.0.0.1") == ["127.0.0.1"] and not addresses_of("x" * 70)
