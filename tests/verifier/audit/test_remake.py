"""Remake: a step is false by itself where public data lead to its root before, and to nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.known_answers import trained_as
from assay.protocol.messages import Commit
from assay.protocol.params import RunSpec
from assay.testing import specs
from assay.testing.members import NODES
from assay.testing.messages import a_commit
from assay.testing.signed import a_spec
from assay.training.layout import layout_of
from assay.training.optimiser.inner import Floats, roots_of
from assay.training.optimiser.node_state import NodeState, start_private
from assay.training.optimiser.node_state import commit as root
from assay.training.optimiser.step import encode, local
from assay.verifier.audit.remake import Remake, lineage, lineage_max

T, AT = 4, 30  # rounds until a state begins anew; the round that is accused
METHODS = {
    "demo": {},
    "sparseloco": {"keeps_moments": True, "steps": 2, "segment": 1},
    "muloco": {"keeps_moments": True, "steps": 2, "segment": 2},
    "streaming-diloco": {"keeps_moments": True, "feedback_micro": 950_000, "steps": 2, "segment": 1},
    "fedavg": {"steps": 2, "segment": 2},
}
LONGEST = {"demo": T + 1, "sparseloco": 2 * T, "muloco": 2 * T, "streaming-diloco": 5 * T, "fedavg": 1}
Twist = Callable[[NodeState], NodeState]


class ANode:
    """A node's accepted steps, by round, and what a remake of them reads; only gradients are made up."""

    def __init__(
        self,
        method: str,
        attended: Sequence[int] = range(AT + 1),
        lies: dict[int, Twist] | None = None,
        work_lies: Sequence[int] = (),
        tasks: Sequence[int] = (),
    ) -> None:
        """
        Args:
            method: Of the run.
            attended: Rounds in which it trains.
            lies: What it makes of its state after the step, by round.
            work_lies: Rounds in which it sends other work, and commits to what follows.
            tasks: Rounds in which it trains a known-answer task.
        """
        rule = specs.a_rule(method, **{"reset_rounds": T, **METHODS[method]})
        self.spec: RunSpec = replace(a_spec(), rule=rule, model=specs.a_model(), rounds=1_000)
        self.layout = layout_of(self.spec.model)
        self.parameters: Any = SimpleNamespace(spec=self.spec, layout=self.layout, read=self._theta)
        self.commits: dict[int, Commit] = {}
        self.tasks = tasks
        private = start_private(self.layout)
        for number in attended:
            private = self._step(number, private, lies or {}, is_false=number in work_lies)

    def _theta(self, round_id: int) -> Floats:
        return np.random.default_rng(round_id).standard_normal(self.layout.parameters).astype(np.float32)

    def _step(self, number: int, before: NodeState, lies: dict[int, Twist], *, is_false: bool) -> NodeState:
        commit = a_commit(number, NODES[0], base=before.base)
        batch = self.batch(commit, self.sequences(number))
        work = local(self.spec, self.layout, self._theta(number), before, batch, number, self.gradient)
        if is_false:
            work = replace(work, x_NC=-work.x_NC)
        after, update = encode(self.spec, self.layout, number, before, work)
        after = lies.get(number, lambda state: state)(after)
        roots = [root(commit.run_id, self.spec.rule, self.layout, state) for state in (before, after)]
        self.commits[number] = replace(
            commit,
            update=blob_digest(update),
            momentum_before=roots[0],
            momentum_after=roots[1],
            inner=tuple(roots_of(commit.run_id, self.layout, end).digest for end in work.ends),
        )
        return after

    def sequences(self, number: int) -> int:
        """The round whose sequences its step takes."""
        return trained_as(self.spec, number) if number in self.tasks else number

    def batch(self, _commit: Commit, round_id: int) -> Any:
        """A batch that names its round, for `gradient`."""
        return np.full((self.spec.rule.local.steps, 1), round_id)

    def gradient(self, theta_P: Floats, batch: Any) -> tuple[float, Floats]:
        """A gradient of these parameters, some of whose values are -0."""
        drawn = np.random.default_rng(int(batch[0, 0])).standard_normal(len(theta_P)).astype(np.float32)
        slope_P = drawn + theta_P * np.float32(0.1)
        slope_P[::3] = -0.0
        return 1.0, slope_P

    def lineage(self, round_id: int = AT) -> list[Commit]:
        """The fewest steps that lead to this one."""
        return list(lineage(self.commits[round_id], self.commits.get, self.spec.rule))[::-1]

    def remade(self, round_id: int = AT) -> Remake:
        """The last step of its lineage compared, by these alone."""
        steps = self.lineage(round_id)
        remake = Remake(self.parameters, self.batch, self.gradient, steps[0].base)
        for commit in steps:
            sequences = self.sequences(int(commit.round))
            remake.step(commit, trained_as=sequences, is_compared=commit is steps[-1])
        return remake


