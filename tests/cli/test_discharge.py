"""A node that left early: verifiers' own handlers discharge it, and a window later its lot is free."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.client import UNIT
from assay.chain.statements import OPERATOR
from assay.participant.follower import Follower
from assay.participant.store import Store
from assay.participant.wallet import discharge as module
from assay.participant.wallet.discharge import FILE, discharge
from assay.protocol.errors import Unavailable
from assay.protocol.identity import Domain
from assay.protocol.messages import Attendance, AttendanceKind, SignedAttendance
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId, RoundId
from assay.testing.members import name_of, peer
from assay.testing.messages import Signed
from assay.testing.signed import NODES, VERIFIERS, a_certified, a_chain, a_manifest
from assay.verifier.service.chain_duties import ChainDuties
from tests.a_network import keys_of
from tests.cli.market import Market, wallet
from tests.conftest import Assay

pytestmark = pytest.mark.slow

NODE, OTHER = NODES[0], NODES[1]
LOT = 300 * UNIT


class Verifiers:
    """A host whose peers are the market's verifiers, but for those that are away."""

    def __init__(self, market: Market, count: int, away: Iterable[str] = ()) -> None:
        """They have the first `count` manifests of a run whose first one NODE leaves by."""
        signer = Signed(Domain(market.spec.deployment_id, market.run_id), market.deployment)
        begun = start(market.spec, market.run_id)
        said = Attendance(run_id=market.run_id, round=RoundId(0), node=peer(NODE), kind=AttendanceKind.LEAVE)
        leave = SignedAttendance(attendance=said, signature=signer.signature(peer(NODE), said))
        first = a_manifest(begun, NODES, attendance=(leave,), signer=signer)
        links = [a_certified(first, signer=signer)]
        links += a_chain(advance(begun, first), count - 1, signer=signer)
        store = Store(market.folder / "verifiers.db")
        follower = Follower(market.spec, market.run_id, store)
        assert all(map(follower.take, links))
        self.handlers = {
            name: ChainDuties(
                a_participant(market, name, store=store),
                follower,
                None,  # type: ignore[arg-type]
            ).handlers
            for name in VERIFIERS
            if name not in away
        }

    async def request(self, verifier: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        name = name_of(verifier)
        if name not in self.handlers:
            raise Unavailable(f"{name} is away")
        return await self.handlers[name][method](peer(NODE), body)


def a_participant(market: Market, name: str, **more: Any) -> Any:
    return SimpleNamespace(
        me=peer(name),
        spec=market.spec,
        run_id=market.run_id,
        deployment=market.deployment,
        keys=keys_of(name),
        config=SimpleNamespace(folder=market.folder / name, rpc_url=market.rpc_url),
        **more,
    )


def settled_count(market: Market) -> int:
    return int(market.spec.ordered.settled_at(0)) + 1


def locked(market: Market) -> Path:
    market.lock(NODE, LOT)
    market.open_run()
    return market.config_of(NODE)


def until(market: Market) -> int:
    return market.bank.lot_of(wallet(NODE), OPERATOR, market.run_id).until


def test_who_left_is_discharged_by_a_quorum_and_has_its_lot_back_while_the_run_goes_on(
    assay: Assay, market: Market
):
    file, me = locked(market), a_participant(market, NODE)
    far, host = until(market), Verifiers(market, settled_count(market), away=VERIFIERS[:1])

    text = trio.run(discharge, me, host)

    assert market.bank.timestamp() == until(market) < far
    assert text.startswith("free from ") and "(in 7 d)" in text
    before = market.bank.block_number()
    assert trio.run(discharge, me, host).startswith("free from ")
    code, _, err = assay("stake", "release", file)
    assert code == 1 and "the lot can be released from" in err and "(in 7 d)" in err
    assert "release   from" in assay("stake", "show", file)[1]
    assert market.bank.block_number() == before  # nothing more was sent

    market.advance(market.params.evidence_window_s)
    code, out, _ = assay("stake", "release", file)
    assert code == 0 and "released 300.000000 aUSD" in out
    assert assay("stake", "remove", file, "--to", "0")[0] == 0
    run = market.bank.run(market.run_id)
    assert run is not None and run.closes_at > market.bank.timestamp()
    assert trio.run(discharge, me, host) == "free"


@pytest.mark.parametrize(("early", "away", "reason"), [(1, (), "settled"), (0, VERIFIERS[:2], "away")])
def test_who_is_not_discharged_in_time_stays_bound_and_nothing_is_sent(
    market: Market,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    early: int,
    away: tuple[str, ...],
    reason: str,
):
    locked(market)
    far, before = until(market), market.bank.block_number()
    host = Verifiers(market, settled_count(market) - early, away)
    monkeypatch.setattr(module, "TRIES_S", 1.5)
    monkeypatch.setattr(module, "RETRY_S", 0.1)

    text = trio.run(discharge, a_participant(market, NODE), host)

    assert text.startswith("bound until the run is over")
    assert (until(market), market.bank.block_number()) == (far, before)
    assert not (market.folder / NODE / FILE).exists()
    told = [one for one in caplog.records if one.message == "not discharged yet"]
    assert len(told) == 1 and reason in told[0].reason  # type: ignore[attr-defined]


def test_what_the_process_kept_is_sent_by_hand(assay: Assay, market: Market):
    file = locked(market)
    kept, far = market.folder / NODE / FILE, until(market)
    assert assay("stake", "release", file)[0] == 1  # nothing is kept yet
    assert until(market) == far
    kept.write_bytes(b"no signature")
    code, _, err = assay("stake", "release", file)
    assert code == 2 and "12 bytes, expected 1 to 64 signatures" in err

    kept.write_bytes(market.discharge_certificate(NODE))
    code, out, _ = assay("stake", "release", file, "--dry-run")
    assert code == 0 and "would send to SlashCourt" in out and until(market) == far
    code, out, err = assay("stake", "release", file)

    assert code == 1 and "discharged" in out and "(in 7 d)" in err
    assert until(market) == market.bank.timestamp()
    market.advance(market.params.evidence_window_s)
    assert "released 300.000000 aUSD" in assay("stake", "release", file)[1]


def test_a_lot_for_a_run_that_was_not_opened_is_released_at_once(assay: Assay, market: Market):
    market.lock(NODE, LOT)

    assert "released 300.000000 aUSD" in assay("stake", "release", market.config_of(NODE))[1]
