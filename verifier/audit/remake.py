"""Remake: a node's private state made again, step after step, by public data alone.

Room: verifier (pure). Parameters follow from the aggregates, batches from the spec, and a private state from
the gradients of the last rounds: every block of it begins anew once in so many (carry.py). So whoever has the
node's execution class needs nothing from the node, and need not begin where the node did:

    any state --steps of renewal_rounds--> the state before the step --the step--> compared with its commit

The step is false, bit for bit, if its root before is that state's and something else differs. If the root
before differs, an earlier step is false: what the node held is not known, and nothing is said of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.messages import Commit
from assay.protocol.update_rule import RuleSpec
from assay.training.optimiser import step as rules
from assay.training.optimiser.carry import begins_anew, renewal_rounds
from assay.training.optimiser.inner import Gradient, roots_of
from assay.training.optimiser.node_state import NodeState, start_private
from assay.training.optimiser.node_state import commit as private_root
from assay.training.optimiser.public_state import PublicState

STEPS_MAX = 1024  # that verifiers make again for one accusation


def lineage_max(rule: RuleSpec) -> int:
    """The most steps that a `lineage` by this rule has, whatever rounds its node trains in."""
    if not rule.carries_inner:
        return renewal_rounds(rule) + 1
    return max(renewal_rounds(rule), 1) + rule.compress.reset_rounds


def lineage(
    commit: Commit, commit_of: Callable[[int], Commit | None], rule: RuleSpec | None = None
) -> Iterator[Commit]:
    """The steps that lead to the private state before one, this one first, then backwards.

    They end at a fresh start; with a rule, at the nearest step from which on they lead there from any state.

    Args:
        commit: Of the step.
        commit_of: The node's accepted one of an earlier round; what it has not is taken for a fresh start.
        rule: Of the run.
    """
    found: Commit | None = commit
    while found is not None:
        yield found
        if not found.base or (rule is not None and _leads_to(rule, found, commit)):
            return
        found = commit_of(found.base - 1)


def _leads_to(rule: RuleSpec, first: Commit, last: Commit) -> bool:
    """Whether the state before `last` is the same, whatever the one before `first` was."""
    rounds, needed = last.base - int(first.round), renewal_rounds(rule)
    if not rule.carries_inner:
        return not needed or rounds >= needed
    # What a step adds to the error follows from its inner state: this has to be known first.
    return begins_anew(rule, first.base, int(first.round)) and rounds >= max(needed, 1)


class Remake:
    """A private state in the making; the caller goes from round to round, and applies aggregates between."""

    def __init__(
        self,
        parameters: PublicState,
        batch: Callable[[Commit, int], NDArray[np.int64]],
        gradient: Gradient,
        base: int = 0,
    ) -> None:
        """
        Args:
            parameters: Of the rounds from the first step on.
            batch: The sequences that a step takes, of a round.
            gradient: The loss's, in this machine's class.
            base: Of the first step's commit.
        """
        self._parameters, self._batch, self._gradient = parameters, batch, gradient
        self._private = replace(start_private(parameters.layout), base=base)
        self.at, self.count = -1, 0  # round of the last step that was made, and their number
        self.differs = ""  # what it made otherwise than its commit says, if it was compared
        self.is_behind = False  # whether that is the root before: a step before it is false
        self.first_false: int | None = None  # round of the first compared step that differs and is not behind

    @property
    def base(self) -> int:
        """What the next commit has to continue."""
        return self._private.base

    def step(self, commit: Commit, *, trained_as: int | None = None, is_compared: bool = True) -> None:
        """Make this step, and compare it with the commit.

        Args:
            commit: Of the step.
            trained_as: The round whose sequences it takes; by default its own.
            is_compared: False where the state before it is not known yet.

        Raises:
            Diverged: the parameters are not at its round.
        """
        spec, layout, number = self._parameters.spec, self._parameters.layout, int(commit.round)
        before, work = self._private, self.work(commit, self._private, trained_as)
        self._private, update = rules.encode(spec, layout, number, before, work)
        self.at, self.count, self.differs, self.is_behind = number, self.count + 1, "", False
        if not is_compared:
            return
        root_before, root_after = (
            private_root(commit.run_id, spec.rule, layout, state) for state in (before, self._private)
        )
        ends = [roots_of(commit.run_id, layout, end).digest for end in work.ends]
        for name, committed, made in (
            ("root before", commit.momentum_before, root_before),
            ("update", commit.update, blob_digest(update)),
            ("root after", commit.momentum_after, root_after),
            *zip([f"inner state {n}" for n in range(len(ends))], commit.inner, ends, strict=False),
        ):
            if committed != made:
                self.differs = f"{name} {committed.hex()[:16]}, made again {made.hex()[:16]}"
                self.is_behind = name == "root before"
                break
        if self.differs and not self.is_behind and self.first_false is None:
            self.first_false = number

    def work(self, commit: Commit, private: NodeState, trained_as: int | None = None) -> rules.Work:
        """What the step of this commit computes from a private state, in this machine's class."""
        spec, layout, round_id = self._parameters.spec, self._parameters.layout, int(commit.round)
        theta_P, batch = (
            self._parameters.read(round_id),
            self._batch(commit, round_id if trained_as is None else trained_as),
        )
        return rules.local(spec, layout, theta_P, private, batch, round_id, self._gradient)
