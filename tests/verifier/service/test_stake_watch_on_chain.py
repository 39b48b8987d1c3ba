"""A lot that a slash cut is seen and reported by a verifier, by nobody's request."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.client import UNIT
from assay.chain.statements import OPERATOR
from assay.protocol.messages import SignedStakeReport
from assay.protocol.state_transition import advance
from assay.protocol.types import Address, Digest
from assay.testing.members import DOMAIN, a_peer_key, peer
from assay.testing.signed import NODES, a_spec
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.verifier.service import stake_watch as stake_watch
from tests.contracts.chain_world import World

VERA = peer("vera")


def a_history_of(world: World) -> Any:
    """After one manifest of a run whose nodes are the world's operators."""
    accounts = [Address(bytes.fromhex(person.account[2:])) for person in world.operators]
    members = a_spec().nodes[: len(accounts)]
    nodes = tuple(replace(one, account=account) for one, account in zip(members, accounts, strict=True))
    start = the_start(nodes=nodes)
    return advance(start, the_next(start, [name for name in NODES if peer(name) in start.nodes]))


def test_a_lot_that_a_slash_cut_is_reported_and_a_whole_one_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stake_watch, "POLL_S", 0.01)
    for person in world.operators:
        world.join(person, OPERATOR, 100 * UNIT)
    run_state = replace(a_history_of(world), run_id=Digest(world.run_id))
    me: Any = SimpleNamespace(
        run_id=world.run_id, me=VERA, spec=run_state.spec, deployment=world.deployment, domain=DOMAIN,
        config=SimpleNamespace(rpc_url=world.rpc_url),
        keys=SimpleNamespace(signer=world.bystander.key, peer=a_peer_key("vera")),
    )  # fmt: skip
    reports: list[SignedStakeReport] = []
    world.as_(world.operators[0]).stake(OPERATOR, 100 * UNIT)
    world.as_(world.operators[0]).request_unstake(OPERATOR, 100 * UNIT)  # of no run
    cut = world.operators[1]
    order = world.a_ruling(cut)
    world.bank.open_case(order, world.cert(order))
    world.advance(world.params.veto_window_s)
    node = next(one.peer for one in run_state.spec.nodes if f"0x{one.account.hex()}" == cut.account.lower())
    watch = stake_watch.StakeWatch(me, SimpleNamespace(run_state=run_state), reports.append)  # type: ignore[arg-type]

    async def until_reported() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            with trio.fail_after(60):
                await trio.sleep(0.2)
                assert reports == []
                await trio.to_thread.run_sync(world.bank.execute_case, order.offence_id)
                while not reports:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(until_reported)

    assert {(one.stake_report.node, one.stake_report.is_whole) for one in reports} == {(node, False)}
