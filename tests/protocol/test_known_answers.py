"""Known-answer tasks: drawn from a node's key alone, and false only once its list counts in the chain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root, shown_root
from assay.protocol.known_answers import Tasks, drawn_tasks, false_rounds, lineage_max, task_secret
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, RoundId
from assay.testing.members import NODES, RUN_ID, a_digest
from assay.testing.run import Network, a_spec, a_start, funded_start

NODE, KEY = NODES[0], bytes(range(32))


def ordering(count: int, rounds: int = 100) -> RunSpec:
    return a_spec(rounds=rounds, known_answer_count=count)


def drawn(key: bytes = KEY, count: int = 5, **changes: Any) -> Tasks:
    given = {"spec": ordering(count), "run_id": RUN_ID, "node": NODE, **changes}
    return drawn_tasks(task_secret(key, given["run_id"]), **given)


@pytest.mark.parametrize(("count", "rounds"), [(1, 20), (5, 100), (1000, 20_000)])
def test_a_node_draws_as_many_different_rounds_as_are_ordered_and_can_show_each(count: int, rounds: int):
    tasks = drawn(spec=ordering(count, rounds))

    assert len(tasks.shown) == count and all(0 <= at < rounds for at in tasks.shown)
    for at, shown in list(tasks.shown.items())[:20]:
        assert (int(shown.round), shown.node, shown.run_id) == (at, NODE, RUN_ID)
        assert shown_root(shown, count) == tasks.root
    assert len({shown.salt for shown in tasks.shown.values()}) == count


STRETCH = a_spec().rule.lineage_rounds
PERIOD = 3 * STRETCH


def rounds_of(secret: int, rounds: int, count: int) -> frozenset[int]:
    return false_rounds(a_digest("secret", secret.to_bytes(4, "big")), ordering(count, rounds), 0)


def test_every_list_leaves_a_stretch_of_rounds_free_in_each_period_that_leads_to_a_known_state():
    rounds = 4 * PERIOD
    for secret in range(20):
        found = rounds_of(secret, rounds, rounds // 20)
        gaps = [b - a for a, b in pairwise(sorted(found | {-1, rounds}))]
        for period in range(4):
            begins = period * PERIOD
            tried = range(begins, begins + PERIOD - STRETCH + 1)
            assert any(found.isdisjoint(range(at, at + STRETCH)) for at in tried)
        assert len(found) == rounds // 20 and min(gaps) >= 1


def test_nobody_knows_of_a_round_that_it_is_free():
    """Over lists as dense as they may be, tasks are in every part of a period."""
    rounds, lists = 2 * PERIOD, 200
    where = Counter(
        at % PERIOD * 9 // PERIOD for secret in range(lists) for at in rounds_of(secret, rounds, rounds // 20)
    )

    mean = lists * (rounds // 20) / 9
    assert all(where[part] > 0.55 * mean for part in range(9))


def test_a_run_whose_steps_can_be_made_again_from_its_start_has_tasks_anywhere():
    """In lists of a run as long as a period no stretch has to be free."""
    found = [rounds_of(secret, PERIOD, PERIOD // 20) for secret in range(300)]

    def longest(tasks: frozenset[int]) -> int:
        return max(b - a - 1 for a, b in pairwise(sorted(tasks | {-1, PERIOD})))

    assert min(map(longest, found)) < STRETCH
    assert lineage_max(a_spec().rule, PERIOD, 1) == STRETCH
    assert lineage_max(a_spec().rule, 10 * PERIOD, 1) == 6 * STRETCH
    assert lineage_max(a_spec().rule, 10 * PERIOD, 0) == STRETCH
    assert lineage_max(a_spec().rule, STRETCH - 1, 0) == STRETCH - 1


def test_a_restart_draws_the_same_tasks_and_another_key_or_run_others():
    assert drawn() == drawn()
    for other in (drawn(KEY[::-1]), drawn(run_id=a_digest("another run"))):
        assert other.root != drawn().root and other.shown.keys() != drawn().shown.keys()


def test_a_run_that_orders_none_has_no_list():
    assert drawn(count=0) == Tasks(node=NODE, root=NO_DIGEST, shown={})
    assert drawn(count=0).counts_from(a_start()) == 0


@pytest.mark.parametrize("is_own_list", [False, True])
def test_an_honest_step_that_its_node_shows_as_a_task_counts_no_second_time_as_clean(is_own_list: bool):
    network = Network(funded_start(a_spec(rounds=200, known_answer_count=10, replication_ppm=0)))
    node = NODES[0]
    tasks = [(a_digest("salt", number), RoundId(number), node) for number in range(1, 11)]
    proofs = {(one.round, one.node): one for one in known_answer_proofs(RUN_ID, tasks)}
    if is_own_list:  # of its own choice: nothing makes it the list that follows from its key
        network.lists[node] = known_answer_root(tasks)
    judged: dict[Any, AuditStatus] = {}
    for _ in range(24):
        rulings = {step: audit.ruling for step, audit in network.run_state.audits.items() if step[1] == node}
        judged.update(rulings)
        network.known_answers = {
            step: proof
            for step, proof in proofs.items()
            if is_own_list and rulings.get(step) is AuditStatus.PASSED
        }
        network.grow()

    judged.update({s: a.ruling for s, a in network.run_state.audits.items() if s[1] == node})
    found = Counter(judged.values())
    assert found[AuditStatus.DISMISSED] == 10 * is_own_list
    assert network.run_state.nodes[node].clean == found[AuditStatus.PASSED] + found[AuditStatus.DISMISSED]


def with_list(run_state: RunState, **changes: Any) -> RunState:
    record = replace(run_state.nodes[NODE], **changes)
    return replace(run_state, nodes={**run_state.nodes, NODE: record})


def test_a_step_is_a_task_only_from_the_round_on_that_the_announcement_of_this_list_counts_from():
    tasks, run_state = drawn(), a_start()
    at = sorted(tasks.shown)[2]

    def is_task(tasks_from: int, **changes: Any) -> bool:
        known = with_list(run_state, **{"tasks": tasks.root, "tasks_from": tasks_from, **changes})
        return tasks.task(known, at) is not None

    assert is_task(at) and not is_task(at + 1)
    assert not is_task(at, tasks=a_digest("another list"))
    assert tasks.task(run_state, at) is None
    assert tasks.task(with_list(run_state, tasks=tasks.root, tasks_from=1), at + 1) is tasks.shown.get(at + 1)
    assert Tasks(node=a_digest("guest"), root=tasks.root, shown=tasks.shown).counts_from(run_state) == 0  # type: ignore[arg-type]
