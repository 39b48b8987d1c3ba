"""What verifiers keep of a drawn step lets anybody judge it again, its private state before it unknown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.bundle.fetch import Part
from assay.bundle.follow import BLOBS, read_any
from assay.bundle.observe import observe
from assay.bundle.read import BUNDLE, Delivered, link_name, opening_name, read
from assay.bundle.replay.step import Replayed, replay_of
from assay.bundle.report.audits import final_audits
from assay.explorer.catalogue import open_runs
from assay.participant.files.index import INDEX, IntegrityError, check_index, write_index
from assay.participant.openings import named_opening, named_openings
from assay.protocol.auditing.audits import Audit
from assay.protocol.encoding import merkle
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import encode
from assay.protocol.messages import Commit, Outcome
from assay.protocol.openings import Opening
from assay.protocol.openings import Path as MerklePath
from assay.protocol.types import Digest, PeerId, RoundId
from assay.testing.members import an_account_key
from assay.testing.signed import a_member
from assay.training.execution.execution_class import execution_class
from assay.training.model.loss import use_threads
from assay.training.optimiser import step as rules
from assay.training.optimiser.momentum_root import private_leaves
from assay.training.optimiser.node_state import commit as private_root
from assay.training.optimiser.node_state import start_private
from assay.verifier.audit.messages import Finding
from assay.verifier.audit.remake import Remake
from assay.verifier.audit.worker import RecomputeWorker
from tests.bundle.a_file_server import Serve, serving
from tests.bundle.a_participant import a_participant
from tests.bundle.test_observe import after, status_of, stop
from tests.explorer.an_explorer import served


@pytest.fixture
def serve(recorded_run: Path) -> Iterator[Serve]:
    with serving(recorded_run) as start:
        yield start


# ---- replays

AT = 1  # the round of the step
TRIES = 6


@dataclass(repr=False)
class Drawn:
    """A copy of the run in which one step was made on this machine, and the opening that its audit names."""

    delivered: Delivered
    node: PeerId
    audit: Audit
    body: bytes

    def replay(self, **asked: bool) -> Replayed:
        return replay_of(self.delivered, self.node, AT, **asked)


def _commit_of(delivered: Delivered, at: int, node: PeerId) -> Commit:
    return next(one.commit for one in delivered.links[at].manifest.commits if one.commit.node == node)


def a_drawn_step(run: Path, folder: Path, *, lie: bool = False) -> Drawn:
    """Round 1 of the run's first node. A lie moves one value of each block of the error that it opens."""
    shutil.copytree(run, folder)
    use_threads(1)
    delivered = read(folder)
    spec, link = delivered.spec, delivered.links[AT]
    signed = link.manifest.commits[0]
    node = signed.commit.node
    worker = RecomputeWorker(spec=spec, data=delivered.data, folder=folder / "scratch")
    layout, remake = worker.parameters.layout, Remake(worker.parameters, worker.batch, worker.gradient)
    before = start_private(layout)
    for at in range(AT):
        work = remake.work(_commit_of(delivered, at, node), before, at)
        before, _ = rules.encode(spec, layout, at, before, work)
        worker.parameters.apply(at, delivered.aggregate(at))
    later, update = rules.encode(spec, layout, AT, before, remake.work(signed.commit, before, AT))
    if lie:
        error_NC = later.error_NC.copy()
        error_NC[:, 0] += np.float32(1e-3)
        later = replace(later, error_NC=error_NC)
    roots = [private_root(delivered.run_id, spec.rule, layout, one) for one in (before, later)]
    commit = replace(
        signed.commit,
        exec_class=execution_class(spec.compute),
        update=blob_digest(update),
        update_bytes=len(update),
        momentum_before=roots[0],
        momentum_after=roots[1],
    )
    (delivered.bundle / "updates" / f"{commit.update.hex()}.bin").write_bytes(update)
    commits = (replace(signed, commit=commit), *link.manifest.commits[1:])
    changed = replace(link, manifest=replace(link.manifest, commits=commits))
    links = (*delivered.links[:AT], changed, *delivered.links[AT + 1 :])
    step = (RoundId(AT), node)
    audit = replace(final_audits(delivered.run_states)[step], commit=commit, sketch=None)
    blocks = replay_step_blocks(replace(delivered, links=links), node)
    trees = [merkle.tree(private_leaves(delivered.run_id, one.error_NC, None)) for one in (before, later)]
    body = encode(
        Opening(
            run_id=delivered.run_id, round=RoundId(AT), node=node, blocks=blocks,
            before=before.error_NC[list(blocks)].tobytes(), after=later.error_NC[list(blocks)].tobytes(),
            paths_before=tuple(MerklePath(hashes=trees[0].proof(one)) for one in blocks),
            paths_after=tuple(MerklePath(hashes=trees[1].proof(one)) for one in blocks),
        )
    )  # fmt: skip
    verdicts = tuple(
        replace(one, opening=blob_digest(body), opening_bytes=len(body)) for one in audit.verdicts
    )
    audit = replace(audit, verdicts=verdicts)
    states = tuple(
        replace(one, audits={**one.audits, step: audit}) if step in one.audits else one
        for one in delivered.run_states
    )
    return Drawn(replace(delivered, links=links, run_states=states), node, audit, body)


