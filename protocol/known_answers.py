"""Known-answer tasks: a node's own deliberately false steps, which test auditors unannounced.

Room: protocol (pure). A node draws its tasks from its secret key, so a restart draws the same ones and nobody
else can know one. It announces the root of the list in the chain before it takes the first of them; no
auditor can tell such a step from a lie until its node shows that it is on the list. Once no step of the node
can be drawn or judged any more, it shows the secret that the whole list follows from: else the tasks that no
audit drew would be taken for lies.

Whoever then makes its steps again cannot know that the tasks were made as ordered, and from a state that is
not known yet nothing can be compared. So some stretches of rounds are free of tasks, long enough to lead to a
known state. The secret says where, so nobody else knows of a round that it is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from assay.protocol.auditing.commitments import derived_salt, known_answer_proofs, known_answer_root
from assay.protocol.messages import KnownAnswer, TaskList
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.protocol.update_rule import RuleSpec


@dataclass(frozen=True, slots=True)
class Tasks:
    """A node's list of known-answer tasks."""

    node: PeerId
    root: Digest  # zero if the run orders none
    shown: Mapping[int, KnownAnswer]  # what proves that a step is on the list, by round

    def counts_from(self, run_state: RunState) -> int:
        """The first round whose task is a false step; 0 while the chain has no announcement of this list."""
        record = run_state.nodes.get(self.node)
        return record.tasks_from if record is not None and record.tasks == self.root else 0

    def task(self, run_state: RunState, round_id: int) -> KnownAnswer | None:
        """The proof that this round's step is one of the tasks; None if it is trained like any other."""
        first = self.counts_from(run_state)
        return self.shown.get(round_id) if first and round_id >= first else None


def task_secret(key: bytes, run_id: Digest) -> Digest:
    """What the list of the node with this secret peer key follows from."""
    return derived_salt(key, b"known answers", run_id)


def task_list(secret: Digest, spec: RunSpec, node: PeerId) -> list[tuple[Digest, RoundId, PeerId]]:
    """The list that follows from a node's `task_secret`: rounds all over the run, each once, ascending.

    Whoever joins late leaves out those before its announcement: of its steps, too, one in as many is false.
    """
    rounds = _rounds(secret, spec)
    return [(derived_salt(secret, b"task", at.to_bytes(8, "big")), RoundId(at), node) for at in rounds]


def false_rounds(secret: Digest, spec: RunSpec, first: int) -> frozenset[int]:
    """The rounds, from `first` on, in which the step of a node with this secret is false on order."""
    return frozenset(at for at in _rounds(secret, spec) if at >= first)


def drawn_tasks(secret: Digest, spec: RunSpec, run_id: Digest, node: PeerId) -> Tasks:
    """A node's list, with what proves each task of it."""
    tasks = task_list(secret, spec, node)
    return Tasks(
        node=node,
        root=known_answer_root(tasks) if tasks else NO_DIGEST,
        shown={int(one.round): one for one in known_answer_proofs(run_id, tasks)},
    )


def is_announced(shown: TaskList, run_state: RunState) -> bool:
    """Whether it is the list that its node announced in this run."""
    record = run_state.nodes.get(shown.node)
    if record is None or record.tasks == NO_DIGEST or shown.run_id != run_state.run_id:
        return False
    return known_answer_root(task_list(shown.secret, run_state.spec, shown.node)) == record.tasks


def lineage_max(rule: RuleSpec, rounds: int, task_count: int) -> int:
    """The most steps, with the last, that lead to what a step makes, in a run of so many rounds and tasks."""
    stretch = rule.lineage_rounds
    return min(2 * _period(stretch) if task_count and _has_free(stretch, rounds) else stretch, rounds)


def _period(stretch: int) -> int:
    """Rounds of which one stretch is free, so that no round is with a chance of 1/2 or more."""
    return 3 * stretch


def _has_free(stretch: int, rounds: int) -> bool:
    """Whether a run needs stretches without tasks: a short one's steps can be made again from its start."""
    return stretch > 1 and rounds > _period(stretch)


def _rounds(secret: Digest, spec: RunSpec) -> list[int]:
    """As many different rounds as a node has tasks, ascending, none of them in a free stretch."""
    found: set[int] = set()
    stretch = spec.rule.lineage_rounds
    has_free, period = _has_free(stretch, spec.rounds), _period(stretch)
    draws = _draws(secret)
    while len(found) < spec.audit.known_answer_count:  # of at most one round in twenty: few are drawn twice
        at = next(draws) % spec.rounds
        begins = _number(secret, b"free", at // period) % (period - stretch + 1)
        if not (has_free and begins <= at % period < begins + stretch):
            found.add(at)
    return sorted(found)


def _draws(secret: Digest) -> Iterator[int]:
    return (_number(secret, b"round", at) for at in itertools.count())


def _number(secret: Digest, use: bytes, at: int) -> int:
    return int.from_bytes(derived_salt(secret, use, at.to_bytes(8, "big")), "big")


def trained_as(spec: RunSpec, round_id: int) -> int:
    """The round whose sequences a known-answer task takes in place of its own round's.

    Such a step does the model little harm, and every auditor that recomputes it detects it.
    """
    return round_id + spec.rounds
