"""Watch: each step counts once, a leaning node is named, and a restart forgets nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.protocol.encoding.codec import encode
from assay.protocol.types import Digest, RoundId
from assay.testing.members import NODES
from assay.testing.messages import a_commit
from assay.verifier.audit.bias_memory import ROUNDS_KEPT, BiasMemory, Memory, Remembered
from assay.verifier.audit.drift import LEVEL_MAX, SLACK
from assay.verifier.audit.limits import Limit
from tests.verifier.audit.test_drift import BF16, MEASURED_FP32, an_audit, unit

SPEC = Digest(b"s" * 32)


def a_watched(
    watch: BiasMemory, round_id: int, seed: int = 1, limit: Limit = BF16, **changes: object
) -> bool:
    commit = replace(a_commit(round_id, NODES[0]), **changes)
    return watch.is_biased(commit, an_audit(unit(seed, 8)), range(8), limit)


def test_a_watched_node_that_leans_is_named_once_and_then_watched_anew():
    watch = BiasMemory()

    assert [a_watched(watch, number) for number in range(10)] == [False] * 4 + [True] + [False] * 4 + [True]


def test_a_step_that_is_looked_at_again_counts_once():
    watch = BiasMemory()

    assert not any(a_watched(watch, 7) for _ in range(50))


def test_another_class_of_the_node_hides_no_bias_and_other_nodes_are_not_mixed_in():
    watch, other = BiasMemory(), BiasMemory()
    for number in range(4):
        assert not a_watched(watch, number)
        assert not a_watched(other, number, node=NODES[number % 2])

    assert a_watched(watch, 4, exec_class=Digest(b"c" * 32))
    assert not a_watched(other, 4)


def test_how_far_another_machine_is_from_its_limits_counts_anew():
    watch = BiasMemory()
    a_watched(watch, 0)
    key, drift = watch._drifts[NODES[0]]
    watch._drifts[NODES[0]] = key, replace(drift, level=LEVEL_MAX)

    a_watched(watch, 1, exec_class=Digest(b"c" * 32))

    assert watch._drifts[NODES[0]][1].level < LEVEL_MAX / 2 and watch._drifts[NODES[0]][1].weight > 1


def test_what_is_remembered_of_a_node_is_bounded():
    watch = BiasMemory()
    for number in range(ROUNDS_KEPT + 50):
        a_watched(watch, number, seed=number)

    assert len(watch._rounds[NODES[0]]) == ROUNDS_KEPT
    assert len(watch._drifts) == 1


def test_a_restart_between_any_two_audits_changes_nothing(tmp_path: Path):
    path, whole = tmp_path / "remembered.cbor", BiasMemory()
    for number in range(12):
        again = BiasMemory(path, SPEC)
        assert a_watched(again, number) == a_watched(whole, number)
        assert not a_watched(BiasMemory(path, SPEC), number)  # the same step counts once, after a restart too
    assert sorted(one.name for one in tmp_path.iterdir()) == ["remembered.cbor"]


def test_a_restart_forgets_no_level(tmp_path: Path):
    path = tmp_path / "remembered.cbor"
    half_a_step = replace(MEASURED_FP32, profile=int(1e9 / (SLACK + 0.45)))  # n audits: a level of 0.45 n

    found = [a_watched(BiasMemory(path, SPEC), n, seed=n, limit=half_a_step) for n in range(10)]

    assert found.index(True) + 1 == 9 > LEVEL_MAX / 0.45


A_NODE = Remembered(node=NODES[0], exec_class=SPEC, sums=bytes(8 * 514), rounds=(RoundId(1),))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        encode(A_NODE),
        encode(Memory(spec=Digest(b"o" * 32), nodes=(A_NODE,))),
        encode(Memory(spec=SPEC, nodes=(replace(A_NODE, sums=bytes(8)),))),
        encode(Memory(spec=SPEC, nodes=(replace(A_NODE, sums=b"\xff" * 8 * 514),))),
        encode(Memory(spec=SPEC, nodes=(A_NODE,)))[:-1],
        bytes((1 << 24) + 1),
    ],
    ids=["empty", "nonsense", "a node", "another run", "short", "no numbers", "torn", "large"],
)
def test_a_memory_that_cannot_be_read_begins_again(tmp_path: Path, body: bytes, caplog):
    path = tmp_path / "remembered.cbor"
    path.write_bytes(body)

    watch = BiasMemory(path, SPEC)

    assert "is lost" in caplog.text
    assert [a_watched(watch, number) for number in range(5)] == [False] * 4 + [True]


def test_a_disk_that_refuses_stops_no_audit(tmp_path: Path, caplog):
    watch = BiasMemory(tmp_path / "nowhere" / "remembered.cbor", SPEC)

    assert [a_watched(watch, number) for number in range(5)] == [False] * 4 + [True]
    assert "is not kept" in caplog.text
