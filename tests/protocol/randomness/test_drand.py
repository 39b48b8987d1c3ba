"""Drand: a real network's signature is taken, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.errors import MalformedMessage
from assay.protocol.randomness.drand import (
    AHEAD_S,
    NO_DRAND,
    QUICKNET,
    DrandSpec,
    check_signature,
    drand_faults,
    is_overdue,
    may_be_named,
    named_at,
    randomness,
    released_s,
)
from assay.protocol.types import NO_DIGEST
from tests.a_drand import GENESIS_S, a_key, a_network, a_signature

# Round 1000 of quicknet, as docs.drand.love/developer/http-api shows it.
THOUSANDTH = bytes.fromhex(
    "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
)
INFINITY = b"\xc0" + bytes(47)


@pytest.mark.slow
def test_a_round_of_the_league_of_entropy_is_taken_as_that_round_only():
    check_signature(QUICKNET, 1000, THOUSANDTH)
    for number in (999, 1001):
        with pytest.raises(MalformedMessage, match=f"drand round {number}"):
            check_signature(QUICKNET, number, THOUSANDTH)
    with pytest.raises(MalformedMessage):
        check_signature(a_network(), 1000, THOUSANDTH)
    assert randomness(THOUSANDTH).hex() == "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd"


def test_rounds_of_the_league_of_entropy_come_every_three_seconds_from_its_genesis():
    assert released_s(QUICKNET, 1) == 1_692_803_367  # https://docs.drand.love/developer
    assert released_s(QUICKNET, 1000) == 1_692_803_367 + 999 * 3
    assert DrandSpec(key=b"", genesis_s=0, period_s=0) == NO_DRAND


@pytest.mark.slow
@pytest.mark.parametrize(
    "signature",
    [
        b"", bytes(48), b"\xff" * 48, INFINITY, a_signature(7)[:-1], a_signature(7) + b"\0",
        bytes([a_signature(7)[0] ^ 0x20]) + a_signature(7)[1:],  # the point's negative
        a_signature(8), a_signature(7, secret=5),
    ],
    ids=["none", "zero", "ones", "infinity", "short", "long", "negative", "another round", "another key"],
)  # fmt: skip
def test_what_is_not_the_signature_of_a_round_is_refused(signature):
    with pytest.raises(MalformedMessage):
        check_signature(a_network(), 7, signature)
    check_signature(a_network(), 7, a_signature(7))


@pytest.mark.parametrize("bit", range(0, 384, 13))
def test_no_bit_of_a_signature_can_be_flipped(bit):
    flipped = (int.from_bytes(a_signature(7), "big") ^ (1 << bit)).to_bytes(48, "big")

    with pytest.raises(MalformedMessage):
        check_signature(a_network(), 7, flipped)


@pytest.mark.parametrize("number", [0, -1, 1 << 53])
def test_a_round_that_no_network_has_is_refused(number):
    with pytest.raises(MalformedMessage, match="expected 1 to"):
        check_signature(a_network(), number, a_signature(7))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (DrandSpec(key=b"", genesis_s=1, period_s=0), "no key"),
        (replace(a_network(), genesis_s=0), "genesis"),
        (replace(a_network(), period_s=0), "period"),
        (replace(a_network(), period_s=AHEAD_S), "period"),
        (replace(a_network(), key=b"\xc0" + bytes(95)), "not a point of the group"),
        (replace(a_network(), key=bytes(96)), "key"),
        (replace(a_network(), key=a_key()[:48]), "48 bytes, expected 96"),
    ],
    ids=["genesis alone", "no genesis", "no period", "long period", "infinity", "no point", "short"],
)
def test_a_network_that_cannot_be_one_is_refused_in_words(spec, words):
    assert any(words in fault for fault in drand_faults(spec))


def test_no_network_and_a_real_one_have_no_faults():
    assert not drand_faults(NO_DRAND) and not drand_faults(QUICKNET)
    assert not NO_DRAND.is_used and QUICKNET.is_used
    assert randomness(b"") == NO_DIGEST


@pytest.mark.parametrize("period_s", [1, 3, 30])
@pytest.mark.parametrize("now_s", [GENESIS_S - 100, GENESIS_S, GENESIS_S + 1, GENESIS_S + 10**8 + 2])
def test_what_a_leader_names_is_two_periods_away_and_what_is_out_may_not_be_named(period_s, now_s):
    network = a_network(period_s=period_s)

    number = named_at(network, now_s)

    assert released_s(network, number) >= now_s + 2 * period_s
    assert number == 1 or released_s(network, number - 1) < now_s + 2 * period_s + 3
    assert may_be_named(network, number, now_s)
    out = released_s(network, number)
    assert may_be_named(network, number, out - 1) and not may_be_named(network, number, out)
    assert not may_be_named(network, number, out - AHEAD_S - 1)
    assert not is_overdue(network, number, out) and is_overdue(network, number, out + 60)


def test_a_round_may_be_named_if_it_is_not_out_yet_and_at_most_two_minutes_ahead():
    network = a_network()
    out = released_s(network, 100)

    assert [may_be_named(network, 100, out - ahead) for ahead in (0, 1, 120, 121)] == [
        False,
        True,
        True,
        False,
    ]


def test_a_round_is_given_up_when_its_grace_is_over():
    network = a_network()
    out = released_s(network, 100)

    assert [is_overdue(network, 100, out + 5 + late) for late in (0, 1)] == [False, True]


@pytest.mark.parametrize("period_s", [1, 30])
def test_a_network_has_a_round_every_second_to_every_half_minute(period_s):
    assert drand_faults(replace(a_network(), period_s=period_s)) == ()
    assert drand_faults(replace(a_network(), period_s=31)) == ("drand's period is 31 s, expected 1 to 30",)
