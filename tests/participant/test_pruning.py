"""Pruning: what a full store deletes, and what it keeps for audits and newcomers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.network.blob_store import DiskBlobs
from assay.participant.following import pruning
from assay.participant.following.pruning import FULL_SHARE, Pruner, aggregate_rounds, kept_bytes_max
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.signed import a_spec
from assay.training.codec.contribution import aggregate_bytes_max, contribution_bytes_max
from assay.training.layout import layout_of
from assay.training.optimiser.public_state import checkpoint_rounds, kept_rounds, snapshot_bytes_max

SPEC = a_spec()
UPDATES, REPLAYED = 20, 4  # rounds
NODES = (b"nora", b"nils")
SIZE = 1000


@pytest.fixture(autouse=True)
def _replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "REPLAYED_MAX", REPLAYED)
    monkeypatch.setattr("os.fsync", lambda _file: None)  # hundreds of blobs


class Run:
    """A store of this many rounds, each with two updates and, unless said otherwise, an aggregate."""

    def __init__(
        self, folder: Path, rounds: int, bytes_max: int, empty: frozenset[int] = frozenset()
    ) -> None:
        self.blobs = DiskBlobs(folder, bytes_max=1 << 30)
        self.updates = {(r, node): self._put(b"u%d" % r + node) for r in range(rounds) for node in NODES}
        self.aggregates = {r: self._put(b"a%d" % r) for r in range(rounds) if r not in empty}
        self.bytes_max = bytes_max
        self.state = SimpleNamespace(round=rounds, audits={})

    def _put(self, name: bytes) -> Digest:
        return self.blobs.put(name.ljust(SIZE, b"."))

    def links(self, first: int, count: int) -> list[SimpleNamespace]:
        found = []
        for round_id in range(first, min(first + count, self.state.round)):
            commits = [
                SimpleNamespace(commit=SimpleNamespace(round=r, node=node, update=update))
                for (r, node), update in self.updates.items()
                if r == round_id
            ]
            aggregate = self.aggregates.get(round_id, NO_DIGEST)
            manifest = SimpleNamespace(round=round_id, commits=commits, aggregate=aggregate)
            found.append(SimpleNamespace(manifest=manifest))
        return found

    def prune(self, pruner: Pruner | None = None) -> Pruner:
        pruner = pruner or Pruner(SPEC, self, self.blobs, UPDATES)  # type: ignore[arg-type]
        self.blobs.bytes_max = self.bytes_max
        while pruner.step(self.state):  # type: ignore[arg-type]
            pass
        return pruner

    def kept_updates(self) -> list[tuple[int, bytes]]:
        return [step for step, name in self.updates.items() if self.blobs.size(name) is not None]

    def kept_aggregates(self) -> list[int]:
        return [r for r, name in self.aggregates.items() if self.blobs.size(name) is not None]


def test_nothing_is_deleted_while_there_is_room(tmp_path: Path) -> None:
    run = Run(tmp_path, 60, 60 * 3 * SIZE * 2)
    run.prune()
    assert (len(run.kept_updates()), len(run.kept_aggregates())) == (120, 60)


def test_the_oldest_updates_go_first_and_no_more_than_the_room_asks_for(tmp_path: Path) -> None:
    run = Run(tmp_path, 60, 200 * SIZE)  # 180 are here, and three quarters are 150

    run.prune()

    assert run.blobs.used_bytes == 150 * SIZE
    assert run.kept_updates()[0][0] == 15
    assert len(run.kept_aggregates()) == 60


def test_what_audits_and_newcomers_need_is_kept_however_little_room_there_is(tmp_path: Path) -> None:
    rounds = 200
    run = Run(tmp_path, rounds, 1)

    run.prune()

    kept = 2 * checkpoint_rounds(SPEC, kept_rounds(SPEC)) + REPLAYED
    assert kept == aggregate_rounds(SPEC, UPDATES) < rounds
    assert run.kept_aggregates() == list(range(rounds - kept, rounds))
    assert {r for r, _ in run.kept_updates()} == set(range(rounds - UPDATES, rounds))


def test_a_store_that_begins_in_the_middle_keeps_what_audits_need(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, 60, SIZE)
    links = run.links
    run.links = lambda first, count: links(max(first, 60 - UPDATES), count)  # type: ignore[method-assign]
    run.prune()
    assert {(r, node) for r in range(60 - UPDATES, 60) for node in NODES} <= set(run.kept_updates())


def test_aggregates_are_kept_as_long_as_updates(tmp_path: Path) -> None:
    assert aggregate_rounds(SPEC, 10_000) == 10_000


def test_an_update_whose_opening_is_owed_goes_when_its_audit_has_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, 100, 1)
    step = (3, b"nora")
    run.state.audits = {step: "an audit"}

    pruner = run.prune()
    assert step in run.kept_updates()

    run.state.audits = {}
    run.prune(pruner)
    assert step not in run.kept_updates()


@pytest.mark.parametrize("kind", ["update", "aggregate"])
def test_what_a_later_round_names_too_is_deleted_with_that_round(tmp_path: Path, kind: str) -> None:
    run = Run(tmp_path, 200, 1)
    first = run.state.round - aggregate_rounds(SPEC, UPDATES)
    old = run.updates[5, b"nora"] if kind == "update" else run.aggregates[first - 1]
    again = (run.state.round - 10, b"nora")
    run.blobs.remove(run.updates[again])
    run.updates[again] = old

    pruner = run.prune()
    assert run.blobs.size(old) is not None

    run.state.round += 2 * UPDATES  # what was sent once more may go, and the aggregate's own time is over
    run.prune(pruner)
    assert run.blobs.size(old) is None


def test_an_aggregate_sent_as_an_update_is_kept_as_long_as_an_aggregate(tmp_path: Path) -> None:
    run = Run(tmp_path, 200, 1)
    first = run.state.round - aggregate_rounds(SPEC, UPDATES)
    run.updates[first - 1, b"nils"] = run.aggregates[first + 5]

    pruner = run.prune()
    assert first + 5 in run.kept_aggregates()

    run.state.round += 10
    run.prune(pruner)
    assert first + 5 not in run.kept_aggregates()


def test_what_is_remembered_of_rounds_is_bounded_by_what_is_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, 200, 1)
    pruner = run.prune()
    before = len(pruner._needed_until)
    for _ in range(5):
        run.state.round += 10
        run.blobs.bytes_max = 1 << 30
        run.updates |= {(run.state.round - 1, b"nora"): run._put(b"later %d" % run.state.round)}
        run.prune(pruner)

    assert len(pruner._needed_until) <= before


def test_an_update_whose_opening_is_owed_outlives_another_step_that_names_it(tmp_path: Path) -> None:
    run = Run(tmp_path, 100, 1)
    owed, other = (3, b"nora"), (7, b"nils")
    run.updates[other] = run.updates[owed]
    run.state.audits = {owed: "an audit"}

    run.prune()

    assert run.blobs.size(run.updates[owed]) is not None


def test_rounds_without_an_aggregate_are_passed_over_and_a_run_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, 150, 1, empty=frozenset(range(40, 60)))
    pruner = run.prune()
    first = run.kept_aggregates()[0]

    run.state.round += 10  # ten rounds that are not here yet name nothing
    run.prune(pruner)

    assert run.kept_aggregates()[0] == first + 10


def test_room_that_is_too_small_for_what_is_kept_is_made_larger(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path, bytes_max=1)
    links = Run(tmp_path / "run", 0, 1)

    Pruner(SPEC, links, blobs, UPDATES)  # type: ignore[arg-type]

    blocks = layout_of(SPEC.model).blocks
    updates = UPDATES * SPEC.seats * contribution_bytes_max(SPEC.rule, blocks)
    aggregates = aggregate_rounds(SPEC, UPDATES) * aggregate_bytes_max(SPEC, blocks)
    assert FULL_SHARE * blobs.bytes_max == pytest.approx(
        updates + aggregates + 2 * snapshot_bytes_max(SPEC), rel=1e-6
    )
    Pruner(SPEC, links, blobs, 10)  # type: ignore[arg-type]
    assert blobs.bytes_max == kept_bytes_max(SPEC, UPDATES)
