"""Settler: every epoch becomes final in its order, whatever the chain was doing when we came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from assay.chain.client import Chain, EpochPhase, EpochState
from assay.chain.events import SETTLED_BLOCKS
from assay.chain.proposals import CertifiedResult
from assay.chain.rpc import ChainRefused
from assay.chain.state import AppealPhase, CasePhase, CaseState, EscrowState
from assay.chain.statements import Address, EpochResult, SlashOrder
from assay.ledger.settlement.duties import NEWS_S
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import accused_order_of, epoch_result
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.telemetry.readings import Readings
from assay.participant.wallet import settler
from assay.participant.wallet.settler import CLAIM_FOR_OTHERS_S, OwnResult, Settler
from assay.protocol.errors import Unavailable
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.testing.members import RUN_ID, a_deployment, a_digest
from assay.testing.signed import NODES, a_commit, a_history, a_spec

SPEC, DEPLOYMENT = a_spec(), a_deployment()
WINDOW_S = 3
NOBODY = Address("0x" + "00" * 20)


class Me:
    """What of a participant is asked for."""

    spec, deployment, run_id = SPEC, DEPLOYMENT, RUN_ID

    def __init__(self) -> None:
        self.readings = Readings()


class Chained:
    """What of a follower is asked for."""

    def __init__(self, ripe: int) -> None:
        self.run_state = a_history()
        self.confirmed: dict[Any, Any] = {}
        self.failed: dict[Any, Any] = {}
        self.settlements = {
            epoch: Settlement(
                run_id=RUN_ID,
                epoch=epoch,
                rows=(),
                unpaid=(),
                tokens_paid=0,
                table_hash=a_digest(f"table {epoch}"),
            )
            for epoch in range(ripe)
        }


@dataclass
class Contract:
    """EpochSettlement's rules for one run; its clock is a number."""

    now: int = 0
    states: dict[int, EpochState] = field(default_factory=dict)
    cases: dict[bytes, CaseState] = field(default_factory=dict)
    opened: dict[bytes, int] = field(default_factory=dict)  # in which block; else in the first
    moves: list[str] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)

    address = NOBODY

    def block_number(self) -> int:
        return self.now

    def set_version_of(self, _run_id: bytes) -> int:
        return 1

    def hot_key_of(self, _account: str) -> str:
        return NOBODY

    def account_of(self, hot_key: str) -> str:
        return hot_key

    def cases_of(self, _run_id: bytes, first: int, last: int) -> list[Any]:
        found = [(self.opened.get(case_id, 1), case_id) for case_id in self.cases]
        return [SimpleNamespace(case_id=case_id) for at, case_id in sorted(found) if first <= at <= last]

    def case(self, case_id: bytes) -> CaseState:
        return self.cases[case_id]

    def execute_case(self, case_id: bytes) -> None:
        self.moves.append(f"execute {case_id!r}")
        self.cases[case_id] = replace(self.cases[case_id], phase=CasePhase.PAID)

    def veto_case(self, case_id: bytes, _reason: bytes, _certificate: bytes) -> None:
        self.moves.append(f"veto {case_id!r}")
        self.cases[case_id] = replace(self.cases[case_id], phase=CasePhase.VETOED)

    def appeal(self, _case_id: bytes) -> Any:
        return SimpleNamespace(phase=AppealPhase.NONE)

    def proposals_of(self, _run_id: bytes, _first: int, _last: int) -> list[Any]:
        return []

    def challenge_window(self) -> int:
        return WINDOW_S

    def resolve_window(self) -> int:
        return WINDOW_S

    def run(self, _run_id: bytes) -> EscrowState:
        return EscrowState(
            buyer=NOBODY, epochs=2, set_version=1, pending=1, deadline=10**9, closes_at=10**9, budget=0,
            epoch_cap=0, reserved=0, paid=0, returned=0, spec_hash=b"", holds=False, lot=0,
        )  # fmt: skip

    def bonds_owed(self, _account: str) -> int:
        return 0

    def rewards_of(self, _account: str) -> int:
        return 0

    def entries_lacking(self, _account: str) -> int:
        return 0

    def epoch_state(self, _run_id: bytes, epoch: int) -> EpochState:
        return self.states.get(epoch, _state(EpochPhase.NONE, NO_DIGEST))

    def timestamp(self) -> int:
        self.now += 1
        return self.now

    def propose(self, result: EpochResult, _certificate: bytes) -> None:
        before = self.epoch_state(RUN_ID, result.epoch - 1).digest if result.epoch else NO_DIGEST
        assert result.prev_result == before and (result.epoch == 0 or before != NO_DIGEST)
        self.states[result.epoch] = _posted(result, self.now + WINDOW_S)
        self.moves.append(f"propose {result.epoch}")

    def finalize(self, _run_id: bytes, epoch: int) -> None:
        state = self.states[epoch]
        assert state.phase is EpochPhase.PROPOSED and self.now >= state.until
        assert epoch == 0 or self.states[epoch - 1].phase >= EpochPhase.FINAL
        self.states[epoch] = replace(state, phase=EpochPhase.FINAL, until=10**9)
        self.moves.append(f"finalize {epoch}")

    def challenge(self, _run_id: bytes, epoch: int, _reason: bytes) -> None:
        state = self.states[epoch]
        assert state.phase is EpochPhase.PROPOSED
        self.states[epoch] = replace(state, phase=EpochPhase.CHALLENGED, until=self.now + 10**6)
        self.moves.append(f"challenge {epoch}")

    def timeout_challenge(self, _run_id: bytes, epoch: int) -> None:
        state = self.states[epoch]
        assert state.phase is EpochPhase.CHALLENGED and self.now >= state.until
        self.states[epoch] = replace(state, phase=EpochPhase.PROPOSED, until=self.now + WINDOW_S)
        self.moves.append(f"time out {epoch}")

    def claim_all(self, _run_id: bytes, epoch: int, _tree: Any) -> None:
        self.claimed.append(epoch)