def bent(private: NodeState) -> NodeState:
    return replace(private, error_NC=private.error_NC + np.float32(0.25))


ATTENDED = {
    "every round": range(AT + 1),
    "not when a state begins anew": [at for at in range(AT + 1) if at % T],
    "two of three rounds": [at for at in range(AT + 1) if at % 3 != 2],
}


@pytest.mark.parametrize("attended", ATTENDED.values(), ids=ATTENDED)
@pytest.mark.parametrize("method", METHODS)
def test_an_honest_step_holds_by_the_steps_of_a_few_rounds(method, attended):
    node, longest = ANode(method, attended), 0
    for number in attended[-T:]:
        remade, steps = node.remade(number), node.lineage(number)
        assert (remade.differs, remade.is_behind, remade.at) == ("", False, number)
        assert steps[0].base
        longest = max(longest, len(steps))

    assert longest <= lineage_max(node.spec.rule) == LONGEST[method]
    if attended == range(AT + 1):
        assert longest == LONGEST[method]


@pytest.mark.parametrize("method", ["demo", "sparseloco", "muloco"])
def test_a_step_less_does_not_lead_to_its_state(method):
    """Of a model with a block for each round of T the lineage is as short as it can be."""
    node = ANode(method)
    steps = node.lineage()[1:]
    remake = Remake(node.parameters, node.batch, node.gradient, steps[0].base)
    for commit in steps:
        remake.step(commit)

    assert remake.is_behind


@pytest.mark.parametrize("method", ["demo", "muloco"])
def test_known_answer_tasks_on_the_way_are_made_again_by_their_own_sequences(method):
    node = ANode(method, tasks=[AT - 3])
    assert (node.remade().differs, node.remade(AT - 3).differs) == ("", "")

    node.tasks = ()
    assert node.remade().is_behind
    assert node.remade(AT - 3).differs.startswith("update") and not node.remade(AT - 3).is_behind


def test_a_step_that_carries_nothing_needs_no_other():
    assert len(ANode("fedavg").lineage()) == 1


def test_the_first_steps_lead_from_the_fresh_start():
    node = ANode("demo", range(T))

    assert [int(one.round) for one in node.lineage(T - 1)] == list(range(T))


@pytest.mark.parametrize("method", METHODS)
def test_a_false_step_differs_after_any_number_of_steps(method):
    remade = ANode(method, work_lies=[AT]).remade()

    assert (remade.differs[:7], remade.is_behind) == ("update ", False)


def test_a_state_that_is_told_anew_is_false_in_the_step_that_tells_it_and_later_ones_are_behind_it():
    node = ANode("demo", lies={AT - 2: bent})

    told, behind = node.remade(AT - 2), node.remade(AT)

    assert told.differs.startswith("root after ")
    assert (behind.is_behind, behind.differs[:12]) == (True, "root before ")


def test_a_lie_is_forgotten_when_all_blocks_began_anew_and_the_next_one_is_seen_again():
    first = AT - 2 * T
    node = ANode("demo", lies={first: bent, AT: bent})

    assert node.remade(first).differs.startswith("root after ")
    assert node.remade(first + T).is_behind  # the block that begins anew in the lie's own round is there yet
    assert not node.remade(first + T + 1).differs
    assert node.remade(AT).differs.startswith("root after ")


@pytest.mark.parametrize("method", ["demo", "sparseloco"])
def test_who_stays_away_when_a_block_begins_anew_is_not_rid_of_the_remake(method):
    """A node that lies behind its own lie, block 0 of which never has its round."""
    away = [at for at in range(AT + 1) if at % T]
    node = ANode(method, away, lies={9: bent}, work_lies=[AT])

    assert node.remade().differs.startswith("update ")


def test_of_all_steps_compared_the_first_false_one_is_named():
    node = ANode("demo", range(6), lies={2: bent}, work_lies=[4])
    remake = Remake(node.parameters, node.batch, node.gradient)
    for commit in node.commits.values():
        remake.step(commit)

    assert (remake.first_false, remake.is_behind) == (2, True)


def test_a_message_alone_that_is_false_leaves_the_next_step_as_it_is():
    """The state after it is right: the next step is not behind a lie."""
    node = ANode("demo")
    false = replace(node.commits[AT - 1], update=blob_digest(b"another"))
    node.commits[AT - 1] = false

    assert node.remade(AT - 1).differs.startswith("update ")
    assert not node.remade(AT).differs
