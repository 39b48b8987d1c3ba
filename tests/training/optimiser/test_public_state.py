"""The public state on disk: after any restart the same bits, whatever a rule carries between rounds."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from assay.protocol.errors import Diverged
from assay.protocol.params import RunSpec
from assay.protocol.update_rule import Outer
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.training.model.initial import starting_parameters, state_digest
from assay.training.optimiser.outer import apply, public_digest, rest_bytes, start_public
from assay.training.optimiser.public_state import (
    PublicState,
    checkpoints,
    held_parameters,
    held_rest,
    kept_rounds,
    read_checkpoint,
    snapshot_bytes_max,
)
from tests.training.optimiser.test_outer import LAYOUT, a_distance, aggregate_of, signs_of

pytestmark = pytest.mark.slow

KEEP, ROUNDS = 4, 11
CASES = {
    "demo": ("demo", {}),
    "nesterov": ("diloco", {}),
    "adaptive": ("fedavg", {"outer": Outer.YOGI}),
    "late": ("diloco", {"apply_lag": 2, "read_lag": 2, "momentum_micro": 200_000}),
    "adaptive, as late as can be": ("fedavg", {"outer": Outer.ADAM, "apply_lag": 4}),
    "streaming": ("streaming-diloco", {"fragments": 2}),
}
every_rule = pytest.mark.parametrize("name", CASES)


def a_run(name: str) -> RunSpec:
    method, choices = CASES[name]
    return a_spec(rule=a_rule(method, **choices), rounds=ROUNDS)


def bodies_of(spec: RunSpec) -> list[bytes]:
    """What the rounds of a run end with; some end with nothing."""
    write = aggregate_of if spec.rule.has_scale else signs_of
    return [b"" if n % 3 == 2 else write(a_distance(n)) for n in range(ROUNDS)]


def expected(spec: RunSpec) -> list[bytes]:
    """The digest before every round, and after the last, computed without files."""
    public = start_public(spec, starting_parameters(spec, None))
    found = [public_digest(public)]
    for round_id, body in enumerate(bodies_of(spec)):
        public = apply(spec, LAYOUT, public, round_id, body)
        found.append(public_digest(public))
    return found


@every_rule
def test_a_restart_at_any_round_leads_to_the_same_digests(tmp_path, name):
    spec = a_run(name)
    digests, bodies = expected(spec), bodies_of(spec)
    resumed = []
    for end in range(ROUNDS + 1):
        parameters = PublicState(spec, tmp_path, KEEP)  # a new process each round, on the folder of the last
        resumed.append(parameters.round)
        assert parameters.round <= end
        assert parameters.digest() == digests[parameters.round]
        while parameters.round < end:
            at = parameters.round
            assert parameters.apply(at, bodies[at]) == digests[at + 1]
    assert max(resumed) > 0, "no checkpoint was ever resumed from"
    assert len(set(digests)) > ROUNDS // 2


@every_rule
def test_after_a_restart_the_rounds_that_audits_look_back_to_are_there_again(tmp_path, name):
    spec = a_run(name)
    bodies, first = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(ROUNDS):
        first.apply(round_id, bodies[round_id])

    second = PublicState(spec, tmp_path, KEEP)
    while second.round < ROUNDS:
        second.apply(second.round, bodies[second.round])

    for round_id in range(ROUNDS - KEEP, ROUNDS + 1):
        assert np.array_equal(second.at(round_id), first.at(round_id))
    for round_id in (ROUNDS - KEEP - 1, ROUNDS + 1):
        with pytest.raises(Diverged, match=f"no parameters of round {round_id}"):
            first.at(round_id)


@every_rule
def test_past_parameters_that_do_not_fit_are_replayed_in_any_order_with_the_same_bits(tmp_path, name):
    spec = a_run(name)
    bodies = bodies_of(spec)
    small, large = (
        PublicState(spec, tmp_path / "a", KEEP, room_bytes=0),
        PublicState(spec, tmp_path / "b", KEEP),
    )
    for round_id in range(ROUNDS):
        small.apply(round_id, bodies[round_id])
        large.apply(round_id, bodies[round_id])
        first = max(round_id + 1 - KEEP, 0)
        for past in (*range(round_id + 1, first - 1, -1), *range(first, round_id + 2)):
            assert np.array_equal(small.at(past), large.at(past)), (round_id, past)
        with pytest.raises(Diverged, match="no parameters of round"):
            small.at(first - 1)
    assert len(small._recent) == 1 + spec.rule.read_lag, "more was in memory than what local work reads"
    kept = {int(path.stem.split("-")[1]) for path in (tmp_path / "a").glob("aggregate-*")}
    assert min(kept) > ROUNDS - KEEP - small._save_every
    assert not list((tmp_path / "b").glob("aggregate-*"))


@pytest.mark.parametrize("damaged", ["aggregate", "public"])
def test_a_replay_from_a_damaged_file_is_refused_and_not_judged_by(tmp_path, damaged):
    spec = a_run("nesterov")
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP, room_bytes=0)
    for round_id in range(ROUNDS):
        parameters.apply(round_id, bodies[round_id])
    for path in tmp_path.glob(f"{damaged}-*"):
        body = bytearray(path.read_bytes())
        if body:
            body[-1] ^= 1
            path.write_bytes(body)

    with pytest.raises(Diverged, match="is not what was"):
        parameters.at(ROUNDS - KEEP)
    assert parameters.at(ROUNDS) is parameters.public.theta_P  # what is in memory serves on


def test_on_a_full_disk_rounds_go_on_and_only_what_was_not_written_cannot_be_replayed(tmp_path, monkeypatch):
    spec = a_run("nesterov")
    bodies, digests = bodies_of(spec), expected(spec)
    parameters = PublicState(spec, tmp_path, KEEP, room_bytes=0)
    write = Path.write_bytes

    def full(path: Path, body: bytes) -> int:
        if path.name == "aggregate-00000004":
            raise OSError(28, "No space left on device")
        return write(path, body)

    monkeypatch.setattr(Path, "write_bytes", full)
    for round_id in range(7):
        assert parameters.apply(round_id, bodies[round_id]) == digests[round_id + 1]

    assert np.array_equal(parameters.at(4), parameters._checkpoint(4).theta_P)
    with pytest.raises(Diverged, match="aggregate-00000004 cannot be read"):
        parameters.at(5)


def test_the_theta_of_how_many_rounds_is_in_memory_follows_from_the_room(tmp_path):
    spec = a_run("demo")
    bodies = bodies_of(spec)
    for thetas, expected in ((0, 1), (1, 1), (3, 3), (100, KEEP + 1)):
        room_bytes = thetas * 4 * LAYOUT.parameters
        parameters = PublicState(spec, tmp_path / str(thetas), KEEP, room_bytes=room_bytes)
        for round_id in range(ROUNDS):
            parameters.apply(round_id, bodies[round_id])
        assert len(parameters._recent) == expected


@pytest.mark.parametrize("name", ["demo", "late"])
def test_what_is_held_outlives_rounds_and_restarts_until_it_is_let_go(tmp_path, name):
    spec = a_run(name)
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(3):
        parameters.apply(round_id, bodies[round_id])
    wanted = parameters.read(3).copy()

    parameters.hold([3])
    for round_id in range(3, ROUNDS):
        parameters.apply(round_id, bodies[round_id])
    assert np.array_equal(parameters.read(3), wanted)
    again = PublicState(spec, tmp_path, KEEP)
    again.hold([3])  # too old to be written now, but it is there
    assert np.array_equal(again.read(3), wanted)

    again.hold([])
    with pytest.raises(Diverged, match="no parameters of round"):
        again.read(3)


@every_rule
@pytest.mark.parametrize("room_bytes", [0, 1 << 30])
def test_what_a_node_holds_is_the_whole_state_whose_digest_it_committed_to(tmp_path, name, room_bytes):
    spec = a_run(name)
    bodies, digests = bodies_of(spec), expected(spec)
    first = PublicState(spec, tmp_path, KEEP, room_bytes=room_bytes, holds_rest=True)
    for round_id in range(6):
        first.apply(round_id, bodies[round_id])
    second = PublicState(spec, tmp_path, KEEP, room_bytes=room_bytes, holds_rest=True)
    while second.round < ROUNDS:
        second.apply(second.round, bodies[second.round])
    rounds = {round_id: max(round_id - spec.rule.read_lag, 0) for round_id in range(ROUNDS - 2, ROUNDS + 1)}

    second.hold(rounds)

    for at in rounds.values():
        rest = held_rest(tmp_path, at)
        assert len(rest) == rest_bytes(spec, at)
        assert state_digest(held_parameters(tmp_path, at), rest) == digests[at]
    second.hold([])
    assert held_rest(tmp_path, ROUNDS) == b"" and held_parameters(tmp_path, ROUNDS) is None
    assert not list(tmp_path.glob("held-*"))


def test_an_auditor_holds_parameters_alone_and_a_node_writes_no_aggregate_for_rules_without_a_rest(tmp_path):
    for name, holds_rest in (("nesterov", False), ("demo", True)):
        spec, folder = a_run(name), tmp_path / name
        bodies, parameters = bodies_of(spec), PublicState(spec, folder, KEEP, holds_rest=holds_rest)
        for round_id in range(ROUNDS):
            parameters.apply(round_id, bodies[round_id])
        parameters.hold([ROUNDS])

        assert held_rest(folder, ROUNDS) == b"" and held_parameters(folder, ROUNDS) is not None
        assert not list(folder.glob("aggregate-*"))


def test_the_start_is_held_for_rounds_that_read_it(tmp_path):
    spec = a_run("late")  # which reads two rounds back
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    start = parameters.read(1).copy()

    parameters.hold([1])
    for round_id in range(ROUNDS):
        parameters.apply(round_id, bodies[round_id])

    assert np.array_equal(parameters.read(1), start)


def test_local_work_reads_parameters_as_old_as_the_rule_says_and_never_older_than_the_start(tmp_path):
    spec = a_run("late")
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(6):
        assert parameters.read(round_id) is parameters.at(max(round_id - 2, 0))
        parameters.apply(round_id, bodies[round_id])

    assert kept_rounds(spec) == kept_rounds(a_run("demo")) + 2  # audits look back from there


@every_rule
def test_a_reset_forgets_parameters_buffers_and_what_waits(tmp_path, name):
    spec = a_run(name)
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(9):
        parameters.apply(round_id, bodies[round_id])

    parameters.reset()

    digests = expected(spec)
    assert parameters.round == 0
    assert parameters.digest() == digests[0] == PublicState(spec, tmp_path, KEEP).digest()
    assert np.array_equal(parameters.at(0), PublicState(spec, tmp_path, KEEP).at(0))
    with pytest.raises(Diverged, match="rounds 0 to 0 are kept"):
        parameters.at(1)
    for round_id in range(5):
        assert parameters.apply(round_id, bodies[round_id]) == digests[round_id + 1]


# ---- snapshots


def a_checkpoint(spec, folder):
    """A process at round 9, and its newest checkpoint."""
    bodies, parameters = bodies_of(spec), PublicState(spec, folder, KEEP)
    for round_id in range(9):
        parameters.apply(round_id, bodies[round_id])
    return list(checkpoints(folder).items())[-1]


@every_rule
def test_a_newcomer_goes_on_from_a_checkpoint_with_the_certified_digest(tmp_path, name):
    spec = a_run(name)
    digests, bodies = expected(spec), bodies_of(spec)
    round_id, path = a_checkpoint(spec, tmp_path / "theirs")
    assert round_id == 8

    ours = PublicState(spec, tmp_path / "ours", KEEP)
    ours.restore(round_id, path, digests[8])
    again = PublicState(spec, tmp_path / "ours", KEEP)  # after a restart
    for parameters in (ours, again):
        assert (parameters.round, parameters.digest()) == (8, digests[8])
        for at in range(8, ROUNDS):
            assert parameters.apply(at, bodies[at]) == digests[at + 1]


@every_rule
def test_equal_states_make_equal_checkpoints_byte_for_byte(tmp_path, name):
    spec = a_run(name)
    _, one = a_checkpoint(spec, tmp_path / "one")
    _, two = a_checkpoint(spec, tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()
    rest = spec.rule.apply_lag * len(max(bodies_of(spec), key=len))
    assert one.stat().st_size <= snapshot_bytes_max(spec) + rest


@pytest.mark.parametrize("name", ["late", "adaptive"])
def test_a_false_snapshot_is_refused_and_changes_nothing(tmp_path, name):
    spec = a_run(name)
    digests = expected(spec)
    round_id, path = a_checkpoint(spec, tmp_path / "theirs")
    arrays = load_file(path)
    theta, last = arrays["theta"], list(arrays)[-1]
    forged = {
        "no file": b"",
        "pickle": b"\x80\x04]",
        "length": (1 << 62).to_bytes(8, "little") + b"{}",
        "flip": save({**arrays, "theta": -theta}),
        "shape": save({**arrays, "theta": theta[:-1]}),
        "dtype": save({**arrays, "theta": theta.astype(np.float64)}),
        "missing": save({k: one for k, one in arrays.items() if k != "theta"}),
        "extra": save({**arrays, "other": theta}),
        "more": save({**arrays, "pending9": np.zeros(1, np.uint8)}),
        "swapped": save({**arrays, last: arrays[last][::-1].copy()}),
    }
    ours = PublicState(spec, tmp_path / "ours", KEEP)
    for what, body in forged.items():
        bad = tmp_path / "bad"
        bad.write_bytes(body)
        with pytest.raises(Diverged):
            ours.restore(round_id, bad, digests[8])
        assert (ours.round, ours.digest()) == (0, digests[0]), what
    ours.restore(round_id, path, digests[8])
    with pytest.raises(Diverged, match="at round 8"):
        ours.restore(round_id, path, digests[8])


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "F4"])
def test_a_snapshot_of_numbers_that_numpy_has_no_type_for_is_refused(tmp_path, kind):
    """Anybody's file: an error of the library would end the worker that reads it."""
    size = 4 * LAYOUT.parameters
    count = {"BF16": size // 2, "F8_E4M3": size, "F4": 2 * size}[kind]
    head = json.dumps({"theta": {"dtype": kind, "shape": [count], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "snapshot.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(size))

    with pytest.raises(Diverged, match="no checkpoint"):
        read_checkpoint(a_spec(), path)


def test_checkpoints_are_of_rounds_whose_commits_carry_the_digest(tmp_path):
    spec = replace(a_run("demo"), state_every=3)
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(9):
        parameters.apply(round_id, bodies[round_id])
    assert list(checkpoints(tmp_path)) == [6]


def test_a_round_out_of_order_is_refused_and_changes_nothing(tmp_path):
    spec = a_run("nesterov")
    parameters = PublicState(spec, tmp_path, KEEP)
    before = parameters.digest()

    with pytest.raises(Diverged, match="round 1 arrived at round 0"):
        parameters.apply(1, bodies_of(spec)[1])
    assert parameters.digest() == before
