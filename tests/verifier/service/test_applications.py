"""Applications: who may be a guest, and for whom this verifier votes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.commit_statement import evm_address
from assay.chain.state import HotKey, LotState
from assay.chain.statements import certificate, sign_digest
from assay.participant.files.application import Application
from assay.participant.files.record import Role, SignedRecord, sign_record
from assay.participant.files.track_record import VALID_S, TrackRecord
from assay.participant.keys.keyring import Keys
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import PeerFault, Unavailable
from assay.protocol.identity import peer_of, verify
from assay.protocol.messages import SignedAdmission
from assay.protocol.run_state import start
from assay.protocol.types import NO_DIGEST, Address, PeerId
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, peer
from assay.testing.signed import VERIFIERS, a_member, a_spec
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
        self.looks = self.hot_key_looks = 0
        self.runs: dict[bytes, Any] = {}  # others in this deployment
        self.hot_keys = {evm_address(a_member(n).account): evm_address(a_member(n).hot) for n in VERIFIERS}

    def run(self, run_id: bytes) -> Any:
        self.looks += run_id == RUN_ID
        return self.run_found if run_id == RUN_ID else self.runs.get(run_id)

    def verifier_set(self, _version: int) -> list[str]:
        return list(self.hot_keys)

    def set_version_of(self, _run_id: bytes) -> int:
        return 3

    def hot_key_of(self, account: str) -> str:
        self.hot_key_looks += 1
        return self.hot_keys[account]

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
            run_id=RUN_ID, me=peer(ME), domain=DOMAIN, keys=SimpleNamespace(peer=a_peer_key(ME)),
            deployment=a_deployment(),
        )  # fmt: skip
        monkeypatch.setattr(applications, "open_chain", lambda _me: self.chain)
        monkeypatch.setattr(applications, "REFUSED_S", 0)
        self.applications = Applications(me, self.follower, self.published.append, lambda: self.now_s)  # type: ignore[arg-type]

    def apply(
        self,
        signed: SignedRecord,
        *,
        is_ready: bool = True,
        sender: PeerId | None = None,
        shown: TrackRecord | None = None,
    ) -> None:
        track_record = () if shown is None else (shown,)
        body = encode(Application(record=signed, is_ready=is_ready, track_record=track_record))
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


EARLIER, CLASS = a_digest("an earlier run"), a_digest("class")


def a_track_record(keys: Keys, signers: Any = VERIFIERS[:3], **changes: Any) -> TrackRecord:
    """Of an earlier run, signed by these of its verifiers."""
    account = Address(bytes(keys.account_address))
    found = TrackRecord(
        run_id=EARLIER, account=account, exec_class=CLASS, clean=40, heard_s=NOW - 9, certificate=b""
    )
    found = replace(found, **changes)
    message = a_deployment().digest(found.statement(a_deployment().deployment_id))
    cert = certificate(message, [sign_digest(message, a_hot_key(name)) for name in signers])
    return replace(found, certificate=cert)


@pytest.mark.parametrize("version", [2, 3])
def test_a_track_record_of_this_set_or_the_one_before_it_is_in_the_vote(rig: Rig, keys: Keys, version: int):
    rig.chain.runs[EARLIER] = SimpleNamespace(set_version=version)

    rig.apply(a_record(keys), shown=a_track_record(keys))

    (vote,) = rig.published
    assert (vote.admission.exec_class, vote.admission.clean) == (CLASS, 40)
    verify(peer(ME), DOMAIN, vote.admission, vote.signature)


def test_track_records_of_one_account_are_looked_at_once_a_minute_and_first_at_their_signatures(
    rig: Rig, keys: Keys
):
    rig.chain.runs[EARLIER] = SimpleNamespace(set_version=3)
    rig.apply(a_record(keys), shown=replace(a_track_record(keys), certificate=b""))
    assert rig.chain.hot_key_looks == 0

    rig.now_s += CHECKED_S
    for number in range(10):  # by turns with two peer keys
        by = replace(keys, peer=a_peer_key(f"newcomer {number % 2}"))
        rig.apply(a_record(by), shown=a_track_record(keys, (*VERIFIERS[:2], "mallory")))
    assert rig.chain.hot_key_looks == len(VERIFIERS)


def false_ones(keys: Keys) -> dict[str, TrackRecord]:
    good = a_track_record(keys)
    return {
        "too few signatures": a_track_record(keys, VERIFIERS[:2]),
        "of a stranger": a_track_record(keys, (*VERIFIERS[:2], "mallory")),
        "no signature": replace(good, certificate=b""),
        "no certificate": replace(good, certificate=b"?" * 65),
        "more audits": replace(good, clean=41),
        "another class": replace(good, exec_class=a_digest("another")),
        "a later step": replace(good, heard_s=NOW),
        "of a foreign run": a_track_record(keys, run_id=a_digest("of another deployment")),
        "of another account": a_track_record(some_keys(2)),
        "of another, renamed": replace(a_track_record(some_keys(2)), account=good.account),
    }


@pytest.mark.parametrize("name", false_ones(some_keys()))
def test_a_false_or_foreign_track_record_counts_nothing_and_keeps_nobody_out(rig: Rig, keys: Keys, name: str):
    rig.chain.runs[EARLIER] = SimpleNamespace(set_version=3)

    rig.apply(a_record(keys), shown=false_ones(keys)[name])

    (vote,) = rig.published
    assert (vote.admission.exec_class, vote.admission.clean) == (NO_DIGEST, 0)
    assert rig.applications.knows(peer_of(keys.peer))


def test_a_track_record_is_worth_nothing_once_its_set_is_gone_or_a_signer_has_another_key(
    rig: Rig, keys: Keys
):
    rig.chain.runs[EARLIER] = SimpleNamespace(set_version=1)
    rig.apply(a_record(keys), shown=a_track_record(keys))
    rig.chain.runs[EARLIER] = SimpleNamespace(set_version=3)
    rig.chain.hot_keys[evm_address(a_member(VERIFIERS[0]).account)] = evm_address(a_member("new").hot)
    rig.now_s += CHECKED_S
    rig.apply(a_record(keys), shown=a_track_record(keys))

    assert [vote.admission.clean for vote in rig.published] == [0, 0]
    rig.now_s += CHECKED_S
    rig.apply(a_record(keys), shown=a_track_record(keys, VERIFIERS[1:]))
    assert rig.published[-1].admission.clean == 40


def test_a_track_record_counts_for_thirty_days(rig: Rig, keys: Keys):
    rig.chain.runs[EARLIER] = SimpleNamespace(set_version=3)
    for now_s in (NOW + VALID_S, NOW + VALID_S + CHECKED_S):
        rig.now_s = now_s
        rig.apply(a_record(keys), shown=a_track_record(keys, heard_s=NOW))
    assert [vote.admission.clean for vote in rig.published] == [40, 0]
