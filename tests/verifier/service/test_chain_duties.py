"""What a hot key signs when asked: only what follows from our own copy of the chain."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from assay.chain.commit_statement import evm_address
from assay.chain.statements import (
    VERIFIER,
    Discharge,
    SlashOrder,
    Veto,
    recover,
    sign_digest,
    signers,
    verify_certificate,
)
from assay.ledger.settlement.results import epoch_result, result_digest, slash_order_of
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.keys.keyring import Keys
from assay.participant.store import Store
from assay.participant.wallet import cases
from assay.participant.wallet.judges import named_judges
from assay.participant.wallet.track_records import track_record_of
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import MalformedMessage, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import (
    Attendance,
    AttendanceKind,
    Outcome,
    ResultSignature,
    SignedAttendance,
    SlashOrderRequest,
    StepRequest,
)
from assay.protocol.offences import offence_id
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.testing import members
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, name_of, peer
from assay.testing.signed import (
    NODES,
    VERIFIERS,
    a_certified,
    a_chain,
    a_history,
    a_manifest,
    a_member,
    a_spec,
)
from assay.verifier.service import chain_duties as duties_module
from assay.verifier.service.chain_duties import NOBODY, ChainDuties
from assay.verifier.service.driver import EVIDENCE
from tests.ledger.settlement.test_rotation import HOLDER, handed_over
from tests.network.memory_blobs import MemoryBlobs
from tests.protocol.test_rotation import SEAT, a_double_vote, told

ME = VERIFIERS[0]
GUILTY = peer("mallory")


class NoWorker:
    """In place of the recompute worker: it does nothing."""

    async def call(self, *_: object) -> None:
        raise Unavailable("no worker here")


class PublicState:
    """In place of state sync: the parameters of every round, by name."""

    child = NoWorker()

    async def reach(self, round_id: int) -> Digest:
        return a_digest(f"parameters of {round_id}")


@pytest.fixture
def me(tmp_path, monkeypatch):
    keys = Keys(peer=a_peer_key(ME), account=a_hot_key("account"), hot=a_hot_key(ME))
    chain = SimpleNamespace(set_version_of=lambda _run_id: 1)
    monkeypatch.setattr(duties_module, "open_chain", lambda _me: chain)
    return Participant(
        config=None, keys=keys, spec=a_spec(), run_id=RUN_ID, deployment=a_deployment(), addresses={},
        store=Store(tmp_path / "store.db"), blobs=MemoryBlobs(),
    )  # type: ignore[arg-type]  # fmt: skip


@asynccontextmanager
async def on_duty(me, follower):
    """The handlers of duties that run, without a chain to go to."""
    chain_duties = ChainDuties(me, follower, PublicState())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chain_duties.run, None)
        await trio.testing.wait_all_tasks_blocked()
        yield chain_duties.handlers
        nursery.cancel_scope.cancel()


def followed(me, links):
    follower = Follower(me.spec, RUN_ID, me.store)
    for link in links:
        assert follower.take(link)
    return follower


def links_that_convict():
    """A chain in which all verifiers but us find that mallory's first step is false."""
    run_state, links = a_history(), []
    while not run_state.nodes[GUILTY].banned:
        votes = {
            step: {
                name: Outcome.MISMATCH if step[1] == GUILTY else Outcome.MATCH
                for name in VERIFIERS
                if name != ME
            }
            for step in run_state.audits
        }
        manifest = a_manifest(run_state, [n for n in NODES if peer(n) in run_state.active], votes)
        links.append(a_certified(manifest))
        run_state = advance(run_state, manifest)
    return links


def asking(number):
    return encode(StepRequest(number=number, node=PeerId(NO_DIGEST)))


def asking_to_rule(number, node, verifier=None):
    return encode(SlashOrderRequest(round=RoundId(number), node=node, verifier=verifier or PeerId(NO_DIGEST)))


def ask(me, follower, method, body):
    async def main():
        async with on_duty(me, follower) as handlers:
            answers.append(await handlers[method](peer("vera"), body))

    answers: list[bytes] = []
    try:
        trio.run(main)
    except BaseException as group:
        raise _only(group) from None
    return answers[0]


def _only(error):
    while hasattr(error, "exceptions") and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error


