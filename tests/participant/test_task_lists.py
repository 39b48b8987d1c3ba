"""Lists of known-answer tasks: which ones count, and whom a member asks for one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import trio

from assay.participant.files.shown_list import keep_list, kept_lists, kept_secret
from assay.participant.store import Store
from assay.participant.task_lists import ASK, find_list
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import Unavailable
from assay.protocol.known_answers import drawn_tasks, is_announced
from assay.protocol.messages import TaskList
from assay.protocol.types import NO_DIGEST, PeerId
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import NODES, VERIFIERS, a_history

ONE, OTHER = (
    TaskList(run_id=RUN_ID, node=peer(name), secret=a_digest("secret", peer(name))) for name in NODES[:2]
)


def a_run():
    """A run in which two nodes announced lists."""
    run_state = a_history(rounds=40)
    spec = replace(run_state.spec, audit=replace(run_state.spec.audit, known_answer_count=2))
    nodes = dict(run_state.nodes)
    for shown in (ONE, OTHER):
        root = drawn_tasks(shown.secret, spec, RUN_ID, shown.node).root
        nodes[shown.node] = replace(nodes[shown.node], tasks=root)
    return replace(run_state, spec=spec, nodes=nodes)


@dataclass
class Lines:
    """What verifiers answer; who is not in it cannot be reached."""

    answers: dict[PeerId, bytes]
    asked: list[PeerId] = field(default_factory=list)

    async def request(self, verifier: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        assert (method, body) == (ASK, ONE.node) and timeout_s > 0
        self.asked.append(verifier)
        if verifier not in self.answers:
            raise Unavailable("not connected")
        return self.answers[verifier]


def test_the_first_verifier_that_has_the_list_of_this_node_gives_it():
    run_state, verifiers = a_run(), [peer(name) for name in VERIFIERS]
    made_up = replace(ONE, secret=OTHER.secret)
    lines: Any = Lines(dict(zip(verifiers[1:], map(encode, (made_up, OTHER, ONE)), strict=True)))

    assert trio.run(find_list, lines, verifiers, run_state, ONE.node) == ONE
    assert lines.asked == verifiers

    lines = Lines({verifiers[0]: encode(ONE)})
    assert trio.run(find_list, lines, verifiers, run_state, ONE.node) == ONE
    assert lines.asked == verifiers[:1]
    assert trio.run(find_list, Lines({}), verifiers, run_state, ONE.node) is None


def test_a_list_counts_if_its_node_announced_it_in_this_run():
    run_state = a_run()
    record = run_state.nodes[ONE.node]
    silent = replace(run_state, nodes={**run_state.nodes, ONE.node: replace(record, tasks=NO_DIGEST)})

    assert is_announced(ONE, run_state) and is_announced(OTHER, run_state)
    assert not is_announced(replace(ONE, secret=OTHER.secret), run_state)
    assert not is_announced(replace(ONE, node=OTHER.node), run_state)
    assert not is_announced(replace(ONE, node=peer("nobody")), run_state)
    assert not is_announced(replace(ONE, run_id=a_digest("another run")), run_state)
    assert not is_announced(ONE, silent)


def test_lists_are_kept(tmp_path):
    store = Store(tmp_path / "store.db")
    assert kept_secret(store, ONE.node) is None and kept_lists(store, RUN_ID) == []
    for shown in (ONE, OTHER):
        keep_list(store, shown)
    store.close()

    again = Store(tmp_path / "store.db")
    assert kept_secret(again, ONE.node) == ONE.secret
    assert sorted(kept_lists(again, RUN_ID), key=lambda one: one.node) == sorted(
        (ONE, OTHER), key=lambda one: one.node
    )
