"""A node's process: what it asks its trainer for follows from the chain, not from what it remembers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import trio

from assay.node.messages import TakeStep
from assay.node.service import Service
from assay.protocol.types import RoundId
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from tests.builders import a_history, peer
from tests.specs import a_rule

NORA = peer("nora")


class WorkerProcess:
    """A trainer that answers with what it was asked."""

    async def call(self, request: TakeStep, _answer: Any) -> TakeStep:
        return request


def asked(run_state: Any) -> TakeStep:
    service = SimpleNamespace(me=SimpleNamespace(me=NORA), state_sync=SimpleNamespace(child=WorkerProcess()))
    return trio.run(Service._step, service, run_state)


def test_before_its_first_accepted_step_a_node_starts_afresh():
    assert asked(a_history()).base == 0


def test_a_step_continues_the_last_accepted_one_though_later_ones_had_the_same_root():
    """FedAvg keeps nothing back, so every root is the zero root and says nothing of its round."""
    run_state = a_history(rule=a_rule("fedavg"))
    root = zero_root(run_state.run_id, run_state.spec.rule, layout_of(run_state.spec.model).blocks)
    record = replace(run_state.nodes[NORA], momentum=root, base=5)
    run_state = replace(run_state, round=RoundId(7), nodes={**run_state.nodes, NORA: record})

    request = asked(run_state)

    assert (request.round, request.base, request.base_root) == (7, 5, root)