def _state(phase: EpochPhase, digest: bytes, until: int = 0) -> EpochState:
    return EpochState(
        phase=phase,
        until=until,
        total=0,
        claimed=0,
        challenger=NOBODY,
        digest=digest,
        prev_result=NO_DIGEST,
        root=NO_DIGEST,
        model_hash=NO_DIGEST,
        proposer=NOBODY,
        bond=0,
        draw_from=0,
        jury=(),
        voted=0,
    )


def _posted(result: EpochResult, until: int) -> EpochState:
    state = _state(EpochPhase.PROPOSED, Digest(DEPLOYMENT.digest(result)), until)
    return replace(state, prev_result=result.prev_result, model_hash=result.model_hash)


async def _at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    """In place of a thread, whose time would depend on the machine."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> Contract:
    made = Contract()
    monkeypatch.setattr(trio.to_thread, "run_sync", _at_once)
    monkeypatch.setattr(trio.from_thread, "run_sync", lambda work: work())
    monkeypatch.setattr(settler, "open_chain", lambda _me: cast(Chain, made))

    async def certified(
        _me: Any, _host: Any, _judges: Any, settlement: Settlement, previous: Digest, _own: Any
    ) -> CertifiedResult:
        result = epoch_result(SPEC, settlement, a_digest("model"), previous, 1)
        return CertifiedResult(result=result, certificate=b"")

    monkeypatch.setattr(settler, "certified_result", certified)
    return made


def run_until(
    done: Callable[[], bool],
    ripe: int = SPEC.epochs,
    seconds: float = 4_000,
    check: Callable[[], None] = lambda: None,
    own_result: OwnResult | None = None,
) -> None:
    """Drives a settler on a clock that jumps; `seconds` of it at most."""

    async def drive() -> None:
        me, chained = cast(Participant, Me()), cast(Follower, Chained(ripe))
        one = Settler(me, chained, check, own_result=own_result, pays_others=True)
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.run, cast(Any, None))
                while not done():
                    await trio.sleep(0.25)
                nursery.cancel_scope.cancel()

    trio.run(drive, clock=trio.testing.MockClock(autojump_threshold=0))


ALL = ["propose 0", "propose 1", "finalize 0", "finalize 1"]


def test_epochs_are_proposed_and_made_final_in_order_also_when_they_pay_nothing(contract: Contract):
    run_until(lambda: len(contract.moves) == 4)

    assert sorted(contract.moves) == sorted(ALL)
    assert contract.moves.index("finalize 0") < contract.moves.index("finalize 1")


@pytest.mark.parametrize("done", range(4))
def test_what_others_or_an_earlier_life_did_is_not_done_again(contract: Contract, done: int):
    run_until(lambda: len(contract.moves) >= done)
    before = list(contract.moves)

    run_until(lambda: len(contract.moves) >= 4)

    assert contract.moves[: len(before)] == before
    assert sorted(contract.moves) == sorted(ALL)


def test_a_final_epoch_is_read_now_and_then_and_seen_where_the_chain_goes_back(
    contract: Contract, monkeypatch: pytest.MonkeyPatch
):
    run_until(lambda: len(contract.moves) >= 4)
    reads: list[int] = []
    read = contract.epoch_state

    def counted(run_id: bytes, epoch: int) -> EpochState:
        reads.append(epoch)
        return read(run_id, epoch)

    monkeypatch.setattr(contract, "epoch_state", counted)

    def goes_back() -> bool:
        if len(reads) == 10:
            contract.states.pop(1, None)
        return contract.moves.count("propose 1") == 2

    began = contract.now
    run_until(goes_back)
    assert contract.moves.count("propose 1") == 2
    assert contract.now - began > 8 * len(reads) > 80


def test_an_epoch_that_is_not_ripe_is_not_proposed(contract: Contract):
    run_until(lambda: "propose 1" in contract.moves, ripe=1, seconds=60)

    assert contract.moves == ["propose 0", "finalize 0"]


def test_nothing_is_settled_while_endpoints_disagree(contract: Contract):
    asked = []

    def disagree() -> None:
        asked.append(len(contract.moves))
        if len(asked) < 10:
            raise Unavailable("block 7: two hashes")

    run_until(lambda: len(asked) >= 8, check=disagree)
    assert contract.moves == []

    run_until(lambda: len(contract.moves) == 4, check=disagree)
    assert sorted(contract.moves) == sorted(ALL)


def test_a_chain_that_went_back_is_settled_again(contract: Contract):
    run_until(lambda: len(contract.moves) == 4)
    del contract.states[1]

    run_until(lambda: len(contract.moves) == 6)

    assert contract.moves[4:] == ["propose 1", "finalize 1"]


def test_a_challenged_result_holds_back_what_follows_until_its_time_is_out(contract: Contract):
    run_until(lambda: "propose 1" in contract.moves)
    contract.states[0] = replace(
        contract.states[0], phase=EpochPhase.CHALLENGED, until=contract.now + 100, jury=(NOBODY,), voted=1
    )
    contract.moves.clear()

    run_until(lambda: len(contract.moves) == 3)

    assert contract.moves == ["time out 0", "finalize 0", "finalize 1"]


@pytest.mark.parametrize("is_newest", [True, False])
def test_a_result_that_nobody_can_have_computed_is_challenged_if_nobody_has_newer_manifests(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, is_newest: bool
):
    asked = []

    async def asks(_follower: Chained, _host: Any, peers: Sequence[PeerId]) -> bool:
        asked.append(set(peers))
        return is_newest

    monkeypatch.setattr(Chained, "is_newest", asks, raising=False)
    monkeypatch.setattr(contract, "challenge_window", lambda: 86_400)
    early = epoch_result(SPEC, Chained(1).settlements[0], a_digest("model"), NO_DIGEST, 1)
    contract.states[0] = _posted(early, 86_400 // 4)

    run_until(lambda: bool(contract.moves), ripe=0, seconds=2 * NEWS_S)

    assert contract.moves == (["challenge 0"] if is_newest else [])
    assert len(asked) >= 1
    assert asked[0] == {*SPEC.seat_peers, *a_history().nodes}


@pytest.mark.parametrize("field", ["root", "table_hash", "total"])
def test_a_posted_result_that_pays_another_table_is_challenged(contract: Contract, field: str):
    settlement = Chained(1).settlements[0]
    ours = epoch_result(SPEC, settlement, a_digest("model"), NO_DIGEST, 1)
    other = replace(ours, **{field: 7 if field == "total" else a_digest("theft")})
    contract.states[0] = _posted(other, 10**6)

    run_until(lambda: bool(contract.moves), seconds=60)

    assert contract.moves == ["challenge 0"]


def test_a_posted_model_is_judged_only_by_who_holds_the_parameters(contract: Contract):
    settlement = Chained(1).settlements[0]
    contract.states[0] = _posted(epoch_result(SPEC, settlement, a_digest("another"), NO_DIGEST, 1), 10**6)

    async def ours(_epoch: int) -> EpochResult:
        return epoch_result(SPEC, settlement, a_digest("model"), NO_DIGEST, 1)

    run_until(lambda: bool(contract.moves), ripe=1, seconds=30)
    assert contract.moves == []

    run_until(lambda: bool(contract.moves), ripe=1, seconds=60, own_result=ours)
    assert contract.moves == ["challenge 0"]


def a_case(order: SlashOrder) -> CaseState:
    return CaseState(
        phase=CasePhase.OPEN, role=order.role, ppm=order.ppm, veto_ends_at=0, execute_by=10**9, payable_at=0,
        offender=order.offender, signers=7, challenger=order.challenger, opener=NOBODY, run_id=RUN_ID,
        evidence_hash=order.evidence_hash, lot=RUN_ID,
    )  # fmt: skip


@pytest.mark.parametrize("depth", [0, SETTLED_BLOCKS - 1, SETTLED_BLOCKS])
def test_a_case_in_a_block_that_took_the_place_of_one_of_the_last_64_is_seen_and_no_older_one(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, depth: int
):
    order = accused_order_of(SPEC, RUN_ID, a_commit(NODES[0], a_history()), SPEC.buyer, SPEC.buyer)
    monkeypatch.setattr(settler, "implied_orders", lambda _me, _follower: {b"case": order})
    contract.now = 1_000

    def is_served() -> bool:
        if len(contract.moves) == 4 and not contract.cases:
            contract.cases = {b"case": a_case(order)}
            seen = contract.now - 1  # the newest block at the last look, which reads the time once after it
            contract.opened = {b"case": seen - depth}
        return len(contract.moves) == 5

    run_until(is_served, seconds=600)
    assert contract.moves[4:] == (["execute b'case'"] if depth < SETTLED_BLOCKS else [])


def test_a_case_that_cannot_be_judged_is_not_implied_and_keeps_nobody_from_the_others(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    commit, account = a_commit(NODES[0], a_history()), SPEC.nodes[0].account
    order = accused_order_of(SPEC, RUN_ID, commit, account, SPEC.buyer)
    contract.cases = {b"odd": a_case(order), b"right": a_case(order)}

    def unreadable(*_: Any) -> None:
        raise OverflowError("a number that the database cannot hold")

    async def vetoed(*_: Any) -> bytes:
        return b""

    monkeypatch.setattr(settler, "implied_orders", lambda _me, _follower: {b"right": order})
    monkeypatch.setattr(settler, "accused_order", unreadable)
    monkeypatch.setattr(settler, "certified_veto", vetoed)
    monkeypatch.setattr(settler, "read_present_keys", lambda _chain: None)
    run_until(lambda: len(contract.moves) == 6)

    assert {"veto b'odd'", "execute b'right'", *ALL} == set(contract.moves)
    assert caplog.text.count("a case counts as not implied") == 1


def test_payees_that_stay_away_are_paid_in_the_end(contract: Contract):
    run_until(lambda: len(contract.moves) == 4)
    run_until(lambda: bool(contract.claimed), seconds=CLAIM_FOR_OTHERS_S / 2)
    assert contract.claimed == []

    run_until(lambda: len(contract.claimed) >= 2, seconds=CLAIM_FOR_OTHERS_S * 100)

    assert contract.claimed[:2] == [0, 1]


def test_a_payee_that_the_coin_refuses_keeps_nobody_of_a_later_epoch_from_being_paid(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    run_until(lambda: len(contract.moves) == 4)
    tried: list[tuple[int, float]] = []

    def claim_all(_run_id: bytes, epoch: int, _tree: Any) -> None:
        tried.append((epoch, trio.current_time()))
        if epoch == 0:
            raise ChainRefused("claim", "Error", ("account is blacklisted",))

    monkeypatch.setattr(contract, "claim_all", claim_all)
    run_until(lambda: len(tried) >= 4, seconds=CLAIM_FOR_OTHERS_S * 100)

    assert [epoch for epoch, _ in tried[:4]] == [0, 1, 0, 1]
    assert tried[2][1] - tried[0][1] > CLAIM_FOR_OTHERS_S
    assert caplog.text.count("a payee is not paid") == 1


def test_while_the_chain_is_away_payees_are_not_paid_at_every_look(
    contract: Contract, monkeypatch: pytest.MonkeyPatch
):
    run_until(lambda: len(contract.moves) == 4)
    tried: list[float] = []

    def claim_all(*_: Any) -> None:
        tried.append(trio.current_time())
        raise Unavailable("the chain is away")

    monkeypatch.setattr(contract, "claim_all", claim_all)
    run_until(lambda: len(tried) >= 2, seconds=CLAIM_FOR_OTHERS_S * 100)

    assert tried[1] - tried[0] > CLAIM_FOR_OTHERS_S


def test_a_chain_or_a_quorum_that_is_away_is_asked_again(contract: Contract, monkeypatch: pytest.MonkeyPatch):
    fails = iter([True, True, True])
    state_of = contract.epoch_state

    def epoch_state(run_id: bytes, epoch: int) -> EpochState:
        if next(fails, False):
            raise Unavailable("the chain is away")
        return state_of(run_id, epoch)

    monkeypatch.setattr(contract, "epoch_state", epoch_state)

    run_until(lambda: len(contract.moves) == 4)

    assert sorted(contract.moves) == sorted(ALL)