def test_a_ruling_is_signed_once_our_own_chain_upholds_the_fault(me):
    follower = followed(me, links_that_convict())
    audit = next(a for a in follower.run_state.audits.values() if a.ruling is AuditStatus.CONFIRMED)

    signature = ask(me, follower, "sign-slash-order", asking_to_rule(int(audit.round), GUILTY))

    ruling = slash_order_of(me.spec, RUN_ID, audit, a_member("mallory").account)
    assert recover(me.deployment.digest(ruling), signature) == evm_address(a_member(ME).hot)
    assert ruling.offender == evm_address(a_member("mallory").account)


def test_a_case_is_opened_with_the_signatures_of_a_quorum_and_ours_is_among_them(me, monkeypatch):
    """By one client, however often it is tried: only that one knows what it sent before."""
    follower = followed(me, links_that_convict())
    audit = next(a for a in follower.run_state.audits.values() if a.ruling is AuditStatus.CONFIRMED)
    ruling = slash_order_of(me.spec, RUN_ID, audit, a_member("mallory").account)
    message, opened, clients = me.deployment.digest(ruling), [], []

    class Others:
        async def request(self, verifier, method, _body, *, timeout_s):
            assert method == "sign-slash-order" and timeout_s
            if name_of(verifier) == VERIFIERS[-1]:
                raise Unavailable("away")
            return sign_digest(message, a_hot_key(name_of(verifier)))

    def open_case(*given):
        opened.append(given)
        if len(opened) == 1:
            raise Unavailable("not mined within 60 s")

    def open_chain(_me):
        clients.append(
            SimpleNamespace(is_punished=lambda _: False, is_beyond_cap=lambda _: False, open_case=open_case)
        )
        return clients[-1]

    monkeypatch.setattr(duties_module, "RETRY_S", 0.0)
    monkeypatch.setattr(duties_module, "open_chain", open_chain)
    monkeypatch.setattr(duties_module, "read_judges", lambda *_: named_judges(me.spec, 1))
    duties = ChainDuties(me, follower, PublicState())
    duties._host = Others()

    request = decode(SlashOrderRequest, asking_to_rule(int(audit.round), GUILTY))
    trio.run(duties._prosecute, request, ruling, 0)

    assert (len(opened), len(clients)) == (2, 1)
    order, cert = opened[-1]
    assert order == ruling
    verify_certificate(message, cert, [evm_address(a_member(name).hot) for name in VERIFIERS])
    assert evm_address(a_member(ME).hot) in signers(message, cert)


@pytest.mark.parametrize(("number", "node"), [(0, peer("nora")), (1, GUILTY), (2**64 - 1, GUILTY)])
def test_no_ruling_is_signed_about_a_step_that_nobody_upheld(me, number, node):
    follower = followed(me, links_that_convict())

    with pytest.raises(Unavailable, match="nothing to rule"):
        ask(me, follower, "sign-slash-order", asking_to_rule(number, node))


def test_no_ruling_is_signed_while_the_dispute_goes_on(me):
    follower = followed(me, links_that_convict()[:-1])

    with pytest.raises(Unavailable, match="nothing to rule"):
        ask(me, follower, "sign-slash-order", asking_to_rule(0, GUILTY))


@pytest.mark.parametrize("method", ["sign-slash-order", "sign-result", "sign-veto"])
def test_a_request_that_is_none_is_malformed(me, method):
    with pytest.raises(MalformedMessage):
        ask(me, followed(me, ()), method, b"\x80")


OPENED_S, WINDOW_S = 1_000, 100  # of a case, by the chain's clock


def ask_for_veto(me, monkeypatch, follower, order, *, after_s):
    """Our signature on the veto of a case by this order, so long after it was opened."""
    case = SimpleNamespace(
        run_id=RUN_ID, offender=order.offender, role=order.role, ppm=order.ppm, challenger=order.challenger,
        evidence_hash=order.evidence_hash, veto_ends_at=OPENED_S + WINDOW_S,
    )  # fmt: skip
    chain = SimpleNamespace(
        case=lambda _: case, veto_window=lambda: WINDOW_S, timestamp=lambda: OPENED_S + after_s
    )
    monkeypatch.setattr(cases, "open_chain", lambda _me: chain)
    duties = ChainDuties(me, follower, PublicState())
    clock = trio.testing.MockClock(autojump_threshold=0)  # who is refused waits
    signature = trio.run(duties.handlers["sign-veto"], peer("anybody"), bytes(order.offence_id), clock=clock)
    return recover(me.deployment.digest(a_veto(me, order)), signature)


