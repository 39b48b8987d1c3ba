"""A hot key's delegation: what stops it from signing for an account, and when it has to be renewed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from assay.chain.state import HotKey, LotState, StakeState
from assay.chain.statements import OPERATOR, VERIFIER, address_of, term_of
from assay.participant.telemetry.readings import Holdings
from assay.participant.wallet.delegation import (
    DAY_S,
    RENEW_S,
    WARN_S,
    Renewal,
    delegation_fault,
    delegation_text,
    holdings,
)
from assay.protocol.errors import Unavailable
from assay.testing.members import RUN_ID, a_deployment, a_hot_key, an_account_key, peer
from assay.testing.signed import NODES, VERIFIERS, a_spec
from tests.a_network import NOW, keys_of

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


class Delegating:
    """A chain of the time `NOW` with this delegation of the hot key; it counts what is sent."""

    deployment = a_deployment()

    def __init__(self, found: HotKey | None, pending: int = 0) -> None:
        self.found, self.pending, self.sent = found, pending, list[tuple[str, int]]()

    def timestamp(self) -> int:
        return NOW

    def hot_key(self, _hot: str) -> HotKey | None:
        return self.found

    def in_flight(self) -> int:
        return self.pending

    def delegate(self, hot: str, expiry: int, _consent: bytes) -> None:
        self.sent.append((hot, expiry))


def renewed(chain: Any, days: int | None = 90, keys: Any = None) -> list[tuple[str, int]]:
    """What a process sends in its first look."""
    Renewal(days).keep(chain, keys or keys_of("nora"))
    return chain.sent  # type: ignore[no-any-return]


SOON = HotKey(account=NORA, expiry=NOW + WARN_S)


def test_a_delegation_is_renewed_in_its_last_fortnight_and_not_before():
    hot = address_of(a_hot_key("nora"))

    assert renewed(Delegating(SOON)) == [(hot, NOW + 90 * DAY_S)]
    assert renewed(Delegating(replace(SOON, expiry=NOW + 1))) == [(hot, NOW + 90 * DAY_S)]
    assert renewed(Delegating(replace(SOON, expiry=NOW + WARN_S + 1))) == []


@pytest.mark.parametrize(
    "found",
    [
        None,
        replace(SOON, expiry=NOW),  # it is over, perhaps by its owner's wish
        replace(SOON, is_replaced=True),  # by another key: this one may be in other hands
        replace(SOON, account=MALLORY),
    ],
)
def test_what_an_owner_ended_or_replaced_is_not_renewed(found: HotKey | None):
    assert renewed(Delegating(found)) == []


def test_nothing_is_renewed_unasked_nor_while_the_account_sends_nor_of_one_that_signs_by_files():
    assert renewed(Delegating(SOON), days=None) == []
    assert renewed(Delegating(SOON, pending=1)) == []
    assert renewed(Delegating(SOON), keys=SimpleNamespace(signs_by_files=True)) == []


def test_a_chain_that_hides_renewals_has_one_at_a_time(monkeypatch: pytest.MonkeyPatch):
    chain: Any = Delegating(SOON)
    clock, renewal = [1_000.0], Renewal(90)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    for _ in range(5):
        renewal.keep(chain, keys_of("nora"))
    clock[0] += RENEW_S - 1
    renewal.keep(chain, keys_of("nora"))
    assert len(chain.sent) == 1
    clock[0] += 1
    renewal.keep(chain, keys_of("nora"))
    assert len(chain.sent) == 2


def test_a_renewal_that_fails_is_told_and_ends_nothing(caplog: pytest.LogCaptureFixture):
    chain: Any = Delegating(SOON)

    def declined(*_: Any) -> None:
        raise Unavailable("the signer declined")

    chain.delegate = declined
    assert renewed(chain) == []
    (record,) = caplog.records
    assert (record.message, record.reason) == ("delegation not renewed yet", "the signer declined")  # type: ignore[attr-defined]


LOTS = {
    (OPERATOR, bytes(RUN_ID)): LotState(amount=500, until=NOW + 7, cases=0),
    (VERIFIER, term_of(4)): LotState(amount=900, until=NOW + 9, cases=0),
}


class AChain:
    """A chain with these lots, by role and commitment, and one verifier set, number 4."""

    def run(self, _run_id: bytes) -> Any:
        return SimpleNamespace(deadline=NOW + 5)

    def set_version_of(self, _run_id: bytes) -> int:
        return 4

    def lot_of(self, _account: str, role: int, commitment: bytes) -> LotState:
        return LOTS[role, commitment]

    def stake_of(self, _account: str, role: int) -> StakeState:
        return StakeState(active=1000 + role, free=0, unbonding=0, minimum=1)


@pytest.mark.parametrize(
    ("name", "lot", "until_s", "role"), [(NODES[0], 500, 7, 0), (VERIFIERS[0], 900, 9, 1)]
)
def test_a_nodes_lot_is_for_the_run_and_a_verifiers_for_its_term(
    name: str, lot: int, until_s: int, role: int
) -> None:
    me: Any = SimpleNamespace(
        me=peer(name), run_id=RUN_ID, spec=a_spec(), keys=SimpleNamespace(account_address=bytes(20))
    )
    chain: Any = AChain()

    assert holdings(chain, me, NOW + 3) == Holdings(
        stake=1000 + role, lot=lot, lot_until=NOW + until_s, needed_until=NOW + 5, hot_key_expiry=NOW + 3
    )
