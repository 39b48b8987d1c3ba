"""Lists of known-answer tasks of a run: where they are looked for, and which ones count."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assay.bundle.read import Delivered, Held, list_name, read
from assay.bundle.replay.step import replay_lines, replay_of
from assay.participant.files.index import IntegrityError
from assay.participant.files.shown_list import keep_list
from assay.participant.store import Store
from assay.protocol.encoding.codec import encode
from assay.protocol.known_answers import drawn_tasks, false_rounds
from assay.protocol.messages import TaskList
from assay.protocol.types import NO_DIGEST, PeerId
from assay.testing.members import a_digest

SECRET = a_digest("secret")


@pytest.fixture(scope="module")
def run(recorded_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Delivered:
    """A copy of the recorded run in which one node announced a list that is known here."""
    folder = tmp_path_factory.mktemp("tasks") / "run"
    shutil.copytree(recorded_run, folder)
    found = read(folder)
    last, node = found.run_states[-1], min(found.run_states[-1].nodes)
    record = replace(last.nodes[node], tasks=drawn_tasks(SECRET, found.spec, found.run_id, node).root)
    states = (*found.run_states[:-1], replace(last, nodes={**last.nodes, node: record}))
    return replace(found, run_states=states)


def node_of(run: Delivered) -> PeerId:
    return min(run.run_states[-1].nodes)


@pytest.fixture
def shown(run: Delivered) -> TaskList:
    return TaskList(run_id=run.run_id, node=node_of(run), secret=SECRET)


@pytest.fixture
def write(run: Delivered):
    """Puts a file where the node's list is looked for, for one test."""
    path = run.bundle / list_name(node_of(run))

    def put(body: bytes) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)

    yield put
    shutil.rmtree(path.parent, ignore_errors=True)


def test_a_list_is_read_from_the_delivered_run(run: Delivered, shown: TaskList, write: Callable):
    assert run.task_list(shown.node) is None
    write(encode(shown))
    assert run.task_list(shown.node) == shown
    assert run.task_list(max(run.run_states[-1].nodes)) is None


@pytest.mark.parametrize(
    "body",
    [
        lambda one: encode(replace(one, secret=a_digest("other"))),
        lambda one: encode(replace(one, run_id=a_digest("other"))),
        lambda one: encode(replace(one, node=PeerId(a_digest("other")))),
        lambda _: b"\xff" * 99,
        lambda one: encode(one)[:-1],
    ],
)
def test_a_file_that_is_not_the_announced_list_is_an_error_that_names_it(run, shown, write, body):
    write(body(shown))

    with pytest.raises(IntegrityError, match=rf"^bundle/{list_name(shown.node)}: "):
        run.task_list(shown.node)


def test_a_list_is_read_from_the_store_of_a_member_and_taken_from_who_gave_it(run, shown, tmp_path):
    store = Store(tmp_path / "store.db")
    held = replace(run, held=Held(store=tmp_path / "store.db", blobs=tmp_path, data=tmp_path, limits=None))

    assert held.task_list(shown.node) is None
    keep_list(store, shown)
    assert held.task_list(shown.node) == shown
    assert replace(run, asked={shown.node: shown}).task_list(shown.node) == shown
    with pytest.raises(IntegrityError, match="not the list"):
        replace(run, asked={shown.node: replace(shown, secret=NO_DIGEST)}).task_list(shown.node)


def test_a_replay_takes_the_steps_of_the_list_from_the_round_on_from_which_it_counts(run, shown, write):
    """In this run they were trained as any other: both readings hold."""
    (task,) = false_rounds(SECRET, run.spec, 0)
    write(encode(shown))

    def told(at: int, tasks_from: int) -> tuple[bool, bool]:
        last = run.run_states[-1]
        record = replace(last.nodes[shown.node], tasks_from=tasks_from)
        states = (*run.run_states[:-1], replace(last, nodes={**last.nodes, shown.node: record}))
        done = replay_of(replace(run, run_states=states), shown.node, at)
        return done.is_task, any(line.startswith("task  ") for line in replay_lines(done))

    assert told(task, 0) == told(task, task) == (True, True)
    assert told(task, task + 1) == (False, False)
