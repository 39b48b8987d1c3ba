"""Settler: every epoch becomes final in its order, whatever the chain was doing when we came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio
import trio.testing

from assay.chain.client import Chain, EpochPhase, EpochState
from assay.chain.statements import Address, EpochResult
from assay.ledger.settlement.payouts import Settlement
from assay.ledger.settlement.results import epoch_result
from assay.observer.ledger_service import settler
from assay.observer.ledger_service.certificates import CertifiedResult
from assay.observer.ledger_service.settler import CLAIM_FOR_OTHERS_S, Settler
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.errors import Unavailable
from assay.protocol.types import NO_DIGEST, Digest
from tests.builders import RUN_ID, a_deployment, a_digest, a_history, a_spec

SPEC, DEPLOYMENT = a_spec(), a_deployment()
WINDOW_S = 3
NOBODY = Address("0x" + "00" * 20)


class Me:
    """What of a participant is asked for."""

    spec, deployment, run_id = SPEC, DEPLOYMENT, RUN_ID


class Chained:
    """What of a follower is asked for."""

    def __init__(self, ripe: int) -> None:
        self.run_state = a_history()
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
    moves: list[str] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)

    def epoch_state(self, _run_id: bytes, epoch: int) -> EpochState:
        return self.states.get(epoch, _state(EpochPhase.NONE, NO_DIGEST))

    def timestamp(self) -> int:
        self.now += 1
        return self.now

    def propose(self, result: EpochResult, _certificate: bytes) -> None:
        before = self.epoch_state(RUN_ID, result.epoch - 1).digest if result.epoch else NO_DIGEST
        assert result.prev_result == before and (result.epoch == 0 or before != NO_DIGEST)
        digest = Digest(DEPLOYMENT.digest(result))
        self.states[result.epoch] = _state(EpochPhase.PROPOSED, digest, self.now + WINDOW_S)
        self.moves.append(f"propose {result.epoch}")

    def finalize(self, _run_id: bytes, epoch: int) -> None:
        state = self.states[epoch]
        assert state.phase is EpochPhase.CONFIRMED or self.now >= state.until
        assert epoch == 0 or self.states[epoch - 1].phase >= EpochPhase.FINAL
        self.states[epoch] = _state(EpochPhase.FINAL, state.digest)
        self.moves.append(f"finalize {epoch}")

    def resolve(self, _run_id: bytes, epoch: int, stands: bool, _certificate: bytes) -> None:
        assert self.states[epoch].phase is EpochPhase.CHALLENGED
        phase = EpochPhase.CONFIRMED if stands else EpochPhase.NONE
        self.states[epoch] = _state(phase, self.states[epoch].digest)
        self.moves.append(f"resolve {epoch} {stands}")

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
    )


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> Contract:
    made = Contract()
    monkeypatch.setattr(settler, "open_chain", lambda _me: cast(Chain, made))

    async def certified(_me: Any, _host: Any, settlement: Settlement, previous: Digest) -> CertifiedResult:
        result = epoch_result(SPEC, settlement, a_digest("model"), previous)
        return CertifiedResult(result=result, certificate=b"")

    monkeypatch.setattr(settler, "certified_result", certified)
    return made


def run_until(
    done: Callable[[], bool],
    ripe: int = SPEC.epochs,
    seconds: float = 4_000,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Drives a settler on a clock that jumps; `seconds` of it at most."""

    async def drive() -> None:
        one = Settler(cast(Participant, Me()), cast(Follower, Chained(ripe)), check)
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.run, cast(Any, None))
                while not done():
                    await trio.sleep(0.25)
                nursery.cancel_scope.cancel()

    trio.run(drive, clock=trio.testing.MockClock(rate=200))


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


def test_a_challenged_result_holds_back_what_follows_until_a_quorum_answers(
    contract: Contract, monkeypatch: pytest.MonkeyPatch
):
    async def nobody(_me: Any, _host: Any, epoch: int) -> tuple[bool, bytes]:
        raise Unavailable(f"epoch {epoch}: no quorum")

    async def a_quorum(_me: Any, _host: Any, _epoch: int) -> tuple[bool, bytes]:
        return True, b"cert"

    monkeypatch.setattr(settler, "certified_resolution", nobody)
    run_until(lambda: "propose 1" in contract.moves)
    contract.states[0] = _state(EpochPhase.CHALLENGED, contract.states[0].digest)
    contract.moves.clear()
    run_until(lambda: bool(contract.moves), seconds=60)
    assert contract.moves == []

    monkeypatch.setattr(settler, "certified_resolution", a_quorum)
    run_until(lambda: len(contract.moves) == 3)

    assert contract.moves == ["resolve 0 True", "finalize 0", "finalize 1"]


def test_payees_that_stay_away_are_paid_in_the_end(contract: Contract):
    run_until(lambda: len(contract.moves) == 4)
    run_until(lambda: bool(contract.claimed), seconds=CLAIM_FOR_OTHERS_S / 2)
    assert contract.claimed == []

    run_until(lambda: len(contract.claimed) >= 2, seconds=CLAIM_FOR_OTHERS_S * 100)

    assert contract.claimed[:2] == [0, 1]


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
