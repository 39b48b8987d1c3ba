"""A hot key's delegation: what stops it from signing for an account, and when it has to be renewed."""

from __future__ import annotations

from assay.chain.state import HotKey
from assay.chain.statements import address_of
from assay.participant.wallet.delegation import delegation_fault, delegation_text
from assay.testing.members import an_account_key
from tests.a_network import NOW

NORA, MALLORY = address_of(an_account_key("nora")), address_of(an_account_key("mallory"))


def test_a_hot_key_signs_until_the_second_before_its_delegation_ends():
    found = HotKey(account=NORA, expiry=NOW)

    assert delegation_fault(found, NORA, NOW - 1) is None
    assert "delegation ends 2023" in (delegation_fault(found, NORA, NOW) or "")


def test_a_hot_key_of_nobody_or_of_another_account_signs_for_nobody():
    assert delegation_fault(None, NORA, 0) == "its hot key is not delegated"
    assert (
        delegation_fault(HotKey(account=MALLORY, expiry=NOW), NORA, 0) == f"its hot key signs for {MALLORY}"
    )


def test_what_a_person_reads_names_account_and_end():
    hot = address_of(an_account_key("hot"))

    assert "not delegated by any account" in delegation_text(hot, None, NORA, NOW)
    assert f"by {MALLORY}, NOT" in delegation_text(hot, HotKey(account=MALLORY, expiry=NOW), NORA, 0)
    assert "EXPIRED" in delegation_text(hot, HotKey(account=NORA, expiry=NOW), NORA, NOW)
    assert "(in 10 s)" in delegation_text(hot, HotKey(account=NORA, expiry=NOW + 10), NORA, NOW)
