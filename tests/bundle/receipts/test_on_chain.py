"""A receipt held against a chain: the run is in its escrow, and the anchor's block is one of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from assay.bundle.receipts.pay import Paid
from assay.chain.addresses import Deployment
from assay.chain.events import ResultFinalized
from assay.chain.proofs.result_anchor import check_result_anchor
from assay.cli.audit.receipt import _chain_lines
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import ConfigError, Unavailable
from tests.contracts.chain_world import World


@dataclass(frozen=True)
class Found:
    """What a check of a receipt has found, as far as a chain is asked about it."""

    run_id: bytes
    deployment: Deployment
    paid: Paid | None


def a_found(world: World) -> Any:
    result = world.a_result(world.settle())
    (event,) = (e for e in world.bank.events(world.deployment.block) if isinstance(e, ResultFinalized))
    block = check_result_anchor(world.bank.prove(event), world.deployment, result)
    return Found(world.run_id, world.deployment, Paid(epoch=0, amount=1, anchor=block))


def test_a_chain_that_has_run_and_block_says_so(world: World):
    found = a_found(world)

    lines = list(_chain_lines(found, world.rpc_url))

    assert [line.split(": ", 1)[1] for line in lines] == [
        "the escrow holds this run", f"block {found.paid.anchor.number} has that hash"
    ]  # fmt: skip
    assert len(list(_chain_lines(replace(found, paid=None), world.rpc_url))) == 1


def test_a_run_or_a_block_that_the_chain_does_not_have_is_refused(world: World):
    found = a_found(world)
    for block in (
        replace(found.paid.anchor, hash=bytes(32)),
        replace(found.paid.anchor, number=found.paid.anchor.number - 1),
    ):
        with pytest.raises(IntegrityError, match=r"^anchor: block"):
            list(_chain_lines(replace(found, paid=replace(found.paid, anchor=block)), world.rpc_url))
    with pytest.raises(IntegrityError, match=r"^run_id: .*holds no such run"):
        list(_chain_lines(replace(found, run_id=bytes(32)), world.rpc_url))
    far = replace(found.paid, anchor=replace(found.paid.anchor, number=10**9))
    with pytest.raises(Unavailable):
        list(_chain_lines(replace(found, paid=far), world.rpc_url))
    elsewhere = replace(found, deployment=replace(world.deployment, chain_id=1))
    with pytest.raises(ConfigError, match="wrong chain"):
        list(_chain_lines(elsewhere, world.rpc_url))
