"""Steps: those of a node by the production rule of one round, where only gradients are made up.

Room: testing (pure). For what makes steps again from commits alone: verifier/audit/remake.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

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
from assay.verifier.audit.remake import Remake, lineage

T = 4  # rounds until a state begins anew
METHODS = {
    "demo": {},
    "sparseloco": {"keeps_moments": True, "steps": 2, "segment": 1},
    "muloco": {"keeps_moments": True, "steps": 2, "segment": 2},
    "streaming-diloco": {"keeps_moments": True, "feedback_micro": 950_000, "steps": 2, "segment": 1},
    "fedavg": {"steps": 2, "segment": 2},
}
Twist = Callable[[NodeState], NodeState]


class ANode:
    """A node's accepted steps, by round, and what a remake of them reads; only gradients are made up."""

    def __init__(
        self,
        method: str,
        attended: Sequence[int],
        lies: dict[int, Twist] | None = None,
        work_lies: Sequence[int] = (),
        tasks: Sequence[int] = (),
        listed: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            method: Of the run.
            attended: Rounds in which it trains.
            lies: What it makes of its state after the step, by round.
            work_lies: Rounds in which it sends other work, and commits to what follows.
            tasks: Rounds in which it trains a known-answer task as ordered.
            listed: Rounds on its list of tasks; None: the same.
        """
        rule = specs.a_rule(method, **{"reset_rounds": T, **METHODS[method]})
        self.spec: RunSpec = replace(a_spec(), rule=rule, model=specs.a_model(), rounds=1_000)
        self.layout = layout_of(self.spec.model)
        self.parameters: Any = SimpleNamespace(spec=self.spec, layout=self.layout, read=self._theta)
        self.commits: dict[int, Commit] = {}
        self.tasks, self.listed = tasks, tasks if listed is None else listed
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
        after = lies[number](after) if number in lies else after
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

    def lineage(self, round_id: int) -> list[Commit]:
        """The fewest steps that lead to this one."""
        found = lineage(self.commits[round_id], self.commits.get, self.spec.rule, self.listed)
        return list(found)[::-1]

    def remade(self, round_id: int) -> Remake:
        """The last step of its lineage compared, by these alone."""
        steps = self.lineage(round_id)
        remake = Remake(self.parameters, self.batch, self.gradient, steps[0].base)
        for commit in steps:
            is_task = int(commit.round) in self.listed
            remake.step(commit, is_task=is_task, is_compared=commit is steps[-1])
        return remake
