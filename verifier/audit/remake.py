"""Remake: a node's private state made again from its last fresh start, step after step, by public data alone.

Room: verifier (pure). Parameters follow from the aggregates, batches from the spec, and a private state from
the gradients since it was fresh, so whoever has the node's execution class needs nothing from the node: the
first step that differs is false, bit for bit. What the node held after that step is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.messages import Commit
from assay.training.optimiser import step as rules
from assay.training.optimiser.inner import Gradient, roots_of
from assay.training.optimiser.node_state import NodeState, start_private
from assay.training.optimiser.node_state import commit as private_root
from assay.training.optimiser.public_state import PublicState


def lineage(commits: Mapping[int, Commit], round_id: int) -> list[int]:
    """Rounds of the steps whose private states lead to this one, from the last fresh start on, ascending.

    Args:
        commits: A node's accepted ones, by round; whatever is not in there is taken for a fresh start.
        round_id: Of one of them.
    """
    found = [round_id]
    while (base := commits[found[-1]].base) and base - 1 in commits:
        found.append(base - 1)
    return found[::-1]


class Remake:
    """A private state in the making; the caller goes from round to round, and applies aggregates between."""

    def __init__(
        self,
        parameters: PublicState,
        batch: Callable[[Commit], NDArray[np.int64]],
        gradient: Gradient,
    ) -> None:
        """
        Args:
            parameters: Of the rounds from the fresh start on.
            batch: The sequences of a step.
            gradient: The loss's, in this machine's class.
        """
        self._parameters, self._batch, self._gradient = parameters, batch, gradient
        self._private = start_private(parameters.layout)
        self.base = 0  # of the next commit
        self.differs = ""  # what the last step made otherwise than its commit says; after it nothing is known
        self.at, self.count = -1, 0  # round of the last step that was made, and their number

    def step(self, commit: Commit) -> None:
        """Make this step, and compare it with the commit; after a difference, do nothing.

        Raises:
            Diverged: the parameters are not at its round.
        """
        if self.differs:
            return
        spec, layout, number = self._parameters.spec, self._parameters.layout, int(commit.round)
        before = private_root(commit.run_id, spec.rule, layout, self._private)
        work = self.work(commit, self._private)
        self._private, update = rules.encode(spec, layout, number, self._private, work)
        after = private_root(commit.run_id, spec.rule, layout, self._private)
        ends = [roots_of(commit.run_id, layout, end).digest for end in work.ends]
        for name, committed, made in (
            ("root before", commit.momentum_before, before),
            ("update", commit.update, blob_digest(update)),
            ("root after", commit.momentum_after, after),
            *zip([f"inner state {n}" for n in range(len(ends))], commit.inner, ends, strict=False),
        ):
            if committed != made:
                self.differs = f"{name} {committed.hex()[:16]}, made again {made.hex()[:16]}"
                break
        self.at, self.count, self.base = number, self.count + 1, number + 1

    def work(self, commit: Commit, private: NodeState) -> rules.Work:
        """What the step of this commit computes from a private state, in this machine's class."""
        spec, layout, round_id = self._parameters.spec, self._parameters.layout, int(commit.round)
        theta_P, batch = self._parameters.read(round_id), self._batch(commit)
        return rules.local(spec, layout, theta_P, private, batch, round_id, self._gradient)
