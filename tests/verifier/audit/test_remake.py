"""Remake: a step is false by itself where public data lead to its root before, and to nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.known_answers import false_rounds, lineage_max
from assay.testing.members import a_digest
from assay.testing.steps import METHODS, ANode, T
from assay.training.optimiser.node_state import NodeState
from assay.verifier.audit.remake import Remake

AT = 30  # the round that is accused
LONGEST = {"demo": T + 1, "sparseloco": 2 * T, "muloco": 2 * T, "streaming-diloco": 5 * T, "fedavg": 1}


def a_node(method: str, attended: Sequence[int] = range(AT + 1), **lies: Any) -> ANode:
    return ANode(method, attended, **lies)


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
    node, longest = a_node(method, attended), 0
    for number in attended[-T:]:
        remade, steps = node.remade(number), node.lineage(number)
        assert (remade.differs, remade.is_behind, remade.at) == ("", False, number)
        assert steps[0].base
        longest = max(longest, len(steps))

    assert longest <= node.spec.rule.lineage_rounds == LONGEST[method]
    if attended == range(AT + 1):
        assert longest == LONGEST[method]


@pytest.mark.parametrize("method", ["demo", "sparseloco", "muloco"])
def test_a_step_less_does_not_lead_to_its_state(method):
    """Of a model with a block for each round of T the lineage is as short as it can be."""
    node = a_node(method)
    steps = node.lineage(AT)[1:]
    remake = Remake(node.parameters, node.batch, node.gradient, steps[0].base)
    for commit in steps:
        remake.step(commit)

    assert remake.is_behind


@pytest.mark.parametrize("method", ["demo", "muloco"])
def test_known_answer_tasks_on_the_way_are_made_again_by_their_own_sequences(method):
    node = a_node(method, tasks=[AT - 3])
    assert (node.remade(AT).differs, node.remade(AT - 3).differs) == ("", "")

    node.listed = ()
    assert node.remade(AT).is_behind
    assert node.remade(AT - 3).differs.startswith("update") and not node.remade(AT - 3).is_behind


@pytest.mark.parametrize("method", ["demo", "sparseloco", "muloco", "streaming-diloco"])
def test_a_task_that_was_trained_as_any_other_hides_no_lie_behind_it(method):
    node = a_node(method, listed=[AT - 3], work_lies=[AT])

    assert not node.remade(AT - 3).differs and not node.remade(AT - 1).differs
    assert (node.remade(AT).differs[:7], node.remade(AT).is_behind) == ("update ", False)


@pytest.mark.parametrize("method", ["demo", "muloco"])
def test_a_task_that_is_neither_as_ordered_nor_as_any_other_is_false_and_what_rests_on_it_is_behind(method):
    node = a_node(method, listed=[AT - 3], work_lies=[AT - 3])

    assert (node.remade(AT - 3).differs[:7], node.remade(AT - 3).is_behind) == ("update ", False)
    assert node.remade(AT).is_behind


@pytest.mark.parametrize("attended", [range(120), [at for at in range(120) if at % 3 != 2]])
@pytest.mark.parametrize("method", ["demo", "sparseloco"])
def test_the_steps_of_a_drawn_list_are_all_made_again_whatever_its_node_made_of_its_tasks(method, attended):
    """Of a list as dense as it may be, every second task is trained as ordered, the others as any step."""
    node = a_node(method, ())
    spec = replace(node.spec, rounds=120, audit=replace(node.spec.audit, known_answer_count=6))
    tasks = sorted(false_rounds(a_digest("secret"), spec, 0))
    node = a_node(method, attended, tasks=tasks[::2], listed=tasks)

    longest = 0
    for number in attended:
        steps = node.lineage(number)
        longest = max(longest, len(steps))
        if number % 4 == 3 or number in tasks:
            assert (node.remade(number).differs, number) == ("", number)
    assert longest <= lineage_max(spec.rule, 120, 6) == 6 * spec.rule.lineage_rounds


def test_who_is_away_where_its_list_is_free_of_tasks_is_not_rid_of_the_remake():
    free = range(12, 17)  # of the first round of which, or of all, the node stays away
    for away in (free[:1], free):
        attended = [at for at in range(AT + 1) if at not in away]
        node = a_node("demo", attended, listed=[at for at in attended if at not in free], work_lies=[AT])

        assert node.lineage(AT)[0].base and (node.remade(AT).differs[:7]) == "update "


def test_a_step_that_carries_nothing_needs_no_other():
    assert len(a_node("fedavg").lineage(AT)) == 1


def test_the_first_steps_lead_from_the_fresh_start():
    node = a_node("demo", range(T))

    assert [int(one.round) for one in node.lineage(T - 1)] == list(range(T))


@pytest.mark.parametrize("method", METHODS)
def test_a_false_step_differs_after_any_number_of_steps(method):
    remade = a_node(method, work_lies=[AT]).remade(AT)

    assert (remade.differs[:7], remade.is_behind) == ("update ", False)


def test_a_state_that_is_told_anew_is_false_in_the_step_that_tells_it_and_later_ones_are_behind_it():
    node = a_node("demo", lies={AT - 2: bent})

    told, behind = node.remade(AT - 2), node.remade(AT)

    assert told.differs.startswith("root after ")
    assert (behind.is_behind, behind.differs[:12]) == (True, "root before ")


def test_a_lie_is_forgotten_when_all_blocks_began_anew_and_the_next_one_is_seen_again():
    first = AT - 2 * T
    node = a_node("demo", lies={first: bent, AT: bent})

    assert node.remade(first).differs.startswith("root after ")
    assert node.remade(first + T).is_behind  # the block that begins anew in the lie's own round is there yet
    assert not node.remade(first + T + 1).differs
    assert node.remade(AT).differs.startswith("root after ")


@pytest.mark.parametrize("method", ["demo", "sparseloco"])
def test_who_stays_away_when_a_block_begins_anew_is_not_rid_of_the_remake(method):
    """A node that lies behind its own lie, block 0 of which never has its round."""
    away = [at for at in range(AT + 1) if at % T]
    node = a_node(method, away, lies={9: bent}, work_lies=[AT])

    assert node.remade(AT).differs.startswith("update ")


def test_of_all_steps_compared_the_first_false_one_is_named():
    node = a_node("demo", range(6), lies={2: bent}, work_lies=[4])
    remake = Remake(node.parameters, node.batch, node.gradient)
    for commit in node.commits.values():
        remake.step(commit)

    assert (remake.first_false, remake.is_behind) == (2, True)


def test_a_message_alone_that_is_false_leaves_the_next_step_as_it_is():
    """The state after it is right: the next step is not behind a lie."""
    node = a_node("demo")
    false = replace(node.commits[AT - 1], update=blob_digest(b"another"))
    node.commits[AT - 1] = false

    assert node.remade(AT - 1).differs.startswith("update ")
    assert not node.remade(AT).differs