def a_veto(me, order):
    return Veto(deployment_id=me.spec.deployment_id, case_id=order.offence_id, reason_hash=bytes(32))


def test_a_veto_is_signed_of_what_our_manifests_do_not_imply_and_of_nothing_else(me, monkeypatch):
    follower, hot_key = followed(me, links_that_convict()), evm_address(a_member(ME).hot)
    audit = next(a for a in follower.run_state.audits.values() if a.ruling is AuditStatus.CONFIRMED)
    right = slash_order_of(me.spec, RUN_ID, audit, a_member("mallory").account)
    reaching = SimpleNamespace(**{
        name: getattr(follower, name) for name in ("confirmed", "failed", "run_state")
    })  # fmt: skip
    reaching.run_state = replace(follower.run_state, time_s=OPENED_S + 1)

    for order in (
        replace(right, ppm=right.ppm + 1),
        replace(right, offence_id=offence_id(RUN_ID, b"made up")),
    ):
        assert ask_for_veto(me, monkeypatch, reaching, order, after_s=1) == hot_key
    for after_s in (1, WINDOW_S):
        with pytest.raises(Unavailable, match="our manifests imply the case"):
            ask_for_veto(me, monkeypatch, reaching, right, after_s=after_s)


def test_manifests_that_end_before_a_case_was_opened_veto_it_late_or_once_they_are_complete(
    me, monkeypatch, tmp_path
):
    """Else the accused asks those that lag, as soon as its case is open."""
    links = links_that_convict()
    behind, hot_key = followed(me, links[:-1]), evm_address(a_member(ME).hot)
    assert behind.run_state.time_s < OPENED_S and not behind.run_state.is_complete
    made_up = SlashOrder(
        deployment_id=me.spec.deployment_id, run_id=RUN_ID, epoch=0, offender=hot_key, role=VERIFIER, ppm=1,
        offence_id=offence_id(RUN_ID, b"made up"), evidence_hash=bytes(32), challenger=hot_key,
    )  # fmt: skip

    for after_s in (0, WINDOW_S // 2 - 1):
        with pytest.raises(Unavailable, match="our manifests end before the case"):
            ask_for_veto(me, monkeypatch, behind, made_up, after_s=after_s)
    assert ask_for_veto(me, monkeypatch, behind, made_up, after_s=WINDOW_S // 2) == hot_key
    me = replace(me, store=Store(tmp_path / "another.db"))
    whole = followed(me, a_chain(a_history(), me.spec.ordered.last_round + 1))
    assert whole.run_state.is_complete
    assert ask_for_veto(me, monkeypatch, whole, made_up, after_s=0) == hot_key


class CountedCases:
    """In place of a chain: one case of the run, and how many are asked for."""

    def __init__(self, case_id, **fields):
        self.case_id, self.asked, self.is_asked = case_id, [], False
        self.there = SimpleNamespace(run_id=RUN_ID, veto_ends_at=OPENED_S + WINDOW_S, **fields)
        self.none = SimpleNamespace(run_id=bytes(32))

    def case(self, case_id):
        self.asked.append(case_id)
        return self.there if case_id == self.case_id else self.none

    async def in_thread(self, call, *args):
        """In place of a thread: a call of an endpoint that is 100 ms away."""
        assert not self.is_asked
        self.is_asked = True
        await trio.sleep(0.1)
        self.is_asked = False
        return call(*args)

    def veto_window(self):
        return WINDOW_S

    def timestamp(self):
        return OPENED_S + WINDOW_S


def test_peers_that_ask_for_vetoes_of_what_is_no_case_take_few_calls_of_the_chain_and_hold_up_nobody(
    me, monkeypatch
):
    real = offence_id(RUN_ID, b"real")
    chain = CountedCases(
        real, offender="0x", role=VERIFIER, ppm=1, challenger="0x" + "11" * 20, evidence_hash=bytes(32)
    )
    opened, served, liars, ask_s = [], [], [peer(f"mallory {n}") for n in range(3)], 10.0

    def open_chain(_me):
        opened.append(chain)
        return chain

    monkeypatch.setattr(cases, "open_chain", open_chain)
    monkeypatch.setattr(trio.to_thread, "run_sync", chain.in_thread)
    sign_veto = ChainDuties(me, followed(me, ()), PublicState()).handlers["sign-veto"]

    async def ask_for_ever(liar, run_id):
        for number in itertools.count():
            with pytest.raises(Unavailable, match="of this run"):
                await sign_veto(liar, bytes(offence_id(run_id, b"%d" % number)))
            await trio.lowlevel.checkpoint()

    async def main():
        with trio.move_on_after(ask_s):
            async with trio.open_nursery() as nursery:
                for liar, _ in itertools.product(liars, range(16)):
                    nursery.start_soon(ask_for_ever, liar, RUN_ID)
                await trio.sleep(1)
                began = trio.current_time()
                served.append(await sign_veto(peer("vera"), bytes(real)))
                assert trio.current_time() - began < 0.1 * (1 + len(liars)) + 0.01
        before = len(chain.asked)
        for number in range(100):
            with pytest.raises(Unavailable, match="not of this run"):
                await sign_veto(liars[0], bytes(offence_id(a_digest("another run"), b"%d" % number)))
        assert len(chain.asked) == before

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(served) == len(opened) == 1
    assert len(chain.asked) <= 1 + len(liars) * (1 + ask_s / cases.REFUSED_S)


def test_the_holders_of_all_other_seats_prosecute_a_double_vote_whoever_holds_them_now(me):
    run_state, _, _ = handed_over()
    for signer, iteration in (
        (SEAT, 9),
        (HOLDER, 1 << 32 | 3),
    ):  # before the hand-over, and after
        after = told(run_state, double_votes=(a_double_vote(SEAT, iteration, holder=signer),))
        follower = SimpleNamespace(run_state=after, confirmed={}, failed={})
        chain_duties = ChainDuties(replace(me, spec=after.spec), follower, PublicState())  # type: ignore[arg-type]
        request = SlashOrderRequest(round=RoundId(0), node=NOBODY, verifier=signer)

        order, accusers = chain_duties._charge(request)

        others = set(after.spec.verifier_peers) - {SEAT}
        assert order.offender == evm_address(members.a_member(signer).account)
        assert set(accusers) == (others if signer == HOLDER else {*others, SEAT})


def test_a_result_is_signed_when_its_epoch_is_ripe_and_not_before(me):
    links = a_chain(a_history(), me.spec.ordered.settled_at(0) + 1)
    before = followed(me, links[:-1])

    with pytest.raises(Unavailable, match="not ripe"):
        ask_quietly(me, before, asking(0))
    assert before.take(links[-1])
    with pytest.raises(Unavailable, match="not ripe"):
        ask_quietly(me, before, asking(1))
    result = epoch_result(
        me.spec,
        before.settlements[0],
        a_digest(f"parameters of {me.spec.ordered.epoch_end(0)}"),
        NO_DIGEST,
        1,
    )
    message = result_digest(me.deployment, result)

    signed = decode(ResultSignature, ask_quietly(me, before, asking(0)))

    assert (signed.epoch, signed.prev_result, signed.root) == (0, NO_DIGEST, result.root)
    assert recover(message, signed.signature) == evm_address(a_member(ME).hot)


def ask_quietly(me, follower, body):
    """A result, from duties that do not run: nobody here has a chain to claim on."""

    async def main():
        return await ChainDuties(me, follower, PublicState()).handlers["sign-result"](peer("vera"), body)

    return trio.run(main)


def test_each_result_names_the_one_before(me):
    follower = followed(me, a_chain(a_history(), me.spec.ordered.last_round + 1))

    first, second = (decode(ResultSignature, ask_quietly(me, follower, asking(epoch))) for epoch in (0, 1))

    result = epoch_result(
        me.spec,
        follower.settlements[0],
        a_digest(f"parameters of {me.spec.ordered.epoch_end(0)}"),
        NO_DIGEST,
        1,
    )
    assert first.prev_result == NO_DIGEST
    assert second.prev_result == result_digest(me.deployment, result)


def test_a_verifier_signs_one_result_an_epoch_whatever_its_parameters_become(me):
    """Two would cost its whole stake; a disk that was rebuilt, or a second build, must not be that dear."""
    follower = followed(me, a_chain(a_history(), me.spec.ordered.last_round + 1))
    first = ask_quietly(me, follower, asking(0))

    class Rebuilt(PublicState):
        async def reach(self, round_id: int) -> Digest:
            return a_digest(f"other parameters of {round_id}")

    async def after() -> bytes:
        restarted = ChainDuties(me, follower, Rebuilt())  # type: ignore[arg-type]
        return await restarted.handlers["sign-result"](peer("vera"), asking(0))

    with pytest.raises(Unavailable, match="another result of epoch 0"):
        trio.run(after)
    assert ask_quietly(me, follower, asking(0)) == first


LEAVER = peer("nora")


def links_with_a_leave(count):
    """A chain of which the first manifest has nora's last step and her leave."""
    begun = a_history()
    left = Attendance(run_id=RUN_ID, round=RoundId(0), node=LEAVER, kind=AttendanceKind.LEAVE)
    signed = SignedAttendance(attendance=left, signature=sign(a_peer_key("nora"), DOMAIN, left))
    manifest = a_manifest(begun, NODES, attendance=(signed,))
    return [a_certified(manifest), *a_chain(advance(begun, manifest), count - 1)]


def ask_to_discharge(me, follower, body=LEAVER, duties=None):
    chain_duties = duties or ChainDuties(me, follower, PublicState())
    return trio.run(chain_duties.handlers["sign-discharge"], peer("anybody"), body)


def test_a_node_that_left_is_discharged_once_its_last_epoch_is_settled_and_not_before(me):
    links = links_with_a_leave(me.spec.ordered.settled_at(0) + 1)
    follower = followed(me, links[:-1])
    with pytest.raises(Unavailable, match="not all of its steps are settled"):
        ask_to_discharge(me, follower)

    assert follower.take(links[-1])
    signature = ask_to_discharge(me, follower)

    account = evm_address(a_member("nora").account)
    left = Discharge(deployment_id=me.spec.deployment_id, run_id=RUN_ID, account=account)
    assert recover(me.deployment.digest(left), signature) == evm_address(a_member(ME).hot)
    for node, reason in ((peer("nils"), "has not left"), (b"?" * 9_999, "never had a seat")):
        with pytest.raises(Unavailable, match=reason) as refused:
            ask_to_discharge(me, follower, node)
        assert len(str(refused.value)) < 100


def test_who_is_at_fault_is_not_discharged(me):
    with pytest.raises(Unavailable, match="its fault in round 0 is proven"):
        ask_to_discharge(me, followed(me, links_that_convict()), GUILTY)


def test_two_commits_for_one_round_that_no_manifest_carries_keep_their_node_bound_and_nobody_else(me):
    follower = followed(me, links_with_a_leave(me.spec.ordered.settled_at(0) + 1))
    asked = ChainDuties(me, follower, PublicState())
    me.store.set_value(f"{EVIDENCE}0/{peer('nils').hex()}", b"a pair")
    assert ask_to_discharge(me, follower, duties=asked)

    me.store.set_value(f"{EVIDENCE}0/{LEAVER.hex()}", b"a pair")

    with pytest.raises(Unavailable, match="two commits for one round"):
        ask_to_discharge(me, follower, duties=asked)


def test_a_discharge_that_is_asked_for_again_is_not_signed_again(me, monkeypatch):
    follower = followed(me, links_with_a_leave(me.spec.ordered.settled_at(0) + 1))
    asked = ChainDuties(me, follower, PublicState())
    first = ask_to_discharge(me, follower, duties=asked)
    monkeypatch.delattr(duties_module, "sign_digest")

    assert ask_to_discharge(me, follower, duties=asked) == first


def ask_for_track_record(me, follower, node):
    chain_duties = ChainDuties(me, follower, PublicState())
    return trio.run(chain_duties.handlers["sign-track-record"], peer("anybody"), node)


def test_a_track_record_is_signed_of_who_ended_and_of_nobody_at_fault(me):
    links = links_with_a_leave(me.spec.ordered.settled_at(0) + 1)
    follower = followed(me, links)
    record = follower.run_state.nodes[LEAVER]

    signature = ask_for_track_record(me, follower, LEAVER)

    said = track_record_of(RUN_ID, record).statement(me.spec.deployment_id)
    assert (said.clean, said.account) == (1, evm_address(a_member("nora").account))
    assert recover(me.deployment.digest(said), signature) == evm_address(a_member(ME).hot)
    with pytest.raises(Unavailable, match="not all of its steps are settled"):
        ask_for_track_record(me, follower, peer("nils"))
    me.store.set_value(f"{EVIDENCE}0/{LEAVER.hex()}", b"a pair")
    with pytest.raises(Unavailable, match="two commits for one round"):
        ask_for_track_record(me, follower, LEAVER)


def test_a_proven_fault_is_no_track_record(me):
    with pytest.raises(Unavailable, match="its fault in round 0 is proven"):
        ask_for_track_record(me, followed(me, links_that_convict()), GUILTY)
