"""Certificates: only what we computed ourselves, signed by a quorum's own hot keys, goes on chain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing

from assay.chain.commit_statement import evm_address
from assay.chain.proposals import CertifiedResult
from assay.chain.statements import Discharge, Veto, sign_digest, verify_certificate
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.wallet.certificates import certified_discharge, certified_result, certified_veto
from assay.participant.wallet.judges import Judges, named_judges
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import Unavailable
from assay.protocol.messages import ResultSignature, StepRequest
from assay.protocol.types import NO_DIGEST, Digest, HotSignature, PeerId
from assay.testing.members import RUN_ID, a_deployment, a_digest, a_hot_key, name_of, peer
from assay.testing.signed import NODES, VERIFIERS, a_member, a_spec
from tests.a_network import keys_of

MODEL, OTHER = a_digest("model"), a_digest("another model")
Answer = Callable[[str], ResultSignature]


class Me:
    """What of a participant is asked for."""

    spec, deployment = a_spec(), a_deployment()


def a_settlement() -> Settlement:
    return Settlement(
        run_id=a_digest("run"), epoch=2, rows=(), unpaid=(), tokens_paid=0, table_hash=a_digest("table")
    )


def an_answer(name: str, model: Digest = MODEL, key: str = "", **changes: Any) -> ResultSignature:
    result = epoch_result(Me.spec, a_settlement(), model, NO_DIGEST, 1)
    message = Me.deployment.digest(result)
    answer = ResultSignature(
        epoch=2,
        prev_result=NO_DIGEST,
        root=Digest(result.root),
        table_hash=Digest(result.table_hash),
        model_hash=model,
        total=result.total,
        signature=HotSignature(sign_digest(message, a_hot_key(key or name))),
    )
    return replace(answer, **changes)


class Verifiers:
    """A host whose peers answer as told; whoever is not told is away."""

    def __init__(self, **answers: ResultSignature) -> None:
        self.answers = answers

    async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        assert method == "sign-result"
        assert decode(StepRequest, body) == StepRequest(number=2, node=PeerId(NO_DIGEST))
        await trio.lowlevel.checkpoint()
        if name_of(peer) not in self.answers:
            raise Unavailable("is away")
        return encode(self.answers[name_of(peer)])


NAMED = named_judges(Me.spec, 1)


def ask(judges: Judges = NAMED, **answers: ResultSignature) -> CertifiedResult:
    me, host = cast(Participant, Me()), cast(Host, Verifiers(**answers))
    return trio.run(certified_result, me, host, judges, a_settlement(), NO_DIGEST)


def test_three_of_four_make_a_certificate_that_the_contract_would_take():
    found = ask(**{name: an_answer(name) for name in VERIFIERS[1:]})

    hot_keys = ["0x" + member.hot.hex() for member in Me.spec.verifiers]
    verify_certificate(Me.deployment.digest(found.result), found.certificate, hot_keys)
    assert found.result.model_hash == MODEL


def test_a_verifier_signs_with_its_present_hot_key_and_no_longer_with_the_one_before():
    first = a_member(VERIFIERS[0])
    now = {**NAMED.hot_keys, first.peer: evm_address(a_member("new").hot)}
    judges, two = Judges(set_version=1, hot_keys=now), {name: an_answer(name) for name in VERIFIERS[1:3]}

    found = ask(judges, **two, **{VERIFIERS[0]: an_answer(VERIFIERS[0], key="new")})

    assert len(found.certificate) == 3 * 65
    with pytest.raises(Unavailable, match="2 signatures on one result"):
        ask(judges, **two, **{VERIFIERS[0]: an_answer(VERIFIERS[0])})


@pytest.mark.parametrize("silent", range(4))
def test_one_that_is_silent_keeps_no_quorum_waiting(monkeypatch: pytest.MonkeyPatch, silent: int):
    answering, clock = Verifiers.request, trio.testing.MockClock(autojump_threshold=0)

    async def request(self: Verifiers, peer: PeerId, *asked: Any, timeout_s: float) -> bytes:
        await trio.sleep(timeout_s if name_of(peer) == VERIFIERS[silent] else 0.1)
        return await answering(self, peer, *asked, timeout_s=timeout_s)

    monkeypatch.setattr(Verifiers, "request", request)
    monkeypatch.setattr(trio, "run", partial(trio.run, clock=clock))

    found = ask(**{name: an_answer(name) for name in VERIFIERS})

    assert (len(found.certificate), clock.current_time()) == (3 * 65, pytest.approx(0.1))


def test_two_of_four_do_not():
    with pytest.raises(Unavailable, match="2 signatures on one result, expected 3"):
        ask(**{name: an_answer(name) for name in VERIFIERS[:2]})


def test_a_quorum_must_name_one_model():
    split = {name: an_answer(name, model) for name, model in zip(VERIFIERS, [MODEL, OTHER] * 2, strict=True)}

    with pytest.raises(Unavailable, match="2 signatures on one result"):
        ask(**split)


def test_one_liar_about_the_model_changes_nothing():
    answers = {name: an_answer(name) for name in VERIFIERS}
    answers[VERIFIERS[0]] = an_answer(VERIFIERS[0], OTHER)

    assert ask(**answers).result.model_hash == MODEL


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 1},
        {"total": 1},
        {"root": a_digest("x")},
        {"table_hash": a_digest("x")},
        {"prev_result": a_digest("x")},
        {"signature": HotSignature(bytes(65))},
        {"signature": HotSignature(hashlib.sha512(b"noise").digest() + b"\x1b")},
    ],
    ids=str,
)
def test_an_answer_about_anything_else_does_not_count(change: dict[str, Any]):
    answers = {name: an_answer(name) for name in VERIFIERS[:2]}
    answers[VERIFIERS[2]] = an_answer(VERIFIERS[2], **change)

    with pytest.raises(Unavailable, match="2 signatures"):
        ask(**answers)


def test_a_verifier_cannot_sign_for_another():
    answers = {name: an_answer(name) for name in VERIFIERS[:2]}
    answers[VERIFIERS[2]] = an_answer(VERIFIERS[2], key=VERIFIERS[3])

    with pytest.raises(Unavailable, match="not its hot key"):
        ask(**answers)


TOWERS = ("walt", "wanda")
CASE = bytes(a_digest("a case"))


def veto(present: Sequence[str], **keys: str) -> bytes:
    """The veto by a present set of these names; each peer signs with the key of this name, or refuses."""

    class Watched(Me):
        watchtowers = tuple(map(peer, TOWERS))

    class Signing:
        async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
            assert (method, body) == ("sign-veto", CASE)
            await trio.lowlevel.checkpoint()
            if name_of(peer) not in keys:
                raise Unavailable("our manifests imply the case")
            return sign_digest(message, a_hot_key(keys[name_of(peer)]))

    said = Veto(deployment_id=Me.spec.deployment_id, case_id=CASE, reason_hash=bytes(32))
    message = Me.deployment.digest(said)
    me, host = cast(Participant, Watched()), cast(Host, Signing())
    hot_keys = [evm_address(a_member(name).hot) for name in present]
    cert = trio.run(certified_veto, me, host, hot_keys, CASE, bytes(32))
    verify_certificate(message, cert, hot_keys)
    return cert


def test_a_veto_has_a_quorum_of_the_present_set_whoever_shows_it():
    everybody = {name: name for name in (*VERIFIERS, *TOWERS)}

    assert len(veto(VERIFIERS, **{name: name for name in VERIFIERS[:3]})) == 3 * 65
    # One of the run's verifiers, and two that watch it: the others' signatures would spoil it.
    assert len(veto((VERIFIERS[0], *TOWERS), **everybody)) == 3 * 65
    assert len(veto(TOWERS, **everybody)) == 2 * 65


def test_a_veto_counts_each_member_of_the_present_set_once():
    present = (VERIFIERS[0], *TOWERS)
    for relayed in ({"wanda": "walt"}, {"wanda": VERIFIERS[1]}, {}):
        with pytest.raises(Unavailable, match="2 signatures on the veto, expected 3"):
            veto(present, **{VERIFIERS[0]: VERIFIERS[0], "walt": "walt"}, **relayed)


class Leaver(Me):
    """A node that asks for its discharge."""

    run_id, me, keys = RUN_ID, peer(NODES[0]), keys_of(NODES[0])


LEFT = Discharge(
    deployment_id=Me.spec.deployment_id, run_id=RUN_ID, account=evm_address(a_member(NODES[0]).account)
)


def ask_to_be_discharged(**keys: str) -> bytes:
    """Each verifier signs with the key of this name; whoever is not named refuses."""

    class Signing:
        async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
            assert (method, body) == ("sign-discharge", Leaver.me)
            await trio.lowlevel.checkpoint()
            if name_of(peer) not in keys:
                raise Unavailable("it has not left")
            return sign_digest(Me.deployment.digest(LEFT), a_hot_key(keys[name_of(peer)]))

    me, host = cast(Participant, Leaver()), cast(Host, Signing())
    return trio.run(certified_discharge, me, host, NAMED)


def test_a_discharge_has_a_quorum_of_the_verifiers_own_keys_and_says_why_there_is_none():
    cert = ask_to_be_discharged(**{name: name for name in VERIFIERS[1:]})

    hot_keys = ["0x" + member.hot.hex() for member in Me.spec.verifiers]
    verify_certificate(Me.deployment.digest(LEFT), cert, hot_keys)
    with pytest.raises(Unavailable, match="2 signatures on the discharge, expected 3; it has not left"):
        ask_to_be_discharged(**{name: name for name in VERIFIERS[2:]})
    with pytest.raises(Unavailable, match="2 signatures on the discharge, expected 3"):
        ask_to_be_discharged(**{name: name for name in VERIFIERS[2:]}, **{VERIFIERS[0]: VERIFIERS[1]})
