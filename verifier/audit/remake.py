"""Remake: a node's private state made again, step after step, by public data alone.

Room: verifier (pure). Parameters follow from the aggregates, batches from the spec, and a private state from
the gradients of the last rounds: every block of it begins anew once in so many (carry.py). So whoever has the
node's execution class needs nothing from the node, and need not begin where the node did:

    any state --steps of lineage_rounds--> the state before the step --the step--> compared with its commit

The step is false, bit for bit, if its root before is that state's and something else differs. If the root
before differs, an earlier step is false: what the node held is not known, and nothing is said of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.known_answers import trained_as
from assay.protocol.messages import Commit
from assay.protocol.types import Digest
from assay.protocol.update_rule import RuleSpec
from assay.training.optimiser import step as rules
from assay.training.optimiser.carry import begins_anew
from assay.training.optimiser.inner import Gradient, roots_of
from assay.training.optimiser.node_state import NodeState, start_private
from assay.training.optimiser.node_state import commit as private_root
from assay.training.optimiser.public_state import PublicState

STEPS_MAX = 2048  # that verifiers make again for one accusation


def lineage(
    commit: Commit,
    commit_of: Callable[[int], Commit | None],
    rule: RuleSpec | None = None,
    tasks: Collection[int] = (),
) -> Iterator[Commit]:
    """The steps that lead to the private state before one, this one first, then backwards.

    They end at a fresh start; with a rule, at the nearest step from which on they lead there from any state.

    Args:
        commit: Of the step.
        commit_of: The node's accepted one of an earlier round; what it has not is taken for a fresh start.
        rule: Of the run.
        tasks: Rounds of the node's known-answer tasks: of what leads to the first known state none is one.
    """
    found: Commit | None = commit
    while found is not None:
        yield found
        if not found.base or (rule is not None and _leads_to(rule, found, commit, tasks)):
            return
        found = commit_of(found.base - 1)


def _leads_to(rule: RuleSpec, first: Commit, last: Commit, tasks: Collection[int]) -> bool:
    """Whether the state before `last` is the same, whatever the one before `first` was."""
    begins, needed = int(first.round), rule.renewal_rounds
    if any(begins <= at < first.base + needed for at in tasks):
        return False
    rounds = last.base - begins
    if not rule.carries_inner:
        return not needed or rounds >= needed
    # What a step adds to the error follows from its inner state: this has to be known first.
    return begins_anew(rule, first.base, begins) and rounds >= max(needed, 1)


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

    def step(self, commit: Commit, *, is_task: bool = False, is_compared: bool = True) -> None:
        """Make this step, and compare it with the commit.

        Args:
            commit: Of the step.
            is_task: Whether it is on its node's list of known-answer tasks. It holds then with the sequences
                that are ordered of it, and with its own: its node may have trained it as any other.
            is_compared: False where the state before it is not known yet.

        Raises:
            Diverged: the parameters are not at its round.
        """
        spec, layout, number = self._parameters.spec, self._parameters.layout, int(commit.round)
        before = self._private
        for sequences in self._readings(number) if is_task else (number,):
            work = self.work(commit, before, sequences)
            self._private, update = rules.encode(spec, layout, number, before, work)
            differs = self._difference(commit, work, update) if is_task or is_compared else ""
            if not differs:
                break
        self.at, self.count, self.differs, self.is_behind = number, self.count + 1, "", False
        if not is_compared:
            return
        behind = _differs("root before", commit.momentum_before, self._root(commit, before))
        self.differs, self.is_behind = behind or differs, bool(behind)
        if differs and not behind and self.first_false is None:
            self.first_false = number

    def _readings(self, number: int) -> tuple[int, ...]:
        """The rounds whose sequences a known-answer task may have taken, the ordered one first."""
        return trained_as(self._parameters.spec, number), number

    def _difference(self, commit: Commit, work: rules.Work, update: bytes) -> str:
        """What the commit says otherwise of a step than we made; empty if nothing."""
        ends = [roots_of(commit.run_id, self._parameters.layout, end).digest for end in work.ends]
        found = (
            _differs("update", commit.update, blob_digest(update)),
            _differs("root after", commit.momentum_after, self._root(commit, self._private)),
            *(
                _differs(f"inner state {n}", *of)
                for n, of in enumerate(zip(commit.inner, ends, strict=False))
            ),
        )
        return next(filter(None, found), "")

    def _root(self, commit: Commit, state: NodeState) -> Digest:
        return private_root(commit.run_id, self._parameters.spec.rule, self._parameters.layout, state)

    def work(self, commit: Commit, private: NodeState, sequences: int) -> rules.Work:
        """What a step computes from a private state with a round's sequences, in this machine's class."""
        spec, layout, round_id = self._parameters.spec, self._parameters.layout, int(commit.round)
        theta_P, batch = self._parameters.read(round_id), self._batch(commit, sequences)
        return rules.local(spec, layout, theta_P, private, batch, round_id, self._gradient)


def _differs(name: str, committed: Digest, made: Digest) -> str:
    return "" if committed == made else f"{name} {committed.hex()[:16]}, made again {made.hex()[:16]}"
