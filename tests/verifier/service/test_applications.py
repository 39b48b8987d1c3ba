"""Applications: who may be a guest, and for whom this verifier votes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.state import HotKey, LotState
from assay.participant.files.application import Application
from assay.participant.files.record import Role, SignedRecord, sign_record
from assay.participant.keys.keyring import Keys
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import PeerFault, Unavailable
from assay.protocol.identity import peer_of, verify
from assay.protocol.messages import SignedAdmission
from assay.protocol.run_state import start
from assay.protocol.types import PeerId
from assay.testing.members import DOMAIN, RUN_ID, a_peer_key, peer
from assay.testing.signed import a_spec
from assay.verifier.service import applications
from assay.verifier.service.applications import CHECKED_S, GUESTS_MAX, VOTED_S, Applications

NOW, LOT, DEADLINE = 1_000, 100, 5_000
ME = "vera"


class FakeChain:
    """One account's state in the contracts, as an honest endpoint tells it."""

    def __init__(self) -> None:
        self.run_found: Any = SimpleNamespace(lot=LOT, deadline=DEADLINE)
        self.lot = LotState(amount=LOT, until=DEADLINE, cases=0)
        self.banned = False
        self.delegation: HotKey | None = None
        self.looks = 0

    def run(self, _run_id: bytes) -> Any:
        self.looks += 1
        return self.run_found

    def lot_of(self, *_where: Any) -> LotState:
        return self.lot

    def is_banned(self, _account: str) -> bool:
        return self.banned

    def hot_key(self, _hot: str) -> HotKey | None:
        return self.delegation


class Rig:
    """A verifier's applications, with one free seat."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chain, self.published, self.now_s = FakeChain(), list[SignedAdmission](), NOW
        spec = a_spec()
        spec = replace(spec, seats=len(spec.nodes) + 1)
        self.follower = SimpleNamespace(run_state=start(spec, RUN_ID))
        me: Any = SimpleNamespace(
            run_id=RUN_ID, me=peer(ME), domain=DOMAIN, keys=SimpleNamespace(peer=a_peer_key(ME))
        )
        monkeypatch.setattr(applications, "open_chain", lambda _me: self.chain)
        monkeypatch.setattr(applications, "REFUSED_S", 0)
        self.applications = Applications(me, self.follower, self.published.append, lambda: self.now_s)  # type: ignore[arg-type]

    def apply(self, signed: SignedRecord, *, is_ready: bool = True, sender: PeerId | None = None) -> None:
        body = encode(Application(record=signed, is_ready=is_ready))
        trio.run(self.applications.handlers["apply"], sender or signed.record.peer, body)


def some_keys(number: int = 1) -> Keys:
    secret = number.to_bytes(2, "big")
    return Keys(peer=a_peer_key(f"newcomer {number}"), account=secret * 16, hot=(b"hk" + secret) * 8)


def a_record(keys: Keys, role: Role = Role.NODE) -> SignedRecord:
    return sign_record(keys, role, "127.0.0.1", 4001, NOW)


@pytest.fixture
def keys() -> Keys:
    return some_keys()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, keys: Keys) -> Rig:
    made = Rig(monkeypatch)
    made.chain.delegation = delegated(keys)
    return made


def delegated(keys: Keys) -> HotKey:
    from assay.chain.commit_statement import evm_address

    return HotKey(account=evm_address(keys.account_address), expiry=DEADLINE + 1)


def test_a_node_with_a_lot_is_a_guest_and_is_voted_for_once_it_is_ready(rig: Rig, keys: Keys):
    signed = a_record(keys)
    rig.apply(signed, is_ready=False)
    assert rig.applications.knows(signed.record.peer)
    assert rig.published == []

    rig.apply(signed)
    (vote,) = rig.published
    assert (vote.admission.member, vote.admission.verifier) == (signed.record.member, peer(ME))
    verify(peer(ME), DOMAIN, vote.admission, vote.signature)


def test_a_guest_that_waits_for_long_costs_a_look_a_minute_and_a_vote_every_few_seconds(rig: Rig, keys: Keys):
    signed = a_record(keys)
    for second in range(CHECKED_S):
        rig.now_s = NOW + second
        rig.apply(signed)
    assert rig.chain.looks == 1
    assert [one.admission.time_s for one in rig.published] == list(range(NOW, NOW + CHECKED_S, VOTED_S))

    rig.now_s = NOW + CHECKED_S
    rig.chain.banned = True
    with pytest.raises(PeerFault, match="banned"):
        rig.apply(signed)
    assert rig.chain.looks == 2 and not rig.applications.knows(signed.record.peer)


def test_another_record_of_a_guest_is_looked_up_at_once(rig: Rig, keys: Keys):
    rig.apply(a_record(keys))
    rig.chain.delegation = None
    with pytest.raises(PeerFault, match="delegated"):
        rig.apply(a_record(replace(keys, hot=bytes([7, 7]) * 16)))


def test_a_vote_is_never_older_than_what_was_agreed_last(rig: Rig, keys: Keys):
    """A leader's clock that is ahead must not make every vote of an honest verifier stale."""
    rig.follower.run_state = replace(rig.follower.run_state, time_s=NOW + 500)
    rig.apply(a_record(keys))
    assert rig.published[0].admission.time_s == NOW + 500


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lot": LotState(amount=LOT - 1, until=DEADLINE, cases=0)}, "has locked"),
        ({"lot": LotState(amount=LOT, until=DEADLINE - 1, cases=0)}, "has locked"),
        ({"banned": True}, "banned"),
        ({"delegation": None}, "delegated"),
        ({"run_found": None}, "not open"),
    ],
)
def test_whoever_cannot_be_held_to_its_work_is_no_guest(rig: Rig, keys: Keys, change, reason):
    for name, value in change.items():
        setattr(rig.chain, name, value)
    with pytest.raises(PeerFault, match=reason):
        rig.apply(a_record(keys))
    assert not rig.applications.knows(peer_of(keys.peer))
    assert rig.published == []


def test_nobody_applies_with_the_record_of_another_or_of_another_role(rig: Rig, keys: Keys):
    with pytest.raises(PeerFault, match="of another"):
        rig.apply(a_record(keys), sender=peer("mallory"))
    with pytest.raises(PeerFault, match="verifier"):
        rig.apply(a_record(keys, Role.VERIFIER))
    forged = a_record(keys)
    forged = replace(forged, record=replace(forged.record, account=forged.record.hot))
    with pytest.raises(PeerFault, match="signature"):
        rig.apply(forged)


def test_without_a_free_seat_strangers_are_not_let_in(rig: Rig, keys: Keys):
    assert rig.applications.is_open()
    spec = a_spec()
    rig.follower.run_state = start(spec, RUN_ID)
    assert not rig.applications.is_open()
    with pytest.raises(Unavailable, match="no seat is free"):
        rig.apply(a_record(keys))


def test_one_account_has_one_guest_and_all_together_are_bounded(rig: Rig, keys: Keys):
    first, second = a_record(keys), a_record(replace(keys, peer=a_peer_key("another")))
    rig.apply(first, is_ready=False)
    rig.apply(second, is_ready=False)
    assert not rig.applications.knows(first.record.peer)
    assert rig.applications.knows(second.record.peer)

    for number in range(2, GUESTS_MAX + 2):
        others = some_keys(number)
        rig.chain.delegation = delegated(others)
        rig.apply(a_record(others), is_ready=False)
    assert not rig.applications.knows(second.record.peer)