def replay_step_blocks(delivered: Delivered, node: PeerId) -> tuple[int, ...]:
    return replay_of(delivered, node, AT, use_opening=False).blocks


def test_a_published_opening_proves_a_step_whose_private_state_is_not_known(
    recorded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, asked = a_drawn_step(recorded_run, tmp_path / "run"), list[Digest]()
    true = RecomputeWorker.examine

    def examine(worker: RecomputeWorker, *step: Any, **how: Any) -> Finding:
        asked.append(how["drawn_by"])
        return true(worker, *step, **how)

    monkeypatch.setattr(RecomputeWorker, "examine", examine)
    without = drawn.replay()
    assert (without.verdict, without.opening) == (None, "none at hand")

    path = drawn.delivered.root / opening_name(blob_digest(drawn.body))
    path.parent.mkdir()
    path.write_bytes(drawn.body)
    done = drawn.replay()

    assert (done.verdict, done.is_ok) == (Outcome.MATCH, True)
    assert asked == [drawn.audit.seed]
    count = f"{len(drawn.body):,} bytes, {len(done.blocks)} blocks"
    assert done.opening == f"the one that was audited, {count}"
    assert drawn.replay(use_opening=False).verdict is None


def test_a_lie_that_an_opening_shows_is_a_mismatch(recorded_run: Path, tmp_path: Path) -> None:
    drawn = a_drawn_step(recorded_run, tmp_path / "run", lie=True)
    path = drawn.delivered.root / opening_name(blob_digest(drawn.body))
    path.parent.mkdir()
    path.write_bytes(drawn.body)

    assert (drawn.replay().verdict, drawn.replay().is_ok) == (Outcome.MISMATCH, False)


def test_the_sketch_that_the_chain_has_is_compared_too(recorded_run: Path, tmp_path: Path) -> None:
    drawn = a_drawn_step(recorded_run, tmp_path / "run")
    path = drawn.delivered.root / opening_name(blob_digest(drawn.body))
    path.parent.mkdir()
    path.write_bytes(drawn.body)
    audit = replace(drawn.audit, sketch=Digest(b"another sketch".ljust(32)))
    step = (RoundId(AT), drawn.node)
    drawn.delivered = replace(
        drawn.delivered,
        run_states=tuple(
            replace(one, audits={**one.audits, step: audit}) if step in one.audits else one
            for one in drawn.delivered.run_states
        ),
    )

    assert drawn.replay().verdict is Outcome.MISMATCH


@pytest.mark.parametrize("body", [b"", b"no opening", None])
def test_a_file_that_does_not_open_the_commit_proves_nothing_against_its_node(
    recorded_run: Path, tmp_path: Path, body: bytes | None
) -> None:
    drawn = a_drawn_step(recorded_run, tmp_path / "run")
    path = drawn.delivered.root / opening_name(blob_digest(drawn.body))
    path.parent.mkdir()
    altered = bytearray(drawn.body)
    altered[len(altered) // 2] ^= 1
    path.write_bytes(bytes(altered) if body is None else body)

    done = drawn.replay()

    assert (done.verdict, done.is_ok) == (None, True)
    assert done.opening.startswith("none that the commit binds: ")


# ---- files


def test_a_followed_run_serves_what_ended_audits_name_and_nothing_else(
    recorded_run: Path, tmp_path: Path
) -> None:
    run, folder = read(recorded_run), a_participant(recorded_run, tmp_path / "buyer", rounds=9)
    audits = read_any(folder).run_states[-1].audits.values()
    named = set(named_openings(audits))
    going = next(one for one in audits if not one.has_ended)
    late = named_opening(replace(final_audits(run.run_states)[(going.round, going.node)]))
    assert named and late is not None and late.opening not in named
    for opening in (*named, late.opening, Digest(b"\xab" * 32)):
        (folder / BLOBS / f"{opening.hex()}.blob").write_bytes(b"an opening")

    with served(*open_runs([folder], lambda _: None).values()) as url:
        found = {
            opening: status_of(f"{url}/runs/buyer/files/{opening_name(opening)}")
            for opening in (*named, late.opening, Digest(b"\xab" * 32))
        }
        there = next(iter(named))
        (folder / BLOBS / f"{there.hex()}.blob").unlink()
        assert status_of(f"{url}/runs/buyer/files/{opening_name(there)}") == 404

    assert found == {**dict.fromkeys(named, 200), late.opening: 404, Digest(b"\xab" * 32): 404}


def openings_of(run: Delivered, rounds: int) -> list[Digest]:
    """What audits name that have ended when so many manifests are here."""
    return list(named_openings(final_audits(run.run_states[: rounds + 1]).values()))


def test_a_follower_fetches_openings_only_if_it_is_told_to_and_waits_for_none(
    recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    run, server = read(recorded_run), serve()
    server.bodies[f"{BUNDLE}/{link_name(9)}"] = server.bodies[INDEX] = None
    ended = openings_of(run, 9)
    assert len(ended) > 3
    bodies = {opening: b"opening of %d bytes" % at for at, opening in enumerate(ended)}

    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run.run_id, tmp_path / "without", pause=after(1, stop))
    assert not [name for name, _ in server.asked if name.startswith("openings/")]

    for opening, body in bodies.items():  # of another digest than is named
        server.bodies[opening_name(opening)] = body
    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run.run_id, tmp_path / "with", openings=True, pause=after(2, stop))
    asked = [name for name, _ in server.asked if name.startswith("openings/")]
    assert set(asked) == {opening_name(opening) for opening in ended} and len(asked) >= 2 * len(ended)
    assert len(read_any(tmp_path / "with").links) == 9
    assert not (tmp_path / "with" / "openings").is_dir() or not list(
        (tmp_path / "with" / "openings").iterdir()
    )


def test_an_opening_that_comes_late_is_fetched_and_one_that_never_comes_is_given_up(
    recorded_run: Path, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, server = read(recorded_run), serve()
    monkeypatch.setattr("assay.bundle.observe.OPENING_TRIES_MAX", TRIES)
    server.bodies[f"{BUNDLE}/{link_name(9)}"] = server.bodies[INDEX] = None
    first, *others = openings_of(run, 9)
    late = opening_name(first)
    monkeypatch.setattr("assay.bundle.observe._has", lambda _: lambda path: path.read_bytes() == b"right")

    def come() -> None:
        server.bodies[late] = b"right"

    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            come()
        if pauses == TRIES + 5:
            stop()

    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run.run_id, tmp_path, part=Part.PROOF, openings=True, pause=pause)

    assert (tmp_path / late).read_bytes() == b"right"
    for opening in others:
        assert sum(name == opening_name(opening) for name, _ in server.asked) == TRIES


def test_more_bytes_than_an_opening_has_are_broken_off(
    recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    run, server = read(recorded_run), serve()
    server.bodies[f"{BUNDLE}/{link_name(9)}"] = server.bodies[INDEX] = None
    (opening, *_) = openings_of(run, 9)
    server.bodies[opening_name(opening)] = bytes(50 << 20)

    with pytest.raises(KeyboardInterrupt):
        observe(
            [server.url], run.run_id, tmp_path, part=Part.PROOF, openings=True,
            bytes_max=20 << 20, pause=after(1, stop),
        )  # fmt: skip


def test_a_delivered_run_may_have_openings_which_a_copy_may_lack(recorded_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(recorded_run, folder)
    (opening, *_) = openings_of(read(folder), 9)
    path = folder / opening_name(opening)
    path.parent.mkdir()
    path.write_bytes(b"an opening")
    write_index(folder, an_account_key("buyer"))
    buyer = a_member("buyer").account
    with served(*open_runs([folder], lambda _: None).values()) as url:
        assert status_of(f"{url}/runs/run/files/{opening_name(opening)}") == 200

    assert check_index(folder, buyer)
    path.write_bytes(b"another")
    with pytest.raises(IntegrityError, match=f"{opening_name(opening)}: altered"):
        check_index(folder, buyer)
    path.unlink()
    assert check_index(folder, buyer)
    (path.parent / f"{'ab' * 32}.bin").write_bytes(b"new")
    with pytest.raises(IntegrityError, match="not part of what was delivered"):
        check_index(folder, buyer)


def test_what_is_larger_than_any_opening_of_the_run_is_not_asked_for(
    recorded_run: Path, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, server = read(recorded_run), serve()
    server.bodies[f"{BUNDLE}/{link_name(9)}"] = server.bodies[INDEX] = None
    named = named_openings(final_audits(run.run_states).values()).values()
    largest = max(one.size for one in named if one.opening in openings_of(run, 9))
    monkeypatch.setattr("assay.verifier.audit.messages.longest_opening", lambda _: largest - 1)

    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run.run_id, tmp_path, part=Part.PROOF, openings=True, pause=after(1, stop))

    asked = {name for name, _ in server.asked if name.startswith("openings/")}
    assert asked and len(asked) < len(openings_of(run, 9))


@pytest.mark.parametrize(("openings", "there"), [(False, False), (True, True)])
def test_part_of_a_delivered_run_has_openings_if_they_are_asked_for(openings: bool, there: bool) -> None:
    name = f"openings/{'ab' * 32}.bin"
    assert all(part.has(name, openings=openings) is there for part in Part)
