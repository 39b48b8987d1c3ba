"""Stake that leaves a real vault is seen and said by a verifier, by nobody's request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.chain.client import UNIT
from assay.chain.statements import OPERATOR
from assay.participant.store import Store
from assay.protocol.messages import SignedStakeReport
from assay.protocol.state_transition import advance
from assay.protocol.types import Address
from assay.verifier.service import stake_watch as stake_watch
from tests.builders import DOMAIN, NODES, RUN_ID, a_peer_key, a_spec, peer
from tests.builders import a_history as the_start
from tests.builders import a_manifest as the_next
from tests.contracts.chain_world import World

VERA = peer("vera")


def a_history_of(world: World) -> Any:
    """After one manifest of a run whose nodes are the world's operators."""
    accounts = [Address(bytes.fromhex(person.account[2:])) for person in world.operators]
    members = a_spec().nodes[: len(accounts)]
    nodes = tuple(replace(one, account=account) for one, account in zip(members, accounts, strict=True))
    start = the_start(nodes=nodes)
    return advance(start, the_next(start, [name for name in NODES if peer(name) in start.nodes]))


def test_stake_that_leaves_is_said_and_stake_that_stays_is_not(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stake_watch, "POLL_S", 0.01)
    for person in world.operators:
        world.join(person, OPERATOR, 500 * UNIT)
    run_state = a_history_of(world)
    me: Any = SimpleNamespace(
        run_id=RUN_ID, me=VERA, spec=run_state.spec, deployment=world.deployment, domain=DOMAIN,
        config=SimpleNamespace(rpc_url=world.rpc_url), store=Store(tmp_path / "store.db"),
        keys=SimpleNamespace(account=world.bystander.key, peer=a_peer_key("vera")),
    )  # fmt: skip
    said: list[SignedStakeReport] = []
    gone = world.operators[1]
    leaver = next(
        one.peer for one in run_state.spec.nodes if f"0x{one.account.hex()}" == gone.account.lower()
    )

    async def watch() -> None:
        follower: Any = SimpleNamespace(run_state=run_state)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stake_watch.StakeWatch(me, follower, said.append).run)
            with trio.fail_after(60):
                while len(me.store.values(stake_watch.FACT)) < len(world.operators):
                    await trio.sleep(0.01)
                await trio.sleep(0.1)
                assert said == []
                await trio.to_thread.run_sync(world.as_(gone).request_unstake, OPERATOR, UNIT)
                while not said:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(watch)

    assert {(one.stake_report.node, one.stake_report.is_whole) for one in said} == {(leaver, False)}
